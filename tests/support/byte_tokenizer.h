// A tokenizer for tests that need no real one: every byte is the token of its own number; control tokens begin at 256.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/text/chat_format.h"
#include "tessera/text/tokenizer.h"

namespace tessera::test_support {

inline constexpr text::TokenId kTurnStart = 256;
inline constexpr text::TokenId kTurnEnd = 257;
inline constexpr std::int64_t kByteVocabulary = 258;

// A control token, or an ordinary one for which no text is encoded: it comes from models alone.
struct ControlToken {
  std::string content;
  // kPlain: part of a text that leaves special tokens out.
  enum class Kind { kSpecial, kPlain, kOrdinary } kind = Kind::kSpecial;
};

// The text of its tokenizer.json: the byte-level alphabet of GPT-2, no merges.
inline std::string byte_tokenizer_json(const std::vector<ControlToken>& control = {{"<|turn|>"}, {"<|end|>"}}) {
  const auto is_printable = [](int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  };
  std::string vocab;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int character = is_printable(byte) ? byte : next++;
    vocab += fmt::format("\"\\u{:04x}\":{},", character, byte);
  }
  vocab.pop_back();
  std::string added;
  for (std::size_t i = 0; i < control.size(); ++i) {
    const auto& [content, kind] = control[i];
    if (kind == ControlToken::Kind::kOrdinary) {
      vocab += fmt::format(",\"{}\":{}", content, 256 + i);
      continue;
    }
    added += fmt::format(
        R"({}{{"id":{},"content":"{}","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":{}}})",
        added.empty() ? "" : ",", 256 + i, content, kind == ControlToken::Kind::kSpecial);
  }
  std::string json = R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)";
  json += added;
  json += R"(],
    "normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
    "post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
    "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,
    "fuse_unk":false,"byte_fallback":false,"vocab":{)";
  json += vocab;
  json += R"(},"merges":[]}})";
  return json;
}

inline std::unique_ptr<text::Tokenizer> byte_tokenizer(const std::vector<ControlToken>& control = {{"<|turn|>"},
                                                                                                   {"<|end|>"}}) {
  auto tokenizer = text::Tokenizer::parse(byte_tokenizer_json(control));
  TESSERA_CHECK(tokenizer.has_value(), tokenizer.error().message());
  return std::move(*tokenizer);
}

// <|turn|>ROLE:CONTENT<|end|>... and, for the generation prompt, <|turn|>.
class PlainChatFormat final : public text::ChatFormat {
 public:
  std::string_view name() const override { return "plain"; }
  base::Result<std::vector<text::Segment>> render(const text::Conversation& conversation,
                                                  const text::RenderOptions& options) const override {
    std::vector<text::Segment> segments;
    for (const text::ChatMessage& message : conversation.messages) {
      if (message.role == text::Role::kTool) return base::failure(base::invalid_argument("messages[0]: no tools here"));
      segments.push_back(text::Segment::of_token(kTurnStart));
      segments.push_back(
          text::Segment::of_text(std::string(role_name(message.role)) + ":" + message.content.value_or("")));
      segments.push_back(text::Segment::of_token(kTurnEnd));
    }
    if (options.generation_prompt == text::GenerationPrompt::kAdd)
      segments.push_back(text::Segment::of_token(kTurnStart));
    return segments;
  }
  text::OutputSyntax output_syntax(const text::RenderOptions& /*options*/) const override { return {}; }
  const std::vector<text::TokenId>& stop_token_ids() const override { return stops_; }

 private:
  std::vector<text::TokenId> stops_ = {kTurnEnd};
};

// The control tokens of every family of chat formats, each as its family has it.
inline std::vector<ControlToken> family_control_tokens() {
  using enum ControlToken::Kind;
  return {{"[BOS]"},
          {"[EOS]"},
          {"<|im_start|>"},
          {"<|im_end|>"},
          {"<|im_user|>"},
          {"<|im_assistant|>"},
          {"<|im_system|>"},
          {"<|im_middle|>"},
          {"<|tool_calls_section_begin|>"},
          {"<|tool_calls_section_end|>"},
          {"<|tool_call_begin|>"},
          {"<|tool_call_argument_begin|>"},
          {"<|tool_call_end|>"},
          {"<|endoftext|>"},
          {"[gMASK]"},
          {"<sop>"},
          {"<|system|>"},
          {"<|user|>"},
          {"<|assistant|>"},
          {"<|observation|>"},
          {"<think>", kPlain},
          {"</think>", kPlain},
          {"<tool_call>", kPlain},
          {"</tool_call>", kPlain},
          {"<arg_key>", kPlain},
          {"</arg_key>", kPlain},
          {"<arg_value>", kPlain},
          {"</arg_value>", kPlain},
          {"<tool_response>", kPlain},
          {"</tool_response>", kPlain},
          {"/nothink"},
          {std::string(64, 'x'), kOrdinary}};
}

// The bytes of a text as token ids; what family_control_tokens() has as those, from 256 on. A byte 3 is left out, and
// what is behind it is spelled in bytes.
inline std::vector<std::int32_t> marked_tokens(std::string_view text) {
  std::vector<std::int32_t> ids;
  const std::vector<ControlToken> control = family_control_tokens();
  while (!text.empty()) {
    if (text.starts_with('\3')) {
      text.remove_prefix(1);
    } else {
      // No spelling begins another.
      const auto token =
          std::ranges::find_if(control, [text](const ControlToken& one) { return text.starts_with(one.content); });
      if (token != control.end()) {
        ids.push_back(static_cast<text::TokenId>(256 + (token - control.begin())));
        text.remove_prefix(token->content.size());
        continue;
      }
    }
    if (text.empty()) break;
    ids.push_back(static_cast<unsigned char>(text.front()));
    text.remove_prefix(1);
  }
  return ids;
}

// The bytes of a text as token ids.
inline std::vector<std::int32_t> byte_tokens(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

}  // namespace tessera::test_support
