// Every chat format against what the models' own templates made of the same conversations
// (tools/oracles/make_chat_goldens.py), with a vocabulary that has the family's markers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "tessera/text/byte_level.h"
#include "tessera/text/chat_format.h"
#include "tessera/text/golden_lines.h"
#include "tessera/text/test_folder.h"

namespace tessera::text {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

constexpr std::array<std::string_view, 14> kKimiTokens = {"[BOS]",
                                                          "[EOS]",
                                                          "<|im_end|>",
                                                          "<|im_user|>",
                                                          "<|im_assistant|>",
                                                          "<|im_system|>",
                                                          "<|im_middle|>",
                                                          "<|tool_calls_section_begin|>",
                                                          "<|tool_calls_section_end|>",
                                                          "<|tool_call_begin|>",
                                                          "<|tool_call_argument_begin|>",
                                                          "<|tool_call_end|>",
                                                          "<think>",
                                                          "</think>"};
constexpr std::array<std::string_view, 18> kGlmTokens = {
    "<|endoftext|>",   "[gMASK]",     "<sop>",        "<|system|>",      "<|user|>",         "<|assistant|>",
    "<|observation|>", "<think>",     "</think>",     "<tool_call>",     "</tool_call>",     "<arg_key>",
    "</arg_key>",      "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>", "/nothink"};
constexpr std::array<std::string_view, 5> kQwen25Tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>",
                                                           "</tool_call>"};
constexpr std::array<std::string_view, 9> kQwen3Tokens = {"<|endoftext|>",    "<|im_start|>", "<|im_end|>",
                                                          "<tool_call>",      "</tool_call>", "<tool_response>",
                                                          "</tool_response>", "<think>",      "</think>"};
constexpr std::array<std::string_view, 3> kSmollm2Tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

struct FormatCase {
  std::string_view name;
  std::span<const std::string_view> tokens;
};
constexpr std::array<FormatCase, 14> kFormats = {{
    {"kimi_k2", kKimiTokens},
    {"kimi_k2_thinking", kKimiTokens},
    {"kimi_k25", kKimiTokens},
    {"kimi_k26", kKimiTokens},
    {"glm45", kGlmTokens},
    {"glm47", kGlmTokens},
    {"glm5", kGlmTokens},
    {"glm51", kGlmTokens},
    {"glm52", kGlmTokens},
    {"qwen25", kQwen25Tokens},
    {"qwen3", kQwen3Tokens},
    {"qwen3_instruct_2507", kQwen3Tokens},
    {"qwen3_thinking_2507", kQwen3Tokens},
    {"smollm2", kSmollm2Tokens},
}};

// A token for each byte, then the added ones from id 256 on; without those that are `missing`.
std::unique_ptr<Tokenizer> tokenizer_with(std::span<const std::string_view> added, std::string_view missing = "") {
  json::object vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_letter(static_cast<unsigned char>(byte))] = byte;
  json::array tokens;
  for (std::size_t i = 0; i < added.size(); ++i) {
    if (added[i] == missing) continue;
    tokens.push_back({{"id", 256 + static_cast<int>(i)}, {"content", std::string(added[i])}, {"special", true}});
  }
  const json::object file = {
      {"added_tokens", std::move(tokens)},
      {"model", {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", json::array()}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}}};
  auto tokenizer = Tokenizer::parse(json::serialize(file));
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  return tokenizer.has_value() ? std::move(*tokenizer) : nullptr;
}

const FormatCase& format_case(std::string_view name) { return *std::ranges::find(kFormats, name, &FormatCase::name); }

struct Subject {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<const ChatFormat> format;
};

Subject subject(std::string_view name) {
  Subject out{tokenizer_with(format_case(name).tokens), nullptr};
  auto format = ChatFormat::by_name(name, *out.tokenizer);
  EXPECT_TRUE(format.has_value()) << format.error().to_string();
  if (format.has_value()) out.format = std::move(*format);
  return out;
}

std::string optional_string(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr || value->is_null() ? "" : std::string(value->as_string());
}

ChatMessage read_message(const json::object& object) {
  ChatMessage message{.role = *parse_role(golden_string(object, "role"))};
  if (!object.at("content").is_null()) message.content = golden_string(object, "content");
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
        for (const json::value& tool : tools->as_array()) conversation.tools.push_back({tool.as_object()});
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

std::string text_of(const std::vector<Segment>& segments, const Tokenizer& tokenizer) {
  std::string text;
  for (const Segment& segment : segments) {
    text += segment.kind == Segment::Kind::kText ? segment.text : tokenizer.token_bytes(segment.token);
  }
  return text;
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
  for (const Tool& tool : conversation.tools) said += json::serialize(tool.declaration) + "\n";
  return spelled(said, tokens) > 0;
}

void expect_goldens(const ChatFormat& format, const Tokenizer& tokenizer, const std::string& file,
                    std::span<const std::string_view> tokens) {
  std::int64_t checked = 0;
  for (const json::object& line : golden_lines("chat/" + file + ".jsonl.gz")) {
    const std::string title = golden_string(line, "conversation");
    const Conversation& conversation = conversations().at(title);
    const auto segments = format.render(conversation, read_options(line.at("options").as_object()));
    ASSERT_TRUE(segments.has_value()) << file << " " << title << ": " << segments.error().to_string();
    const std::string text = text_of(*segments, tokenizer);
    ASSERT_EQ(text, golden_string(line, "text")) << file << " " << title << " " << json::serialize(line.at("options"));
    const auto is_token = [](const Segment& segment) { return segment.kind == Segment::Kind::kToken; };
    if (!has_look_alikes(conversation, tokens)) {
      ASSERT_EQ(std::ranges::count_if(*segments, is_token), spelled(text, tokens)) << file << " " << title;
    }
    ++checked;
  }
  EXPECT_GE(checked, 30);
}

TEST(ChatGoldens, EveryFormatRendersAsItsOwnTemplate) {
  for (const FormatCase& one : kFormats) {
    SCOPED_TRACE(one.name);
    const Subject subject_of = subject(one.name);
    ASSERT_NE(subject_of.format, nullptr);
    EXPECT_EQ(subject_of.format->name(), one.name);
    expect_goldens(*subject_of.format, *subject_of.tokenizer, std::string(one.name), one.tokens);
  }
}

TEST(ChatGoldens, EveryNameHasGoldens) {
  std::vector<std::string_view> expected;
  for (const FormatCase& one : kFormats) expected.push_back(one.name);
  EXPECT_EQ(ChatFormat::names(), expected);
}

// The bundled model is of Kimi K2's format, but for its default system text.
TEST(ChatGoldens, TheBundledModelRendersAsItsOwnTemplate) {
  const std::filesystem::path folder = std::filesystem::path(TESSERA_SOURCE_DIR) / "models" / "tessera-pocket";
  const auto tokenizer = tokenizer_with(kKimiTokens);
  const auto format = ChatFormat::load(folder, *tokenizer);
  ASSERT_TRUE(format.has_value()) << format.error().to_string();
  EXPECT_EQ((*format)->name(), "kimi_k2");
  expect_goldens(**format, *tokenizer, "kimi_k2_pocket", kKimiTokens);
}

}  // namespace
}  // namespace tessera::text
