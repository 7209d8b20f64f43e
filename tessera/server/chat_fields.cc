#include "tessera/server/chat_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/limits.h"
#include "tessera/server/json_source.h"
#include "tessera/text/python_value.h"

namespace tessera::server {

namespace json = boost::json;
namespace limits = base::limits;

namespace {

constexpr std::size_t kWordBytesMax = 256;

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

// A declared name has to survive every family's way of writing calls, so it is one word of ASCII.
bool is_declarable_name(std::string_view name) {
  return std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
}

// Reads an array of at most `size_max` objects: calls read_one(fields of the object, its text, the object) for each, up
// to the first mistake. `source` is the text of the object that has the array. False if the array is absent or null.
template <typename ReadOne>
bool read_objects(JsonFields& fields, std::string_view source, std::string_view name, std::int64_t size_max,
                  const ReadOne& read_one) {
  const json::array* array = fields.array(name, static_cast<std::size_t>(size_max));
  if (array == nullptr) return false;
  const std::vector<std::string_view> sources = element_sources(member_source(source, name));
  for (std::size_t i = 0; i < array->size() && fields.ok(); ++i) {
    const std::string element = fmt::format("{}[{}]", name, i);
    const json::object* object = (*array)[i].if_object();
    if (object == nullptr) {
      fields.fail(element, "expected an object");
      break;
    }
    JsonFields inner(*object, fields.path(element));
    read_one(inner, sources[i], *object);
    fields.adopt(inner);
  }
  return true;
}

// A message's content: a string, or parts of which only text is known here. Empty: null, absent, or a mistake.
std::optional<std::string> read_content(JsonFields& fields) {
  const json::value* content = fields.value("content");
  if (content == nullptr) return std::nullopt;
  if (content->is_string()) return std::string(view(content->get_string()));
  if (!content->is_array()) {
    fields.fail("content", "expected a string or an array of parts");
    return std::nullopt;
  }
  std::string text;
  for (const json::value& part : content->get_array()) {
    const json::value* type = part.is_object() ? part.get_object().if_contains("type") : nullptr;
    const json::value* part_text = part.is_object() ? part.get_object().if_contains("text") : nullptr;
    if (type == nullptr || *type != json::value("text") || part_text == nullptr || !part_text->is_string()) {
      fields.fail("content", R"(only parts {"type":"text","text":"..."} are supported)");
      return std::nullopt;
    }
    text += view(part_text->get_string());
  }
  return text;
}

// "function" of a call in the history. The name is what a model wrote: whatever it is, it may come back.
void read_called_function(JsonFields& fields, std::string_view source, text::ValueBudget& budget,
                          text::ToolCall& call) {
  fields.require("function");
  const json::object* object = fields.object("function");
  if (object == nullptr) return;
  JsonFields function(*object, fields.path("function"));
  function.require("name");
  call.name = function.string("name", static_cast<std::size_t>(limits::kToolNameBytesMax)).value_or("");
  if (call.name.empty()) function.fail("name", "expected a string that is not empty");
  const json::value* arguments = function.value("arguments");
  if (arguments != nullptr && arguments->is_string()) {
    call.arguments = view(arguments->get_string());
  } else if (arguments != nullptr && arguments->is_object()) {
    const base::Result<text::PythonValue> value =
        text::parse_python_json(member_source(member_source(source, "function"), "arguments"), budget);
    if (value.has_value()) {
      text::append_python_json(*value, text::JsonSpacing::kSpaces, call.arguments);
    } else {
      function.fail("arguments", value.error().message());
    }
  } else if (arguments != nullptr) {
    function.fail("arguments", "expected the JSON text of an object, or an object");
  }
  // Some clients leave out the arguments of a function that takes none.
  if (call.arguments.empty()) call.arguments = "{}";
  function.accept_ignored({"parsed_arguments"});  // What OpenAI's own client made of the arguments.
  fields.adopt(function);
}

void read_tool_calls(JsonFields& fields, std::string_view source, text::ValueBudget& budget,
                     text::ChatMessage& message) {
  const auto read_call = [&](JsonFields& inner, std::string_view call_source, const json::object&) {
    text::ToolCall call;
    call.id = inner.string("id", static_cast<std::size_t>(limits::kToolCallIdBytesMax)).value_or("");
    inner.refuse_unless("type", "function");
    read_called_function(inner, call_source, budget, call);
    inner.accept_ignored({"index"});  // Of a streamed delta, which some clients keep.
    message.tool_calls.push_back(std::move(call));
  };
  const json::array* calls = fields.array("tool_calls", static_cast<std::size_t>(limits::kToolCallsMax));
  if (calls != nullptr && !calls->empty() && message.role != text::Role::kAssistant) {
    return fields.fail("tool_calls", "only an assistant's message has calls");
  }
  read_objects(fields, source, "tool_calls", limits::kToolCallsMax, read_call);
}

// Both names in which servers give reasoning, and so in which clients send it back.
void read_reasoning(JsonFields& fields, text::ChatMessage& message) {
  for (const std::string_view name : {"reasoning_content", "reasoning"}) {
    std::optional<std::string> reasoning = fields.string(name, static_cast<std::size_t>(limits::kBodyBytesMax));
    if (!reasoning.has_value()) continue;
    if (message.role != text::Role::kAssistant) {
      fields.fail(name, "only an assistant's message has reasoning");
    } else if (message.reasoning.has_value() && message.reasoning != reasoning) {
      fields.fail(name, "differs from reasoning_content");
    }
    message.reasoning = std::move(reasoning);
  }
}

text::ChatMessage read_message(JsonFields& fields, std::string_view source, text::ValueBudget& budget) {
  text::ChatMessage message;
  fields.require("role");
  const std::string role_text = fields.string("role", kWordBytesMax).value_or("");
  if (fields.ok()) {
    const base::Result<text::Role> role = text::parse_role(role_text);
    if (role.has_value()) {
      message.role = *role;
    } else {
      fields.fail("role", role.error().message());
    }
  }
  message.content = read_content(fields);
  if (message.role == text::Role::kUser || text::is_system(message.role)) fields.require("content");
  message.name = fields.string("name", kWordBytesMax).value_or("");
  read_reasoning(fields, message);
  read_tool_calls(fields, source, budget, message);
  const std::size_t id_max = static_cast<std::size_t>(limits::kToolCallIdBytesMax);
  if (const std::optional<std::string> id = fields.string("tool_call_id", id_max)) {
    if (message.role != text::Role::kTool) fields.fail("tool_call_id", "only a tool's message answers a call");
    message.tool_call_id = *id;
  }
  // Of answers that clients send back as they got them: nothing in them, or nothing that is rendered. "parsed" is what
  // OpenAI's own client made of the content.
  for (const std::string_view name : {"refusal", "audio", "function_call"}) fields.refuse_unless(name, nullptr);
  fields.accept_ignored({"annotations", "parsed"});
  return message;
}

void read_messages(JsonFields& fields, std::string_view body, std::vector<text::ChatMessage>& messages) {
  text::ValueBudget budget;
  const auto read = [&](JsonFields& inner, std::string_view source, const json::object&) {
    messages.push_back(read_message(inner, source, budget));
  };
  const bool given = read_objects(fields, body, "messages", limits::kMessagesMax, read);
  if (given && messages.empty() && fields.ok()) fields.fail("messages", "at least one message is needed");
}

// A declaration is rendered as it was sent, so only what the server itself relies on is looked at.
void check_function(JsonFields& fields) {
  fields.require("function");
  const json::object* object = fields.object("function");
  if (object == nullptr) return;
  JsonFields function(*object, fields.path("function"));
  function.require("name");
  const auto name = function.string("name", static_cast<std::size_t>(limits::kToolNameBytesMax));
  if (name.has_value() && (name->empty() || !is_declarable_name(*name))) {
    function.fail("name", "expected letters, digits, '_', '-' and '.'");
  }
  function.string("description", static_cast<std::size_t>(limits::kBodyBytesMax));
  function.object("parameters");
  function.accept_rest();
  fields.adopt(function);
}

void read_tools(JsonFields& fields, std::string_view body, std::vector<text::Tool>& tools) {
  read_objects(fields, body, "tools", limits::kToolsMax,
               [&](JsonFields& inner, std::string_view source, const json::object& declaration) {
                 inner.require("type");
                 const std::string type = inner.string("type", kWordBytesMax).value_or("function");
                 if (type != "function") {
                   inner.fail("type", fmt::format("'{}' is not supported; only function is", type));
                 }
                 check_function(inner);
                 inner.accept_rest();
                 tools.push_back({declaration, std::string(source)});
               });
  if (!fields.boolean("parallel_tool_calls").value_or(true) && !tools.empty()) {
    fields.fail("parallel_tool_calls", "this server cannot keep a model from making several calls; leave it out");
  }
  const json::value* choice = fields.value("tool_choice");
  if (choice == nullptr || *choice == json::value("auto")) return;
  if (*choice == json::value("none")) return tools.clear();
  fields.fail("tool_choice", R"(expected "auto" or "none": this server cannot force a call)");
}

// What two fields say of one thing must agree.
template <typename T>
void set(JsonFields& fields, std::string_view name, const std::optional<T>& value, std::optional<T>& option) {
  if (!value.has_value()) return;
  if (option.has_value() && *option != *value) fields.fail(name, "contradicts another field");
  option = value;
}

void set_effort(JsonFields& fields, text::RenderOptions& render) {
  const std::optional<std::string> effort = fields.string("reasoning_effort", kWordBytesMax);
  if (!effort.has_value()) return;
  if (*effort == "none") return set(fields, "reasoning_effort", std::optional(false), render.thinking);
  set(fields, "reasoning_effort", effort, render.reasoning_effort);
}

void read_render_options(JsonFields& fields, text::RenderOptions& render) {
  if (const json::object* object = fields.object("chat_template_kwargs")) {
    JsonFields inner(*object, "chat_template_kwargs");
    for (const std::string_view name : {"thinking", "enable_thinking"}) {
      set(inner, name, inner.boolean(name), render.thinking);
    }
    set(inner, "preserve_thinking", inner.boolean("preserve_thinking"), render.keep_reasoning);
    if (const std::optional<bool> clear = inner.boolean("clear_thinking")) {
      set(inner, "clear_thinking", std::optional(!*clear), render.keep_reasoning);
    }
    set_effort(inner, render);
    fields.adopt(inner);
  }
  set_effort(fields, render);
  if (render.reasoning_effort.has_value() && !render.thinking.value_or(true)) {
    fields.fail("reasoning_effort", "contradicts thinking that is turned off");
  }
}

}  // namespace

void read_conversation(JsonFields& fields, std::string_view body, text::Conversation& conversation,
                       text::RenderOptions& render) {
  read_messages(fields, body, conversation.messages);
  read_tools(fields, body, conversation.tools);
  read_render_options(fields, render);
}

}  // namespace tessera::server
