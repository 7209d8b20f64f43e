#include "tessera/server/choice_text.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tessera::server {

base::Result<ChoiceText> ChoiceText::create(const text::Tokenizer& tokenizer, const std::vector<text::Tool>& tools,
                                            ChoiceTextOptions options) {
  TESSERA_ASSIGN_OR_RETURN(text::StopStringMatcher matcher, text::StopStringMatcher::create(options.stop));
  // Markers reach the parser as text, also those that the tokenizer calls special.
  std::vector<text::TokenId> kept;
  for (const std::string_view marker : text::marker_spellings(options.syntax)) {
    if (const std::optional<text::TokenId> id = tokenizer.token_id(marker)) kept.push_back(*id);
  }
  text::OutputParser parser(options.syntax, tools);
  return ChoiceText(text::IncrementalDetokenizer(tokenizer, text::SpecialTokens::kSkip, std::move(kept)),
                    std::move(matcher), std::move(parser), std::move(options));
}

ChoiceDelta ChoiceText::push(const request::TokenEvent& event) {
  ChoiceDelta delta;
  if (stopped()) return delta;
  ++tokens_;
  if (options_.logprobs) delta.logprobs.push_back({event.token, event.logprob, event.top_logprobs, text_bytes_});
  if (std::ranges::find(options_.stop_token_ids, event.token) != options_.stop_token_ids.end()) return delta;
  const std::string text = detokenizer_.push(event.token);
  text_bytes_ += static_cast<std::int64_t>(text.size());
  parser_.push(stop_.push(text), delta.output);
  return delta;
}

ChoiceDelta ChoiceText::finish() {
  ChoiceDelta delta;
  if (!stopped()) {
    std::string rest = stop_.push(detokenizer_.flush());
    rest += stop_.flush();
    parser_.push(rest, delta.output);
  }
  parser_.finish(delta.output);
  return delta;
}

}  // namespace tessera::server
