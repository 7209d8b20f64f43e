#include "tessera/server/echoed_prompt.h"

#include <string>

#include "tessera/base/check.h"

namespace tessera::server {

LogprobEntry& EchoedPrompt::add(ChoiceDelta& delta) {
  LogprobEntry& entry = delta.logprobs.emplace_back();
  entry.token = prompt_[next_++];
  entry.text_offset = text_bytes_;
  const std::string text = detokenizer_.push(entry.token);
  text_bytes_ += std::ssize(text);
  delta.output.content += text;
  return entry;
}

ChoiceDelta EchoedPrompt::push(const request::PromptLogprobsEvent& event) {
  ChoiceDelta delta;
  if (next_ == 0) add(delta);
  TESSERA_CHECK(event.first == static_cast<std::int64_t>(next_) && next_ + event.logprobs.size() <= prompt_.size(),
                "log-probabilities of a prompt out of order");
  for (const request::PromptLogprob& one : event.logprobs) {
    LogprobEntry& entry = add(delta);
    entry.logprob = one.logprob;
    entry.top = one.top;
  }
  return delta;
}

ChoiceDelta EchoedPrompt::finish() {
  ChoiceDelta delta;
  if (next_ == 0) add(delta);
  delta.output.content += detokenizer_.flush();
  return delta;
}

}  // namespace tessera::server
