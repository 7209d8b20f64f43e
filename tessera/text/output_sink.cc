#include "tessera/text/output_sink.h"

#include <algorithm>

#include "tessera/base/limits.h"

namespace tessera::text {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_white(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_white(text.back())) text.remove_suffix(1);
  return text;
}

void TrimmedText::write(std::string_view text, std::string& out) {
  if (!begun_ && leading_ != Leading::kKeep && held_.empty()) {
    const auto dropped = [this](char byte) {
      return leading_ == Leading::kDropWhite ? is_white(byte) : byte == '\n' || byte == '\r';
    };
    while (!text.empty() && dropped(text.front())) text.remove_prefix(1);
  }
  std::size_t end = text.size();
  while (end > 0 && is_white(text[end - 1])) --end;
  if (end > 0) {
    out += held_;
    out += text.substr(0, end);
    held_.clear();
    begun_ = true;
  }
  held_ += text.substr(end);
}

void TrimmedText::interrupt() {
  if (begun_) return;
  held_.clear();
  if (leading_ == Leading::kKeep) leading_ = Leading::kDropNewlines;
}

OutputSink::OutputSink(OutputSyntax syntax, const std::vector<Tool>& tools)
    : tools_(&tools),
      reasoning_(TrimmedText::Leading::kDropWhite),
      content_(syntax.reasoning == ReasoningSyntax::kNone ? TrimmedText::Leading::kKeep
                                                          : TrimmedText::Leading::kDropNewlines),
      in_reasoning_(syntax.reasoning == ReasoningSyntax::kInside) {}

void OutputSink::text(std::string_view text) {
  if (in_reasoning_) {
    reasoning_.write(text, out_->reasoning);
  } else {
    content_.write(text, out_->content);
  }
}

void OutputSink::begin_reasoning() {
  if (in_reasoning_) return;
  in_reasoning_ = true;
  content_.interrupt();
}

const Tool* OutputSink::find(std::string_view name) const {
  const auto found = std::ranges::find_if(*tools_, [&](const Tool& tool) { return tool.name() == name; });
  return found == tools_->end() ? nullptr : &*found;
}

bool OutputSink::accepts(std::string_view name) const {
  const bool within_limits =
      std::ssize(name) <= base::limits::kToolNameBytesMax && begun_ < base::limits::kToolCallsMax;
  constexpr std::string_view kNeverInNames = "<>\"{}\x7f";
  const bool readable = !name.empty() && std::ranges::none_of(name, [&](char byte) {
    return static_cast<unsigned char>(byte) <= ' ' || kNeverInNames.contains(byte);
  });
  return within_limits && readable && (!in_reasoning_ || find(name) != nullptr);
}

void OutputSink::begin_call(std::string_view id, std::string_view name) {
  in_reasoning_ = false;
  content_.interrupt();
  out_->tool_calls.push_back({.index = begun_++, .id = std::string(id), .name = std::string(name), .arguments = {}});
}

void OutputSink::arguments(std::string_view text) {
  if (text.empty()) return;
  const std::int32_t index = begun_ - 1;
  if (out_->tool_calls.empty() || out_->tool_calls.back().index != index) {
    out_->tool_calls.push_back({.index = index, .id = {}, .name = {}, .arguments = {}});
  }
  out_->tool_calls.back().arguments += text;
}

const boost::json::object* OutputSink::parameters(std::string_view name) const {
  const Tool* tool = find(name);
  return tool == nullptr ? nullptr : tool->parameters();
}

void OutputSink::finish() {
  if (begun_ == 0) out_->content += content_.held();
}

}  // namespace tessera::text
