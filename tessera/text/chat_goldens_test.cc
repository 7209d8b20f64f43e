// Every chat format against what the models' own templates made of the same conversations
// (tools/oracles/make_chat_goldens.py), and what must hold of every conversation.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "tessera/text/chat_test_formats.h"
#include "tessera/text/golden_lines.h"

namespace tessera::text {
namespace {

namespace json = boost::json;
std::string optional_string(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr || value->is_null() ? "" : std::string(value->as_string());
}

// As the server does it: of parts, the texts in a row.
std::optional<std::string> read_content(const json::value& content) {
  if (content.is_null()) return std::nullopt;
  if (content.is_string()) return std::string(content.as_string());
  std::string text;
  for (const json::value& part : content.as_array()) text += golden_string(part.as_object(), "text");
  return text;
}

Tool read_tool(std::string source) {
  json::object declaration = json::parse(source).as_object();
  return {std::move(declaration), std::move(source)};
}

ChatMessage read_message(const json::object& object) {
  ChatMessage message{.role = *parse_role(golden_string(object, "role")),
                      .content = read_content(object.at("content"))};
  if (object.contains("reasoning_content")) message.reasoning = golden_string(object, "reasoning_content");
  message.name = optional_string(object, "name");
  message.tool_call_id = optional_string(object, "tool_call_id");
  if (const json::value* calls = object.if_contains("tool_calls")) {
    for (const json::value& call : calls->as_array()) {
      const json::object& function = call.at("function").as_object();
      message.tool_calls.push_back({.id = golden_string(call.as_object(), "id"),
                                    .name = golden_string(function, "name"),
                                    .arguments = golden_string(function, "arguments")});
    }
  }
  return message;
}

const std::map<std::string, Conversation>& conversations() {
  static const std::map<std::string, Conversation> all = [] {
    std::map<std::string, Conversation> read;
    for (const json::object& line : golden_lines("chat/conversations.jsonl.gz")) {
      Conversation& conversation = read[golden_string(line, "name")];
      for (const json::value& message : line.at("messages").as_array()) {
        conversation.messages.push_back(read_message(message.as_object()));
      }
      if (const json::value* tools = line.if_contains("tools")) {
        for (const json::value& tool : tools->as_array())
          conversation.tools.push_back(read_tool(std::string(tool.as_string())));
      }
    }
    return read;
  }();
  return all;
}

RenderOptions read_options(const json::object& object) {
  RenderOptions options;
  for (const auto& [name, value] : object) {
    if (name == "generation_prompt") options.generation_prompt = GenerationPrompt::kOmit;
    if (name == "thinking") options.thinking = value.as_bool();
    if (name == "keep_reasoning") options.keep_reasoning = value.as_bool();
    if (name == "reasoning_effort") options.reasoning_effort = std::string(value.as_string());
  }
  return options;
}

// How often one of the tokens is spelled in the text.
std::int64_t spelled(std::string_view text, std::span<const std::string_view> tokens) {
  std::int64_t count = 0;
  for (const std::string_view token : tokens) {
    for (std::size_t at = text.find(token); at != std::string_view::npos; at = text.find(token, at + 1)) ++count;
  }
  return count;
}

// Whether something that a conversation says looks like one of the tokens.
bool has_look_alikes(const Conversation& conversation, std::span<const std::string_view> tokens) {
  std::string said;
  for (const ChatMessage& message : conversation.messages) {
    said += message.content.value_or("") + "\n" + message.reasoning.value_or("") + "\n" + message.name + "\n";
    for (const ToolCall& call : message.tool_calls) said += call.arguments + "\n";
  }
  for (const Tool& tool : conversation.tools) said += tool.source + "\n";
  return spelled(said, tokens) > 0;
}

void expect_goldens(const FormatUnderTest& subject, const std::string& file, std::span<const std::string_view> tokens) {
  std::set<std::string> titles;
  for (const json::object& line : golden_lines("chat/" + file + ".jsonl.gz")) {
    const std::string title = golden_string(line, "conversation");
    const Conversation& conversation = conversations().at(title);
    const RenderOptions options = read_options(line.at("options").as_object());
    const std::string text = subject.render(conversation, options);
    ASSERT_EQ(text, golden_string(line, "text")) << file << " " << title << " " << json::serialize(line.at("options"));
    const auto segments = subject.format->render(conversation, options);
    const auto is_token = [](const Segment& segment) { return segment.kind == Segment::Kind::kToken; };
    if (!has_look_alikes(conversation, tokens)) {
      ASSERT_EQ(std::ranges::count_if(*segments, is_token), spelled(text, tokens)) << file << " " << title;
    }
    ASSERT_EQ(subject.tokenizer->decode(subject.tokenizer->encode(*segments), SpecialTokens::kKeep), text) << title;
    titles.insert(title);
  }
  EXPECT_GE(titles.size(), 40u);
}

// All but kimi_k27_code, whose template is not at hand.
TEST(ChatGoldens, EveryFormatRendersAsItsOwnTemplate) {
  for (const FormatCase& one : kFormats) {
    if (one.name == "kimi_k27_code") continue;
    SCOPED_TRACE(one.name);
    const FormatUnderTest subject = format_under_test(one.name);
    ASSERT_NE(subject.format, nullptr);
    EXPECT_EQ(subject.format->name(), one.name);
    expect_goldens(subject, std::string(one.name), one.tokens);
  }
}

// The form of K2-Thinking's template that leaves out reasoning up to the first answer only is known by what it lacks.
TEST(ChatGoldens, KimiK2ThinkingThatStopsAtTheFirstAnswerRendersAsItsOwnTemplate) {
  const auto subject = format_of_checkpoint("kimi_k2", template_words("kimi_k2_thinking_first"), kKimiTokens);
  ASSERT_TRUE(subject.has_value()) << subject.error().to_string();
  expect_goldens(*subject, "kimi_k2_thinking_first", kKimiTokens);
}

// What is known of K2.7-Code: K2.6 with thinking on and all reasoning kept.
TEST(ChatGoldens, KimiK27CodeRendersAsKimiK26ThatKeepsReasoning) {
  const FormatUnderTest code = format_under_test("kimi_k27_code");
  const FormatUnderTest k26 = format_under_test("kimi_k26");
  for (const auto& [title, conversation] : conversations()) {
    EXPECT_EQ(code.render(conversation), k26.render(conversation, {.thinking = true, .keep_reasoning = true})) << title;
  }
}

// The bundled model is of Kimi K2's format, but for its default system text.
TEST(ChatGoldens, TheBundledModelRendersAsItsOwnTemplate) {
  const std::filesystem::path folder = std::filesystem::path(TESSERA_SOURCE_DIR) / "models" / "tessera-pocket";
  auto tokenizer = Tokenizer::load(folder);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  FormatUnderTest subject{std::move(*tokenizer), nullptr};
  auto format = ChatFormat::load(folder, *subject.tokenizer);
  ASSERT_TRUE(format.has_value()) << format.error().to_string();
  subject.format = std::move(*format);
  EXPECT_EQ(subject.format->name(), "kimi_k2");
  expect_goldens(subject, "kimi_k2_pocket", kKimiTokens);
}

// Text with pieces of markers and whole ones in it.
std::string random_text(std::span<const std::string_view> tokens) {
  std::string text;
  for (int pieces = *rc::gen::inRange(0, 6); pieces > 0; --pieces) {
    const std::string_view token = *rc::gen::elementOf(std::vector<std::string_view>(tokens.begin(), tokens.end()));
    const int kind = *rc::gen::inRange(0, 4);
    if (kind == 0) {
      for (const char c : *rc::gen::arbitrary<std::string>()) text += static_cast<char>(c & 0x7f);
      text += *rc::gen::element<std::string>("", "é", "中", "👩", "\u2028");
    }
    if (kind == 1) text += token;
    if (kind == 2) text += token.substr(0, static_cast<std::size_t>(*rc::gen::inRange(1, 8)));
    if (kind == 3)
      text += *rc::gen::element<std::string>("<", ">", "|", "\n", " ", "im_end|>", "</", "/no", "[", "think>");
  }
  return text;
}

// The JSON text of an object whose names and values are what `next` gives.
template <typename Next>
std::string some_arguments(Next next) {
  return json::serialize(json::object{{"k" + next(), next()}, {"l" + next(), {next(), {{"m" + next(), next()}}}}});
}

// A conversation in which everything that is said is what `next` gives.
template <typename Next>
Conversation talk(Next next, bool has_tools) {
  Conversation conversation = {
      .messages = {{.role = Role::kSystem, .content = next(), .name = "n" + next()},
                   {.role = Role::kUser, .content = next(), .name = "n" + next()},
                   {.role = Role::kAssistant, .content = "a" + next(), .name = "n" + next()},
                   {.role = Role::kUser, .content = "q" + next()},
                   {.role = Role::kTool, .content = next(), .tool_call_id = "i" + next()},
                   {.role = Role::kTool, .content = next(), .name = next(), .tool_call_id = "i" + next()},
                   {.role = Role::kSystem, .content = next()}}};
  if (has_tools) {
    // Behind the last question, so that the reasoning is written.
    conversation.messages.push_back(
        {.role = Role::kAssistant,
         .content = "b" + next(),
         .reasoning = "r" + next(),
         .tool_calls = {{.id = next(), .name = "f" + next(), .arguments = some_arguments(next)},
                        {.id = "functions.f:" + next(), .name = "g" + next(), .arguments = some_arguments(next)}}});
    conversation.messages.push_back({.role = Role::kDeveloper, .content = next()});
    const json::object schema = {{"type", "object"},
                                 {"properties", {{next(), {{"type", "string"}, {"enum", {next()}}}}}}};
    conversation.tools.push_back(read_tool(json::serialize(json::object{
        {"type", "function"}, {"function", {{"name", next()}, {"description", next()}, {"parameters", schema}}}})));
  }
  return conversation;
}

std::vector<TokenId> token_segments(const std::vector<Segment>& segments) {
  std::vector<TokenId> ids;
  for (const Segment& segment : segments) {
    if (segment.kind == Segment::Kind::kToken) ids.push_back(segment.token);
  }
  return ids;
}

// The kind "control tokens typed by a user or returned by a tool".
RC_GTEST_PROP(ChatProperty, WhatAMessageSaysNeverBecomesAToken, ()) {
  static const std::vector<FormatUnderTest> subjects = [] {
    std::vector<FormatUnderTest> all;
    for (const FormatCase& one : kFormats) all.push_back(format_under_test(one.name));
    return all;
  }();
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    const bool has_tools = kFormats[i].name != "smollm2";
    const auto expected = subjects[i].format->render(talk([] { return std::string("x"); }, has_tools), {});
    const Conversation conversation = talk([&] { return random_text(kFormats[i].tokens); }, has_tools);
    const auto segments = subjects[i].format->render(conversation, {});
    RC_ASSERT(expected.has_value() && segments.has_value());
    RC_ASSERT(token_segments(*segments) == token_segments(*expected));
    const std::vector<TokenId> ids = subjects[i].tokenizer->encode(*segments);
    const auto added = std::ranges::count_if(ids, [&](TokenId id) { return subjects[i].tokenizer->is_added(id); });
    RC_ASSERT(added == std::ssize(token_segments(*expected)));
  }
}

}  // namespace
}  // namespace tessera::text
