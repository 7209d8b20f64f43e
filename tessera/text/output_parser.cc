#include "tessera/text/output_parser.h"

#include "tessera/base/check.h"
#include "tessera/text/output_markers.h"
#include "tessera/text/output_sink.h"
#include "tessera/text/tool_calls.h"

namespace tessera::text {
namespace {

std::unique_ptr<ToolCallParser> make_calls(ToolCallSyntax syntax) {
  switch (syntax) {
    case ToolCallSyntax::kNone:
      return nullptr;
    case ToolCallSyntax::kKimi:
      return make_kimi_calls();
    case ToolCallSyntax::kGlm:
      return make_glm_calls();
    case ToolCallSyntax::kHermes:
      return make_hermes_calls();
  }
  return nullptr;
}

}  // namespace

struct OutputParser::State {
  State(OutputSyntax syntax, const std::vector<Tool>& tools, ReasoningMarkers markers)
      : scanner(syntax),
        sink(syntax, tools),
        calls(tools.empty() ? nullptr : make_calls(syntax.tool_calls)),
        reasoning_markers(markers) {}

  // One piece, in a call or between calls.
  void take(const MarkerScanner::Piece& piece) {
    if (!is_marker(piece)) {
      take_text(piece.text);
      if (!trimmed(piece.text).empty()) at_beginning = false;
      return;
    }
    at_beginning = false;
    if (in_call) {
      const ToolCallParser::Step step = calls->marker(*piece.marker, sink);
      in_call = step == ToolCallParser::Step::kMore;
      if (step != ToolCallParser::Step::kAgain) return;
    }
    take_marker(piece);
  }

  // Whether a spelled marker of reasoning is one.
  bool is_marker(const MarkerScanner::Piece& piece) const {
    if (piece.marker == nullptr) return false;
    if (piece.is_token || reasoning_markers == ReasoningMarkers::kSpelled) return true;
    if (piece.marker->marker == Marker::kThink) return at_beginning;
    return piece.marker->marker != Marker::kThinkEnd || opened_by_spelling;
  }

  void take_text(std::string_view text) {
    if (in_call && calls->text(text, sink) != ToolCallParser::Step::kMore) in_call = false;
    if (!in_call && !text.empty()) sink.text(text);
  }

  // A marker outside of calls. One that means nothing there is left out.
  void take_marker(const MarkerScanner::Piece& piece) {
    switch (piece.marker->marker) {
      case Marker::kThink:
        sink.begin_reasoning();
        opened_by_spelling = !piece.is_token;
        break;
      case Marker::kThinkEnd:
        sink.end_reasoning();
        opened_by_spelling = false;
        break;
      case Marker::kSectionBegin:
        if (calls != nullptr) sink.end_reasoning();
        break;
      case Marker::kCallBegin:
        in_call = calls != nullptr;
        if (in_call) calls->open();
        break;
      default:
        break;
    }
  }

  MarkerScanner scanner;
  OutputSink sink;
  std::unique_ptr<ToolCallParser> calls;  // None: nothing is a call.
  ReasoningMarkers reasoning_markers;
  bool at_beginning = true;  // Nothing but white space came.
  bool opened_by_spelling = false;
  bool in_call = false;
  bool finished = false;
};

OutputParser::OutputParser(OutputSyntax syntax, const std::vector<Tool>& tools, ReasoningMarkers markers)
    : state_(std::make_unique<State>(syntax, tools, markers)) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

void OutputParser::push(std::string_view text, OutputDelta& out) {
  TESSERA_CHECK(!state_->finished, "text after the end");
  state_->sink.write_to(out);
  MarkerScanner::Piece piece;
  while (state_->scanner.next(text, piece)) state_->take(piece);
}

void OutputParser::push_marker(std::string_view spelling, OutputDelta& out) {
  const MarkerSpelling* marker = state_->scanner.find(spelling);
  if (marker == nullptr) return push(spelling, out);
  TESSERA_CHECK(!state_->finished, "a marker after the end");
  state_->sink.write_to(out);
  // No spelling has another one's beginning within it: what was held back is none.
  const std::string_view held = state_->scanner.take_held();
  if (!held.empty()) state_->take({.marker = nullptr, .text = held});
  state_->take({.marker = marker, .text = marker->text, .is_token = true});
}

void OutputParser::finish(OutputDelta& out, Ending ending) {
  if (state_->finished) return;
  state_->finished = true;
  state_->sink.write_to(out);
  // In a call, the beginning of a marker is that: the arguments stay what they are.
  const std::string_view held = state_->scanner.take_held();
  if (!state_->in_call) {
    if (!held.empty()) state_->sink.text(held);
  } else {
    // And a marker that began was to say more.
    state_->calls->finish(state_->sink, held.empty() ? ending : Ending::kCut);
  }
  state_->sink.finish();
}

std::int32_t OutputParser::complete_calls() const { return state_->sink.complete_calls(); }

std::vector<std::string_view> marker_spellings(OutputSyntax syntax) {
  std::vector<std::string_view> spellings;
  for (const auto markers : {tool_call_markers(syntax.tool_calls), reasoning_markers(syntax.reasoning)}) {
    for (const MarkerSpelling& marker : markers) spellings.push_back(marker.text);
  }
  return spellings;
}

}  // namespace tessera::text
