// The kinds of faults in tool calls that users of such servers reported, and what each family tolerates.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/text/argument_types.h"
#include "tessera/text/output_parser_testing.h"

namespace tessera::text {
namespace {

std::string kimi_call(std::string_view id, std::string_view arguments) {
  return "<|tool_call_begin|>" + std::string(id) + "<|tool_call_argument_begin|>" + std::string(arguments) +
         "<|tool_call_end|>";
}
std::string kimi_section(std::string_view calls) {
  return "<|tool_calls_section_begin|>" + std::string(calls) + "<|tool_calls_section_end|>";
}
std::string glm_pair(std::string_view key, std::string_view value) {
  return "<arg_key>" + std::string(key) + "</arg_key><arg_value>" + std::string(value) + "</arg_value>";
}
std::string glm_weather(std::string_view key, std::string_view value) {
  return "<tool_call>get_weather" + glm_pair(key, value) + "</tool_call>";
}

TEST(ToolCallFaults, MarkersDoNotLeakIntoContent) {
  EXPECT_EQ(parse(kKimi, "a<|tool_call_end|>b<|tool_calls_section_end|>c<|tool_call_argument_begin|>d"),
            content("abcd"));
  EXPECT_EQ(parse(kKimi, "a<|tool_calls_section_begin|><|tool_calls_section_end|>b"), content("ab"));
  EXPECT_EQ(parse(kGlm, "a</tool_call>b<arg_key>c</arg_value>"), content("abc"));
  EXPECT_EQ(parse(kQwen25, "a</tool_call>b"), content("ab"));
  EXPECT_EQ(parse(kKimi, "a <|tool_calls_sect"), content("a <|tool_calls_sect")) << "no marker: the text ended";
  const std::string all = "x<think>y</think>\n<tool_call>get_time</tool_call>z";
  const std::vector<Tool> none;
  EXPECT_EQ(parse_every_way(kGlm, none, all), (ParsedOutput{.reasoning = "y", .content = "x\nget_timez", .calls = {}}))
      << "without tools nothing is a call";
  EXPECT_EQ(parse_every_way(kKimiThinking, none, "r" + kimi_section("s") + "</think>t"),
            (ParsedOutput{.reasoning = "rs", .content = "t", .calls = {}}));
}

TEST(ToolCallFaults, ArgumentsOver8KiB) {
  std::string value;
  for (int i = 0; value.size() < (1 << 20); ++i) value += "line " + std::to_string(i) + " <b>\\n\u4e16";
  const std::string json = "{\"text\": \"" + value + "\"}";
  std::string raw;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i] == '\\') {
      raw += '\n';
      ++i;
    } else {
      raw += value[i];
    }
  }
  for (const std::size_t piece : {std::size_t{1} << 30, std::size_t{4096}, std::size_t{7}}) {
    const auto in_pieces = [&](OutputSyntax syntax, const std::string& text) {
      std::vector<std::size_t> cuts;
      std::size_t last = 0;
      for (const std::size_t end : character_ends(text)) {
        if (end >= last + piece) cuts.push_back(last = end);
      }
      return parse_cut(syntax, tools(), text, cuts);
    };
    ParsedOutput kimi = one_call("f", json);
    kimi.calls.front().id = "functions.f:0";
    EXPECT_TRUE(in_pieces(kKimi, kimi_section(kimi_call("functions.f:0", json))) == kimi);
    EXPECT_TRUE(in_pieces(kGlm, "<tool_call>f" + glm_pair("text", raw) + "</tool_call>") == one_call("f", json));
    EXPECT_TRUE(in_pieces(kQwen25, "<tool_call>{\"name\": \"f\", \"arguments\": " + json + "}</tool_call>") ==
                one_call("f", json));
  }
}

TEST(ToolCallFaults, ACallInsideReasoning) {
  ParsedOutput kimi{.reasoning = "I must",
                    .content = {},
                    .calls = {{.id = "functions.get_time:0", .name = "get_time", .arguments = "{}"}},
                    .complete = 1};
  EXPECT_EQ(parse(kKimiThinking, "I must \n" + kimi_section(kimi_call("functions.get_time:0", "{}"))), kimi);
  EXPECT_EQ(parse(kKimiThinking, "I must " + kimi_call("functions.get_time:0", "{}")), kimi) << "without a section";
  ParsedOutput others = one_call("get_time", "{}");
  others.reasoning = "I must";
  EXPECT_EQ(parse(kGlmThinking, "I must\n<tool_call>get_time\n</tool_call>"), others);
  EXPECT_EQ(parse(kQwen3, "<think>I must\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>"),
            others);
  others.content = "now";
  EXPECT_EQ(parse(kGlmThinking, "I must<tool_call>get_time</tool_call></think>\nnow"), others) << "the end comes late";
}

TEST(ToolCallFaults, AKimiSectionEndsTheReasoning) {
  EXPECT_EQ(parse(kKimiThinking, "r\n" + kimi_section("") + "c"),
            (ParsedOutput{.reasoning = "r", .content = "c", .calls = {}}));
  const ParsedOutput unknown = parse(kKimiThinking, "r" + kimi_section(kimi_call("functions.nope:0", "{}")));
  EXPECT_EQ(unknown.calls.at(0).name, "nope");
  EXPECT_EQ(unknown.reasoning, "r");
}

TEST(ToolCallFaults, ReasoningAboutCallsIsNoCall) {
  EXPECT_EQ(parse(kGlmThinking, "I write <tool_call>name</tool_call>, then.</think>ok"),
            (ParsedOutput{.reasoning = "I write name, then.", .content = "ok", .calls = {}}));
  EXPECT_EQ(
      parse(kQwen3,
            "<think>in <tool_call> tags: <tool_call>{\"name\": \"x\", \"arguments\": {}}</tool_call>.</think>ok"),
      (ParsedOutput{.reasoning = "in  tags: {\"name\": \"x\", \"arguments\": {}}.", .content = "ok", .calls = {}}));
}

TEST(ToolCallFaults, EverySplitPointOfTheStream) {  // parse() tries them all.
  EXPECT_EQ(
      parse(kKimiThinking, "r\n</think>\u4e16\u754c \U0001f600 " +
                               kimi_section(kimi_call("functions.get_weather:0", R"({"city": "\u00e9<|x|>"})") +
                                            kimi_call(" functions.get.weather-x:1 ", " {} "))),
      (ParsedOutput{
          .reasoning = "r",
          .content = "\u4e16\u754c \U0001f600",
          .calls = {{.id = "functions.get_weather:0", .name = "get_weather", .arguments = R"({"city": "\u00e9<|x|>"})"},
                    {.id = "functions.get.weather-x:1", .name = "get.weather-x", .arguments = "{}"}},
          .complete = 2}));
  EXPECT_EQ(
      parse(kGlm,
            "\n<think>r</think>\nc\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>\u00c7 \"q\"\n"
            "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time\n"
            "</tool_call>"),
      (ParsedOutput{
          .reasoning = "r",
          .content = "c",
          .calls = {{.id = {}, .name = "get_weather", .arguments = "{\"city\": \"\u00c7 \\\"q\\\"\\n\", \"days\": 3}"},
                    {.id = {}, .name = "get_time", .arguments = "{}"}},
          .complete = 2}));
  EXPECT_EQ(
      parse(kQwen3,
            "<think>\nr\n</think>\n\nc\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a}\\\"\", "
            "\"detail\": {\"x\": [1, {}]}}}\n</tool_call>\n<tool_call>\n{\"arguments\": \"{\\\"a\\\": \\\"\\u00e9"
            "\\ud83d\\ude00\\\"}\", \"name\": \"get_time\"}\n</tool_call>"),
      (ParsedOutput{.reasoning = "r",
                    .content = "c",
                    .calls = {{.id = {},
                               .name = "get_weather",
                               .arguments = "{\"city\": \"a}\\\"\", \"detail\": {\"x\": [1, {}]}}"},
                              {.id = {}, .name = "get_time", .arguments = "{\"a\": \"\u00e9\U0001f600\"}"}},
                    .complete = 2}));
}

TEST(ToolCallFaults, GlmNumbersAndArraysStayWhatTheyAre) {
  const auto typed = [](std::string_view key, std::string_view value) {
    return parse(kGlm, glm_weather(key, value)).calls.at(0).arguments;
  };
  const auto json = [](std::string_view key, std::string_view value) {
    return "{\"" + std::string(key) + "\": " + std::string(value) + "}";
  };
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"days", "7"},
                                                        {"days", "123456789012345678901234567890"},
                                                        {"hours", "[1, \"a\", [2.50]]"},
                                                        {"hours", "[]"},
                                                        {"detail", "{\"a\": {\"b\": null}}"},
                                                        {"metric", "true"},
                                                        {"limit", "-1.5e3"},
                                                        {"limit", "null"},
                                                        {"zip", "123"},
                                                        {"place", "{\"lat\": 1}"},
                                                        {"size", "3"},
                                                        {"anything", "[1]"},
                                                        {"undeclared", "12"},
                                                        {"undeclared", "{\"a\": 1}"},
                                                        {"both", "4"},
                                                        {"loop", "false"}}) {
    EXPECT_EQ(typed(key, value), json(key, value));
  }
  EXPECT_EQ(typed("days", "\n7\n"), json("days", "7"));
}

TEST(ToolCallFaults, GlmStringsStayStrings) {
  const auto typed = [](std::string_view key, std::string_view value) {
    const std::string arguments = parse(kGlm, glm_weather(key, value)).calls.at(0).arguments;
    return std::string(boost::json::parse(arguments).at(key).as_string());
  };
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"city", "001"},
                                                        {"city", "7"},
                                                        {"city", "true"},
                                                        {"city", "null"},
                                                        {"city", "{\"a\": 1}"},
                                                        {"city", ""},
                                                        {"city", " \n two lines\n\ttab \\ \" \x01\x7f\n"},
                                                        {"city", "\"quoted\""},
                                                        {"city", "</arg_valu <tool_call"},
                                                        {"city", "<think></think><arg_key></arg_key></tool_call>"},
                                                        {"zip", "001"},
                                                        {"zip", "SW1A"},
                                                        {"zip", "1.5"},
                                                        {"zip", "[1]"},
                                                        {"place", "here"},
                                                        {"place", "[1]"},
                                                        {"size", "s"},
                                                        {"anything", "\"quoted\""},
                                                        {"undeclared", "word"},
                                                        {"undeclared", "tru"},
                                                        {"undeclared", "-"},
                                                        {"undeclared", "{a}"},
                                                        {"undeclared", " 5"},
                                                        {"undeclared", "5 "},
                                                        {"days", "abc"},
                                                        {"days", ""},
                                                        {"days", "007"},
                                                        {"hours", "1, 2"},
                                                        {"metric", "True"}}) {
    EXPECT_EQ(typed(key, value), value) << key;
  }
}

TEST(ArgumentTypes, AreWhatTheSchemaAllows) {
  const auto types = [](std::string_view schema) {
    const boost::json::value parameters = boost::json::parse(schema);
    return argument_types(&parameters.as_object(), "x");
  };
  const JsonTypes string(JsonType::kString);
  const JsonTypes null(JsonType::kNull);
  EXPECT_EQ(argument_types(nullptr, "x"), JsonTypes::any());
  EXPECT_EQ(types("{}"), JsonTypes::any());
  EXPECT_EQ(types(R"({"properties": {"x": true}})"), JsonTypes::any());
  EXPECT_EQ(types(R"({"properties": {"x": {"type": "integer"}}})"), JsonTypes(JsonType::kInteger));
  EXPECT_EQ(types(R"({"properties": {"x": {"type": "number", "nullable": true}}})"),
            JsonTypes(JsonType::kInteger) | JsonTypes(JsonType::kNumber) | null);
  EXPECT_EQ(types(R"({"properties": {"y": {}}, "additionalProperties": {"type": "string"}})"), string);
  EXPECT_EQ(types(R"({"properties": {"x": {"const": "c"}}, "additionalProperties": false})"), string);
  EXPECT_EQ(types(R"({"properties": {"x": {"anyOf": [{"const": null}, {"enum": ["a"]}]}}})"), string | null);
  EXPECT_EQ(types(R"({"properties": {"x": {"type": "unheard-of"}}})"), JsonTypes::any());
  EXPECT_EQ(types(R"({"properties": {"x": {"$ref": "#/nowhere"}}})"), JsonTypes::any());
  EXPECT_EQ(types(R"({"properties": {"x": {"type": "string", "allOf": [{"type": "array"}]}}})"), string)
      << "what contradicts itself allows what it said first";
  // Each level doubles the work, unless it is bounded.
  EXPECT_EQ(types(R"({"properties": {"x": {"type": "string", "anyOf": [{"$ref": "#/properties/x"},
                                                                       {"$ref": "#/properties/x"}]}}})"),
            string);
  std::string long_enum = R"({"properties": {"x": {"enum": ["a")";
  for (int i = 0; i < 5000; ++i) long_enum += ", \"a\"";
  EXPECT_EQ(types(long_enum + "]}}}"), JsonTypes::any());
  std::string many_references = R"({"$defs": {"b": {"enum": [1, 2, 3, 4, 5, 6, 7, 8]}},
                                    "properties": {"x": {"anyOf": [{"$ref": "#/$defs/b"})";
  for (int i = 0; i < 254; ++i) many_references += R"(, {"$ref": "#/$defs/b"})";
  EXPECT_EQ(types(many_references + "]}}}"), JsonTypes::any()) << "every value counts, however it is come to";
  EXPECT_EQ(types(R"({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"type": "string"}}}}})"), string);
  EXPECT_EQ(types(R"({"allOf": [{"properties": {"y": {}}}, {"properties": {"x": {"type": "string"}}}]})"), string);
  EXPECT_EQ(types(R"({"properties": {"x": {"$ref": "#"}}, "type": "string"})"), string);
  EXPECT_EQ(types(R"({"$ref": "#"})"), JsonTypes::any());
  EXPECT_EQ(types(R"({"properties": {"x": {"$ref": "#/$defs/a~1b~01"}}, "$defs": {"a/b~1": {"type": "string"}}})"),
            string);
}

TEST(ToolCallFaults, ZeroArgumentCalls) {
  EXPECT_EQ(parse(kGlm, "<tool_call>get_time</tool_call>"), one_call("get_time", "{}"));
  EXPECT_EQ(parse(kGlm, "<tool_call>get_time\n</tool_call>"), one_call("get_time", "{}"));
  for (const std::string_view body :
       {R"({"name": "get_time", "arguments": {}})", R"({"name": "get_time"})",
        R"({"name": "get_time", "arguments": null})", R"({"arguments": "", "name": "get_time"})"}) {
    EXPECT_EQ(parse(kQwen25, "<tool_call>\n" + std::string(body) + "\n</tool_call>"), one_call("get_time", "{}"))
        << body;
  }
  for (const std::string_view arguments : {"", "{}", " \n"}) {
    const ParsedOutput parsed = parse(kKimi, kimi_section(kimi_call("functions.get_time:0", arguments)));
    EXPECT_EQ(parsed.calls.at(0).arguments, "{}");
    EXPECT_EQ(parsed.complete, 1);
  }
}

TEST(ToolCallFaults, StreamedAndUnstreamedAgreeOnDuplicates) {
  EXPECT_EQ(
      parse(kGlm, "<tool_call>f" + glm_pair("a", "x") + glm_pair(" a ", "y") + glm_pair("b", "2") + "</tool_call>"),
      one_call("f", R"({"a": "x", "b": 2})"));
  EXPECT_EQ(
      parse(kQwen25,
            R"(<tool_call>{"name": "f", "name": "g", "arguments": {"a": 1}, "parameters": {"b": 2}}</tool_call>)"),
      one_call("f", R"({"a": 1})"));
}

TEST(ToolCallFaults, UnfinishedCallsAreNotCompleted) {
  const auto unfinished = [](std::string name, std::string arguments) {
    ParsedOutput parsed = one_call(std::move(name), std::move(arguments));
    parsed.complete = 0;
    return parsed;
  };
  ParsedOutput kimi = unfinished("f", R"({"a": "b)");
  kimi.calls.front().id = "functions.f:0";
  EXPECT_EQ(parse(kKimi, R"(<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "b)"), kimi);
  EXPECT_EQ(parse(kKimi, R"(<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "b<|tool_call_e)"), kimi);
  EXPECT_EQ(parse(kGlm, "<tool_call>f<arg_key>a</arg_key><arg_value>b</arg_val"), unfinished("f", R"({"a": "b)"));
  EXPECT_EQ(parse(kGlm, "<tool_call>f<arg_key>a</arg_key><arg_value>1"), unfinished("f", R"({"a": )"));
  EXPECT_EQ(parse(kGlm, "<tool_call>f" + glm_pair("a", "1")), unfinished("f", R"({"a": 1)"));
  EXPECT_EQ(parse(kQwen25, R"(<tool_call>{"name": "f", "arguments": {"a": "b</tool_call>)"),
            unfinished("f", R"({"a": "b</tool_call>)"))
      << "a marker in a string is data";
  for (const std::string_view beginning : {"<|tool_call_begin|>functions.ge", "<|tool_calls_section_begin|>"}) {
    EXPECT_EQ(parse(kKimi, "c\n" + std::string(beginning)), content("c\n"));
  }
  EXPECT_EQ(parse(kGlm, "c<tool_call>get_ti"), content("c"));
  EXPECT_EQ(parse(kQwen25, "c<tool_call>\n{\"name\": \"get_time\", "), content("c"));
}

TEST(ToolCallFaults, TextAfterAGlmValueEndsTheCall) {
  ParsedOutput expected = one_call("get_weather", R"({"city": "Bern"})");
  const std::string open = "<tool_call>get_weather" + glm_pair("city", "Bern");
  expected.content = "The weather follows";
  EXPECT_EQ(parse(kGlm, open + "\nThe weather follows"), expected);
  expected.content = "a\nb";
  EXPECT_EQ(parse(kGlm, "a" + open + "\nb"), expected);
  expected.reasoning = "r";
  expected.content = "c";
  EXPECT_EQ(parse(kGlm, open + "<think>r</think>c"), expected);
  EXPECT_EQ(parse_tokens(kGlm, "[<tool_call>]get_weather" + glm_pair("city", "Bern") + "[<think>]r[</think>]c"),
            expected);
}

TEST(ToolCallFaults, AModelThatEndedByItselfHadSaidAll) {
  EXPECT_EQ(parse_whole(kGlm, "<tool_call>get_weather" + glm_pair("city", "Bern") + "\n"),
            one_call("get_weather", R"({"city": "Bern"})"));
  EXPECT_EQ(parse_whole(kGlm, "<tool_call>get_time\n"), one_call("get_time", "{}"));
  EXPECT_EQ(parse_whole(kGlm, "c<tool_call>get_ti"), content("c")) << "no declared name";
  EXPECT_EQ(parse_whole(kGlm, "c<tool_call>get_time<arg_k"), content("c")) << "more was to come";
  EXPECT_EQ(parse_whole(kGlm, "<tool_call>f<arg_key>a</arg_key><arg_value>b").complete, 0);
  EXPECT_EQ(parse_whole(kQwen25, R"(<tool_call>{"name": "get_time")"), one_call("get_time", "{}"));
  EXPECT_EQ(parse_whole(kQwen25, R"(c<tool_call>{"name": "nope")"), content("c"));
  ParsedOutput kimi = one_call("get_time", "{}");
  kimi.calls.front().id = "functions.get_time:0";
  EXPECT_EQ(parse_whole(kKimiPlain, "<|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>"), kimi);
  EXPECT_EQ(parse_whole(kKimi, "<|tool_call_begin|>functions.get_time:0"), kimi);
  kimi.complete = 0;
  kimi.calls.front().arguments = "";
  EXPECT_EQ(parse(kKimi, "<|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>"), kimi) << "cut";
}

TEST(ToolCallFaults, AGlmKeyWithoutAValueIsLeftOut) {
  ParsedOutput expected = one_call("f", "{}");
  expected.complete = 0;
  EXPECT_EQ(parse(kGlm, "<tool_call>f<arg_key>city</tool_call>"), expected);
  expected.calls.front().arguments = R"({"a": 1})";
  EXPECT_EQ(parse(kGlm, "<tool_call>f" + glm_pair("a", "1") + "<arg_key>b</arg_key></tool_call>"), expected);
}

TEST(ToolCallFaults, NamesAreThoseThatARequestMayHave) {
  const std::string name(256, 'n');
  EXPECT_EQ(parse(kGlm, "<tool_call>" + name + "</tool_call>"), one_call(name, "{}"));
  EXPECT_EQ(parse(kGlm, "<tool_call>n" + name + "</tool_call>"), content("n" + name));
  EXPECT_EQ(parse(kQwen25, R"(<tool_call>{"name": ")" + name + R"("}</tool_call>)"), one_call(name, "{}"));
  EXPECT_TRUE(parse(kQwen25, R"(<tool_call>{"name": "n)" + name + R"("}</tool_call>)").calls.empty());
  EXPECT_EQ(parse(kKimi, kimi_call(name + ":0", "{}")).calls.at(0).name, name);
  EXPECT_TRUE(parse(kKimi, kimi_call("n" + name + ":0", "{}")).calls.empty());
  const std::string long_id = "f:" + std::string(600, '1');
  EXPECT_EQ(parse(kKimi, kimi_call(long_id, "{}")).calls.at(0).id, long_id) << "whoever answers gives it another one";
  std::string many;
  for (int i = 0; i < 1025; ++i) many += "<tool_call>f</tool_call>";
  const ParsedOutput parsed = parse_cut(kGlm, tools(), many, {});
  EXPECT_EQ(parsed.calls.size(), 1024u);
  EXPECT_EQ(parsed.content, "f");
}

TEST(ToolCallFaults, OnlyTheEndMarkerIsMissing) {
  ParsedOutput kimi = one_call("f", R"({"a": "}"})");
  kimi.calls.front().id = "functions.f:0";
  const std::string open =
      R"(<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "}"})";
  EXPECT_EQ(parse(kKimi, open), kimi);
  EXPECT_EQ(parse(kKimi, open + "\n<|tool_call"), kimi);
  EXPECT_EQ(parse(kKimi, open + "<|tool_calls_section_end|>"), kimi);
  kimi.calls.front().arguments += " x";
  kimi.complete = 0;
  EXPECT_EQ(parse(kKimi, open + " x"), kimi) << "that is no JSON any more";
  EXPECT_EQ(parse(kQwen25, R"(<tool_call>{"name": "f", "arguments": {"a": 1}})"), one_call("f", R"({"a": 1})"));
  EXPECT_EQ(parse(kQwen25, R"(<tool_call>{"name": "f", "arguments": {"a": 1})"), one_call("f", R"({"a": 1})"));
}

TEST(ToolCallFaults, AMissingEndBeforeTheNextCall) {
  ParsedOutput two = one_call("f", R"({"a": 1})");
  two.calls.push_back({.id = {}, .name = "get_time", .arguments = "{}"});
  two.complete = 2;
  EXPECT_EQ(parse(kGlm, "<tool_call>f" + glm_pair("a", "1") + "\n<tool_call>get_time</tool_call>"), two);
  const std::string first = R"({"name": "f", "arguments": {"a": 1}})";
  const std::string second = R"({"name": "get_time", "arguments": {}})";
  EXPECT_EQ(parse(kQwen25, "<tool_call>" + first + "<tool_call>" + second), two);
  EXPECT_EQ(parse(kQwen25, "<tool_call>" + first + "\n" + second + "</tool_call>"), two)
      << "two in one pair of markers";
  two.calls.front().id = "functions.f:0";
  two.calls.back().id = "functions.get_time:1";
  EXPECT_EQ(parse(kKimi, R"(<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1})" +
                             kimi_call("functions.get_time:1", "")),
            two);
}

TEST(ToolCallFaults, WhatIsNoCallBecomesContent) {
  for (const std::string_view body : {"", "  ", "two words", "a<b", "{\"name\": \"f\"}"}) {
    EXPECT_EQ(parse(kGlm, "a<tool_call>" + std::string(body) + "</tool_call>b"),
              content("a" + std::string(body) + "b"));
    EXPECT_EQ(parse(kKimi, "a" + kimi_section(kimi_call(body, "{}")) + "b"), content("a" + std::string(body) + "{}b"));
  }
  EXPECT_EQ(parse(kKimi, kimi_call("functions.:0", "{}")), content("functions.:0{}"));
  EXPECT_EQ(parse(kKimi, "<|tool_call_begin|>f:0<|tool_call_end|>"), content("f:0"));
  EXPECT_EQ(parse(kGlm, "<tool_call>f</arg_value></tool_call>"), content("f"));
  const std::string long_name(2000, 'n');
  EXPECT_EQ(parse_cut(kGlm, tools(), "<tool_call>" + long_name + "</tool_call>", {}), content(long_name));
  for (const std::string_view body :
       {"", "[]", "text", "{", "{}", R"({"name": 1})", R"({"name": ""})", R"({"name": "a b"})", R"({"name": "f", })",
        R"({"name": "f", "arguments": [1]})", R"({"name": "f", "arguments": 1})", R"({"arguments": {"a": [1, "]"]}})",
        R"({"name" "f"})", R"({'name': 'f'})", R"({"name": "f" "arguments": {}})"}) {
    EXPECT_EQ(parse(kQwen25, "a<tool_call>" + std::string(body) + "</tool_call>b"),
              content("a" + std::string(body) + "b"));
  }
  EXPECT_EQ(parse(kQwen3, R"(<tool_call>{"na</tool_call><think>me": f})"), content(R"({"name": f})"));
  EXPECT_EQ(parse(kQwen25, R"(a<tool_call>{"na</tool_call> rest)"), content(R"(a{"na rest)"));
  ParsedOutput reasoned = one_call("get_time", "{}");
  reasoned.reasoning = "r";
  EXPECT_EQ(parse(kQwen3, R"(<tool_call>{"name": "get_time"}<think>r</think>)"), reasoned);
}

TEST(ToolCallFaults, UnknownFunctionsAreCallsAllTheSame) {
  EXPECT_EQ(parse(kGlm, "<tool_call>\u5929\u6c14/x.y</tool_call>"), one_call("\u5929\u6c14/x.y", "{}"));
  EXPECT_EQ(parse(kQwen25, R"(<tool_call>{"name": "nope", "arguments": {}}</tool_call>)"), one_call("nope", "{}"));
}

TEST(KimiCalls, AreToleratedInManySpellings) {
  const auto call = [](std::string id, std::string name) {
    ParsedOutput parsed = one_call(std::move(name), "{}");
    parsed.calls.front().id = std::move(id);
    return parsed;
  };
  EXPECT_EQ(
      parse(kKimi, "<|tool_call_section_begin|>" + kimi_call("functions.f:0", "{}") + "<|tool_call_section_end|>"),
      call("functions.f:0", "f"));
  EXPECT_EQ(parse(kKimi, "<|tool_calls_section_begin|>" + kimi_call("functions.f:0", "{}")),
            call("functions.f:0", "f"));
  EXPECT_EQ(parse(kKimi, kimi_section("\n" + kimi_call("\n functions.f:0 \n", "\n{} ") + "\n")),
            call("functions.f:0", "f"));
  EXPECT_EQ(parse(kKimi, kimi_call("functions.get.weather-x:3", "{}")),
            call("functions.get.weather-x:3", "get.weather-x"));
  EXPECT_EQ(parse(kKimi, kimi_call("functions.a:b:12", "{}")), call("functions.a:b:12", "a:b"));
  EXPECT_EQ(parse(kKimi, kimi_call("search:0", "{}")), call("search:0", "search"));
  EXPECT_EQ(parse(kKimi, kimi_call("functions.search", "{}")), call("functions.search", "search"));
  ParsedOutput two = call("functions.f:0", "f");
  two.calls.push_back({.id = "functions.g:1", .name = "g", .arguments = "{'a': None"});
  two.complete = 2;
  EXPECT_EQ(parse(kKimi, kimi_section(kimi_call("functions.f:0", "{}")) + "\n" +
                             kimi_section(kimi_call("functions.g:1", "{'a': None"))),
            two)
      << "arguments that are no JSON are passed on as they are";
  ParsedOutput data = call("functions.f:0", "f");
  data.calls.front().arguments = R"({"a": "<think></think>"})";
  EXPECT_EQ(parse(kKimi, kimi_call("functions.f:0", data.calls.front().arguments)), data);
}

TEST(HermesCalls, AreReadByTheirStructure) {
  const auto parse_body = [](std::string_view body) {
    return parse(kQwen25, "<tool_call>\n" + std::string(body) + "\n</tool_call>");
  };
  const ParsedOutput expected = one_call("f", R"({ "a" : [ 1 ] })");
  EXPECT_EQ(parse_body(R"({"name": "f", "arguments": { "a" : [ 1 ] }})"), expected) << "the arguments byte by byte";
  EXPECT_EQ(parse_body(R"({"parameters": { "a" : [ 1 ] }, "name": "f"})"), expected);
  EXPECT_EQ(
      parse_body(
          R"({"id": 7, "x": [{"name": "]"}], "y": "\"}", "name": "\u0066", "arguments": { "a" : [ 1 ] }, "z": {}})"),
      expected);
  EXPECT_EQ(parse_body(R"({"name": "f", "arguments": "{ \"a\" : [ 1 ] }"})"), expected) << "a string that holds them";
  EXPECT_EQ(parse_body(R"({"name": "f", "arguments": { "a" : [ 1 ] }}})"), expected) << "a bracket too many";
  EXPECT_EQ(parse_body(R"({"name": "f", "arguments": { "a" : [ 1 ] })"), expected) << "a bracket too few";
  EXPECT_EQ(parse_body(R"({"name": "f", "arguments": { "a" : [ 1 ] }, junk)"), expected);
  EXPECT_EQ(parse_body(R"({"name": "f", "arguments": "\ud83d\n\ud83dx\ud83d\ude00\u12"})"),
            one_call("f", "\ufffd\n\ufffdx\U0001f600\ufffd"));
  ParsedOutput text_after = expected;
  text_after.content = "text";
  EXPECT_EQ(parse(kQwen25, R"(<tool_call>{"name": "f", "arguments": { "a" : [ 1 ] }})"
                           "\ntext"),
            text_after);
}

TEST(Content, WhiteSpaceBetweenThePartsIsNotContent) {
  const std::string call = "<tool_call>get_time</tool_call>";
  ParsedOutput two = one_call("get_time", "{}");
  two.calls.push_back(two.calls.front());
  two.complete = 2;
  EXPECT_EQ(parse(kGlm, "<think></think>\n \n" + call + "\n\n" + call + "\n"), two);
  ParsedOutput text_after = one_call("get_time", "{}");
  text_after.content = "b";
  EXPECT_EQ(parse(kQwen25, " \n<tool_call>{\"name\": \"get_time\"}</tool_call>\nb"), text_after);
  two.content = "a\n\nb";
  EXPECT_EQ(parse(kGlm, "\na\n" + call + "\nb \n" + call + "\n"), two);
}

}  // namespace
}  // namespace tessera::text
