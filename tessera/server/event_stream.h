// Inside the server room: sends the answer of a generation over a connection, watching for the client's going away.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tessera/server/api_error.h"
#include "tessera/server/generation_run.h"
#include "tessera/server/http_session.h"

namespace tessera::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

// A response that is not streamed.
//
// Here as everywhere in coroutines: what a co_await takes is a named object. GCC 12 destroys some temporaries of such
// an expression twice (those of a conditional operator, for one).
struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
};
Response error_response(const ApiError& error);

// Runs the generation and answers, streamed or whole as it asks. `version` is the request's (10 or 11). False when the
// connection is to be closed.
//
// Until the answer is over the connection is read, so that a client that goes away is noticed whatever it sent before:
// what it sends early goes to connection.buffer, and a client that sends more than kEarlyBytesMax is cut off as one
// that went away.
inline constexpr std::size_t kEarlyBytesMax = 64 << 10;
boost::asio::awaitable<bool> answer_generation(Connection& connection, Generation generation, unsigned version,
                                               bool keep_alive, const Headers& headers);

// Writes one whole response. False when the connection is to be closed.
boost::asio::awaitable<bool> write_response(Connection& connection, const Response& response, unsigned version,
                                            bool keep_alive, const Headers& headers);

}  // namespace tessera::server
