#include "tessera/server/http_session.h"

#include <openssl/crypto.h>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <variant>

#include "tessera/base/limits.h"
#include "tessera/base/logging.h"
#include "tessera/server/event_stream.h"
#include "tessera/server/json_writer.h"

namespace tessera::server {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

using Parser = http::request_parser<http::string_body>;
using Request = http::request<http::string_body>;

// Of a body, at once; and how long a refused client may go on sending one.
constexpr std::size_t kReadBytes = 16 << 10;
constexpr std::chrono::seconds kLingerTime{2};
// A shorter body is dealt with at once: going to another thread and back would take longer.
constexpr std::size_t kShortBodyBytes = 4 << 10;

// Who asks.
struct Caller {
  enum class Kind : std::uint8_t {
    kUnknown,  // Shows no key that is known, where one is needed.
    kTenant,
    kOperator,  // Shows the admin key: no tenant, and nothing is generated for it.
  };
  Kind kind = Kind::kUnknown;
  std::string tenant;
};

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

// Constant-time in the content of the keys; their lengths are no secret.
bool equal_keys(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// By the key that a request shows.
Caller caller_of(const HttpServerOptions& options, const Request& request) {
  Caller caller;
  if (options.api_keys.empty()) caller = {Caller::Kind::kTenant, "default"};
  std::string_view shown = view(request[http::field::authorization]);
  constexpr std::string_view kBearer = "Bearer ";
  if (!shown.starts_with(kBearer)) return caller;
  shown.remove_prefix(kBearer.size());
  for (std::size_t i = 0; i < options.api_keys.size(); ++i) {
    if (equal_keys(options.api_keys[i], shown)) caller = {Caller::Kind::kTenant, "key-" + std::to_string(i)};
  }
  const bool has_operator = !options.admin_api_key.empty();
  if (has_operator && equal_keys(options.admin_api_key, shown)) caller = {Caller::Kind::kOperator, {}};
  return caller;
}

// Paths that load balancers and scrapers ask without a key.
bool is_open_path(std::string_view path) { return path == "/health" || path == "/ping" || path == "/version"; }

Response health(Service& service) {
  const base::Status ready = service.readiness();
  JsonWriter json;
  json.begin_object().key("status").string(ready.ok() ? "ok" : "unavailable");
  if (!ready.ok()) json.key("reason").string(ready.message());
  json.end_object();
  return {ready.ok() ? 200 : 503, "application/json", json.take()};
}

template <typename T>
Response json_response(ApiResult<T> result) {
  if (!result.has_value()) return error_response(result.error());
  return {200, "application/json", std::move(*result)};
}

// GET requests. Nothing: no such path.
std::optional<Response> handle_get(Service& service, std::string_view path) {
  constexpr std::string_view kModels = "/v1/models/";
  if (path == "/health") return health(service);
  if (path == "/ping") return Response{200, "application/json", "{}"};
  if (path == "/version") return Response{200, "application/json", service.version_json()};
  if (path == "/metrics") return Response{200, "text/plain; version=0.0.4; charset=utf-8", service.metrics_text()};
  if (path == "/v1/models") return Response{200, "application/json", service.models_json()};
  if (path.starts_with(kModels)) return json_response(service.model_json(path.substr(kModels.size())));
  if (path == "/get_server_info") return Response{200, "application/json", service.server_info_json()};
  return std::nullopt;
}

bool is_operator_path(std::string_view path) { return path == "/flush_cache" || path == "/audit_quarantined_pages"; }

// What all tenants share is not one tenant's to change for the others: where there is an operator, it is the operator's
// alone, and else that of the only tenant. All the rest is tenants'.
std::optional<Response> refuse_post(const HttpServerOptions& options, const Caller& caller, std::string_view path) {
  const auto refusal = [](const char* message) {
    return error_response({403, "permission_error", "not_permitted", {}, message});
  };
  const bool is_operator = caller.kind == Caller::Kind::kOperator;
  if (!is_operator_path(path)) {
    if (!is_operator) return std::nullopt;
    return refusal("the admin key is no tenant's: use an API key");
  }
  if (is_operator) return std::nullopt;
  if (!options.admin_api_key.empty()) return refusal("this needs the admin key of this server");
  if (options.api_keys.size() <= 1) return std::nullopt;
  return refusal("this server has several tenants, and its pages are not one tenant's to empty or audit");
}

// POST requests other than generations, for which it has no answer.
std::optional<Response> handle_post(SessionContext& context, std::string_view path, std::string_view body,
                                    const std::string& tenant) {
  Service& service = context.service;
  if (path == "/tokenize") {
    auto request = parse_tokenize_request(body);
    return request.has_value() ? json_response(service.tokenize(*request)) : error_response(request.error());
  }
  if (path == "/detokenize") {
    auto request = parse_detokenize_request(body);
    return request.has_value() ? json_response(service.detokenize(*request)) : error_response(request.error());
  }
  if (path == "/abort_request") {
    auto rid = parse_abort_request(body);
    if (!rid.has_value()) return error_response(rid.error());
    JsonWriter json;
    json.begin_object().key("aborted").integer(service.abort_by_request_id(*rid, tenant)).end_object();
    return Response{200, "application/json", json.take()};
  }
  if (path == "/flush_cache") {
    service.flush_cache();
    return Response{200, "application/json", "{\"flushed\":true}"};
  }
  if (path == "/audit_quarantined_pages") {
    service.audit_quarantined_pages();
    return Response{200, "application/json", "{\"auditing\":true}"};
  }
  return std::nullopt;
}

bool is_get_path(std::string_view path) {
  return path == "/health" || path == "/ping" || path == "/version" || path == "/metrics" ||
         path == "/get_server_info" || path == "/v1/models" || path.starts_with("/v1/models/");
}
bool is_post_path(std::string_view path) {
  return path == "/v1/chat/completions" || path == "/v1/completions" || path == "/tokenize" || path == "/detokenize" ||
         path == "/abort_request" || path == "/flush_cache" || path == "/audit_quarantined_pages";
}

std::string_view path_of(const Request& request) {
  const std::string_view target = view(request.target());
  return target.substr(0, target.find('?'));
}

// A request that could not be read: what to answer, if anything.
std::optional<ApiError> read_failure(const error_code& error) {
  if (error == http::error::body_limit) {
    return ApiError{413,
                    "invalid_request_error",
                    "body_too_large",
                    {},
                    "the body is larger than " + std::to_string(base::limits::kBodyBytesMax) + " bytes"};
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return ApiError{431, "invalid_request_error", "headers_too_large", {}, "the headers are too large"};
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error.category() != http::make_error_code(http::error::bad_method).category()) {
    return std::nullopt;
  }
  return bad_request("not a valid HTTP request");
}

ApiResult<Generation> prepare(Service& service, std::string_view path, std::string_view body,
                              const std::string& request_id, const std::string& tenant) {
  if (path == "/v1/chat/completions") {
    auto request = parse_chat_request(body);
    if (!request.has_value()) return std::unexpected(std::move(request.error()));
    return service.prepare_chat(std::move(*request), request_id, tenant);
  }
  auto request = parse_completion_request(body);
  if (!request.has_value()) return std::unexpected(std::move(request.error()));
  return service.prepare_completion(std::move(*request), request_id, tenant);
}

// What a body comes to: the whole answer, or something to generate.
using Outcome = std::variant<Response, Generation>;

// Everything that takes the longer the longer the body is. Any thread.
Outcome process(SessionContext& context, std::string_view path, std::string_view body, const std::string& request_id,
                const std::string& tenant) {
  if (std::optional<Response> response = handle_post(context, path, body, tenant)) return std::move(*response);
  ApiResult<Generation> generation = prepare(context.service, path, body, request_id, tenant);
  if (!generation.has_value()) return error_response(generation.error());
  return std::move(*generation);
}

// The answer to a request whose body is not wanted, its extra headers among `headers`. Nothing: the body is wanted.
std::optional<Response> answer_without_body(SessionContext& context, const Request& request, const Caller& caller,
                                            Headers& headers) {
  const std::string_view path = path_of(request);
  if (caller.kind == Caller::Kind::kUnknown && !is_open_path(path)) {
    headers.emplace_back("WWW-Authenticate", "Bearer");
    return error_response(
        {401, "authentication_error", "invalid_api_key", {}, "a valid key is needed: Authorization: Bearer KEY"});
  }
  if (request.method() == http::verb::get || request.method() == http::verb::head) {
    if (std::optional<Response> response = handle_get(context.service, path)) {
      if (request.method() == http::verb::head) response->body.clear();
      return response;
    }
  }
  if (request.method() == http::verb::post && is_post_path(path)) return refuse_post(context.options, caller, path);
  if (is_post_path(path) || is_get_path(path)) {
    headers.emplace_back("Allow", is_post_path(path) ? "POST" : "GET, HEAD");
    return error_response({405, "invalid_request_error", "method_not_allowed", {}, "this path has another method"});
  }
  return error_response({404, "invalid_request_error", "unknown_path", {}, "there is nothing at this path"});
}

// Counts an answer that is under way.
class Answering {
 public:
  explicit Answering(SessionContext& context) : context_(context) { context_.answering.fetch_add(1); }
  ~Answering() { context_.answering.fetch_sub(1); }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

 private:
  SessionContext& context_;
};

// Ends a connection whose client may still be sending. To close it at once would reset it, and the client could lose
// the answer that lies before it; so the rest is read, for a while, and forgotten.
net::awaitable<void> end_unread(Connection& connection) {
  error_code error;
  connection.stream.socket().shutdown(net::ip::tcp::socket::shutdown_send, error);
  connection.stream.expires_after(kLingerTime);
  while (!error) {
    connection.buffer.clear();
    const net::mutable_buffer room = connection.buffer.prepare(kReadBytes);
    co_await connection.stream.async_read_some(room, net::redirect_error(net::use_awaitable, error));
  }
}

// Answers a request that cannot be read, if there is anybody to answer. The connection is to be closed then.
net::awaitable<void> refuse_unread(Connection& connection, const std::optional<ApiError>& failure) {
  if (!failure.has_value()) co_return;
  const Response refusal = error_response(*failure);
  const Headers none;
  co_await write_response(connection, refusal, 11, /*keep_alive=*/false, none);
  co_await end_unread(connection);
}

// Reads the body that the parser's header announces, within the budget. False: the connection is to be closed.
net::awaitable<bool> read_body(Connection& connection, Parser& parser, BodyBudget::Share& share) {
  beast::tcp_stream& stream = connection.stream;
  const bool announced = parser.content_length().has_value();
  bool fits = !announced || share.grow_to(static_cast<std::int64_t>(*parser.content_length()));
  error_code error;
  if (fits && !parser.is_done()) {
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      http::response<http::empty_body> go_on(http::status::continue_, parser.get().version());
      co_await http::async_write(stream, go_on, net::redirect_error(net::use_awaitable, error));
    }
    connection.buffer.reserve(kReadBytes);
    // An eager parser does not come back between two chunks, to be counted.
    parser.eager(false);
  }
  while (fits && !error && !parser.is_done()) {
    co_await http::async_read_some(stream, connection.buffer, parser, net::redirect_error(net::use_awaitable, error));
    if (!announced) fits = share.grow_to(static_cast<std::int64_t>(parser.get().body().capacity()));
  }
  if (fits && !error) co_return true;
  std::optional<ApiError> failure;
  if (fits) {
    failure = read_failure(error);
  } else {
    failure = ApiError{503, "overloaded_error", "overloaded", {}, "too many request bodies are in memory; try again"};
  }
  co_await refuse_unread(connection, failure);
  co_return false;
}

// Answers a request whose body was wanted and has been read; false: close the connection.
net::awaitable<bool> handle(Connection& connection, Request& request, BodyBudget::Share& share,
                            const std::string& tenant, Headers& headers) {
  const unsigned version = request.version();
  const bool keep_alive = request.keep_alive() && !connection.context.draining;
  const std::string request_id(view(request["x-request-id"]));
  Outcome outcome;
  const std::function<void()> work = [&] {
    outcome = process(connection.context, path_of(request), request.body(), request_id, tenant);
  };
  bool processed = true;
  if (request.body().size() < kShortBodyBytes) {
    work();
  } else {
    processed = co_await connection.context.workers->run(work);
  }
  if (!processed) {
    outcome = error_response({503, "overloaded_error", "overloaded", {}, "too many long texts at once; try again"});
  }
  if (const Response* response = std::get_if<Response>(&outcome)) {
    co_return co_await write_response(connection, *response, version, keep_alive, headers);
  }
  Generation& generation = std::get<Generation>(outcome);
  // Nobody needs the body while the answer is under way: its memory is for others.
  std::string().swap(request.body());
  share.give_back();
  headers.emplace_back("x-request-id", generation.options.request_id);
  const bool keep_connection =
      co_await answer_generation(connection, std::move(generation), version, keep_alive, headers);
  co_return keep_connection&& keep_alive;
}

// Reads one request and answers it; false: close the connection. Who asks for what is looked at before a body is read:
// nobody without a key fills the server's memory.
net::awaitable<bool> serve_request(Connection& connection) {
  SessionContext& context = connection.context;
  Parser parser;
  parser.body_limit(static_cast<std::uint64_t>(base::limits::kBodyBytesMax));
  parser.header_limit(static_cast<std::uint32_t>(base::limits::kHeaderBytesMax));
  connection.stream.expires_after(context.options.idle_timeout);
  error_code error;
  co_await http::async_read_header(connection.stream, connection.buffer, parser,
                                   net::redirect_error(net::use_awaitable, error));
  if (error) {
    const std::optional<ApiError> failure = read_failure(error);
    co_await refuse_unread(connection, failure);
    co_return false;
  }
  const Caller caller = caller_of(context.options, parser.get());
  Headers headers = {{"x-tessera-precision", context.service.precision_header()}};
  if (const std::optional<Response> response = answer_without_body(context, parser.get(), caller, headers)) {
    const Answering answering(context);
    const bool whole = parser.is_done();
    const bool keep_alive = whole && parser.get().keep_alive() && !context.draining;
    const bool open = co_await write_response(connection, *response, parser.get().version(), keep_alive, headers);
    if (!whole) co_await end_unread(connection);
    co_return open;
  }
  BodyBudget::Share share(context.bodies);
  const bool read = co_await read_body(connection, parser, share);
  if (!read) co_return false;
  const Answering answering(context);
  Request request = parser.release();
  co_return co_await handle(connection, request, share, caller.tenant, headers);
}

}  // namespace

net::awaitable<void> run_session(SessionContext& context, beast::tcp_stream stream) {
  Connection connection{context, std::move(stream), {}};
  error_code ignored;
  connection.stream.socket().set_option(net::ip::tcp::no_delay(true), ignored);
  bool open = true;
  while (open && !context.draining) {
    try {
      open = co_await serve_request(connection);
    } catch (const std::exception& exception) {
      // A fault of our own, contained: this request dies, the server lives.
      base::log().error("request handler: {}", exception.what());
      open = false;
    }
  }
  connection.stream.socket().shutdown(net::ip::tcp::socket::shutdown_send, ignored);
}

}  // namespace tessera::server
