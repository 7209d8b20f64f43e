// A conversation as a chat format renders it: messages, the tools that may be called, and what the request says about
// the rendering.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::text {

// "developer" is the API's newer word for system; families whose templates do not know it read it as that.
enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool };

// "system", "developer", "user", "assistant", "tool".
std::string_view role_name(Role role);
// Whether it instructs the model: system or developer.
constexpr bool is_system(Role role) { return role == Role::kSystem || role == Role::kDeveloper; }
// From the API's spelling. Anything else is refused by name.
base::Result<Role> parse_role(std::string_view name);

// A call that an assistant's message made.
struct ToolCall {
  std::string id = {};         // As the client sent it; formats that have their own kind of id write their own.
  std::string name = {};       // Of the function.
  std::string arguments = {};  // JSON text of an object, as the client sent it.
};

struct ChatMessage {
  Role role = Role::kUser;
  // Any text: markers in it stay text. Empty optional: null. Content that came in parts is their texts in a row.
  std::optional<std::string> content = {};
  std::string name = {};  // The speaker's, optional. Families whose template ignores names ignore it.
  std::optional<std::string> reasoning = {};  // Of an assistant's message.
  std::vector<ToolCall> tool_calls = {};      // Of an assistant's message.
  std::string tool_call_id = {};              // Of a tool's message: the call that it answers.
};

// A tool as the client declared it: {"type": "function", "function": {"name", "description", "parameters", ...}}, with
// its fields in the client's order. "function" is an object and its "name" a string: the server has checked that.
struct Tool {
  boost::json::object declaration;
  // The text that `declaration` was read from, which is what formats render: the parser that made the object rounds
  // numbers, and a float's last digit too.
  std::string source = {};

  std::string_view name() const;
  // The JSON schema of the arguments; nullptr if none is declared or it is no object.
  const boost::json::object* parameters() const;
};

struct Conversation {
  std::vector<ChatMessage> messages = {};
  std::vector<Tool> tools = {};  // Empty: none are declared, which is what tool_choice "none" means too.
};

// Whether the rendering ends with the beginning of the assistant's next message.
enum class GenerationPrompt { kAdd, kOmit };

// What a request can choose about the rendering ("chat_template_kwargs"). Each is empty where the request says nothing:
// then the format does what its template does by default. A format refuses, by name, what it cannot do.
struct RenderOptions {
  GenerationPrompt generation_prompt = GenerationPrompt::kAdd;
  std::optional<bool> thinking = {};                 // "thinking", "enable_thinking"
  std::optional<bool> keep_reasoning = {};           // "preserve_thinking"; the opposite of "clear_thinking"
  std::optional<std::string> reasoning_effort = {};  // "reasoning_effort"
};

}  // namespace tessera::text
