#include "tessera/server/api_error.h"

#include "tessera/server/json_writer.h"

namespace tessera::server {

ApiError bad_request(std::string message, std::string param, std::string code) {
  return {400, "invalid_request_error", std::move(code), std::move(param), std::move(message)};
}

ApiError from_status(const base::Status& status) {
  switch (status.code()) {
    case base::StatusCode::kInvalidArgument:
    case base::StatusCode::kUnimplemented:
      return bad_request(status.message());
    case base::StatusCode::kOutOfRange:
      return bad_request(status.message(), {}, "context_length_exceeded");
    case base::StatusCode::kNotFound:
      return {404, "invalid_request_error", "not_found", {}, status.message()};
    case base::StatusCode::kResourceExhausted:
      return {429, "overloaded_error", "overloaded", {}, status.message()};
    case base::StatusCode::kUnavailable:
      return {503, "server_error", "unavailable", {}, status.message()};
    case base::StatusCode::kDeadlineExceeded:
      return {504, "server_error", "deadline_exceeded", {}, "the request took longer than the server allows"};
    case base::StatusCode::kCancelled:
      return {499, "server_error", "cancelled", {}, "the request was aborted"};
    case base::StatusCode::kCorruption:
      return {
          500,
          "server_error",
          "kv_integrity_error",
          {},
          "a page of this request's KV cache failed its integrity check; the request was stopped and may be retried"};
    case base::StatusCode::kOk:
    case base::StatusCode::kDataLoss:
    case base::StatusCode::kInternal:
      break;
  }
  return {500, "server_error", "internal_error", {}, "the server failed to process the request"};
}

std::string error_body(const ApiError& error) {
  JsonWriter json;
  const auto field = [&](std::string_view name, const std::string& value) {
    json.key(name);
    if (value.empty()) {
      json.null();
    } else {
      json.string(value);
    }
  };
  json.begin_object().key("error").begin_object();
  field("message", error.message);
  field("type", error.type);
  field("param", error.param);
  field("code", error.code);
  json.end_object().end_object();
  return json.take();
}

}  // namespace tessera::server
