// Anything that a model could write, in any family's syntax: the same comes out for every way of cutting it, and no
// marker as content or reasoning.
//
// The first byte chooses the syntax, the second one the cuts, the third one the ending, whether the vocabulary has
// markers of reasoning, and which markers come as tokens; the rest is the text.
#include <algorithm>
#include <boost/json/parse.hpp>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/text/output_parser.h"
#include "tessera/text/utf8.h"

namespace {

using namespace tessera::text;

struct Call {
  std::string id;
  std::string name;
  std::string arguments;
  friend bool operator==(const Call&, const Call&) = default;
};

struct Parsed {
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  std::int32_t complete = 0;
  friend bool operator==(const Parsed&, const Parsed&) = default;
};

const std::vector<Tool>& some_tools() {
  static const std::vector<Tool> kTools{
      {.declaration =
           boost::json::parse(R"({"type": "function", "function": {"name": "f", "parameters": {"properties": {
         "s": {"type": "string"}, "n": {"type": "number"}, "a": {"type": ["array", "string"]},
         "r": {"$ref": "#/$defs/r"}}, "$defs": {"r": {"anyOf": [{"$ref": "#/$defs/r"}, {"type": "null"}]}}}}})")
               .get_object()}};
  return kTools;
}

void add(const OutputDelta& delta, Parsed& parsed) {
  parsed.reasoning += delta.reasoning;
  parsed.content += delta.content;
  TESSERA_CHECK(is_valid_utf8(delta.reasoning) && is_valid_utf8(delta.content));
  for (const ToolCallDelta& call : delta.tool_calls) {
    const auto index = static_cast<std::size_t>(call.index);
    TESSERA_CHECK(is_valid_utf8(call.id) && is_valid_utf8(call.name) && is_valid_utf8(call.arguments));
    if (index == parsed.calls.size()) {
      TESSERA_CHECK(!call.name.empty());
      parsed.calls.push_back({.id = call.id, .name = call.name, .arguments = {}});
    }
    TESSERA_CHECK(index + 1 == parsed.calls.size());
    parsed.calls.back().arguments += call.arguments;
  }
}

ReasoningMarkers reasoning_markers(std::uint8_t reading) {
  return (reading & 1) != 0 ? ReasoningMarkers::kTokens : ReasoningMarkers::kSpelled;
}

// In pieces that end where `cut` says so, between characters.
template <typename Cut>
Parsed parse(OutputSyntax syntax, const std::vector<Tool>& tools, std::string_view text, std::uint8_t reading,
             Cut cut) {
  OutputParser parser(syntax, tools, reasoning_markers(reading));
  const std::vector<std::string_view> markers = marker_spellings(syntax);
  Parsed parsed;
  const auto push = [&](std::string_view piece) {
    OutputDelta delta;
    parser.push(piece, delta);
    add(delta, parsed);
  };
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto marker =
        std::ranges::find_if(markers, [&](std::string_view one) { return text.substr(i).starts_with(one); });
    // Six bits say which of them are tokens, by where they stand.
    if (marker != markers.end() && ((reading >> (2 + i % 6)) & 1) != 0) {
      push(text.substr(begin, i - begin));
      OutputDelta delta;
      parser.push_marker(*marker, delta);
      add(delta, parsed);
      begin = i += marker->size();
      continue;
    }
    if (i > begin && (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 && cut()) {
      push(text.substr(begin, i - begin));
      begin = i;
    }
    ++i;
  }
  push(text.substr(begin));
  OutputDelta rest;
  parser.finish(rest, (reading & 2) != 0 ? Ending::kByItself : Ending::kCut);
  add(rest, parsed);
  parsed.complete = parser.complete_calls();
  return parsed;
}

// A piece of a marker right before a marker: where the second one is left out, the pieces around it can make up one
// more. White space can be left out as well.
bool has_pieces_around_a_marker(std::string_view text, const std::vector<std::string_view>& markers) {
  std::string dense(text);
  std::erase_if(dense, [](char byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; });
  for (std::size_t i = dense.find('<'); i != std::string::npos; i = dense.find('<', i + 1)) {
    const std::string_view here = std::string_view(dense).substr(i);
    const bool marker = std::ranges::any_of(markers, [&](std::string_view one) { return here.starts_with(one); });
    if (!marker) continue;
    const std::string_view before = std::string_view(dense).substr(0, i);
    for (const std::string_view one : markers) {
      for (std::size_t length = 1; length < one.size(); ++length) {
        if (before.ends_with(one.substr(0, length))) return true;
      }
    }
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const OutputSyntax syntax{.reasoning = static_cast<ReasoningSyntax>(data[0] % 3),
                            .tool_calls = static_cast<ToolCallSyntax>(data[0] / 3 % 4)};
  static const std::vector<Tool> no_tools;
  const std::vector<Tool>& tools = data[0] / 12 % 4 == 0 ? no_tools : some_tools();
  std::string text;
  Utf8Assembler assembler;
  assembler.push({reinterpret_cast<const char*>(data) + 3, size - 3}, text);
  assembler.flush(text);

  const std::uint8_t reading = data[2];
  const Parsed whole = parse(syntax, tools, text, reading, [] { return false; });
  TESSERA_CHECK(parse(syntax, tools, text, reading, [] { return true; }) == whole);
  std::mt19937 random(data[1]);
  TESSERA_CHECK(parse(syntax, tools, text, reading, [&] { return random() % 8 == 0; }) == whole);

  TESSERA_CHECK(whole.complete >= 0 && static_cast<std::size_t>(whole.complete) <= whole.calls.size());
  TESSERA_CHECK(whole.calls.empty() || (!tools.empty() && syntax.tool_calls != ToolCallSyntax::kNone));
  if (syntax.reasoning == ReasoningSyntax::kNone && syntax.tool_calls == ToolCallSyntax::kNone) {
    TESSERA_CHECK(whole.content == text && whole.reasoning.empty());
  }
  const std::vector<std::string_view> markers = marker_spellings(syntax);
  if (!has_pieces_around_a_marker(text, markers)) {
    for (const std::string_view marker : markers) {
      // Spelled ones may be text.
      if (reasoning_markers(reading) == ReasoningMarkers::kTokens && marker.ends_with("think>")) continue;
      TESSERA_CHECK(!whole.content.contains(marker) && !whole.reasoning.contains(marker));
    }
  }
  return 0;
}
