// A tokenizer for tests that need no real one: every byte is the token of its own number; 256 and 257 are control
// tokens.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/text/chat_format.h"
#include "tessera/text/tokenizer.h"

namespace tessera::test_support {

inline constexpr text::TokenId kTurnStart = 256;
inline constexpr text::TokenId kTurnEnd = 257;
inline constexpr std::int64_t kByteVocabulary = 258;

// The text of its tokenizer.json: the byte-level alphabet of GPT-2, no merges.
inline std::string byte_tokenizer_json() {
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
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[
    {"id":256,"content":"<|turn|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
    {"id":257,"content":"<|end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
    "normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
    "post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
    "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,
    "fuse_unk":false,"byte_fallback":false,"vocab":{)" +
         vocab + R"(},"merges":[]}})";
}

inline std::unique_ptr<text::Tokenizer> byte_tokenizer() {
  auto tokenizer = text::Tokenizer::parse(byte_tokenizer_json());
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

// The bytes of a text as token ids.
inline std::vector<std::int32_t> byte_tokens(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

}  // namespace tessera::test_support
