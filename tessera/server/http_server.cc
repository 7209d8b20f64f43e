#include "tessera/server/http_server.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <thread>

#include "tessera/base/logging.h"
#include "tessera/server/http_session.h"

namespace tessera::server {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

struct HttpServer::State {
  State(const HttpServerOptions& options_in, Service& service) : options(options_in), context{options, service} {}
  const HttpServerOptions options;
  SessionContext context;
  net::io_context io{1};
  tcp::acceptor acceptor{io};
  std::uint16_t port = 0;
  std::jthread thread;
};

namespace {

net::awaitable<void> serve(SessionContext& context, boost::beast::tcp_stream stream) {
  context.connections.fetch_add(1);
  co_await run_session(context, std::move(stream));
  context.connections.fetch_sub(1);
}

net::awaitable<void> accept_connections(SessionContext& context, tcp::acceptor& acceptor) {
  net::steady_timer pause(acceptor.get_executor());
  while (acceptor.is_open()) {
    error_code error;
    tcp::socket socket = co_await acceptor.async_accept(net::redirect_error(net::use_awaitable, error));
    if (error == net::error::operation_aborted || !acceptor.is_open()) co_return;
    if (error || context.connections.load() >= context.options.connections_max) {
      // Out of descriptors, or of connections that we allow: the client sees a close; we take a breath, not a spin.
      base::log().warn("connection refused: {}", error ? error.message() : "too many connections");
      socket.close(error);
      pause.expires_after(std::chrono::milliseconds(20));
      co_await pause.async_wait(net::redirect_error(net::use_awaitable, error));
      continue;
    }
    net::co_spawn(acceptor.get_executor(), serve(context, boost::beast::tcp_stream(std::move(socket))), net::detached);
  }
}

}  // namespace

base::Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerOptions& options, Service& service) {
  auto state = std::make_unique<State>(options, service);
  error_code error;
  const net::ip::address address =
      net::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) {
    return base::failure(base::invalid_argument(fmt::format("host '{}': expected an IP address", options.host)));
  }
  if (!address.is_loopback() && options.api_keys.empty()) {
    return base::failure(base::invalid_argument(
        fmt::format("host {} is reachable from other machines: that needs an API key (--api-key)", options.host)));
  }
  for (const std::string& key : options.api_keys) {
    if (key.empty()) return base::failure(base::invalid_argument("an API key must not be empty"));
    if (key == options.admin_api_key) {
      return base::failure(base::invalid_argument("the admin key must not be one of the API keys"));
    }
  }
  const tcp::endpoint endpoint(address, options.port);
  state->acceptor.open(endpoint.protocol(), error);
  if (!error) state->acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (!error) state->acceptor.bind(endpoint, error);
  if (!error) state->acceptor.listen(net::socket_base::max_listen_connections, error);
  if (error) {
    return base::failure(
        base::unavailable(fmt::format("cannot listen on {}:{}: {}", options.host, options.port, error.message())));
  }
  state->port = state->acceptor.local_endpoint().port();
  net::co_spawn(state->io, accept_connections(state->context, state->acceptor), net::detached);
  state->thread = std::jthread([raw = state.get()] { raw->io.run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpServer::~HttpServer() { stop(); }
std::uint16_t HttpServer::port() const { return state_->port; }

void HttpServer::begin_drain() {
  state_->context.draining = true;
  net::post(state_->io, [state = state_.get()] {
    error_code ignored;
    state->acceptor.close(ignored);
  });
}

bool HttpServer::wait_drained(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (state_->context.answering.load() > 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

void HttpServer::stop() {
  begin_drain();
  state_->io.stop();
  if (state_->thread.joinable()) state_->thread.join();
  state_->context.workers.reset();
}

}  // namespace tessera::server
