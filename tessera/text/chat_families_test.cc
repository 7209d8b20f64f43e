// What the chat formats refuse, how they are chosen, and what they say about answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/text/chat_test_formats.h"
#include "tessera/text/test_folder.h"

namespace tessera::text {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

const Conversation kQuestion = {.messages = {{.role = Role::kUser, .content = "Q"}}};

Conversation with_call(std::string arguments, std::string id = "functions.f:0") {
  return {.messages = {{.role = Role::kUser, .content = "Q"},
                       {.role = Role::kAssistant,
                        .tool_calls = {{.id = std::move(id), .name = "f", .arguments = std::move(arguments)}}}}};
}

TEST(ChatFormatNames, AreThoseThatCanBeChosen) {
  std::vector<std::string_view> expected;
  for (const FormatCase& one : kFormats) expected.push_back(one.name);
  EXPECT_EQ(ChatFormat::names(), expected);
  const auto format = ChatFormat::by_name("kimi", *tokenizer_with(kKimiTokens));
  ASSERT_FALSE(format.has_value());
  EXPECT_THAT(format.error().to_string(),
              HasSubstr("invalid_argument: chat format 'kimi' is not known, expected one of "
                        "kimi_k2, kimi_k2_thinking, "));
}

TEST(ChatFormatMarkers, MustBeInTheVocabulary) {
  for (const FormatCase& one : kFormats) {
    for (const std::string_view missing : one.tokens) {
      const auto format = ChatFormat::by_name(one.name, *tokenizer_with(one.tokens, missing));
      if (format.has_value()) {
        const bool unused = missing == "[BOS]" || (missing == "/nothink" && one.name != "glm45") ||
                            (missing.ends_with("think>") && one.name == "kimi_k2") ||
                            (missing == "<|endoftext|>" && one.name == "smollm2");
        EXPECT_TRUE(unused) << one.name << " " << missing;
      } else {
        EXPECT_EQ(format.error().to_string(),
                  "not_found: chat format " + std::string(one.name) + ": '" + std::string(missing) +
                      "' is not one of the tokenizer's added tokens, and the format needs it");
      }
    }
  }
}

std::vector<std::string_view> stops(const FormatUnderTest& subject) {
  std::vector<std::string_view> spellings;
  for (const TokenId id : subject.format->stop_token_ids()) spellings.push_back(subject.tokenizer->token_bytes(id));
  return spellings;
}

TEST(ChatFormatStops, AreTheFamilys) {
  EXPECT_THAT(stops(format_under_test("kimi_k2")), ElementsAre("[EOS]", "<|im_end|>"));
  EXPECT_THAT(stops(format_under_test("kimi_k26")), ElementsAre("[EOS]", "<|im_end|>"));
  EXPECT_THAT(stops(format_under_test("glm45")), ElementsAre("<|endoftext|>", "<|user|>", "<|observation|>"));
  EXPECT_THAT(stops(format_under_test("glm52")), ElementsAre("<|endoftext|>", "<|user|>", "<|observation|>"));
  EXPECT_THAT(stops(format_under_test("qwen25")), ElementsAre("<|endoftext|>", "<|im_end|>"));
  EXPECT_THAT(stops(format_under_test("qwen3")), ElementsAre("<|endoftext|>", "<|im_end|>"));
  EXPECT_THAT(stops(format_under_test("smollm2")), ElementsAre("<|im_end|>"));
}

// The kind "stop token missing from the EOS config".
TEST(ChatFormatStops, StopTokenMissingFromTheEosConfigStopsAllTheSame) {
  const TestFolder folder;
  folder.write("tokenizer.json", tokenizer_json_with(kKimiTokens));
  folder.write("generation_config.json", R"({"eos_token_id": [257, 256]})");
  const auto tokenizer = Tokenizer::load(folder.path());
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  const TokenId im_end = *(*tokenizer)->token_id("<|im_end|>");
  EXPECT_THAT((*tokenizer)->eos_ids(), ElementsAre(256, 257));
  const auto format = ChatFormat::by_name("kimi_k2", **tokenizer);
  ASSERT_TRUE(format.has_value()) << format.error().to_string();
  EXPECT_THAT((*format)->stop_token_ids(), ElementsAre(256, 257, im_end));
}

TEST(ChatFormatOptions, RefuseByNameWhatTheFamilyCannotDo) {
  for (const char* name : {"kimi_k2", "qwen25", "qwen3_instruct_2507", "smollm2"}) {
    const FormatUnderTest subject = format_under_test(name);
    EXPECT_EQ(subject.render(kQuestion, {.thinking = true}),
              std::string("invalid_argument: thinking: true is not possible: the model does not reason, with the chat "
                          "format ") +
                  name);
    EXPECT_EQ(subject.render(kQuestion, {.thinking = false}), subject.render(kQuestion));
  }
  for (const char* name : {"kimi_k2_thinking", "kimi_k27_code", "qwen3_thinking_2507"}) {
    const FormatUnderTest subject = format_under_test(name);
    EXPECT_THAT(subject.render(kQuestion, {.thinking = false}), HasSubstr("thinking: false is not possible"));
    EXPECT_EQ(subject.render(kQuestion, {.thinking = true}), subject.render(kQuestion));
  }
  for (const FormatCase& one : kFormats) {
    const FormatUnderTest subject = format_under_test(one.name);
    const bool can_keep =
        one.name == "kimi_k26" || one.name == "kimi_k27_code" || (one.name.starts_with("glm") && one.name != "glm45");
    const std::string kept = subject.render(kQuestion, {.keep_reasoning = true});
    EXPECT_EQ(kept.starts_with("invalid_argument: preserve_thinking: true (clear_thinking: false)"), !can_keep)
        << one.name << " " << kept;
    const std::string low = subject.render(kQuestion, {.reasoning_effort = "low"});
    EXPECT_THAT(low, HasSubstr(one.name == "glm52" ? "reasoning_effort: 'low' is not known, expected one of high, max"
                                                   : "reasoning_effort: cannot be chosen"));
    EXPECT_EQ(subject.render(Conversation{}), "invalid_argument: messages: is empty");
  }
  EXPECT_THAT(format_under_test("kimi_k27_code").render(kQuestion, {.keep_reasoning = false}),
              HasSubstr("preserve_thinking: false (clear_thinking: true) is not possible"));
  const FormatUnderTest glm52 = format_under_test("glm52");
  EXPECT_EQ(glm52.render(kQuestion, {.reasoning_effort = "max"}), glm52.render(kQuestion));
}

TEST(ChatFormatArguments, MustBeAnObjectWhereTheFormatReadsThem) {
  for (const char* name : {"qwen25", "glm45", "glm47", "glm52"}) {
    const FormatUnderTest subject = format_under_test(name);
    EXPECT_THAT(subject.render(with_call("{\"a\": ")),
                HasSubstr("invalid_argument: messages[1].tool_calls[0].function.arguments: not valid JSON at byte 6"))
        << name;
    for (const char* text : {"[1]", "\"{}\"", "7", "null"}) {
      EXPECT_THAT(subject.render(with_call(text)), HasSubstr("messages[1].tool_calls[0].function.arguments: is not the "
                                                             "JSON text of an object"));
    }
    EXPECT_EQ(subject.render(with_call("")), subject.render(with_call("{}")));
  }
  // Where they are printed as they came, anything is.
  for (const char* name : {"kimi_k2", "kimi_k26", "qwen3"}) {
    EXPECT_THAT(format_under_test(name).render(with_call("{\"a\": ")), HasSubstr("{\"a\": "));
  }
}

TEST(ChatFormatTools, AreRefusedWhereThereIsNoPlaceForThem) {
  const FormatUnderTest subject = format_under_test("smollm2");
  EXPECT_EQ(subject.render(with_call("{}")),
            "invalid_argument: messages[1].tool_calls: the chat format smollm2 has no place for them");
  Conversation conversation = kQuestion;
  conversation.tools.push_back({{{"type", "function"}, {"function", {{"name", "f"}}}}, "{}"});
  EXPECT_EQ(subject.render(conversation), "invalid_argument: tools: the chat format smollm2 has no place for them");
}

TEST(KimiIds, OfOthersAreReplacedByTheCountOfCalls) {
  const FormatUnderTest subject = format_under_test("kimi_k2");
  for (const char* id :
       {"call_1", "", "functions.f:", "functions.f:x", "functions.:0", "functions:0", "f:0", "<|im_end|>"}) {
    EXPECT_THAT(subject.render(with_call("{}", id)), HasSubstr("<|tool_call_begin|>functions.f:0<|tool_call_argument"))
        << id;
  }
  EXPECT_THAT(subject.render(with_call("{}", "functions.a.b-c:17")),
              HasSubstr("<|tool_call_begin|>functions.a.b-c:17<"));
}

// Every call has an id of its own, whatever ids others have.
TEST(KimiIds, AreNeverGivenTwice) {
  const FormatUnderTest subject = format_under_test("kimi_k2");
  Conversation conversation = kQuestion;
  const auto call = [](std::string id) { return ToolCall{.id = std::move(id), .name = "f", .arguments = "{}"}; };
  conversation.messages.push_back(
      {.role = Role::kAssistant,
       .tool_calls = {call("functions.f:2"), call("a"), call("b"), call("functions.f:99999999999999999999")}});
  conversation.messages.push_back({.role = Role::kAssistant, .tool_calls = {call("c"), call("functions.f:5")}});
  const std::string text = subject.render(conversation);
  for (const char* id : {"f:1<", "f:2<", "f:3<", "f:4<", "f:5<", "f:99999999999999999999<"}) {
    const std::string written = "<|tool_call_begin|>functions." + std::string(id);
    const std::size_t at = text.find(written);
    EXPECT_NE(at, std::string::npos) << written << " " << text;
    EXPECT_EQ(text.find(written, at + 1), std::string::npos) << written << " " << text;
  }
}

TEST(KimiIds, OfAResultMayBeLeftOutWhereOneCallWaits) {
  for (const char* name : {"kimi_k2", "kimi_k2_thinking", "kimi_k25", "kimi_k26", "kimi_k27_code"}) {
    const FormatUnderTest subject = format_under_test(name);
    Conversation conversation = with_call("{}", "call_a");
    conversation.messages.push_back({.role = Role::kTool, .content = "x"});
    EXPECT_THAT(subject.render(conversation), HasSubstr("## Return of functions.f:0\nx<"));
    conversation.messages.push_back({.role = Role::kTool, .content = "y"});
    const std::string tail =
        " earlier calls have no result yet; the chat format " + std::string(name) + " needs the id of the call";
    EXPECT_EQ(subject.render(conversation), "invalid_argument: messages[3].tool_call_id: is missing, and 0" + tail);
    conversation = with_call("{}", "call_a");
    conversation.messages[1].tool_calls.push_back({.id = "call_b", .name = "g"});
    conversation.messages.push_back({.role = Role::kTool, .content = "x"});
    EXPECT_EQ(subject.render(conversation), "invalid_argument: messages[2].tool_call_id: is missing, and 2" + tail);
    conversation.messages[2].tool_call_id = "call_a";
    conversation.messages.push_back({.role = Role::kTool, .content = "y"});
    EXPECT_THAT(subject.render(conversation), HasSubstr("## Return of functions.g:1\ny<"));
  }
}

// One request's tools and the calls of its history together.
TEST(ChatFormatValues, AreBounded) {
  std::string zeros = "[0";
  for (int i = 0; i < 120'000; ++i) zeros += ",0";
  zeros += "]";
  const std::string tool = R"({"type":"function","function":{"name":"f","parameters":{"$defs":{"D":{"enum":)" + zeros +
                           R"(}},"properties":{"a":{"$ref":"#/$defs/D"}}}}})";
  for (const FormatCase& one : kFormats) {
    if (one.name == "smollm2") continue;
    const FormatUnderTest subject = format_under_test(one.name);
    Conversation conversation = with_call(R"({"a":)" + zeros + "}");
    EXPECT_THAT(subject.render(conversation), Not(HasSubstr("invalid_argument"))) << one.name;
    conversation.tools.push_back({.declaration = {}, .source = tool});
    if (one.name == "qwen25" || one.name.starts_with("glm")) {
      EXPECT_EQ(subject.render(conversation),
                "invalid_argument: messages[1].tool_calls[0].function.arguments: more than 200000 JSON values in the "
                "tools and calls of one request");
    }
    conversation.tools.push_back({.declaration = {}, .source = tool});
    EXPECT_EQ(subject.render(conversation),
              "invalid_argument: tools[1]: more than 200000 JSON values in the tools and calls of one request")
        << one.name;
  }
}

TEST(OutputSyntaxOf, EveryFamily) {
  const auto syntax = [](std::string_view name, const RenderOptions& options) {
    return format_under_test(name).format->output_syntax(options);
  };
  const RenderOptions off = {.thinking = false};
  const RenderOptions bare = {.generation_prompt = GenerationPrompt::kOmit};
  for (const FormatCase& one : kFormats) {
    const FormatUnderTest subject = format_under_test(one.name);
    const ToolCallSyntax calls = one.name.starts_with("kimi")   ? ToolCallSyntax::kKimi
                                 : one.name.starts_with("glm")  ? ToolCallSyntax::kGlm
                                 : one.name.starts_with("qwen") ? ToolCallSyntax::kHermes
                                                                : ToolCallSyntax::kNone;
    EXPECT_EQ(subject.format->output_syntax({}).tool_calls, calls) << one.name;
    // It begins inside exactly where the rendering has opened reasoning.
    for (const RenderOptions& options : {RenderOptions{}, off, bare}) {
      const std::string text = subject.render(kQuestion, options);
      if (text.starts_with("invalid_argument")) continue;
      const bool opened = text.ends_with("<think>") || text.ends_with("<think>\n");
      EXPECT_EQ(subject.format->output_syntax(options).reasoning == ReasoningSyntax::kInside, opened) << one.name;
    }
  }
  for (const char* name : {"kimi_k2", "qwen25", "qwen3_instruct_2507", "smollm2"}) {
    EXPECT_EQ(syntax(name, {}).reasoning, ReasoningSyntax::kNone) << name;
  }
  for (const char* name : {"kimi_k2_thinking", "glm45", "qwen3"}) {
    EXPECT_EQ(syntax(name, {}).reasoning, ReasoningSyntax::kOutside) << name;
  }
  for (const char* name :
       {"kimi_k25", "kimi_k26", "kimi_k27_code", "glm47", "glm5", "glm51", "glm52", "qwen3_thinking_2507"}) {
    EXPECT_EQ(syntax(name, {}).reasoning, ReasoningSyntax::kInside) << name;
    EXPECT_EQ(syntax(name, bare).reasoning, ReasoningSyntax::kOutside) << name;
  }
  EXPECT_EQ(syntax("kimi_k26", off).reasoning, ReasoningSyntax::kOutside);
  EXPECT_EQ(syntax("glm52", off).reasoning, ReasoningSyntax::kOutside);
}

// The format that a checkpoint gets, or the message of its failure. The texts are what tells templates apart, not
// templates.
std::string chosen(std::string_view model_type, std::string_view chat_template) {
  std::vector<std::string_view> tokens(kKimiTokens.begin(), kKimiTokens.end());
  for (const std::string_view token : kGlmTokens) tokens.push_back(token);
  tokens.push_back("<|im_start|>");
  std::ranges::sort(tokens);
  const auto repeated = std::ranges::unique(tokens);
  tokens.erase(repeated.begin(), repeated.end());
  const auto subject = format_of_checkpoint(model_type, chat_template, tokens);
  return subject.has_value() ? std::string(subject->format->name()) : subject.error().to_string();
}

TEST(ChatFormatChoice, IsMadeByModelTypeAndTemplate) {
  const std::string kimi = "<|im_middle|> You are Kimi, an AI assistant created by Moonshot AI. ";
  EXPECT_EQ(chosen("kimi_k2", kimi), "kimi_k2");
  EXPECT_EQ(chosen("deepseek_v3", kimi), "kimi_k2");
  EXPECT_EQ(chosen("kimi_k2", kimi + "<think></think>"), "kimi_k2_thinking");
  const std::string k25 = "<|im_middle|> tools_ts_str thinking is false ";
  EXPECT_EQ(chosen("kimi_k25", k25), "kimi_k25");
  EXPECT_EQ(chosen("kimi_k25", k25 + "preserve_thinking | default(false)"), "kimi_k26");
  EXPECT_EQ(chosen("glm4_moe", "[gMASK]<sop> /nothink"), "glm45");
  EXPECT_EQ(chosen("glm4_moe", "[gMASK]<sop> clear_thinking"), "glm47");
  EXPECT_EQ(chosen("glm_moe_dsa", "[gMASK]<sop> clear_thinking"), "glm5");
  EXPECT_EQ(chosen("glm_moe_dsa", "[gMASK]<sop> clear_thinking thinking_indices"), "glm51");
  EXPECT_EQ(chosen("glm_moe_dsa", "[gMASK]<sop> clear_thinking Reasoning Effort: "), "glm52");
  const std::string qwen = "<|im_start|> <args-json-object> ";
  EXPECT_EQ(chosen("qwen2", qwen + "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."), "qwen25");
  EXPECT_EQ(chosen("qwen3", qwen + "<think> enable_thinking"), "qwen3");
  EXPECT_EQ(chosen("qwen3", qwen + "<think>"), "qwen3_thinking_2507");
  EXPECT_EQ(chosen("qwen3", qwen), "qwen3_instruct_2507");
}

// The words that tools/oracles/make_chat_goldens.py found in the models' own templates.
TEST(ChatFormatChoice, IsMadeByTheWordsOfTheModelsOwnTemplates) {
  struct Choice {
    std::string_view golden;
    std::vector<std::string_view> model_types;
    std::string_view name;
  };
  const Choice choices[] = {
      {"kimi_k2", {"kimi_k2", "deepseek_v3"}, "kimi_k2"},
      {"kimi_k2_pocket", {"kimi_k2", "deepseek_v3"}, "kimi_k2"},
      {"kimi_k2_thinking", {"kimi_k2", "deepseek_v3"}, "kimi_k2_thinking"},
      {"kimi_k2_thinking_first", {"kimi_k2", "deepseek_v3"}, "kimi_k2_thinking"},
      {"kimi_k25", {"kimi_k25"}, "kimi_k25"},
      {"kimi_k26", {"kimi_k25"}, "kimi_k26"},
      {"glm45", {"glm4_moe"}, "glm45"},
      {"glm47", {"glm4_moe"}, "glm47"},
      {"glm5", {"glm_moe_dsa"}, "glm5"},
      {"glm51", {"glm_moe_dsa"}, "glm51"},
      {"glm52", {"glm_moe_dsa"}, "glm52"},
      {"qwen25", {"qwen2"}, "qwen25"},
      {"qwen3", {"qwen3"}, "qwen3"},
      {"qwen3_instruct_2507", {"qwen3"}, "qwen3_instruct_2507"},
      {"qwen3_thinking_2507", {"qwen3"}, "qwen3_thinking_2507"},
      {"smollm2", {"llama"}, "smollm2"},
  };
  for (const auto& [golden, model_types, name] : choices) {
    for (const std::string_view type : model_types) EXPECT_EQ(chosen(type, template_words(golden)), name) << golden;
    EXPECT_THAT(chosen("gpt_neox", template_words(golden)), HasSubstr("no chat format is known")) << golden;
  }
  EXPECT_THAT(chosen("kimi_k2", template_words("")), HasSubstr("no chat format is known"));
}

TEST(ChatFormatChoice, RefusesTemplatesThatItDoesNotKnow) {
  const std::string kimi = "<|im_middle|> You are Kimi, an AI assistant created by Moonshot AI. ";
  const std::pair<std::string_view, std::string> unknown[] = {
      {"kimi_k2", "<|im_middle|>"},
      {"kimi_k2", kimi + "# Tools"},
      {"kimi_k25", kimi + "tools_ts_str thinking is false"},
      {"kimi_k25", "<|im_middle|> tools_ts_str"},
      {"kimi_k25", "<|im_middle|> tools_ts_str thinking is false preserve_thinking | default(true)"},
      {"deepseek_v3", "You are Kimi, an AI assistant created by Moonshot AI."},
      {"llama", kimi},
      {"glm4_moe", "[gMASK]<sop>"},
      {"glm4_moe", "x [gMASK]<sop> /nothink"},
      {"glm_moe_dsa", "[gMASK]<sop> clear_thinking Reasoning Effort:  'low'"},
      {"qwen2", "<|im_start|> <args-json-object>"},
      {"qwen3", "<|im_start|>"},
  };
  for (const auto& [model_type, chat_template] : unknown) {
    EXPECT_THAT(chosen(model_type, chat_template),
                HasSubstr("no chat format is known for model_type '" + std::string(model_type) + "'"))
        << chat_template;
  }
}

}  // namespace
}  // namespace tessera::text
