// A whole HTTP server over an engine that follows a script, for tests that talk to it over sockets.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "tessera/base/clock.h"
#include "tessera/router/router.h"
#include "tessera/server/http_server.h"
#include "tessera/server/service.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/http_client.h"
#include "tests/support/scripted_engine.h"

namespace tessera::test_support {

class HttpServerTest : public testing::Test {
 protected:
  void serve(ScriptedEngine::Playwright playwright, server::HttpServerOptions options = {}) {
    engine_ = std::make_unique<ScriptedEngine>(events_, std::move(playwright), context_tokens_max_);
    router::RouterOptions router_options;
    router_options.live_sequences_max = 40;
    router_ = std::move(*router::Router::create(router_options, {engine_.get()}, events_, clock_));
    router_->start();
    service_options_.served_model_name = "toy";
    service_options_.version = "1.2.3";
    service_options_.vocab_size = tokenizer_->vocab_size();
    service_ = std::make_unique<server::Service>(service_options_, *tokenizer_, chat_format_, *router_, clock_);
    options.port = 0;
    auto started = server::HttpServer::start(options, *service_);
    ASSERT_TRUE(started.has_value()) << started.error().message();
    server_ = std::move(*started);
    port_ = server_->port();
  }
  void TearDown() override {
    if (server_ != nullptr) server_->stop();
    if (router_ != nullptr) router_->stop();
    server_.reset();
  }
  // Before it serves: the chat format of that name, and a tokenizer with every family's control tokens.
  void speak(std::string_view format) {
    tokenizer_ = byte_tokenizer(family_control_tokens());
    family_format_ = std::move(*text::ChatFormat::by_name(format, *tokenizer_));
    chat_format_ = family_format_.get();
    context_tokens_max_ = 4096;
  }
  // What a model of that format writes, its stop token at the end; markers as tokens (marked_tokens()).
  Script write(std::string_view text) const {
    Script script{.tokens = marked_tokens(text)};
    script.tokens.push_back(chat_format_->stop_token_ids().front());
    return script;
  }
  // Waits until the router holds no live sequence.
  bool becomes_idle() {
    for (int i = 0; i < 1000 && router_->live() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return router_->live() == 0;
  }
  // Waits until the router holds so many live sequences.
  bool holds_live(std::int64_t count) {
    for (int i = 0; i < 1000 && router_->live() != count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return router_->live() == count;
  }
  static Script say(std::string_view text) {
    Script script{.tokens = byte_tokens(text)};
    script.tokens.push_back(kTurnEnd);
    return script;
  }

  base::SystemClock clock_;
  request::EngineEventQueue events_{65536};
  std::unique_ptr<text::Tokenizer> tokenizer_ = byte_tokenizer();
  PlainChatFormat format_;
  std::unique_ptr<const text::ChatFormat> family_format_;
  std::int64_t context_tokens_max_ = 256;
  server::ServiceOptions service_options_;
  const text::ChatFormat* chat_format_ = &format_;  // A test may put another in before it serves.
  std::unique_ptr<ScriptedEngine> engine_;
  std::unique_ptr<router::Router> router_;
  std::unique_ptr<server::Service> service_;
  std::unique_ptr<server::HttpServer> server_;
  std::uint16_t port_ = 0;
};

}  // namespace tessera::test_support
