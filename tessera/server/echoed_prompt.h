// The prompt of a choice, as the answer gives it back with log-probabilities: what the engine says of its tokens in,
// text and entries out. The texts that push() and finish() return, put together, are Tokenizer::decode() of the prompt
// without special tokens.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/request/messages.h"
#include "tessera/server/choice_text.h"
#include "tessera/text/detokenizer.h"
#include "tessera/text/tokenizer.h"

namespace tessera::server {

// One thread at a time. The tokenizer and the prompt, which has at least one token, outlive it.
class EchoedPrompt {
 public:
  EchoedPrompt(const text::Tokenizer& tokenizer, std::span<const std::int32_t> prompt)
      : prompt_(prompt), detokenizer_(tokenizer, text::SpecialTokens::kSkip) {}

  // Events come in order and without gaps (router.h). The first token, which has no log-probability, goes before them.
  ChoiceDelta push(const request::PromptLogprobsEvent& event);
  // The end, once, when every event has come: what was held back, and the token of a prompt that has only one.
  ChoiceDelta finish();

 private:
  // The next token. Its entry is without the logprob.
  LogprobEntry& add(ChoiceDelta& delta);

  const std::span<const std::int32_t> prompt_;
  text::IncrementalDetokenizer detokenizer_;
  std::size_t next_ = 0;
  std::int64_t text_bytes_ = 0;
};

}  // namespace tessera::server
