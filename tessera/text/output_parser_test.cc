#include "tessera/text/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/text/output_parser_testing.h"

namespace tessera::text {
namespace {

TEST(OutputParser, PassesEverythingThroughWithoutMarkers) {
  const std::string text = " \n<think>a</think>\n<tool_call>{}</tool_call> <|tool_call_end|> ";
  EXPECT_EQ(parse(kPlain, text), content(text));
  EXPECT_EQ(parse(kPlain, ""), content(""));
  EXPECT_TRUE(marker_spellings(kPlain).empty());
}

TEST(OutputParser, NamesTheMarkersThatItLooksFor) {
  EXPECT_THAT(marker_spellings(kKimi), testing::IsSupersetOf({"<think>", "</think>", "<|tool_calls_section_begin|>",
                                                              "<|tool_call_argument_begin|>"}));
  EXPECT_THAT(marker_spellings(kQwen25), testing::UnorderedElementsAre("<tool_call>", "</tool_call>"));
  EXPECT_EQ(marker_spellings(kGlm).size(), 8u);
}

TEST(OutputParser, HoldsBackOnlyWhatMayBeginAMarker) {
  OutputParser parser(kGlm, tools());
  const auto push = [&](std::string_view text) {
    OutputDelta delta;
    parser.push(text, delta);
    return delta.content;
  };
  EXPECT_EQ(push("a < b"), "a < b");
  EXPECT_EQ(push(" <tool_"), "");
  EXPECT_EQ(push("box> "), " <tool_box>");
  EXPECT_EQ(push("x</"), " x");
  EXPECT_EQ(push("<"), "</");
  OutputDelta rest;
  parser.finish(rest, Ending::kCut);
  EXPECT_EQ(rest.content, "<");
}

TEST(OutputParser, StreamsArgumentsAsTheyCome) {
  const auto stream = [](OutputSyntax syntax, std::string_view before, std::string_view value) {
    OutputParser parser(syntax, tools());
    OutputDelta delta;
    parser.push(before, delta);
    delta = {};
    parser.push(value, delta);
    return delta.tool_calls.empty() ? std::string() : delta.tool_calls.front().arguments;
  };
  EXPECT_EQ(stream(kKimi, "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": \"", "long"), "long");
  EXPECT_EQ(stream(kGlm, "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Par", "is \"x"), "is \\\"x");
  EXPECT_EQ(stream(kGlm, "<tool_call>f<arg_key>untyped</arg_key><arg_value>", "words"), "\"words");
  EXPECT_EQ(stream(kGlm, "<tool_call>get_weather<arg_key>days</arg_key><arg_value>", "12"), "") << "its end is unknown";
  EXPECT_EQ(stream(kQwen3, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "long"), "long");
}

// ---- Reasoning.

TEST(Reasoning, IsTakenApartInEveryFamilysSpelling) {
  const ParsedOutput expected{.reasoning = "r 1", .content = "c", .calls = {}};
  EXPECT_EQ(parse(kGlm, "\n<think>r 1</think>\nc"), expected);
  EXPECT_EQ(parse(kQwen3, "<think>\nr 1\n</think>\n\nc"), expected);
  EXPECT_EQ(parse(kKimiThinking, "r 1</think>c"), expected);
  EXPECT_EQ(parse(kGlmThinking, "<think>r 1</think>c"), expected) << "the prompt had opened it already";
  EXPECT_EQ(parse(kQwen3, "<think>\n\n</think>\n\nc"), content("c"));
  EXPECT_EQ(parse(kGlmThinking, "</think>c\n"), content("c\n"));
}

TEST(Reasoning, WithoutAnEndIsAllThereIs) {
  EXPECT_EQ(parse(kGlmThinking, " only this <b> "),
            (ParsedOutput{.reasoning = "only this <b>", .content = {}, .calls = {}}));
  EXPECT_EQ(parse(kQwen3, "<think>\nonly"), (ParsedOutput{.reasoning = "only", .content = {}, .calls = {}}));
}

TEST(Reasoning, StrayMarkersAreLeftOut) {
  EXPECT_EQ(parse(kGlm, "a</think>b"), content("ab"));
  EXPECT_EQ(parse(kQwen3, "a\n<think>r</think>\nb<think> s </think>c"),
            (ParsedOutput{.reasoning = "r s", .content = "a\n\nbc", .calls = {}}));
  EXPECT_EQ(parse(kGlmThinking, "r<think>s</think></think>c"),
            (ParsedOutput{.reasoning = "rs", .content = "c", .calls = {}}));
}

TEST(Reasoning, WhereMarkersAreTokensSpelledOnesAreText) {
  const std::string about = "Use `re.sub(r'<think>.*?</think>', '', s)` or </think> or <think>.";
  EXPECT_EQ(parse_tokens(kGlm, about), content(about));
  EXPECT_EQ(parse_tokens(kKimiThinking, "r[</think>]" + about),
            (ParsedOutput{.reasoning = "r", .content = about, .calls = {}}));
  EXPECT_EQ(parse_tokens(kQwen3Thinking, about + "[</think>]c"),
            (ParsedOutput{.reasoning = about, .content = "c", .calls = {}}));
  EXPECT_EQ(parse_tokens(kQwen3, "a[<think>]r</think>[</think>]b<[<think>]s"),
            (ParsedOutput{.reasoning = "r</think>s", .content = "ab<", .calls = {}}))
      << "tokens are markers anywhere";
  EXPECT_EQ(parse_tokens(kGlm, " \n<think>r</think>\nc</think>d<think>"),
            (ParsedOutput{.reasoning = "r", .content = "c</think>d<think>", .calls = {}}))
      << "but at the beginning";
  EXPECT_EQ(parse_tokens(kGlm, "<think>r[</think>]c</think>"),
            (ParsedOutput{.reasoning = "r", .content = "c</think>", .calls = {}}));
  EXPECT_EQ(parse_tokens(kGlmThinking, "<think>r</think>c"),
            (ParsedOutput{.reasoning = "r", .content = "c", .calls = {}}));
  EXPECT_EQ(parse_tokens(kGlm, "[<tool_call>]get_time<think>[</tool_call>]"), content("get_time<think>"));
  EXPECT_EQ(parse_tokens(kQwen25, "[<tool_call>]{\"name\": \"get_time\"}[</tool_call>]<think>").content, "<think>");
}

TEST(OutputParser, TakesATokenThatIsNoMarkerOfItsSyntaxAsText) {
  OutputParser parser(kQwen25, tools());
  OutputDelta delta;
  parser.push("a<tool_", delta);
  parser.push_marker("<think>", delta);
  EXPECT_EQ(delta.content, "a<tool_<think>");
}

TEST(OutputParser, PiecesAroundALeftOutMarkerAreText) {
  EXPECT_EQ(parse(kKimi, "<|tool_call<|tool_call_end|>_end|>"), content("<|tool_call_end|>"));
}

TEST(Reasoning, LineEndsBeforeTheContentAreTheTemplates) {
  EXPECT_EQ(parse(kGlm, "\ncontent \n"), content("content \n")) << "of GLM-4.5 that does not think";
  EXPECT_EQ(parse(kQwen25, "\ncontent\n"), content("\ncontent\n")) << "here the template writes none";
  EXPECT_EQ(parse(kQwen3, "</think>\n\n    code"), content("    code"));
}

TEST(OutputParser, IsLinearInHostileText) {
  constexpr std::size_t kBytes = 256 << 10;
  const auto repeated = [](std::string_view unit) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    return text;
  };
  for (const std::string_view unit :
       {"<", "<tool_cal", "</arg_value", " ", "\n", "<tool_call>", "<tool_call>a", "<tool_call>{",
        "<tool_call>{\"name\":", "{\"", "[", "<|tool_call_begin|>", "<|tool_call_begin|>f<|tool_call_argument_begin|>",
        "<|tool_calls_section_begin|", "<think>", "<think> </think>", "<arg_key>a</arg_key><arg_value>", "\\ud83d",
        "\""}) {
    for (const std::string_view before :
         {"", "<tool_call>f<arg_key>a</arg_key><arg_value>", "<tool_call>{\"name\": \"f\", \"arguments\": {",
          "<|tool_call_begin|>f<|tool_call_argument_begin|>{"}) {
      const std::string text = std::string(before) + repeated(unit);
      for (const OutputSyntax syntax : {kKimi, kGlm, kQwen3Thinking}) {
        OutputParser parser(syntax, tools());
        OutputDelta delta;
        parser.push(text, delta);
        parser.finish(delta, Ending::kCut);
        EXPECT_LE(delta.content.size() + delta.reasoning.size(), text.size());
      }
    }
  }
}

// The square of such a size is more than any machine does while a test runs.
TEST(OutputParser, IsLinearCharacterByCharacter) {
  const auto push_bytes = [](OutputSyntax syntax, std::string_view before, char byte) {
    constexpr std::size_t kBytes = 1 << 20;
    OutputParser parser(syntax, tools());
    OutputDelta delta;
    parser.push(before, delta);
    for (std::size_t i = 0; i < kBytes; ++i) parser.push({&byte, 1}, delta);
    parser.finish(delta, Ending::kCut);
    std::size_t bytes = delta.content.size() + delta.reasoning.size();
    for (const ToolCallDelta& call : delta.tool_calls) bytes += call.arguments.size();
    return bytes >= kBytes;
  };
  EXPECT_TRUE(push_bytes(kGlm, "", 'a'));
  EXPECT_TRUE(push_bytes(kKimiThinking, "", '<'));
  EXPECT_TRUE(push_bytes(kQwen25, "a", ' '));
  EXPECT_TRUE(push_bytes(kGlm, "<tool_call>f<arg_key>a</arg_key><arg_value>", 'b'));
  EXPECT_TRUE(push_bytes(kKimi, "<|tool_call_begin|>f<|tool_call_argument_begin|>", '{'));
  EXPECT_TRUE(push_bytes(kQwen3, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", 'b'));
  EXPECT_FALSE(push_bytes(kGlm, "<tool_call>get_weather<arg_key>days</arg_key><arg_value>", '1')) << "held back";
  EXPECT_FALSE(push_bytes(kGlm, "<tool_call>f<arg_key>", 'k')) << "held back";
}

}  // namespace
}  // namespace tessera::text
