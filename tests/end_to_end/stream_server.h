// A prefill and a decode engine over one model, joined by a loopback transport and driven by a router on real threads:
// a server without sockets. Streams are numbered by the test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/engine/engine.h"
#include "tessera/kv_transfer/loopback_transport.h"
#include "tessera/models/model.h"
#include "tessera/router/router.h"

namespace tessera::test_support {

struct StreamOutcome {
  std::vector<std::int32_t> tokens;
  bool over = false;
  base::Status failure;
  request::SequenceReport report;
};

class StreamServer {
 public:
  StreamServer(const models::Model& model, ops::Backend& backend, std::int64_t prefill_pages, std::int64_t decode_pages)
      : transport_(kv_transfer::LoopbackOptions{}) {
    for (const auto role : {request::EngineRole::kPrefill, request::EngineRole::kDecode}) {
      const bool decode = role == request::EngineRole::kDecode;
      engine::EngineConfig config;
      config.id = decode ? 1 : 0;
      config.role = role;
      config.kv_format = decode ? ops::KvFormat::kF8E4M3 : ops::KvFormat::kBF16;
      config.page_size = 8;
      config.pages = decode ? decode_pages : prefill_pages;
      config.running_max = 32;
      config.chunked_prefill_size = 128;
      auto made = engine::Engine::create(
          config, {model, backend, events_, clock_, transport_.make_endpoint(static_cast<std::uint32_t>(config.id))});
      EXPECT_TRUE(made.has_value()) << made.error().message();
      engines_.push_back(std::move(*made));
    }
    router_ = std::move(*router::Router::create({}, {engines_[0].get(), engines_[1].get()}, events_, clock_));
    for (auto& engine : engines_) engine->start();
    router_->start();
  }
  ~StreamServer() { stop(); }

  // Starts a stream; when it has `abort_after` tokens it is aborted (negative: never).
  void start(int stream, std::vector<std::int32_t> prompt, std::int32_t max_tokens, std::int32_t abort_after = -1) {
    request::SequenceSpec spec;
    spec.id = router_->next_id();
    spec.request_id = "stream-" + std::to_string(stream);
    spec.tenant = "test";
    spec.prompt = std::move(prompt);
    spec.sampling.temperature = 0.0f;
    spec.sampling.max_tokens = max_tokens;
    const request::SequenceId id = spec.id;
    const base::Status status =
        router_->submit(std::move(spec), [this, stream, id, abort_after](router::SequenceEvent event) {
          std::int32_t seen = 0;
          {
            std::lock_guard lock(mutex_);
            StreamOutcome& outcome = outcomes_[stream];
            EXPECT_FALSE(outcome.over) << "an event after the last one";
            if (const auto* token = std::get_if<request::TokenEvent>(&event)) {
              EXPECT_EQ(token->index, std::ssize(outcome.tokens));
              outcome.tokens.push_back(token->token);
              seen = static_cast<std::int32_t>(outcome.tokens.size());
            } else {
              outcome.over = true;
              if (const auto* failed = std::get_if<request::SequenceFailed>(&event)) outcome.failure = failed->status;
              if (const auto* finished = std::get_if<request::SequenceFinished>(&event))
                outcome.report = finished->report;
            }
          }
          changed_.notify_all();
          if (seen == abort_after) router_->abort(id);
        });
    ASSERT_TRUE(status.ok()) << status.message();
    std::lock_guard lock(mutex_);
    outcomes_[stream];
  }

  std::map<int, StreamOutcome> wait_all() {
    std::unique_lock lock(mutex_);
    const bool all = changed_.wait_for(lock, std::chrono::minutes(8), [&] {
      for (const auto& [stream, outcome] : outcomes_) {
        if (!outcome.over) return false;
      }
      return true;
    });
    EXPECT_TRUE(all) << "streams hang";
    return std::exchange(outcomes_, {});
  }

  // Of the decode engine; after expect_balanced_pages, which stops it.
  std::int64_t preemptions() { return engines_[1]->loop().stats().preemptions; }

  // Stops everything and asserts that no page is lost: nothing leased, nothing quarantined, the accounts in order.
  void expect_balanced_pages() {
    for (int i = 0; i < 1000; ++i) {
      std::int64_t leased = 0;
      for (const auto& engine : router_->snapshot().engines) leased += engine.stats.pages_leased;
      if (leased == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    stop();
    for (auto& engine : engines_) {
      EXPECT_EQ(engine->loop().live(), 0);
      const kv_cache::PageCounts counts = engine->loop().pool().counts();
      EXPECT_EQ(counts.leased, 0);
      EXPECT_EQ(counts.quarantined, 0);
      const base::Status audit = engine->loop().audit();
      EXPECT_TRUE(audit.ok()) << audit.message();
    }
  }

 private:
  void stop() {
    router_->stop();
    for (auto& engine : engines_) engine->stop();
  }
  base::SystemClock clock_;
  request::EngineEventQueue events_{1 << 16};
  kv_transfer::LoopbackTransport transport_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  std::unique_ptr<router::Router> router_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, StreamOutcome> outcomes_;
};

}  // namespace tessera::test_support
