// Requests to a server, one answer each, from many threads at once: connections are kept open and used again, a server
// that is busy or away for a moment is asked again, and nothing waits longer than it is told to.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server_address.h"
#include "tessera/base/status.h"

namespace tessera::app {

struct HttpReply {
  int status = 0;
  std::string body;
};

// Of what a server says, so much is shown in an error.
inline constexpr std::size_t kShownReplyBytes = 600;

class HttpClient {
 public:
  struct Options {
    ServerAddress server;
    std::chrono::milliseconds timeout{600'000};  // Of one answer, from the connection on.
    // How often a request is sent at most: 429, 503 and a broken connection are answered by waiting and asking again.
    // A connection that was used before and is found broken counts for nothing: servers close those that were idle for
    // long, and the request goes to a new one at once.
    int attempts_max = 8;
    std::chrono::milliseconds first_wait{250};  // Doubles with each attempt, up to wait_max; Retry-After lengthens it.
    std::chrono::milliseconds wait_max{8'000};
  };

  // Where `stop` becomes true, what is under way ends as cancelled within a moment; it outlives the client.
  HttpClient(Options options, const std::atomic<bool>& stop);
  ~HttpClient();

  // Any answer but 429 and 503 is a reply, whatever its status. unavailable: it cannot be reached, or broke off or was
  // busy at every attempt; deadline_exceeded; cancelled. All name the server and the path. Thread-safe.
  base::Result<HttpReply> get(std::string_view path);
  base::Result<HttpReply> post(std::string_view path, const std::string& json);

  // Requests that were sent again so far.
  std::int64_t retries() const { return retries_; }

 private:
  class Connection;
  struct Attempt;

  base::Result<HttpReply> request(std::string_view method, std::string_view path, const std::string& body);
  std::unique_ptr<Connection> take_idle();
  Attempt attempt(std::string_view method, std::string_view path, const std::string& body);
  base::Status wait(std::chrono::milliseconds time) const;

  const Options options_;
  const std::atomic<bool>& stop_;
  std::mutex taking_;
  std::vector<std::unique_ptr<Connection>> idle_;
  std::atomic<std::int64_t> retries_ = 0;
};

}  // namespace tessera::app
