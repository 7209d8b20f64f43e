#include "chat_client.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include "terminal_text.h"

namespace tessera::app {

namespace net = boost::asio;
namespace http = boost::beast::http;
namespace json = boost::json;
using boost::system::error_code;

namespace {

json::object message_of(const Turn& turn) {
  json::object message = {{"role", turn.role}, {"content", turn.content}};
  if (!turn.reasoning.empty()) message["reasoning_content"] = turn.reasoning;
  if (!turn.tool_call_id.empty()) message["tool_call_id"] = turn.tool_call_id;
  json::array calls;
  for (const Call& call : turn.calls) {
    calls.push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

std::string request_body(const ChatOptions& options, const std::vector<Turn>& turns) {
  json::object body = {
      {"stream", true}, {"stream_options", {{"include_usage", true}}}, {"temperature", options.temperature}};
  if (options.ask_by == AskBy::kCompletion) {
    body["prompt"] = turns.back().content;
    body["max_tokens"] = options.max_tokens > 0 ? options.max_tokens : kCompletionTokens;
    return json::serialize(body);
  }
  json::array messages;
  if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  for (const Turn& turn : turns) messages.push_back(message_of(turn));
  body["messages"] = std::move(messages);
  if (options.max_tokens > 0) body["max_completion_tokens"] = options.max_tokens;
  if (options.thinking.has_value()) body["chat_template_kwargs"] = {{"enable_thinking", *options.thinking}};
  if (!options.tools.empty()) body["tools"] = json::parse(options.tools);
  return json::serialize(body);
}

// The message of an error object, or the body itself.
base::Status error_of(std::string_view body) {
  error_code error;
  const json::value value = json::parse(json::string_view(body.data(), body.size()), error);
  if (!error && value.is_object()) {
    if (const json::value* object = value.get_object().if_contains("error"); object != nullptr && object->is_object()) {
      if (const json::value* message = object->get_object().if_contains("message"); message && message->is_string()) {
        const std::string_view text(message->get_string().data(), message->get_string().size());
        return base::unavailable("the server says: " + terminal_text(text, Lines::kMany));
      }
    }
  }
  return base::unavailable("the server answered: " + terminal_text(body.substr(0, 500), Lines::kMany));
}

// Takes the answer apart, event by event.
class EventReader {
 public:
  EventReader(const Listener& listener, AnswerStats& stats, Turn& answer)
      : listener_(listener), stats_(stats), answer_(answer), start_(std::chrono::steady_clock::now()) {}

  // Bytes of the body as they come; an error that the server sent, if one is among them.
  base::Status feed(std::string_view bytes) {
    pending_ += bytes;
    std::size_t end = 0;
    while ((end = pending_.find('\n')) != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (!line.starts_with("data: ")) continue;
      if (line == "data: [DONE]") {
        done_ = true;
        continue;
      }
      TESSERA_RETURN_IF_ERROR(take_event(std::string_view(line).substr(6)));
    }
    return base::ok_status();
  }
  bool done() const { return done_; }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  base::Status take_event(std::string_view text) {
    error_code error;
    const json::value value = json::parse(json::string_view(text.data(), text.size()), error);
    if (error || !value.is_object()) return base::data_loss("the server sent an event that is not JSON");
    const json::object& event = value.get_object();
    if (event.contains("error")) return error_of(text);
    if (const json::value* usage = event.if_contains("usage"); usage != nullptr && usage->is_object()) {
      read_usage(usage->get_object());
    }
    const json::value* choices = event.if_contains("choices");
    if (choices == nullptr || !choices->is_array() || choices->get_array().empty()) return base::ok_status();
    const json::value& choice = choices->get_array()[0];
    if (!choice.is_object()) return base::ok_status();
    if (const json::value* reason = choice.get_object().if_contains("finish_reason"); reason && reason->is_string()) {
      stats_.finish_reason = std::string(reason->get_string());
    }
    // A chat's choice has a delta; a completion's has its text directly.
    const json::object& holder = choice.get_object();
    if (const json::value* delta = holder.if_contains("delta"); delta != nullptr && delta->is_object()) {
      const json::object& parts = delta->get_object();
      // Some servers send it under both names.
      const char* reasoning = parts.contains("reasoning_content") ? "reasoning_content" : "reasoning";
      take_text(parts, reasoning, AnswerPart::kReasoning, answer_.reasoning);
      take_text(parts, "content", AnswerPart::kContent, answer_.content);
      if (const json::value* calls = parts.if_contains("tool_calls"); calls != nullptr && calls->is_array()) {
        for (const json::value& call : calls->get_array()) take_call(call);
      }
    } else {
      take_text(holder, "text", AnswerPart::kContent, answer_.content);
    }
    return base::ok_status();
  }

  static std::string string_in(const json::object& object, std::string_view name) {
    const json::value* value = object.if_contains(json::string_view(name.data(), name.size()));
    return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
  }

  void note_first_token() {
    if (stats_.first_token_seconds == 0.0) stats_.first_token_seconds = seconds();
  }

  void take_text(const json::object& object, std::string_view name, AnswerPart part, std::string& sum) {
    const std::string text = string_in(object, name);
    if (text.empty()) return;
    note_first_token();
    sum += text;
    listener_.on_text(part, text);
  }

  // A part of a call: id and name in its first, arguments in any.
  void take_call(const json::value& value) {
    if (!value.is_object()) return;
    const json::object& part = value.get_object();
    const json::value* index = part.if_contains("index");
    error_code error;
    const auto at = index != nullptr && index->is_number() ? index->to_number<std::uint32_t>(error) : 0;
    // Calls come one after another.
    if (error || at > answer_.calls.size()) return;
    if (at == answer_.calls.size()) answer_.calls.emplace_back();
    note_first_token();
    Call& call = answer_.calls[at];
    call.id += string_in(part, "id");
    if (const json::value* function = part.if_contains("function"); function != nullptr && function->is_object()) {
      call.name += string_in(function->get_object(), "name");
      call.arguments += string_in(function->get_object(), "arguments");
    }
  }

  void read_usage(const json::object& usage) {
    const auto number = [](const json::object& object, const char* name) -> std::int64_t {
      const json::value* value = object.if_contains(name);
      error_code error;
      const std::int64_t result = value != nullptr && value->is_number() ? value->to_number<std::int64_t>(error) : 0;
      return error ? 0 : result;
    };
    stats_.prompt_tokens = number(usage, "prompt_tokens");
    stats_.completion_tokens = number(usage, "completion_tokens");
    if (const json::value* details = usage.if_contains("prompt_tokens_details"); details && details->is_object()) {
      stats_.cached_tokens = number(details->get_object(), "cached_tokens");
    }
  }

  const Listener& listener_;
  AnswerStats& stats_;
  Turn& answer_;
  const std::chrono::steady_clock::time_point start_;
  std::string pending_;
  bool done_ = false;
};

base::Status broken(const error_code& error) {
  return base::unavailable("the connection to the server broke: " + error.message());
}

}  // namespace

base::Result<std::string> read_tools(const std::string& path) {
  const auto refuse = [&](std::string_view why) {
    return base::failure(base::invalid_argument(fmt::format("--tools '{}': {}", path, why)));
  };
  std::ifstream file(path, std::ios::binary);
  if (!file) return refuse("cannot be read");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  error_code error;
  const json::value value = json::parse(text, error);
  if (error) return refuse("not valid JSON: " + error.message());
  if (!value.is_array() || value.get_array().empty()) return refuse("expected a JSON array of tools");
  return text;
}

base::Result<AnswerStats> ask(const ChatOptions& options, const std::vector<Turn>& turns, const Listener& listener,
                              Turn& answer) {
  const std::atomic<bool>& interrupted = listener.interrupted;
  answer = {.role = "assistant", .content = {}};
  net::io_context io;
  net::ip::tcp::resolver resolver(io);
  net::ip::tcp::socket socket(io);
  error_code error;
  const auto found = resolver.resolve(options.server.host, std::to_string(options.server.port), error);
  if (!error) net::connect(socket, found, error);
  if (error) {
    return base::failure(base::unavailable(
        fmt::format("cannot reach a server at {}:{}: {}", options.server.host, options.server.port, error.message())));
  }
  const char* path = options.ask_by == AskBy::kChat ? "/v1/chat/completions" : "/v1/completions";
  http::request<http::string_body> request(http::verb::post, path, 11);
  request.set(http::field::host, options.server.host);
  request.set(http::field::content_type, "application/json");
  if (!options.server.api_key.empty()) request.set(http::field::authorization, "Bearer " + options.server.api_key);
  request.body() = request_body(options, turns);
  request.prepare_payload();
  AnswerStats stats;
  EventReader events(listener, stats, answer);
  http::write(socket, request, error);
  if (error) return base::failure(broken(error));

  boost::beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  http::read_header(socket, buffer, parser, error);
  if (interrupted) return base::failure({base::StatusCode::kCancelled, "interrupted"});
  if (error) return base::failure(broken(error));
  const bool ok = parser.get().result() == http::status::ok;
  std::string failure_text;
  char chunk[4096];
  while (!parser.is_done()) {
    parser.get().body().data = chunk;
    parser.get().body().size = sizeof(chunk);
    http::read_some(socket, buffer, parser, error);
    if (interrupted) return base::failure({base::StatusCode::kCancelled, "interrupted"});
    if (error == http::error::need_buffer) error = {};
    if (error) return base::failure(broken(error));
    const std::string_view bytes(chunk, sizeof(chunk) - parser.get().body().size);
    if (ok) {
      if (base::Status status = events.feed(bytes); !status.ok()) return base::failure(std::move(status));
    } else {
      failure_text += bytes;
    }
  }
  if (!ok) return base::failure(error_of(failure_text));
  if (!events.done()) return base::failure(base::unavailable("the server ended the answer early"));
  stats.seconds = events.seconds();
  return stats;
}

}  // namespace tessera::app
