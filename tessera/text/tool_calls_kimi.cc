// Kimi: <|tool_call_begin|>functions.NAME:IDX<|tool_call_argument_begin|>JSON<|tool_call_end|>.
#include <algorithm>
#include <utility>

#include "tessera/text/tool_calls.h"

namespace tessera::text {
namespace {

// What is between the prefix and the number, of which either may be missing; names may have dots and colons.
std::string_view name_of(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  if (id.starts_with(kPrefix)) id.remove_prefix(kPrefix.size());
  const std::size_t colon = id.rfind(':');
  if (colon == std::string_view::npos) return id;
  const std::string_view number = id.substr(colon + 1);
  const bool digits = std::ranges::all_of(number, [](char byte) { return byte >= '0' && byte <= '9'; });
  return digits ? id.substr(0, colon) : id;
}

class KimiCalls final : public ToolCallParser {
 public:
  void open() override {
    header_ = {};
    in_arguments_ = false;
    arguments_ = TrimmedText(TrimmedText::Leading::kDropWhite);
    nesting_ = {};
    after_json_ = false;
  }

  Step text(std::string_view& text, OutputSink& sink) override {
    const std::string_view taken = std::exchange(text, {});
    if (!in_arguments_) {
      if (header_.append(taken)) return Step::kMore;
      sink.text(header_.raw());
      return Step::kEnded;
    }
    std::string certain;
    arguments_.write(taken, certain);
    // Text after it is passed on too, but the whole then is not JSON.
    if (nesting_.scan(certain) < certain.size()) after_json_ = true;
    sink.arguments(certain);
    return Step::kMore;
  }

  Step marker(const MarkerSpelling& marker, OutputSink& sink) override {
    if (!in_arguments_) {
      const std::string_view id = header_.value();
      if (marker.marker == Marker::kArgumentBegin && sink.accepts(name_of(id))) {
        sink.begin_call(id, name_of(id));
        in_arguments_ = true;
        return Step::kMore;
      }
      sink.text(header_.raw());
      return Step::kAgain;
    }
    switch (marker.marker) {
      case Marker::kCallEnd:
        if (!arguments_.begun()) sink.arguments("{}");
        sink.complete_call();
        return Step::kEnded;
      case Marker::kArgumentBegin:
        return Step::kMore;
      case Marker::kSectionEnd:
      case Marker::kSectionBegin:
      case Marker::kCallBegin:  // The call's own end was left out.
        if (!arguments_.begun()) sink.arguments("{}");
        if (!arguments_.begun() || has_whole_json()) sink.complete_call();
        return Step::kAgain;
      default: {  // <think> and </think>: the model's data.
        std::string_view spelled = marker.text;
        return text(spelled, sink);
      }
    }
  }

  void finish(OutputSink& sink, Ending ending) override {
    const bool by_itself = ending == Ending::kByItself;
    if (!in_arguments_) {
      const std::string_view id = header_.value();
      if (!by_itself || !sink.accepts_declared(name_of(id))) return;
      sink.begin_call(id, name_of(id));
    }
    if (!arguments_.begun() && by_itself) {
      sink.arguments("{}");
      sink.complete_call();
    } else if (has_whole_json()) {
      sink.complete_call();
    }
  }

 private:
  bool has_whole_json() const { return nesting_.complete() && !after_json_; }

  CallHeader header_;
  bool in_arguments_ = false;
  TrimmedText arguments_{TrimmedText::Leading::kDropWhite};
  JsonNesting nesting_;
  bool after_json_ = false;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_kimi_calls() { return std::make_unique<KimiCalls>(); }

}  // namespace tessera::text
