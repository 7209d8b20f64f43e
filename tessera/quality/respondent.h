// Who is asked: a model behind any OpenAI-compatible server. Tasks know nothing else of it; apps/tessera connects it to
// a URL or to a server that it starts itself.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::quality {

using TokenId = std::int32_t;

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON, if the model wrote it well: exactly its text.
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool"
  std::string content;
  std::vector<ToolCall> calls = {};  // Of the assistant's.
  std::string tool_call_id = {};     // Of a tool's.
  std::string name = {};             // Likewise: the tool's, which some formats write; empty: not given.
};

struct ChatQuestion {
  std::vector<ChatMessage> messages;
  std::string tools;  // A JSON array as the API takes it; empty: none.
  std::int64_t max_tokens = 0;
};

struct CompletionQuestion {
  std::string prompt;
  std::int64_t max_tokens = 0;
  std::vector<std::string> stop = {};  // The text ends before the first of them.
};

struct Answer {
  std::string text;
  std::string reasoning;
  std::vector<ToolCall> calls;
  bool cut_off = false;  // It ended because max_tokens did.
};

// What the model gave one token of a text, knowing all tokens before it.
struct TokenScore {
  double logprob = 0.0;  // Natural logarithm.
  bool is_best = false;  // No token is likelier.
};

struct RespondentInfo {
  std::string model;                // As the server names it.
  std::string precision;            // Weights and KV of both phases, as the server discloses them; empty: it does not.
  std::string digest;               // Of the checkpoint; likewise.
  std::int64_t context_tokens = 0;  // 0: not known.
};

// Everything is greedy (temperature 0) and gives the same answer every time. Thread-safe: the tasks ask many questions
// at once. Errors: out_of_range, the question does not fit the context of the model (the question is then skipped and
// counted); anything else ends the evaluation and names what was asked of the server.
class Respondent {
 public:
  virtual ~Respondent() = default;
  virtual const RespondentInfo& info() const = 0;
  virtual base::Result<Answer> chat(const ChatQuestion& question) = 0;
  virtual base::Result<Answer> complete(const CompletionQuestion& question) = 0;
  // Text to tokens as a prompt of a completion begins (with BOS where the model wants one), and without.
  virtual base::Result<std::vector<TokenId>> encode_prompt(std::string_view text) = 0;
  virtual base::Result<std::vector<TokenId>> encode(std::string_view text) = 0;
  // A conversation up to where the model's answer begins.
  virtual base::Result<std::vector<TokenId>> encode_chat(const ChatQuestion& question) = 0;
  // Scores of tokens[first] and all after it; 0 < first < tokens.size().
  virtual base::Result<std::vector<TokenScore>> score(std::span<const TokenId> tokens, std::size_t first) = 0;
};

}  // namespace tessera::quality
