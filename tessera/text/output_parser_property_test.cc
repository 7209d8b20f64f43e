// Random messages, written as each family writes them by a writer that knows nothing of the parser, and read back.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/text/output_parser_testing.h"
#include "tests/support/sanitized.h"

namespace tessera::text {
namespace {

namespace json = boost::json;

enum class Family : std::uint8_t { kKimi, kKimiThinking, kKimiPlain, kGlm45, kGlm47, kQwen25, kQwen3, kQwen3Thinking };

constexpr Family kFamilies[] = {Family::kKimi,  Family::kKimiThinking, Family::kKimiPlain, Family::kGlm45,
                                Family::kGlm47, Family::kQwen25,       Family::kQwen3,     Family::kQwen3Thinking};

bool is_kimi(Family family) {
  return family == Family::kKimi || family == Family::kKimiThinking || family == Family::kKimiPlain;
}
bool is_glm(Family family) { return family == Family::kGlm45 || family == Family::kGlm47; }
bool reasons(Family family) { return family != Family::kQwen25 && family != Family::kKimiPlain; }

// Which of the template's markers come as tokens.
enum class Tokens : std::uint8_t { kNone, kReasoning, kAll };

OutputSyntax syntax_of(Family family) {
  switch (family) {
    case Family::kKimi:
      return kKimi;
    case Family::kKimiThinking:
      return kKimiThinking;
    case Family::kGlm45:
      return kGlm;
    case Family::kGlm47:
      return kGlmThinking;
    case Family::kQwen25:
      return kQwen25;
    case Family::kQwen3:
      return kQwen3;
    case Family::kKimiPlain:
      return kKimiPlain;
    case Family::kQwen3Thinking:
      return kQwen3Thinking;
  }
  return kPlain;
}

struct RandomCall {
  std::string name;
  json::object arguments;
};

struct Message {
  std::string reasoning;
  std::string content;
  std::vector<RandomCall> calls;
};

constexpr std::string_view kMarkers[] = {"<think>",
                                         "</think>",
                                         "<tool_call>",
                                         "</tool_call>",
                                         "<arg_key>",
                                         "</arg_key>",
                                         "<arg_value>",
                                         "</arg_value>",
                                         "<|tool_calls_section_begin|>",
                                         "<|tool_call_section_end|>",
                                         "<|tool_call_begin|>",
                                         "<|tool_call_argument_begin|>",
                                         "<|tool_call_end|>",
                                         "<|tool_calls_section_end|>"};

class Writer {
 public:
  Writer(Family family, Tokens tokens, std::uint64_t seed) : family_(family), tokens_(tokens), random_(seed) {}

  Message message() {
    Message message;
    const bool reasoned = reasons(family_) && (family_ != Family::kKimi || below(2) == 0);
    if (reasoned && below(4) > 0) message.reasoning = text_without(markers_of_family());
    if (below(4) > 0) message.content = text_without(markers_of_family());
    for (std::size_t calls = below(4); calls > 0; --calls) {
      RandomCall call{.name = name(), .arguments = {}};
      for (std::size_t arguments = below(4); arguments > 0; --arguments) {
        call.arguments[text_without(all_markers()) + "k"] = value(0);
      }
      message.calls.push_back(std::move(call));
    }
    return message;
  }

  // As the family's template writes an answer.
  std::string write(const Message& message) {
    std::string out;
    const std::string& reasoning = message.reasoning;
    reading_ = {.markers = tokens_ == Tokens::kNone ? ReasoningMarkers::kSpelled : ReasoningMarkers::kTokens};
    switch (family_) {
      case Family::kKimi:
        if (reasoning.empty()) break;
        mark("<think>", out);
        out += reasoning;
        mark("</think>", out);
        break;
      case Family::kKimiThinking:
      case Family::kGlm47:
      case Family::kQwen3Thinking:
        out += reasoning;
        mark("</think>", out);
        break;
      case Family::kGlm45:
        out += "\n";
        mark("<think>", out);
        out += reasoning;
        mark("</think>", out);
        if (!message.content.empty()) out += "\n";
        break;
      case Family::kQwen3:
        mark("<think>", out);
        out += "\n" + reasoning + "\n";
        mark("</think>", out);
        out += "\n\n";
        break;
      case Family::kQwen25:
      case Family::kKimiPlain:
        break;
    }
    out += message.content;
    const bool section = is_kimi(family_) && !message.calls.empty();
    if (section) mark("<|tool_calls_section_begin|>", out);
    for (std::size_t i = 0; i < message.calls.size(); ++i) write_call(message.calls[i], i, out);
    if (section) mark("<|tool_calls_section_end|>", out);
    return out;
  }

  // Of what was written last.
  const Reading& reading() const { return reading_; }

  std::vector<Tool> tools_for(const Message& message) {
    std::vector<Tool> tools{make_tool("unused", "{}")};
    for (const RandomCall& call : message.calls) {
      json::object properties;
      for (const auto& [key, value] : call.arguments) {
        // Without a type, everything but strings is recognized.
        if (value.is_string() || below(2) == 0) properties[key] = {{"type", type_name(value)}};
      }
      tools.push_back(make_tool(call.name, json::serialize(json::object{{"properties", properties}})));
    }
    return tools;
  }

 private:
  // One of the template's own.
  void mark(std::string_view marker, std::string& out) {
    const bool token = tokens_ == Tokens::kAll || (tokens_ == Tokens::kReasoning && marker.ends_with("think>"));
    if (token) reading_.tokens.push_back(out.size());
    out += marker;
  }

  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }

  static std::vector<std::string_view> all_markers() { return {std::begin(kMarkers), std::end(kMarkers)}; }
  std::vector<std::string_view> markers_of_family() const {
    std::vector<std::string_view> markers = all_markers();
    const auto keep = [&](std::string_view marker) {
      const bool reasoning = marker.ends_with("think>");
      const bool kimi = marker.starts_with("<|");
      if (reasoning) return reasons(family_) && tokens_ == Tokens::kNone;
      if (is_kimi(family_)) return kimi;
      return !kimi && (is_glm(family_) || marker.ends_with("tool_call>"));
    };
    std::erase_if(markers, [&](std::string_view marker) { return !keep(marker); });
    return markers;
  }

  // Words, white space, other scripts, JSON's characters, markers and pieces of them.
  std::string any_text() {
    static constexpr std::string_view kParts[] = {
        " ",    "\n", "\n\n", "\t",   "a",   "word ", "\u00e9", "\u4e16\u754c", "\u200d", "\U0001f600",
        "<",    "<<", ">",    "</",   "|>",  "{",     "}",      "[1, 2]",       "\"",     "\\",
        "\\\"", ":",  ",",    "null", "001", "-1.5",  "\x01",   "\\u00e9",      "'",      "  \n "};
    std::string text;
    for (std::size_t parts = below(12); parts > 0; --parts) {
      const std::string_view marker = kMarkers[below(std::size(kMarkers))];
      switch (below(4)) {
        case 0:
          text += marker.substr(0, 1 + below(marker.size()));
          break;
        case 1:
          text += marker.substr(below(marker.size()));
          break;
        default:
          text += kParts[below(std::size(kParts))];
      }
    }
    return text;
  }

  // Such a text without white space around it and without these markers.
  std::string text_without(const std::vector<std::string_view>& markers) {
    while (true) {
      std::string text = any_text();
      const std::size_t begin = text.find_first_not_of(" \t\r\n");
      if (begin == std::string::npos) return "";
      text = text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
      if (text.starts_with("<think>")) continue;  // At the beginning it may be a marker, spelled or not.
      if (std::ranges::none_of(markers, [&](std::string_view marker) { return text.contains(marker); })) return text;
    }
  }

  std::string name() {
    static constexpr std::string_view kNames[] = {"f",   "get_weather", "get.weather-x",
                                                  "a:b", "mcp__x/y",    "\u5929\u6c14"};
    return std::string(kNames[below(std::size(kNames))]) + std::to_string(below(100));
  }

  // A string that the family can have in arguments.
  std::string string() {
    while (true) {
      std::string text = any_text();
      if (is_kimi(family_) && text.contains("<|tool_call")) continue;
      if (is_glm(family_) && text.contains("</arg_value>")) continue;
      return text;
    }
  }

  json::value value(int depth) {
    switch (below(depth < 3 ? 8 : 6)) {
      case 0:
        return nullptr;
      case 1:
        return below(2) == 0;
      case 2:
        return static_cast<std::int64_t>(random_());
      case 3:
        return static_cast<double>(below(2'000'000)) / 1024.0 - 1000.0;  // Few digits: all readers agree.
      case 4:
      case 5:
        return json::string(string());
      case 6: {
        json::array array;
        for (std::size_t n = below(4); n > 0; --n) array.push_back(value(depth + 1));
        return array;
      }
      default: {
        json::object object;
        for (std::size_t n = below(4); n > 0; --n) object[string()] = value(depth + 1);
        return object;
      }
    }
  }

  static std::string_view type_name(const json::value& value) {
    if (value.is_null()) return "null";
    if (value.is_bool()) return "boolean";
    if (value.is_int64()) return "integer";
    if (value.is_double()) return "number";
    if (value.is_string()) return "string";
    return value.is_array() ? "array" : "object";
  }

  void write_call(const RandomCall& call, std::size_t index, std::string& out) {
    switch (family_) {
      case Family::kKimi:
      case Family::kKimiThinking:
      case Family::kKimiPlain:
        mark("<|tool_call_begin|>", out);
        out += "functions." + call.name + ":" + std::to_string(index);
        mark("<|tool_call_argument_begin|>", out);
        out += json::serialize(call.arguments);
        mark("<|tool_call_end|>", out);
        return;
      case Family::kGlm45:
      case Family::kGlm47: {
        const std::string_view line = family_ == Family::kGlm45 ? "\n" : "";
        out += line;
        mark("<tool_call>", out);
        out.append(call.name).append(line);
        for (const auto& [key, value] : call.arguments) {
          mark("<arg_key>", out);
          out += key;
          mark("</arg_key>", out);
          out += line;
          mark("<arg_value>", out);
          out += value.is_string() ? std::string(value.get_string()) : json::serialize(value);
          mark("</arg_value>", out);
          out += line;
        }
        mark("</tool_call>", out);
        return;
      }
      case Family::kQwen25:
      case Family::kQwen3:
      case Family::kQwen3Thinking:
        if (!out.empty() && !out.ends_with('\n')) out += '\n';
        mark("<tool_call>", out);
        out += "\n{\"name\": " + json::serialize(call.name) + ", \"arguments\": " + json::serialize(call.arguments) +
               "}\n";
        mark("</tool_call>", out);
        return;
    }
  }

  Family family_;
  Tokens tokens_;
  Reading reading_;
  std::mt19937_64 random_;
};

void expect_written(Family family, const Message& message, const ParsedOutput& parsed) {
  EXPECT_EQ(parsed.reasoning, message.reasoning);
  EXPECT_EQ(parsed.content, message.content);
  EXPECT_EQ(static_cast<std::size_t>(parsed.complete), message.calls.size());
  ASSERT_EQ(parsed.calls.size(), message.calls.size());
  for (std::size_t i = 0; i < message.calls.size(); ++i) {
    const RandomCall& call = message.calls[i];
    EXPECT_EQ(parsed.calls[i].name, call.name);
    EXPECT_EQ(parsed.calls[i].id, is_kimi(family) ? "functions." + call.name + ":" + std::to_string(i) : "");
    if (is_glm(family)) {
      EXPECT_EQ(json::parse(parsed.calls[i].arguments), json::value(call.arguments)) << parsed.calls[i].arguments;
    } else {
      EXPECT_EQ(parsed.calls[i].arguments, json::serialize(call.arguments));
    }
  }
}

TEST(OutputParserProperties, WhatWasWrittenIsReadBackHoweverItIsCut) {
  constexpr std::uint64_t kMessages = tests::kSanitized ? 40 : 150;  // Of each family.
  constexpr std::size_t kEverySplitBytes = 300;
  for (const Family family : kFamilies) {
    for (std::uint64_t seed = 0; seed < kMessages; ++seed) {
      Writer writer(family, static_cast<Tokens>(seed % 3), seed);
      const Message message = writer.message();
      const std::vector<Tool> tools = writer.tools_for(message);
      const std::string text = writer.write(message);
      SCOPED_TRACE("family " + std::to_string(static_cast<int>(family)) + ", seed " + std::to_string(seed) + ": " +
                   text);
      expect_written(family, message,
                     parse_every_way(syntax_of(family), tools, text, writer.reading(), kEverySplitBytes));
      if (testing::Test::HasFailure()) return;
    }
  }
}

// True if a piece of a marker stands right before a marker: where the second one is left out, the pieces around it can
// make up one more. The only way in which a spelling can come out.
bool has_pieces_around_a_marker(std::string_view text) {
  for (const std::string_view marker : kMarkers) {
    for (std::size_t length = 1; length < marker.size(); ++length) {
      for (const std::string_view next : kMarkers) {
        if (text.contains(std::string(marker.substr(0, length)).append(next))) return true;
      }
    }
  }
  return false;
}

TEST(OutputParserProperties, DisorderIsReadTheSameHoweverItIsCutAndNoMarkerComesOut) {
  static constexpr std::string_view kParts[] = {
      "f",    " ", "\n", "{",     "}", "\"name\"", "\"arguments\"", ": ", "\"f\"", "{\"a\": \"", "functions.f:0",
      "word", "1", "\\", "\u4e16"};
  constexpr std::size_t kEverySplitBytes = 300;
  constexpr std::uint64_t kTexts = tests::kSanitized ? 150 : 600;
  std::uint64_t checked = 0;
  for (std::uint64_t seed = 0; seed < kTexts; ++seed) {
    std::mt19937_64 random(seed);
    const OutputSyntax syntax = syntax_of(kFamilies[seed % std::size(kFamilies)]);
    const std::vector<std::string_view> markers = marker_spellings(syntax);
    Reading reading{.markers = seed % 3 == 0 ? ReasoningMarkers::kTokens : ReasoningMarkers::kSpelled,
                    .ending = seed % 5 < 2 ? Ending::kByItself : Ending::kCut};
    std::string text;
    for (int parts = 0; parts < 16; ++parts) {
      const bool marks = random() % 2 == 0;
      const std::string_view part =
          marks ? kMarkers[random() % std::size(kMarkers)] : kParts[random() % std::size(kParts)];
      if (random() % 2 == 0 && std::ranges::find(markers, part) != markers.end()) reading.tokens.push_back(text.size());
      text += part;
    }
    const std::vector<Tool> tools = seed % 7 == 0 ? std::vector<Tool>{} : std::vector<Tool>{make_tool("f", "{}")};
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text);
    const ParsedOutput parsed = parse_every_way(syntax, tools, text, reading, kEverySplitBytes);
    if (testing::Test::HasFailure()) return;
    if (has_pieces_around_a_marker(text)) continue;
    ++checked;
    for (const std::string_view marker : markers) {
      if (reading.markers == ReasoningMarkers::kTokens && marker.ends_with("think>")) continue;  // May be text.
      EXPECT_FALSE(parsed.content.contains(marker) || parsed.reasoning.contains(marker)) << marker << " in " << parsed;
    }
  }
  EXPECT_GT(checked, kTexts / 4 * 3);
}

}  // namespace
}  // namespace tessera::text
