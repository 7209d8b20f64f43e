// What the server does about bodies that it does not want, and about too many of them.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <thread>

#include "tests/support/http_server_fixture.h"

namespace tessera::server {
namespace {

namespace json = boost::json;
using test_support::http_post;
using test_support::HttpAnswer;
using test_support::HttpConnection;
using test_support::HttpServerTest;
using test_support::Script;

// A client that announces a body and does not send it gets its answer all the same.
TEST_F(HttpServerTest, RefusalsComeBeforeTheBody) {
  HttpServerOptions options;
  options.api_keys = {"alpha"};
  options.idle_timeout = std::chrono::milliseconds(5000);
  serve([](const auto&) { return say("ok"); }, options);
  const auto announce = [&](const std::string& line, const std::string& headers) {
    HttpConnection connection(port_);
    connection.send(line + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
    const HttpAnswer answer = connection.read_answer();
    EXPECT_NE(answer.headers.find("Connection: close"), std::string::npos) << line;
    EXPECT_TRUE(connection.is_closed());
    return answer.status;
  };
  const std::string key = "Authorization: Bearer alpha\r\n";
  const std::string body = "Content-Length: 1000000\r\n";
  EXPECT_EQ(announce("POST /v1/completions", body), 401);
  EXPECT_EQ(announce("POST /v1/completions", "Transfer-Encoding: chunked\r\n"), 401);
  EXPECT_EQ(announce("POST /v1/completions", "Expect: 100-continue\r\n" + body), 401);
  EXPECT_EQ(announce("POST /nothing", key + body), 404);
  EXPECT_EQ(announce("PUT /v1/completions", key + body), 405);
  EXPECT_EQ(announce("GET /health", body), 200);
  EXPECT_EQ(announce("POST /v1/completions", key + "Content-Length: 99999999\r\n"), 413);
  // A client that sends the whole body before it listens still finds the answer.
  EXPECT_EQ(http_post(port_, "/tokenize", std::string(4'000'000, ' ')).status, 401);
  // Without a body the connection stays.
  HttpConnection connection(port_);
  for (int i = 0; i < 2; ++i) {
    connection.send_request("POST", "/flush_cache", "");
    EXPECT_EQ(connection.read_answer().status, 401);
  }
}

TEST_F(HttpServerTest, BodiesInMemoryAreBounded) {
  HttpServerOptions options;
  options.body_bytes_max = 10'000;
  serve([](const auto&) { return say("ok"); }, options);
  const std::string body = R"({"prompt":"ab"})";
  const std::string answer = R"({"count":2,"max_model_len":256,"tokens":[97,98]})";
  const std::string post = "POST /tokenize HTTP/1.1\r\nHost: x\r\n";
  HttpConnection slow(port_);
  slow.send(post + "Expect: 100-continue\r\nContent-Length: 9000\r\n\r\n");
  ASSERT_TRUE(slow.read_until("100 Continue\r\n\r\n"));  // Its bytes are counted now.
  const HttpAnswer refused = http_post(port_, "/tokenize", body + std::string(2000, ' '));
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.headers.find("Retry-After: 1"), std::string::npos);
  EXPECT_EQ(json::parse(refused.body).at("error").at("code").as_string(), "overloaded");
  EXPECT_EQ(http_post(port_, "/tokenize", body).body, answer);
  slow.close();
  // Given back when the server has noticed; a body that never fits comes in chunks and is refused in its middle.
  int status = 503;
  for (int i = 0; i < 1000 && status == 503; ++i) {
    status = http_post(port_, "/tokenize", body + std::string(9000, ' ')).status;
    if (status == 503) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(status, 200);
  HttpConnection chunked(port_);
  chunked.send(post + "Transfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 11; ++i) chunked.send("3e8\r\n" + std::string(1000, ' ') + "\r\n");
  EXPECT_EQ(chunked.read_answer().status, 503);
  HttpConnection small(port_);
  small.send(post + "Transfer-Encoding: chunked\r\n\r\nf\r\n" + body + "\r\n0\r\n\r\n");
  EXPECT_EQ(small.read_answer().body, answer);
}

// The body is not kept while its answer is under way.
TEST_F(HttpServerTest, ARunningAnswerHoldsNoBody) {
  HttpServerOptions options;
  options.body_bytes_max = 1000;
  serve([](const auto&) { return Script{.hold = true}; }, options);
  const std::string body = R"({"prompt":"x"})" + std::string(800, ' ');
  HttpConnection first(port_);
  first.send_request("POST", "/v1/completions", body);
  EXPECT_TRUE(holds_live(1));
  HttpConnection second(port_);
  second.send_request("POST", "/v1/completions", body);
  EXPECT_TRUE(holds_live(2));
}

}  // namespace
}  // namespace tessera::server
