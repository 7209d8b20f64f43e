// The bodies of the API's requests, parsed and range-checked. What a model's context or a tokenizer has to say comes
// later (generation.h); here nothing but the body is looked at.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/server/api_error.h"
#include "tessera/text/chat_format.h"

namespace tessera::server {

template <typename T>
using ApiResult = std::expected<T, ApiError>;

// A prompt of /v1/completions: text or token ids.
using Prompt = std::variant<std::string, std::vector<std::int32_t>>;

// What both kinds of generation share.
struct GenerationOptions {
  std::string model;
  float temperature = 1.0f;
  float top_p = 1.0f;
  std::int32_t top_k = 0;
  std::optional<std::uint64_t> seed;
  std::optional<std::int32_t> max_tokens;
  std::int32_t n = 1;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool logprobs = false;
  std::int32_t top_logprobs = 0;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  std::string request_id;  // "rid" in the body; the x-request-id header wins.
  // Field name to wanted value, of require_precision: "prefill_kv", "decode_kv", "prefill_weights", "decode_weights".
  std::vector<std::pair<std::string, std::string>> require_precision;
};

struct ChatRequest {
  GenerationOptions options;
  text::Conversation conversation;  // Without tools where the request says that none may be called.
  text::RenderOptions render;
};

struct CompletionRequest {
  GenerationOptions options;
  std::vector<Prompt> prompts;
  bool echo = false;
};

// What /v1/completions puts before a text: BOS, for some models.
enum class PromptPrefix : std::uint8_t { kAdd, kOmit };
enum class TokenStrings : std::uint8_t { kOmit, kReturn };

struct TokenizeRequest {
  std::string model;
  std::variant<std::string, text::Conversation> input;
  text::RenderOptions render;                       // Of a conversation.
  PromptPrefix prompt_prefix = PromptPrefix::kAdd;  // Of a text.
  TokenStrings token_strings = TokenStrings::kOmit;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<std::int32_t> tokens;
};

ApiResult<ChatRequest> parse_chat_request(std::string_view body);
ApiResult<CompletionRequest> parse_completion_request(std::string_view body);
ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body);
ApiResult<DetokenizeRequest> parse_detokenize_request(std::string_view body);
// {"rid": "..."} or {"abort_all": true}; gives the id, empty for all.
ApiResult<std::string> parse_abort_request(std::string_view body);

}  // namespace tessera::server
