// Bodies of the API's requests from clients that send anything. The first byte chooses which request; what is accepted
// must keep the limits on which everything behind the parser relies.
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/server/api_request.h"
#include "tessera/text/utf8.h"

namespace {

using namespace tessera;
namespace limits = base::limits;

// Text out of JSON, and what is said of it, is valid UTF-8.
void check_text(std::string_view text) { TESSERA_CHECK(text::is_valid_utf8(text)); }

void check_ids(const std::vector<std::int32_t>& ids) {
  for (const std::int32_t id : ids) TESSERA_CHECK(id >= 0);
}

void check_messages(const std::vector<text::ChatMessage>& messages) {
  TESSERA_CHECK(!messages.empty() && std::ssize(messages) <= limits::kMessagesMax);
  for (const text::ChatMessage& message : messages) {
    check_text(message.content.value_or(""));
    check_text(message.name);
    check_text(message.reasoning.value_or(""));
    TESSERA_CHECK(std::ssize(message.tool_calls) <= limits::kToolCallsMax);
    const bool assistant = message.role == text::Role::kAssistant;
    TESSERA_CHECK(assistant || (message.tool_calls.empty() && !message.reasoning.has_value()));
    for (const text::ToolCall& call : message.tool_calls) {
      TESSERA_CHECK(!call.name.empty() && std::ssize(call.name) <= limits::kToolNameBytesMax);
      TESSERA_CHECK(!call.arguments.empty() && std::ssize(call.id) <= limits::kToolCallIdBytesMax);
      check_text(call.id);
      check_text(call.name);
      check_text(call.arguments);
    }
    TESSERA_CHECK(message.role == text::Role::kTool || message.tool_call_id.empty());
    TESSERA_CHECK(std::ssize(message.tool_call_id) <= limits::kToolCallIdBytesMax);
    check_text(message.tool_call_id);
  }
}

void check_conversation(const text::Conversation& conversation, const text::RenderOptions& render) {
  check_messages(conversation.messages);
  TESSERA_CHECK(std::ssize(conversation.tools) <= limits::kToolsMax);
  for (const text::Tool& tool : conversation.tools) {
    TESSERA_CHECK(!tool.name().empty() && std::ssize(tool.name()) <= limits::kToolNameBytesMax);
    for (const char c : tool.name()) TESSERA_CHECK(static_cast<unsigned char>(c) > ' ' && c < 0x7f && c != '<');
    const boost::json::object& function = tool.declaration.at("function").as_object();
    const boost::json::value* parameters = function.if_contains("parameters");
    const bool declared = parameters != nullptr && !parameters->is_null();
    TESSERA_CHECK(declared == (tool.parameters() != nullptr));
  }
  check_text(render.reasoning_effort.value_or(""));
  TESSERA_CHECK(!render.reasoning_effort.has_value() || render.thinking.value_or(true));
}

void check_options(const server::GenerationOptions& options, std::int32_t max_tokens_min) {
  TESSERA_CHECK(options.temperature >= 0.0f && options.temperature <= 2.0f);
  TESSERA_CHECK(options.top_p > 0.0f && options.top_p <= 1.0f);
  TESSERA_CHECK(options.top_k >= 0 && options.top_k <= limits::kVocabularyMax);
  TESSERA_CHECK(options.n >= 1 && options.n <= limits::kChoicesMax);
  TESSERA_CHECK(!options.max_tokens.has_value() || *options.max_tokens >= max_tokens_min);
  TESSERA_CHECK(options.top_logprobs >= 0 && options.top_logprobs <= limits::kTopLogprobsMax);
  TESSERA_CHECK(options.top_logprobs == 0 || options.logprobs);
  TESSERA_CHECK(std::ssize(options.stop) <= limits::kStopStringsMax);
  for (const std::string& stop : options.stop) {
    TESSERA_CHECK(!stop.empty() && std::ssize(stop) <= limits::kStopStringBytesMax);
    check_text(stop);
  }
  check_ids(options.stop_token_ids);
  check_text(options.model);
}

// What was accepted, or nothing; a refusal is a client's mistake and can be sent.
template <typename T>
const T* accepted(const server::ApiResult<T>& result) {
  if (result.has_value()) return &*result;
  TESSERA_CHECK(result.error().http_status == 400 && !result.error().message.empty());
  check_text(server::error_body(result.error()));
  // Not the writer's merit: what is named was valid before.
  check_text(result.error().message);
  check_text(result.error().param);
  return nullptr;
}

void parse(std::uint8_t which, std::string_view body) {
  if (which == 0) {
    const auto result = server::parse_chat_request(body);
    if (const auto* request = accepted(result)) {
      check_options(request->options, 1);
      check_conversation(request->conversation, request->render);
    }
  } else if (which == 1) {
    const auto result = server::parse_completion_request(body);
    if (const auto* request = accepted(result)) {
      check_options(request->options, request->echo ? 0 : 1);
      TESSERA_CHECK(!request->prompts.empty() && request->prompts.size() <= 256);
      for (const server::Prompt& prompt : request->prompts) {
        if (const auto* text = std::get_if<std::string>(&prompt)) check_text(*text);
        if (const auto* ids = std::get_if<std::vector<std::int32_t>>(&prompt)) check_ids(*ids);
      }
    }
  } else if (which == 2) {
    const auto result = server::parse_tokenize_request(body);
    if (const auto* request = accepted(result)) {
      if (const auto* text = std::get_if<std::string>(&request->input)) {
        check_text(*text);
        // What is about a rendering was refused, not ignored.
        TESSERA_CHECK(!request->render.thinking.has_value() && !request->render.reasoning_effort.has_value());
      }
      if (const auto* conversation = std::get_if<text::Conversation>(&request->input))
        check_conversation(*conversation, request->render);
    }
  } else if (which == 3) {
    const auto result = server::parse_detokenize_request(body);
    if (const auto* request = accepted(result)) check_ids(request->tokens);
  } else {
    const auto result = server::parse_abort_request(body);
    if (const auto* rid = accepted(result)) check_text(*rid);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // A digit in the corpus, so that people can read and write it.
  const auto which = static_cast<std::uint8_t>(static_cast<std::uint8_t>(data[0] - '0') % 5);
  parse(which, std::string_view(reinterpret_cast<const char*>(data), size).substr(1));
  return 0;
}
