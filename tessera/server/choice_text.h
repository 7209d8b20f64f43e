// One choice of an answer: tokens in, text out. Detokenizes, looks for stop strings, keeps the log-probabilities beside
// the text. What comes out is the same for every way in which the stream of tokens is cut into deltas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/request/messages.h"
#include "tessera/text/detokenizer.h"
#include "tessera/text/stop_strings.h"
#include "tessera/text/tokenizer.h"

namespace tessera::server {

struct LogprobEntry {
  std::int32_t token = 0;
  float logprob = 0.0f;
  std::vector<request::TokenLogprob> top;
  std::int64_t text_offset = 0;  // Bytes of text before this token, counted from the choice's beginning.
};

struct TextDelta {
  std::string text;  // Whole characters; may be empty.
  std::vector<LogprobEntry> logprobs;
};

class ChoiceText {
 public:
  // Tokens in stop_token_ids give no text. `tokenizer` must outlive this.
  static base::Result<ChoiceText> create(const text::Tokenizer& tokenizer, const std::vector<std::string>& stop,
                                         std::vector<std::int32_t> stop_token_ids, bool logprobs);

  // After a stop string has matched nothing more comes out.
  TextDelta push(const request::TokenEvent& event);
  // The end of the sequence: what was held back.
  TextDelta finish();
  bool stopped() const { return stop_.matched().has_value(); }
  std::int32_t tokens() const { return tokens_; }

 private:
  ChoiceText(const text::Tokenizer& tokenizer, text::StopStringMatcher stop, std::vector<std::int32_t> stop_token_ids,
             bool logprobs)
      : detokenizer_(tokenizer),
        stop_(std::move(stop)),
        stop_token_ids_(std::move(stop_token_ids)),
        logprobs_(logprobs) {}
  text::IncrementalDetokenizer detokenizer_;
  text::StopStringMatcher stop_;
  std::vector<std::int32_t> stop_token_ids_;
  bool logprobs_;
  std::int32_t tokens_ = 0;
  std::int64_t text_bytes_ = 0;  // Detokenized so far, what is held back included.
};

}  // namespace tessera::server
