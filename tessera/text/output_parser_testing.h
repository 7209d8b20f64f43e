// For tests: a model's output put together from the deltas of a parser, for any way of cutting its text.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/text/output_parser.h"

namespace tessera::text {

struct ParsedOutput {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  std::int32_t complete = 0;
};

inline bool operator==(const ToolCall& a, const ToolCall& b) {
  return a.id == b.id && a.name == b.name && a.arguments == b.arguments;
}
inline bool operator==(const ParsedOutput& a, const ParsedOutput& b) {
  return a.reasoning == b.reasoning && a.content == b.content && a.calls == b.calls && a.complete == b.complete;
}
inline std::ostream& operator<<(std::ostream& out, const ParsedOutput& parsed) {
  out << "reasoning <<" << parsed.reasoning << ">> content <<" << parsed.content << ">> complete " << parsed.complete;
  for (const ToolCall& call : parsed.calls) {
    out << "\n  call <<" << call.id << ">> <<" << call.name << ">> <<" << call.arguments << ">>";
  }
  return out;
}

// Adds deltas up, and checks that they keep the rules of ToolCallDelta.
class OutputCollector {
 public:
  void add(const OutputDelta& delta) {
    parsed_.reasoning += delta.reasoning;
    parsed_.content += delta.content;
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (static_cast<std::size_t>(call.index) == parsed_.calls.size()) {
        EXPECT_FALSE(call.name.empty());
        parsed_.calls.push_back({.id = call.id, .name = call.name, .arguments = {}});
      } else {
        EXPECT_EQ(static_cast<std::size_t>(call.index) + 1, parsed_.calls.size()) << "an earlier call goes on";
        EXPECT_TRUE(call.id.empty() && call.name.empty()) << "only the first delta names the call";
      }
      if (!parsed_.calls.empty()) parsed_.calls.back().arguments += call.arguments;
    }
  }
  ParsedOutput finish(std::int32_t complete) {
    parsed_.complete = complete;
    return parsed_;
  }

 private:
  ParsedOutput parsed_;
};

// What reaches a parser besides the text.
struct Reading {
  ReasoningMarkers markers = ReasoningMarkers::kSpelled;
  Ending ending = Ending::kCut;
  std::vector<std::size_t> tokens = {};  // Where in the text a marker is a token, sorted.
};

// The text in pieces that end at `cuts`, which are sorted; tokens stay whole.
inline ParsedOutput parse_cut(OutputSyntax syntax, const std::vector<Tool>& tools, std::string_view text,
                              const std::vector<std::size_t>& cuts, const Reading& reading = {}) {
  const std::vector<std::string_view> markers = marker_spellings(syntax);
  OutputParser parser(syntax, tools, reading.markers);
  OutputCollector collector;
  auto cut = cuts.begin();
  auto token = reading.tokens.begin();
  for (std::size_t at = 0; at < text.size();) {
    while (cut != cuts.end() && *cut <= at) ++cut;
    OutputDelta delta;
    if (token != reading.tokens.end() && *token == at) {
      ++token;
      const auto marker =
          std::ranges::find_if(markers, [&](std::string_view one) { return text.substr(at).starts_with(one); });
      if (marker == markers.end()) {
        ADD_FAILURE() << "no marker at " << at << " of " << text;
        break;
      }
      parser.push_marker(*marker, delta);
      at += marker->size();
    } else {
      std::size_t end = cut == cuts.end() ? text.size() : *cut;
      if (token != reading.tokens.end()) end = std::min(end, *token);
      parser.push(text.substr(at, end - at), delta);
      at = end;
    }
    collector.add(delta);
  }
  OutputDelta rest;
  parser.finish(rest, reading.ending);
  collector.add(rest);
  return collector.finish(parser.complete_calls());
}

// Where whole characters end, with 0 and the size.
inline std::vector<std::size_t> character_ends(std::string_view text) {
  std::vector<std::size_t> ends{0};
  for (std::size_t i = 1; i <= text.size(); ++i) {
    if (i == text.size() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) ends.push_back(i);
  }
  return ends;
}

// Up to which size a text is cut at every point. Longer ones are cut at every point in and next to what is between
// angle brackets, where parsers go wrong, and at every 16th other one.
inline constexpr std::size_t kEverySplitBytesMax = 2048;

// Uncut, and the same in single characters, at some random places, and in two at every split point, as far as
// `every_split_bytes_max` says.
inline ParsedOutput parse_every_way(OutputSyntax syntax, const std::vector<Tool>& tools, std::string_view text,
                                    const Reading& reading = {},
                                    std::size_t every_split_bytes_max = kEverySplitBytesMax) {
  const ParsedOutput whole = parse_cut(syntax, tools, text, {}, reading);
  const std::vector<std::size_t> ends = character_ends(text);
  EXPECT_EQ(parse_cut(syntax, tools, text, ends, reading), whole) << "character by character: " << text;
  std::size_t bracket = 0;  // One more than where the last one is.
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::size_t end = ends[i];
    if (end > 0 && (text[end - 1] == '<' || text[end - 1] == '>')) bracket = end;
    const bool after_opening = bracket > 0 && text[bracket - 1] == '<' && end < bracket + 32;
    const bool near = after_opening || end <= bracket + 1 || (end < text.size() && text[end] == '<');
    if (text.size() > every_split_bytes_max && !near && i % 16 != 0) continue;
    const ParsedOutput parsed = parse_cut(syntax, tools, text, {end}, reading);
    EXPECT_EQ(parsed, whole) << "cut at byte " << end << ": " << text;
    if (!(parsed == whole)) break;
  }
  std::mt19937_64 random(text.size());
  for (int round = 0; round < 4; ++round) {
    std::vector<std::size_t> cuts;
    for (const std::size_t end : ends) {
      if (random() % 6 == 0) cuts.push_back(end);
    }
    EXPECT_EQ(parse_cut(syntax, tools, text, cuts, reading), whole) << "random cuts, round " << round << ": " << text;
  }
  return whole;
}

inline Tool make_tool(std::string_view name, std::string_view parameters) {
  boost::json::object function{{"name", name}, {"parameters", boost::json::parse(parameters)}};
  return {.declaration = {{"type", "function"}, {"function", std::move(function)}}};
}

// The families' syntaxes, and tools whose schemas say what GLM's arguments are.
inline constexpr OutputSyntax kKimi{ReasoningSyntax::kOutside, ToolCallSyntax::kKimi};
inline constexpr OutputSyntax kKimiThinking{ReasoningSyntax::kInside, ToolCallSyntax::kKimi};
inline constexpr OutputSyntax kGlm{ReasoningSyntax::kOutside, ToolCallSyntax::kGlm};
inline constexpr OutputSyntax kGlmThinking{ReasoningSyntax::kInside, ToolCallSyntax::kGlm};
inline constexpr OutputSyntax kKimiPlain{ReasoningSyntax::kNone, ToolCallSyntax::kKimi};
inline constexpr OutputSyntax kQwen25{ReasoningSyntax::kNone, ToolCallSyntax::kHermes};
inline constexpr OutputSyntax kQwen3{ReasoningSyntax::kOutside, ToolCallSyntax::kHermes};
inline constexpr OutputSyntax kQwen3Thinking{ReasoningSyntax::kInside, ToolCallSyntax::kHermes};
inline constexpr OutputSyntax kPlain{ReasoningSyntax::kNone, ToolCallSyntax::kNone};

inline const std::vector<Tool>& tools() {
  static const std::vector<Tool> kTools{
      make_tool("get_weather", R"({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "hours": {"type": "array"},
        "detail": {"type": "object"}, "metric": {"type": "boolean"}, "limit": {"type": ["number", "null"]},
        "zip": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "place": {"$ref": "#/$defs/place"},
        "size": {"enum": ["s", "m", 3]}, "anything": {}, "loop": {"$ref": "#/$defs/loop"},
        "both": {"allOf": [{"type": ["string", "number"]}, {"type": ["number", "object"]}]}},
        "$defs": {"place": {"oneOf": [{"type": "object"}, {"type": "string"}]}, "loop": {"$ref": "#/$defs/loop"}}})"),
      make_tool("get_time", R"({"type": "object", "properties": {}})"),
      make_tool("get.weather-x", R"({"type": "object", "properties": {}})"),
  };
  return kTools;
}

inline ParsedOutput parse(OutputSyntax syntax, std::string_view text, const Reading& reading = {}) {
  return parse_every_way(syntax, tools(), text, reading);
}
// Of a model that ended by itself.
inline ParsedOutput parse_whole(OutputSyntax syntax, std::string_view text) {
  return parse(syntax, text, {.ending = Ending::kByItself});
}
// Of a family that has its markers of reasoning as tokens: [ and ] stand around them here, [<think>].
inline ParsedOutput parse_tokens(OutputSyntax syntax, std::string_view text) {
  Reading reading{.markers = ReasoningMarkers::kTokens};
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with("[<")) {
      reading.tokens.push_back(plain.size());
    } else if (text[i] != ']' || !plain.ends_with('>')) {
      plain += text[i];
    }
  }
  return parse(syntax, plain, reading);
}

inline ParsedOutput content(std::string text) { return {.reasoning = {}, .content = std::move(text), .calls = {}}; }
// GLM's and Hermes's calls have no ids.
inline ParsedOutput one_call(std::string name, std::string arguments) {
  return {.reasoning = {},
          .content = {},
          .calls = {{.id = {}, .name = std::move(name), .arguments = std::move(arguments)}},
          .complete = 1};
}

}  // namespace tessera::text
