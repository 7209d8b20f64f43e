#include "http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <charconv>
#include <optional>
#include <thread>
#include <utility>

#include "terminal_text.h"

namespace tessera::app {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSlice{50};  // How soon `stop` is seen.
constexpr std::uint64_t kAnswerBytesMax = std::uint64_t{256} << 20;
constexpr std::chrono::seconds kRetryAfterMax{30};

base::Status cancelled() { return {base::StatusCode::kCancelled, "interrupted"}; }

}  // namespace

class HttpClient::Connection {
 public:
  Connection(const Options& options, const std::atomic<bool>& stop) : options_(options), stop_(stop) {}

  bool is_open() const { return socket_.is_open(); }

  base::Status open() {
    deadline_ = Clock::now() + options_.timeout;
    error_code error;
    net::ip::tcp::resolver resolver(io_);
    const auto found = resolver.resolve(options_.server.host, std::to_string(options_.server.port), error);
    if (error) return base::unavailable(error.message());
    net::async_connect(socket_, found, [&](error_code code, const auto&) { ended_ = code; });
    TESSERA_RETURN_IF_ERROR(wait());
    socket_.set_option(net::ip::tcp::no_delay(true), error);
    return base::ok_status();
  }

  base::Status exchange(const http::request<http::string_body>& request,
                        http::response_parser<http::string_body>& parser) {
    deadline_ = Clock::now() + options_.timeout;
    http::async_write(socket_, request, [&](error_code code, std::size_t) { ended_ = code; });
    TESSERA_RETURN_IF_ERROR(wait());
    parser.body_limit(kAnswerBytesMax);
    http::async_read(socket_, buffer_, parser, [&](error_code code, std::size_t) { ended_ = code; });
    TESSERA_RETURN_IF_ERROR(wait());
    if (!parser.keep_alive()) close();
    return base::ok_status();
  }

 private:
  void close() {
    error_code ignored;
    socket_.close(ignored);
  }

  // Until the operation that was begun has ended. The socket is closed when it failed.
  base::Status wait() {
    ended_.reset();
    base::Status why;
    while (!ended_.has_value()) {
      io_.restart();
      io_.run_for(kSlice);
      if (ended_.has_value()) break;
      if (why.ok() && stop_) why = cancelled();
      if (why.ok() && Clock::now() >= deadline_) {
        why = {base::StatusCode::kDeadlineExceeded,
               fmt::format("no answer within {} s", std::chrono::duration<double>(options_.timeout).count())};
      }
      if (!why.ok()) close();  // Which ends the operation.
    }
    if (!why.ok()) return why;
    if (!*ended_) return base::ok_status();
    close();
    return base::unavailable(ended_->message());
  }

  const Options& options_;
  const std::atomic<bool>& stop_;
  net::io_context io_{1};
  net::ip::tcp::socket socket_{io_};
  boost::beast::flat_buffer buffer_;
  Clock::time_point deadline_;
  std::optional<error_code> ended_;
};

struct HttpClient::Attempt {
  base::Result<HttpReply> reply;
  bool again = false;                        // It may go well the next time.
  std::chrono::milliseconds wait_wanted{0};  // By the server.
};

HttpClient::HttpClient(Options options, const std::atomic<bool>& stop) : options_(std::move(options)), stop_(stop) {}
HttpClient::~HttpClient() = default;

std::unique_ptr<HttpClient::Connection> HttpClient::take_idle() {
  const std::lock_guard lock(taking_);
  if (idle_.empty()) return nullptr;
  std::unique_ptr<Connection> connection = std::move(idle_.back());
  idle_.pop_back();
  return connection;
}

HttpClient::Attempt HttpClient::attempt(std::string_view method, std::string_view path, const std::string& body) {
  const auto failed = [](base::Status status) {
    const bool again = status.code() == base::StatusCode::kUnavailable;
    return Attempt{.reply = base::failure(std::move(status)), .again = again};
  };
  http::request<http::string_body> request(method == "GET" ? http::verb::get : http::verb::post,
                                           boost::beast::string_view(path.data(), path.size()), 11);
  request.set(http::field::host, fmt::format("{}:{}", options_.server.host, options_.server.port));
  if (!body.empty()) request.set(http::field::content_type, "application/json");
  if (!options_.server.api_key.empty()) request.set(http::field::authorization, "Bearer " + options_.server.api_key);
  request.body() = body;
  request.prepare_payload();
  std::optional<http::response_parser<http::string_body>> parser(std::in_place);
  base::Status status;
  std::unique_ptr<Connection> connection = take_idle();
  if (connection != nullptr) {
    status = connection->exchange(request, *parser);
    if (status.code() == base::StatusCode::kUnavailable) {
      // The others are as old.
      const std::lock_guard lock(taking_);
      idle_.clear();
      connection.reset();
      parser.emplace();
    }
  }
  if (connection == nullptr) {
    connection = std::make_unique<Connection>(options_, stop_);
    status = connection->open();
    if (status.ok()) status = connection->exchange(request, *parser);
  }
  if (!status.ok()) return failed(std::move(status));
  http::response<http::string_body>& answer = parser->get();
  Attempt done{.reply = HttpReply{static_cast<int>(answer.result_int()), std::move(answer.body())}};
  done.again = done.reply->status == 429 || done.reply->status == 503;
  if (const auto after = answer.find(http::field::retry_after); after != answer.end()) {
    const auto text = after->value();
    std::int64_t seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error == std::errc{} && end == text.data() + text.size() && seconds >= 0) {
      done.wait_wanted = std::min(std::chrono::seconds(std::min<std::int64_t>(seconds, 3600)), kRetryAfterMax);
    }
  }
  if (connection->is_open()) {
    const std::lock_guard lock(taking_);
    idle_.push_back(std::move(connection));
  }
  return done;
}

base::Status HttpClient::wait(std::chrono::milliseconds time) const {
  const Clock::time_point until = Clock::now() + time;
  while (Clock::now() < until) {
    if (stop_) return cancelled();
    std::this_thread::sleep_for(std::min<Clock::duration>(kSlice, until - Clock::now()));
  }
  return base::ok_status();
}

base::Result<HttpReply> HttpClient::request(std::string_view method, std::string_view path, const std::string& body) {
  std::chrono::milliseconds pause = options_.first_wait;
  for (int made = 1;; ++made) {
    if (stop_) return base::failure(cancelled());
    Attempt done = attempt(method, path, body);
    if (!done.again && done.reply.has_value()) return std::move(done.reply);
    if (!done.again && done.reply.error().code() == base::StatusCode::kCancelled) return std::move(done.reply);
    if (!done.again || made >= options_.attempts_max) {
      const base::Status why = done.reply.has_value()
                                   ? base::unavailable(fmt::format("{}: {}", done.reply->status,
                                                                   shown_line(done.reply->body, kShownReplyBytes)))
                                   : done.reply.error();
      return base::failure(why.with_context(
          fmt::format("{} {} at {}:{}, {} times", method, path, options_.server.host, options_.server.port, made)));
    }
    ++retries_;
    if (base::Status status = wait(std::max(pause, done.wait_wanted)); !status.ok()) {
      return base::failure(std::move(status));
    }
    pause = std::min(2 * pause, options_.wait_max);
  }
}

base::Result<HttpReply> HttpClient::get(std::string_view path) { return request("GET", path, {}); }

base::Result<HttpReply> HttpClient::post(std::string_view path, const std::string& json) {
  return request("POST", path, json);
}

}  // namespace tessera::app
