#include "http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/evaluate/canned_server.h"

namespace tessera::app {
namespace {

using std::chrono::milliseconds;
using test_support::CannedServer;
using test_support::http_reply;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class HttpClientTest : public testing::Test {
 protected:
  HttpClient::Options options(const CannedServer& server) const {
    HttpClient::Options options;
    options.server = {.host = "127.0.0.1", .port = server.port(), .api_key = "secret"};
    options.first_wait = milliseconds(1);
    options.wait_max = milliseconds(4);
    options.attempts_max = 5;
    return options;
  }
  std::atomic<bool> stop_ = false;
};

TEST_F(HttpClientTest, KeepsConnectionsAndSendsTheKey) {
  CannedServer server({http_reply(200, "one"), http_reply(404, "two")});
  HttpClient client(options(server), stop_);
  EXPECT_EQ(client.get("/a")->body, "one");
  const auto second = client.post("/b", "{}");
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->status, 404);
  EXPECT_EQ(second->body, "two");
  EXPECT_EQ(server.connections(), 1u);
  EXPECT_THAT(server.requests()[0], HasSubstr("GET /a HTTP/1.1\r\n"));
  EXPECT_THAT(server.requests()[0], HasSubstr("Authorization: Bearer secret\r\n"));
  EXPECT_THAT(server.requests()[1], HasSubstr("\r\n\r\n{}"));
  EXPECT_EQ(client.retries(), 0);
}

TEST_F(HttpClientTest, AsksAgainWhereTheServerIsBusyOrGone) {
  CannedServer server(
      {http_reply(429, "later"), "", http_reply(503, "later", "Retry-After: 0\r\n"), http_reply(200, "now")});
  HttpClient client(options(server), stop_);
  const auto reply = client.post("/x", "{}");
  ASSERT_TRUE(reply.has_value()) << reply.error().message();
  EXPECT_EQ(reply->body, "now");
  // The connection that broke had been used before, which says nothing of the server.
  EXPECT_EQ(client.retries(), 2);
  EXPECT_EQ(server.requests().size(), 4u);
}

TEST_F(HttpClientTest, AConnectionThatTheServerHasClosedMeanwhileCountsForNothing) {
  CannedServer server({http_reply(200, "one"), "", http_reply(200, "two")});
  HttpClient::Options once = options(server);
  once.attempts_max = 1;
  once.first_wait = std::chrono::seconds(60);
  HttpClient client(once, stop_);
  EXPECT_EQ(client.get("/x")->body, "one");
  const auto second = client.get("/x");
  ASSERT_TRUE(second.has_value()) << second.error().message();
  EXPECT_EQ(second->body, "two");
  EXPECT_EQ(client.retries(), 0);
  EXPECT_EQ(server.connections(), 2u);
}

TEST_F(HttpClientTest, WaitsAsLongAsItIsTold) {
  CannedServer server({http_reply(503, "later", "Retry-After: 1\r\n"), http_reply(200, "now")});
  HttpClient client(options(server), stop_);
  const Clock::time_point start = Clock::now();
  EXPECT_EQ(client.get("/x")->body, "now");
  EXPECT_GE(Clock::now() - start, milliseconds(950));
}

TEST_F(HttpClientTest, GivesUpAfterSoManyTimes) {
  CannedServer busy({http_reply(429, "no room")});
  HttpClient client(options(busy), stop_);
  const auto reply = client.post("/x", "{}");
  EXPECT_EQ(reply.error().code(), base::StatusCode::kUnavailable);
  EXPECT_THAT(reply.error().message(), HasSubstr("POST /x at 127.0.0.1:"));
  EXPECT_THAT(reply.error().message(), HasSubstr("5 times: 429: no room"));
  EXPECT_EQ(busy.requests().size(), 5u);
  CannedServer closes({""});
  HttpClient other(options(closes), stop_);
  EXPECT_EQ(other.get("/x").error().code(), base::StatusCode::kUnavailable);
  EXPECT_EQ(closes.requests().size(), 5u);
}

TEST_F(HttpClientTest, WaitsNoLongerThanItsTime) {
  CannedServer server({std::string(CannedServer::kSilence)});
  HttpClient::Options options_now = options(server);
  options_now.timeout = milliseconds(200);
  HttpClient client(options_now, stop_);
  const auto reply = client.get("/x");
  EXPECT_EQ(reply.error().code(), base::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(reply.error().message(), HasSubstr("no answer within 0.2 s"));
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST_F(HttpClientTest, EndsWhenItIsToldTo) {
  CannedServer server({std::string(CannedServer::kSilence)});
  HttpClient client(options(server), stop_);
  std::jthread ends([this] {
    std::this_thread::sleep_for(milliseconds(150));
    stop_ = true;
  });
  std::vector<std::jthread> threads;
  threads.reserve(4);
  std::atomic<int> cancelled = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto reply = client.get("/x");
      if (!reply.has_value() && reply.error().code() == base::StatusCode::kCancelled) ++cancelled;
    });
  }
  threads.clear();
  EXPECT_EQ(cancelled, 4);
}

TEST_F(HttpClientTest, NamesAServerThatIsNotThere) {
  std::uint16_t port = 0;
  {
    const CannedServer server({""});
    port = server.port();
  }
  HttpClient::Options nobody;
  nobody.server.port = port;
  nobody.attempts_max = 1;
  HttpClient client(nobody, stop_);
  EXPECT_THAT(client.get("/v1/models").error().message(), HasSubstr("GET /v1/models at 127.0.0.1:"));
  nobody.server.host = "no such host";
  HttpClient nowhere(nobody, stop_);
  EXPECT_EQ(nowhere.get("/").error().code(), base::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tessera::app
