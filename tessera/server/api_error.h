// Errors as clients see them: an HTTP status and OpenAI's error object, with fixed texts that tell nothing of the
// inside.
#pragma once

#include <string>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::server {

struct ApiError {
  int http_status = 500;
  std::string type;   // "invalid_request_error", "authentication_error", "server_error", ...
  std::string code;   // Machine-readable: "context_length_exceeded", "kv_integrity_error", ...; may be empty.
  std::string param;  // The field at fault; may be empty.
  std::string message;
};

// A bad field or body.
ApiError bad_request(std::string message, std::string param = {}, std::string code = {});
// What an engine or the router said. Corruption becomes code "kv_integrity_error"; internal errors lose their text.
ApiError from_status(const base::Status& status);
// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string error_body(const ApiError& error);

}  // namespace tessera::server
