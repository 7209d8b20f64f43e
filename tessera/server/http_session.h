// Inside the server room: one connection. Included only by the .cc files that talk Boost.Beast.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>

#include "tessera/server/body_budget.h"
#include "tessera/server/http_server.h"
#include "tessera/server/text_workers.h"

namespace tessera::server {

// What all connections share. Everything runs on the io_context's one thread; the atomics are read from outside.
struct SessionContext {
  const HttpServerOptions& options;
  Service& service;
  std::atomic<bool> draining{false};
  std::atomic<std::int64_t> connections{0};
  std::atomic<std::int64_t> answering{0};
  // Destroyed after the last coroutine has run and before the first is destroyed (text_workers.h).
  std::unique_ptr<TextWorkers> workers = std::make_unique<TextWorkers>(options.text_threads, options.text_jobs_max);
  BodyBudget bodies{options.body_bytes_max};
};

// One connection. What the client sends before it is asked for lies in `buffer`, for the request that it begins.
struct Connection {
  SessionContext& context;
  boost::beast::tcp_stream stream;
  boost::beast::flat_buffer buffer;
};

// Serves requests until the client closes, an error or a drain.
boost::asio::awaitable<void> run_session(SessionContext& context, boost::beast::tcp_stream stream);

}  // namespace tessera::server
