#include "tessera/server/event_stream.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "tessera/base/logging.h"

namespace tessera::server {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

// Events on their way from the router's thread to the connection's. Bounded by what the generation can produce:
// max_tokens a choice, and the log-probabilities of its prompts (base::limits::kPromptLogprobsMax). Outlives the
// connection as long as a subscriber holds it.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  explicit Mailbox(const net::any_io_executor& executor) : timer_(executor) {}

  // Any thread.
  void deliver(std::size_t choice, router::SequenceEvent event) {
    {
      std::lock_guard lock(mutex_);
      events_.emplace_back(choice, std::move(event));
    }
    net::post(timer_.get_executor(), [self = shared_from_this()] { self->timer_.cancel(); });
  }

  // The connection's thread only, from here on.
  void client_gone() {
    client_gone_ = true;
    timer_.cancel();
  }
  bool is_client_gone() const { return client_gone_; }

  // Waits for events, the client's going or `until`; then takes what is there. The wake-ups are posted to this same
  // thread, so none can fall between the look and the wait.
  net::awaitable<std::deque<std::pair<std::size_t, router::SequenceEvent>>> take(
      std::chrono::steady_clock::time_point until) {
    if (is_empty() && !client_gone_) {
      timer_.expires_at(until);
      error_code ignored;
      co_await timer_.async_wait(net::redirect_error(net::use_awaitable, ignored));
    }
    std::lock_guard lock(mutex_);
    co_return std::exchange(events_, {});
  }

 private:
  bool is_empty() {
    std::lock_guard lock(mutex_);
    return events_.empty();
  }
  net::steady_timer timer_;
  std::mutex mutex_;
  std::deque<std::pair<std::size_t, router::SequenceEvent>> events_;
  bool client_gone_ = false;
};

// Takes what has arrived into the buffer. False: the client has closed, or has sent too much.
bool take_early_bytes(Connection& connection) {
  auto& socket = connection.stream.socket();
  error_code error;
  // The socket is readable: nothing to read means its end.
  const std::size_t arrived = socket.available(error);
  if (error || arrived == 0) return false;
  if (arrived > kEarlyBytesMax || connection.buffer.size() > kEarlyBytesMax - arrived) return false;
  const std::size_t bytes = socket.read_some(connection.buffer.prepare(arrived), error);
  connection.buffer.commit(bytes);
  return !error;
}

// Tells the mailbox when the client goes away.
net::awaitable<void> watch_client(std::shared_ptr<Connection*> connection, std::shared_ptr<Mailbox> mailbox) {
  while (*connection != nullptr) {
    error_code error;
    auto& socket = (*connection)->stream.socket();
    co_await socket.async_wait(net::ip::tcp::socket::wait_read, net::redirect_error(net::use_awaitable, error));
    if (*connection == nullptr || error == net::error::operation_aborted) co_return;
    if (error || !take_early_bytes(**connection)) {
      mailbox->client_gone();
      co_return;
    }
  }
}

// Server-sent events over a chunked response, or over a plain one for HTTP/1.0.
class EventWriter {
 public:
  EventWriter(beast::tcp_stream& stream, std::chrono::milliseconds timeout, unsigned version)
      : stream_(stream), timeout_(timeout), version_(version) {}

  net::awaitable<bool> begin(bool keep_alive, const Headers& headers) {
    http::response<http::empty_body> response(http::status::ok, version_);
    response.set(http::field::content_type, "text/event-stream; charset=utf-8");
    response.set(http::field::cache_control, "no-cache");
    for (const auto& [name, value] : headers) response.set(name, value);
    response.keep_alive(keep_alive && version_ > 10);
    if (version_ > 10) response.chunked(true);
    http::response_serializer<http::empty_body> serializer(response);
    stream_.expires_after(timeout_);
    error_code error;
    co_await http::async_write_header(stream_, serializer, net::redirect_error(net::use_awaitable, error));
    last_write_ = std::chrono::steady_clock::now();
    co_return !error;
  }

  net::awaitable<bool> write(std::string_view text) {
    stream_.expires_after(timeout_);
    error_code error;
    const net::const_buffer buffer(text.data(), text.size());
    if (version_ > 10) {
      co_await net::async_write(stream_, http::make_chunk(buffer), net::redirect_error(net::use_awaitable, error));
    } else {
      co_await net::async_write(stream_, buffer, net::redirect_error(net::use_awaitable, error));
    }
    last_write_ = std::chrono::steady_clock::now();
    co_return !error;
  }

  net::awaitable<bool> end() {
    if (version_ <= 10) co_return true;
    stream_.expires_after(timeout_);
    error_code error;
    co_await net::async_write(stream_, http::make_chunk_last(), net::redirect_error(net::use_awaitable, error));
    co_return !error;
  }

  // When something was written last.
  std::chrono::steady_clock::time_point last_write() const { return last_write_; }

 private:
  beast::tcp_stream& stream_;
  std::chrono::milliseconds timeout_;
  unsigned version_;
  std::chrono::steady_clock::time_point last_write_;
};

std::string as_events(const std::vector<std::string>& payloads) {
  std::string text;
  for (const std::string& payload : payloads) {
    text += "data: ";
    text += payload;
    text += "\n\n";
  }
  return text;
}

// Until the run is done. False when the client is gone.
net::awaitable<bool> stream_events(SessionContext& context, GenerationRun& run, Mailbox& mailbox, EventWriter& writer) {
  while (!run.done()) {
    const std::chrono::steady_clock::time_point due = writer.last_write() + context.options.keep_alive_interval;
    auto events = co_await mailbox.take(due);
    if (mailbox.is_client_gone()) co_return false;
    std::vector<std::string> payloads;
    for (auto& [choice, event] : events) run.absorb(choice, std::move(event), payloads);
    std::string text = as_events(payloads);
    // Tokens of which nothing can be said yet are silence to the client: a call's name, what may be a marker.
    if (text.empty() && !run.done() && std::chrono::steady_clock::now() >= due) text = ": waiting\n\n";
    if (!text.empty() && !co_await writer.write(text)) co_return false;
  }
  co_return true;
}

// What follows the last event. False when the client is gone.
net::awaitable<bool> end_stream(const GenerationRun& run, EventWriter& writer) {
  std::vector<std::string> last;
  if (run.error().has_value()) {
    last.push_back(error_body(*run.error()));
  } else if (auto usage = run.usage_chunk()) {
    last.push_back(std::move(*usage));
  }
  last.emplace_back("[DONE]");
  const std::string text = as_events(last);
  const bool written = co_await writer.write(text);
  co_return written&& co_await writer.end();
}

}  // namespace

Response error_response(const ApiError& error) { return {error.http_status, "application/json", error_body(error)}; }

net::awaitable<bool> write_response(Connection& connection, const Response& response, unsigned version, bool keep_alive,
                                    const Headers& headers) {
  SessionContext& context = connection.context;
  beast::tcp_stream& stream = connection.stream;
  http::response<http::string_body> message(static_cast<http::status>(response.status), version);
  message.set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : headers) message.set(name, value);
  if (response.status == 503) message.set(http::field::retry_after, "1");
  message.keep_alive(keep_alive);
  message.body() = response.body;
  message.prepare_payload();
  stream.expires_after(context.options.write_timeout);
  error_code error;
  co_await http::async_write(stream, message, net::redirect_error(net::use_awaitable, error));
  context.service.metrics().count_http(response.status);
  co_return !error && keep_alive;
}

net::awaitable<bool> answer_generation(Connection& connection, Generation generation, unsigned version, bool keep_alive,
                                       const Headers& headers) {
  SessionContext& context = connection.context;
  beast::tcp_stream& stream = connection.stream;
  const net::any_io_executor executor = co_await net::this_coro::executor;
  auto mailbox = std::make_shared<Mailbox>(executor);
  GenerationRun run(context.service, std::move(generation));
  if (auto error = run.start(
          [mailbox](std::size_t choice, router::SequenceEvent event) { mailbox->deliver(choice, std::move(event)); })) {
    const Response refusal = error_response(*error);
    co_return co_await write_response(connection, refusal, version, keep_alive, headers);
  }

  // The watcher may outlive this function by a moment: it holds the connection through a pointer that is cleared at the
  // end.
  auto watched = std::make_shared<Connection*>(&connection);
  net::co_spawn(executor, watch_client(watched, mailbox), net::detached);

  EventWriter writer(stream, context.options.write_timeout, version);
  bool streaming = false;  // Events are being written, and the client is there.
  std::optional<ApiError> failure;
  if (run.generation().options.stream) {
    // The response begins with the first event, even one of which nothing can be said yet, so that what fails before it
    // gets its own HTTP status.
    std::vector<std::string> first;
    bool begun = false;
    while (!begun && !mailbox->is_client_gone()) {
      auto events = co_await mailbox->take(std::chrono::steady_clock::time_point::max());
      begun = !events.empty();
      for (auto& [choice, event] : events) run.absorb(choice, std::move(event), first);
    }
    if (run.error().has_value() && first.empty()) {
      failure = run.error();
    } else {
      context.service.metrics().count_http(200);
      const std::string beginning = as_events(first);
      streaming = !mailbox->is_client_gone() && co_await writer.begin(keep_alive, headers);
      if (streaming && !beginning.empty()) streaming = co_await writer.write(beginning);
      if (streaming) streaming = co_await stream_events(context, run, *mailbox, writer);
    }
  } else {
    std::vector<std::string> none;
    while (!run.done() && !mailbox->is_client_gone()) {
      auto events = co_await mailbox->take(std::chrono::steady_clock::time_point::max());
      for (auto& [choice, event] : events) run.absorb(choice, std::move(event), none);
    }
    failure = run.error();
  }
  // The cancellation reaches the watcher later, when this function is gone: it must find no connection then.
  *watched = nullptr;
  error_code ignored;
  stream.socket().cancel(ignored);

  const bool gone = mailbox->is_client_gone();
  if (gone || !run.done()) run.cancel();
  // Before the answer ends: whoever has read its end finds what happened in the log.
  base::log().info("{}", run.summary());
  if (gone) co_return false;
  if (failure.has_value() || !run.generation().options.stream) {
    const Response response =
        failure.has_value() ? error_response(*failure) : Response{200, "application/json", run.whole()};
    co_return co_await write_response(connection, response, version, keep_alive, headers);
  }
  if (!streaming) co_return false;
  if (!co_await end_stream(run, writer)) co_return false;
  co_return version > 10;
}

}  // namespace tessera::server
