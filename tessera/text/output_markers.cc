#include "tessera/text/output_markers.h"

#include <algorithm>
#include <array>

namespace tessera::text {
namespace {

constexpr auto kReasoning = std::to_array<MarkerSpelling>({
    {"<think>", Marker::kThink},
    {"</think>", Marker::kThinkEnd},
});
constexpr auto kKimi = std::to_array<MarkerSpelling>({
    {"<|tool_calls_section_begin|>", Marker::kSectionBegin},
    {"<|tool_call_section_begin|>", Marker::kSectionBegin},
    {"<|tool_calls_section_end|>", Marker::kSectionEnd},
    {"<|tool_call_section_end|>", Marker::kSectionEnd},
    {"<|tool_call_begin|>", Marker::kCallBegin},
    {"<|tool_call_argument_begin|>", Marker::kArgumentBegin},
    {"<|tool_call_end|>", Marker::kCallEnd},
});
constexpr auto kGlm = std::to_array<MarkerSpelling>({
    {"<tool_call>", Marker::kCallBegin},
    {"</tool_call>", Marker::kCallEnd},
    {"<arg_key>", Marker::kKeyBegin},
    {"</arg_key>", Marker::kKeyEnd},
    {"<arg_value>", Marker::kValueBegin},
    {"</arg_value>", Marker::kValueEnd},
});
constexpr auto kHermes = std::to_array<MarkerSpelling>({
    {"<tool_call>", Marker::kCallBegin},
    {"</tool_call>", Marker::kCallEnd},
});

// What MarkerScanner relies on.
constexpr bool one_bracket_each(std::span<const MarkerSpelling> spellings) {
  return std::ranges::all_of(spellings, [](const MarkerSpelling& spelling) {
    return spelling.text.find('<') == 0 && spelling.text.rfind('<') == 0 &&
           spelling.text.find('>') + 1 == spelling.text.size();
  });
}
static_assert(one_bracket_each(kReasoning) && one_bracket_each(kKimi) && one_bracket_each(kGlm) &&
              one_bracket_each(kHermes));

}  // namespace

std::span<const MarkerSpelling> tool_call_markers(ToolCallSyntax syntax) {
  switch (syntax) {
    case ToolCallSyntax::kNone:
      return {};
    case ToolCallSyntax::kKimi:
      return kKimi;
    case ToolCallSyntax::kGlm:
      return kGlm;
    case ToolCallSyntax::kHermes:
      return kHermes;
  }
  return {};
}

std::span<const MarkerSpelling> reasoning_markers(ReasoningSyntax syntax) {
  if (syntax == ReasoningSyntax::kNone) return {};
  return kReasoning;
}

MarkerScanner::MarkerScanner(OutputSyntax syntax)
    : tool_calls_(tool_call_markers(syntax.tool_calls)), reasoning_(reasoning_markers(syntax.reasoning)) {}

template <typename Use>
const MarkerSpelling* MarkerScanner::find_spelling(Use use) const {
  for (const std::span<const MarkerSpelling> spellings : {tool_calls_, reasoning_}) {
    const auto found = std::ranges::find_if(spellings, use);
    if (found != spellings.end()) return &*found;
  }
  return nullptr;
}

const MarkerSpelling* MarkerScanner::extended(char byte) const {
  const std::string_view held = candidate_->text.substr(0, matched_);
  return find_spelling([&](const MarkerSpelling& spelling) {
    return spelling.text.size() > matched_ && spelling.text[matched_] == byte && spelling.text.starts_with(held);
  });
}

const MarkerSpelling* MarkerScanner::find(std::string_view spelling) const {
  return find_spelling([&](const MarkerSpelling& one) { return one.text == spelling; });
}

bool MarkerScanner::next(std::string_view& text, Piece& piece) {
  while (!text.empty()) {
    if (matched_ == 0) {
      const MarkerSpelling* any = find_spelling([](const MarkerSpelling&) { return true; });
      const std::size_t plain = any == nullptr ? text.size() : std::min(text.find('<'), text.size());
      if (plain > 0) {
        piece = {.marker = nullptr, .text = text.substr(0, plain)};
        text.remove_prefix(plain);
        return true;
      }
      candidate_ = any;
      matched_ = 1;
      text.remove_prefix(1);
      continue;
    }
    const MarkerSpelling* longer = extended(text.front());
    if (longer == nullptr) {
      piece = {.marker = nullptr, .text = take_held()};
      return true;
    }
    candidate_ = longer;
    ++matched_;
    text.remove_prefix(1);
    if (matched_ == candidate_->text.size()) {
      piece = {.marker = candidate_, .text = candidate_->text};
      matched_ = 0;
      return true;
    }
  }
  return false;
}

std::string_view MarkerScanner::take_held() {
  const std::string_view held = matched_ == 0 ? std::string_view() : candidate_->text.substr(0, matched_);
  matched_ = 0;
  return held;
}

}  // namespace tessera::text
