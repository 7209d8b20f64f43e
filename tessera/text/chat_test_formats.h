// For tests: every chat format with a vocabulary that has its family's markers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/byte_level.h"
#include "tessera/text/chat_format.h"
#include "tessera/text/golden_lines.h"
#include "tessera/text/test_folder.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {

inline constexpr std::array<std::string_view, 14> kKimiTokens = {"[BOS]",
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
inline constexpr std::array<std::string_view, 18> kGlmTokens = {
    "<|endoftext|>",   "[gMASK]",     "<sop>",        "<|system|>",      "<|user|>",         "<|assistant|>",
    "<|observation|>", "<think>",     "</think>",     "<tool_call>",     "</tool_call>",     "<arg_key>",
    "</arg_key>",      "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>", "/nothink"};
inline constexpr std::array<std::string_view, 5> kQwen25Tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>",
                                                                  "<tool_call>", "</tool_call>"};
inline constexpr std::array<std::string_view, 9> kQwen3Tokens = {"<|endoftext|>",    "<|im_start|>", "<|im_end|>",
                                                                 "<tool_call>",      "</tool_call>", "<tool_response>",
                                                                 "</tool_response>", "<think>",      "</think>"};
inline constexpr std::array<std::string_view, 3> kSmollm2Tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

struct FormatCase {
  std::string_view name;
  std::span<const std::string_view> tokens;
};
inline constexpr std::array<FormatCase, 15> kFormats = {{
    {"kimi_k2", kKimiTokens},
    {"kimi_k2_thinking", kKimiTokens},
    {"kimi_k25", kKimiTokens},
    {"kimi_k26", kKimiTokens},
    {"kimi_k27_code", kKimiTokens},
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

// The text of a tokenizer.json with a token for each byte, then the added ones from id 256 on, without the one that is
// `missing`.
inline std::string tokenizer_json_with(std::span<const std::string_view> added, std::string_view missing = "") {
  namespace json = boost::json;
  json::object vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_letter(static_cast<unsigned char>(byte))] = byte;
  json::array tokens;
  for (std::size_t i = 0; i < added.size(); ++i) {
    if (added[i] == missing) continue;
    tokens.push_back({{"id", 256 + static_cast<int>(i)}, {"content", std::string(added[i])}, {"special", true}});
  }
  return json::serialize(
      json::object{{"added_tokens", std::move(tokens)},
                   {"model", {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", json::array()}}},
                   {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
                   {"decoder", {{"type", "ByteLevel"}}}});
}

inline std::unique_ptr<Tokenizer> tokenizer_with(std::span<const std::string_view> added,
                                                 std::string_view missing = "") {
  auto tokenizer = Tokenizer::parse(tokenizer_json_with(added, missing));
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  return tokenizer.has_value() ? std::move(*tokenizer) : nullptr;
}

// A text that has, of the words by which templates are recognized, those that the format's own template has.
// `golden`: the name of its goldens; "" for a template that no format fits.
inline std::string template_words(std::string_view golden) {
  for (const boost::json::object& line : golden_lines("chat/literals.jsonl.gz")) {
    if (golden_string(line, "format") != golden) continue;
    std::string text = golden_string(line, "starts_with");
    for (const boost::json::value& words : line.at("has").as_array()) text += "\n" + std::string(words.as_string());
    return text;
  }
  ADD_FAILURE() << "no template " << golden;
  return "";
}

struct FormatUnderTest {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<const ChatFormat> format;

  // The text of a rendering, or the message of its failure.
  std::string render(const Conversation& conversation, const RenderOptions& options = {}) const {
    const auto segments = format->render(conversation, options);
    if (!segments.has_value()) return segments.error().to_string();
    std::string text;
    for (const Segment& segment : *segments) {
      text += segment.kind == Segment::Kind::kText ? segment.text : tokenizer->token_bytes(segment.token);
    }
    return text;
  }
};

inline FormatUnderTest format_under_test(std::string_view name) {
  FormatUnderTest out{tokenizer_with(std::ranges::find(kFormats, name, &FormatCase::name)->tokens), nullptr};
  auto format = ChatFormat::by_name(name, *out.tokenizer);
  EXPECT_TRUE(format.has_value()) << format.error().to_string();
  if (format.has_value()) out.format = std::move(*format);
  return out;
}

// The format that the template words of a checkpoint of that model_type choose; or the refusal.
inline base::Result<FormatUnderTest> format_of_checkpoint(std::string_view model_type, std::string_view words,
                                                          std::span<const std::string_view> tokens) {
  const TestFolder folder;
  folder.write("config.json", R"({"model_type": ")" + std::string(model_type) + "\"}");
  folder.write("chat_template.jinja", std::string(words));
  FormatUnderTest out{tokenizer_with(tokens), nullptr};
  TESSERA_ASSIGN_OR_RETURN(out.format, ChatFormat::load(folder.path(), *out.tokenizer));
  return out;
}

}  // namespace tessera::text
