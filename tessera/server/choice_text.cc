#include "tessera/server/choice_text.h"

#include <algorithm>
#include <utility>

namespace tessera::server {

base::Result<ChoiceText> ChoiceText::create(const text::Tokenizer& tokenizer, const std::vector<std::string>& stop,
                                            std::vector<std::int32_t> stop_token_ids, bool logprobs) {
  TESSERA_ASSIGN_OR_RETURN(text::StopStringMatcher matcher, text::StopStringMatcher::create(stop));
  return ChoiceText(tokenizer, std::move(matcher), std::move(stop_token_ids), logprobs);
}

TextDelta ChoiceText::push(const request::TokenEvent& event) {
  TextDelta delta;
  if (stopped()) return delta;
  ++tokens_;
  if (logprobs_) delta.logprobs.push_back({event.token, event.logprob, event.top_logprobs, text_bytes_});
  if (std::ranges::find(stop_token_ids_, event.token) != stop_token_ids_.end()) return delta;
  const std::string text = detokenizer_.push(event.token);
  text_bytes_ += static_cast<std::int64_t>(text.size());
  delta.text = stop_.push(text);
  return delta;
}

TextDelta ChoiceText::finish() {
  TextDelta delta;
  if (stopped()) return delta;
  delta.text = stop_.push(detokenizer_.flush());
  delta.text += stop_.flush();
  return delta;
}

}  // namespace tessera::server
