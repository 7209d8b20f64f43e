// The terminal's end of a conversation: talks to any OpenAI-compatible server over HTTP.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server_address.h"
#include "tessera/base/status.h"

namespace tessera::app {

// A call that the model wants made.
struct Call {
  std::string id;
  std::string name;
  std::string arguments;  // JSON, if the model wrote it well.
};

struct Turn {
  std::string role;
  std::string content;
  std::string reasoning = {};     // Of the assistant's; sent back as reasoning_content.
  std::vector<Call> calls = {};   // Of the assistant's.
  std::string tool_call_id = {};  // Of a tool's.
};

struct AnswerStats {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t completion_tokens = 0;
  double seconds = 0.0;
  double first_token_seconds = 0.0;
  std::string finish_reason;
};

// How the server is asked. A model without a chat format can only complete text: then each question is one by itself.
enum class AskBy : std::uint8_t { kChat, kCompletion };

// Tokens of one completion where ChatOptions::max_tokens leaves it open: without a chat format nothing says when to
// stop.
inline constexpr std::int64_t kCompletionTokens = 128;

struct ChatOptions {
  ServerAddress server;
  double temperature = 0.2;     // A small model at 1.0, the API's default, loses itself.
  std::int64_t max_tokens = 0;  // 0: as many as the context allows.
  std::string system;           // Empty: the model's default.
  AskBy ask_by = AskBy::kChat;
  std::optional<bool> thinking;  // Empty: as the model does by default.
  std::string tools;             // A JSON array, as the API takes it; empty: none. See read_tools().
};

// The file's text, after a look at whether it is a JSON array.
base::Result<std::string> read_tools(const std::string& path);

enum class AnswerPart : std::uint8_t { kReasoning, kContent };

// Who takes an answer in. Setting `interrupted` (from a signal handler, whose signal also ends the blocking read)
// closes the connection, which makes the server stop.
struct Listener {
  std::function<void(AnswerPart part, const std::string& text)> on_text;
  const std::atomic<bool>& interrupted;
};

// Sends the conversation (or its last turn, to be completed) and passes the answer's text on as it comes. `answer` is
// the assistant's turn as far as it came, calls included, also when this fails.
base::Result<AnswerStats> ask(const ChatOptions& options, const std::vector<Turn>& turns, const Listener& listener,
                              Turn& answer);

// One question, the answer alone on standard output, with a newline at its end; reasoning goes to standard error.
// Either gets the text as the model wrote it, unless it is a terminal, which the text could steer (terminal_text.h).
base::Status ask_once(const ChatOptions& options, const std::string& prompt);

// What a chat begins with.
struct Welcome {
  std::string greeting;
  std::vector<std::string> examples = {};  // Prompts that are suggested; /try N asks the N-th.
};

// Reads questions from the terminal (or standard input) until /quit or its end.
base::Status run_chat(const ChatOptions& options, const Welcome& welcome);

}  // namespace tessera::app
