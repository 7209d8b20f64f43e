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
  State(OutputSyntax syntax, const std::vector<Tool>& tools)
      : scanner(syntax), sink(syntax, tools), calls(tools.empty() ? nullptr : make_calls(syntax.tool_calls)) {}

  // One piece, in a call or between calls.
  void take(const MarkerScanner::Piece& piece) {
    if (piece.marker == nullptr) {
      take_text(piece.text);
      return;
    }
    if (in_call) {
      const ToolCallParser::Step step = calls->marker(*piece.marker, sink);
      in_call = step == ToolCallParser::Step::kMore;
      if (step != ToolCallParser::Step::kAgain) return;
    }
    take_marker(piece.marker->marker);
  }

  void take_text(std::string_view text) {
    if (in_call && calls->text(text, sink) != ToolCallParser::Step::kMore) in_call = false;
    if (!in_call && !text.empty()) sink.text(text);
  }

  // A marker outside of calls. One that means nothing there is left out.
  void take_marker(Marker marker) {
    switch (marker) {
      case Marker::kThink:
        sink.begin_reasoning();
        break;
      case Marker::kThinkEnd:
        sink.end_reasoning();
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
  bool in_call = false;
  bool finished = false;
};

OutputParser::OutputParser(OutputSyntax syntax, const std::vector<Tool>& tools)
    : state_(std::make_unique<State>(syntax, tools)) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

void OutputParser::push(std::string_view text, OutputDelta& out) {
  TESSERA_CHECK(!state_->finished, "text after the end");
  state_->sink.write_to(out);
  MarkerScanner::Piece piece;
  while (state_->scanner.next(text, piece)) state_->take(piece);
}

void OutputParser::finish(OutputDelta& out) {
  if (state_->finished) return;
  state_->finished = true;
  state_->sink.write_to(out);
  // In a call, the beginning of a marker is that: the arguments stay what they are.
  const std::string_view held = state_->scanner.take_held();
  if (!state_->in_call) {
    if (!held.empty()) state_->sink.text(held);
  } else {
    state_->calls->finish(state_->sink);
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
