// Long texts do not hold up the server.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/support/http_server_fixture.h"

namespace tessera::server {
namespace {

namespace json = boost::json;
using test_support::http_get;
using test_support::http_post;
using test_support::HttpAnswer;
using test_support::HttpConnection;
using test_support::HttpServerTest;

// Renders when it is allowed to: a text that takes as long as the test wants. Gives up waiting after a while, so that a
// server that is held up fails a test instead of hanging it.
class GatedChatFormat final : public text::ChatFormat {
 public:
  std::string_view name() const override { return plain_.name(); }
  base::Result<std::vector<text::Segment>> render(const text::Conversation& conversation,
                                                  const text::RenderOptions& options) const override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(10), [this] { return open_; });
    lock.unlock();
    return plain_.render(conversation, options);
  }
  text::OutputSyntax output_syntax(const text::RenderOptions& options) const override {
    return plain_.output_syntax(options);
  }
  const std::vector<text::TokenId>& stop_token_ids() const override { return plain_.stop_token_ids(); }

  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // Until so many have come to the gate in all.
  bool wait_for(int count) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return waiting_ >= count; });
  }

 private:
  test_support::PlainChatFormat plain_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int waiting_ = 0;
  bool open_ = false;
};

class HttpLongTexts : public HttpServerTest {
 protected:
  HttpLongTexts() { chat_format_ = &gate_; }
  ~HttpLongTexts() override { gate_.open(); }
  // A body that is long, of a text that is not.
  static std::string long_body() { return R"({"messages":[{"role":"user","content":"hi"}]})" + std::string(5000, ' '); }
  GatedChatFormat gate_;
};

TEST_F(HttpLongTexts, OthersAreServedMeanwhile) {
  serve([](const auto&) { return say("ok"); });
  HttpConnection chat(port_);
  chat.send_request("POST", "/v1/chat/completions", long_body());
  HttpConnection tokenize(port_);
  tokenize.send_request("POST", "/tokenize", long_body());
  ASSERT_TRUE(gate_.wait_for(2));
  EXPECT_EQ(http_get(port_, "/ping").status, 200);
  EXPECT_EQ(http_post(port_, "/tokenize", R"({"prompt":"ab"})").status, 200);
  gate_.open();
  EXPECT_EQ(chat.read_answer().status, 200);
  EXPECT_EQ(tokenize.read_answer().status, 200);
}

TEST_F(HttpLongTexts, TooManyAtOnceAreRefused) {
  HttpServerOptions options;
  options.text_jobs_max = 1;
  serve([](const auto&) { return say("ok"); }, options);
  HttpConnection slow(port_);
  slow.send_request("POST", "/v1/chat/completions", long_body());
  ASSERT_TRUE(gate_.wait_for(1));
  const HttpAnswer refused = http_post(port_, "/detokenize", R"({"tokens":[97]})" + std::string(5000, ' '));
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.headers.find("Retry-After: 1"), std::string::npos);
  EXPECT_EQ(http_post(port_, "/detokenize", R"({"tokens":[97]})").status, 200);
  gate_.open();
  EXPECT_EQ(slow.read_answer().status, 200);
  EXPECT_EQ(http_post(port_, "/v1/chat/completions", long_body()).status, 200);
}

// One text under way, one waiting: the first is finished, the second dropped, and both connections are closed.
TEST_F(HttpLongTexts, TheServerStopsInTheMiddle) {
  HttpServerOptions options;
  options.text_threads = 1;
  serve([](const auto&) { return say("ok"); }, options);
  HttpConnection first(port_);
  first.send_request("POST", "/v1/chat/completions", long_body());
  ASSERT_TRUE(gate_.wait_for(1));
  HttpConnection second(port_);
  second.send_request("POST", "/v1/chat/completions", long_body());
  EXPECT_EQ(http_get(port_, "/ping").status, 200);
  server_->begin_drain();
  EXPECT_FALSE(server_->wait_drained(std::chrono::milliseconds(20)));
  std::jthread stopping([this] { server_->stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  gate_.open();
  stopping.join();
  server_.reset();
  EXPECT_EQ(first.read_answer().status, 0);
  EXPECT_EQ(second.read_answer().status, 0);
  EXPECT_EQ(router_->live(), 0);
}

// The message tells that the bound has spoken, which comes before the encoding.
TEST_F(HttpLongTexts, WhatCannotFitIsNotEncoded) {
  gate_.open();
  serve([](const auto&) { return say("ok"); });
  const auto error = [&](const char* path, const std::string& body) {
    const HttpAnswer answer = http_post(port_, path, body);
    EXPECT_EQ(answer.status, 400);
    const json::value value = json::parse(answer.body).at("error");
    EXPECT_EQ(value.at("code").as_string(), "context_length_exceeded");
    return std::string(value.at("message").as_string());
  };
  const std::string text(14'000'000, 'x');
  const std::string begin = "the text is too long: no token stands for more than ";
  EXPECT_EQ(error("/v1/completions", R"({"prompt":["a",")" + text + R"("]})"),
            "'prompt': " + begin + "8 bytes, so that it has at least 1750000 tokens; this server has room for 255");
  EXPECT_EQ(error("/tokenize", R"({"prompt":")" + text + R"("})"),
            "'prompt': " + begin + "8 bytes, so that it has at least 1750000 tokens; this server has room for 256");
  const std::string messages = R"({"messages":[{"role":"user","content":")" + text + R"("}]})";
  EXPECT_TRUE(error("/v1/chat/completions", messages).starts_with("'messages': " + begin));
  EXPECT_TRUE(error("/tokenize", messages).starts_with("'messages': " + begin));
}

}  // namespace
}  // namespace tessera::server
