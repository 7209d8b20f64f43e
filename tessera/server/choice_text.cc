#include "tessera/server/choice_text.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace tessera::server {

base::Result<ChoiceText> ChoiceText::create(const text::Tokenizer& tokenizer, const std::vector<text::Tool>& tools,
                                            ChoiceTextOptions options) {
  TESSERA_ASSIGN_OR_RETURN(text::StopStringMatcher matcher, text::StopStringMatcher::create(options.stop));
  // Markers reach the parser as text, also those that the tokenizer calls special.
  std::vector<text::TokenId> kept;
  std::vector<MarkerToken> markers;
  for (const std::string_view spelling : text::marker_spellings(options.syntax)) {
    const std::optional<text::TokenId> id = tokenizer.token_id(spelling);
    if (!id.has_value()) continue;
    kept.push_back(*id);
    markers.push_back({*id, spelling});
  }
  const std::vector<std::string_view> reasoning =
      text::marker_spellings({options.syntax.reasoning, text::ToolCallSyntax::kNone});
  const bool has_tokens = std::ranges::all_of(
      reasoning, [&](std::string_view spelling) { return tokenizer.token_id(spelling).has_value(); });
  text::OutputParser parser(options.syntax, tools,
                            has_tokens ? text::ReasoningMarkers::kTokens : text::ReasoningMarkers::kSpelled);
  return ChoiceText(text::IncrementalDetokenizer(tokenizer, text::SpecialTokens::kSkip, std::move(kept)),
                    std::move(matcher), std::move(parser), std::move(markers), std::move(options));
}

ChoiceDelta ChoiceText::push(const request::TokenEvent& event) {
  ChoiceDelta delta;
  if (stopped()) return delta;
  ++tokens_;
  if (options_.logprobs) {
    delta.logprobs.push_back({event.token, event.logprob, event.top_logprobs, options_.text_begin + text_bytes_});
  }
  if (std::ranges::find(options_.stop_token_ids, event.token) != options_.stop_token_ids.end()) return delta;
  const std::string text = detokenizer_.push(event.token);
  text_bytes_ += std::ssize(text);
  // Its text ends with the marker; before it is what an incomplete character was replaced by, if one had come.
  const auto marker = std::ranges::find(markers_, event.token, &MarkerToken::id);
  if (marker != markers_.end()) placed_.push_back({text_bytes_ - std::ssize(marker->spelling), marker->spelling});
  parse(stop_.push(text), delta.output);
  return delta;
}

void ChoiceText::parse(std::string_view text, text::OutputDelta& out) {
  while (!text.empty()) {
    const std::int64_t before = placed_.empty() ? std::ssize(text) : placed_.front().begin - parsed_bytes_;
    if (before > 0) {
      const std::string_view taken = text.substr(0, static_cast<std::size_t>(before));
      parser_.push(taken, out);
      parsed_bytes_ += std::ssize(taken);
      text.remove_prefix(taken.size());
      continue;
    }
    const std::string_view spelling = placed_.front().spelling;
    const std::string_view taken = text.substr(0, spelling.size() - marker_part_.size());
    marker_part_ += taken;
    parsed_bytes_ += std::ssize(taken);
    text.remove_prefix(taken.size());
    if (marker_part_.size() < spelling.size()) return;
    parser_.push_marker(spelling, out);
    placed_.pop_front();
    marker_part_.clear();
  }
}

ChoiceDelta ChoiceText::finish(text::Ending ending) {
  ChoiceDelta delta;
  if (!stopped()) {
    std::string rest = stop_.push(detokenizer_.flush());
    rest += stop_.flush();
    parse(rest, delta.output);
  }
  // A stop string can begin within a marker: what is before it is text.
  parser_.push(marker_part_, delta.output);
  parser_.finish(delta.output, stopped() ? text::Ending::kCut : ending);
  return delta;
}

}  // namespace tessera::server
