// The sockets: HTTP/1.1 over Boost.Beast, one coroutine a connection, all on one thread of its own. Boost is hidden in
// the .cc files.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/server/service.h"

namespace tessera::server {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 30000;         // 0: any free one, see port().
  std::vector<std::string> api_keys;  // None: no authentication. Each key is a tenant of its own.
  // Empty: none. Its holder, who is no tenant, flushes the prefix caches and audits pages, and then nobody else does.
  std::string admin_api_key;
  std::int64_t connections_max = 4096;
  // Of all request bodies that are in memory at once; a request whose body goes beyond it is refused with 503. A body
  // counts from its announcement, or as its chunks come, until its prompt is encoded.
  std::int64_t body_bytes_max = 256 << 20;
  // Bodies that are not short are parsed, and their texts rendered and encoded, by so many threads apart from the one
  // that serves the connections; more than so many at once, waiting or under way, are refused with 503.
  std::int64_t text_threads = 2;
  std::int64_t text_jobs_max = 256;
  std::chrono::milliseconds idle_timeout{120'000};  // Between requests, and for reading one.
  std::chrono::milliseconds write_timeout{30'000};  // A client that reads nothing for so long is dropped.
  // A comment in a stream in which nothing was written for so long, also while tokens come of which nothing can be said
  // yet. A stream begins with its first token: before it a failure still has its own HTTP status.
  std::chrono::milliseconds keep_alive_interval{15'000};
};

class HttpServer {
 public:
  // Binds and starts serving. A wildcard address needs an API key. `service` outlives the server.
  static base::Result<std::unique_ptr<HttpServer>> start(const HttpServerOptions& options, Service& service);
  ~HttpServer();  // stop()

  std::uint16_t port() const;
  // No new connections; an open one gets one more answer at most (a generation is refused) and is closed after it.
  // Answers that are under way go on.
  void begin_drain();
  // Waits until no answer is under way, at most `timeout`. Whether it was so.
  bool wait_drained(std::chrono::milliseconds timeout);
  // Closes everything; a text that is being encoded is encoded to its end first. Idempotent.
  void stop();

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tessera::server
