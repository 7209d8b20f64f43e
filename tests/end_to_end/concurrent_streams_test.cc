// Many streams of a real model through pools that are too small for them: SmolLM2, prefill and decode engines, router.
// Every answer must be the one that the same prompt gets alone.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <condition_variable>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/engine/engine.h"
#include "tessera/kv_transfer/loopback_transport.h"
#include "tessera/models/model.h"
#include "tessera/router/router.h"

namespace tessera {
namespace {

constexpr std::int32_t kPageSize = 16;
constexpr int kStreams = 64;

struct Outcome {
  std::vector<std::int32_t> tokens;
  bool over = false;
  base::Status failure;
  request::SequenceReport report;
};

// Two engines over one model, driven by a router.
class Server {
 public:
  Server(const models::Model& model, ops::Backend& backend, std::int64_t prefill_pages, std::int64_t decode_pages)
      : transport_(kv_transfer::LoopbackOptions{}) {
    for (const auto role : {request::EngineRole::kPrefill, request::EngineRole::kDecode}) {
      const bool decode = role == request::EngineRole::kDecode;
      engine::EngineConfig config;
      config.id = decode ? 1 : 0;
      config.role = role;
      config.kv_format = decode ? ops::KvFormat::kF8E4M3 : ops::KvFormat::kBF16;
      config.page_size = kPageSize;
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
  ~Server() { stop(); }

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
            Outcome& outcome = outcomes_[stream];
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

  std::map<int, Outcome> wait_all() {
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
  std::map<int, Outcome> outcomes_;
};

class ConcurrentStreams : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    backend_ = std::move(*backends::cpu::make_simd_backend({}));
    auto model = models::load_model(std::string(TESSERA_SOURCE_DIR) + "/build/models/smollm2", *backend_);
    ASSERT_TRUE(model.has_value()) << model.error().message() << "\nscripts/model.sh smollm2 makes the folder";
    model_ = std::move(*model);
  }
  static void TearDownTestSuite() {
    model_.reset();
    backend_.reset();
  }

  // Prompts of 1 to 40 tokens, cut from the goldens' prompts, and 20 to 56 tokens to generate: sequences grow to
  // several times the pages that they begin with, so a pool that admits them cannot keep them all.
  static std::vector<std::int32_t> prompt(int stream) {
    static const std::vector<std::int32_t> all = [] {
      std::vector<std::int32_t> ids;
      std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/tests/goldens/smollm2/greedy.jsonl");
      for (std::string line; std::getline(file, line);) {
        const boost::json::value value = boost::json::parse(line);
        for (const auto& id : value.at("token_ids").as_array()) ids.push_back(id.to_number<std::int32_t>());
      }
      return ids;
    }();
    const std::size_t length = 1 + static_cast<std::size_t>(stream * 37 % 40);
    const std::size_t begin = static_cast<std::size_t>(stream * 53) % (all.size() - length);
    return {all.begin() + static_cast<std::ptrdiff_t>(begin),
            all.begin() + static_cast<std::ptrdiff_t>(begin + length)};
  }
  static std::int32_t max_tokens(int stream) { return 20 + stream * 29 % 37; }

  // Each stream alone, one after another, in pools with room.
  static const std::map<int, Outcome>& solo() {
    static const std::map<int, Outcome> outcomes = [] {
      std::map<int, Outcome> all;
      Server server(*model_, *backend_, 64, 64);
      for (int s = 0; s < kStreams; ++s) {
        server.start(s, prompt(s), max_tokens(s));
        all.merge(server.wait_all());
      }
      server.expect_balanced_pages();
      return all;
    }();
    return outcomes;
  }

  static inline std::unique_ptr<ops::Backend> backend_;
  static inline std::unique_ptr<models::Model> model_;
};

// 16 pages of 16 tokens hold about 4 of the 64 sequences.
TEST_F(ConcurrentStreams, EveryAnswerIsItsSoloAnswer) {
  Server server(*model_, *backend_, 24, 16);
  for (int s = 0; s < kStreams; ++s) server.start(s, prompt(s), max_tokens(s));
  const std::map<int, Outcome> outcomes = server.wait_all();
  std::int64_t preemptions = 0;
  for (const auto& [stream, outcome] : outcomes) {
    EXPECT_TRUE(outcome.failure.ok()) << stream << ": " << outcome.failure.message();
    EXPECT_EQ(outcome.tokens, solo().at(stream).tokens) << "stream " << stream;
    EXPECT_EQ(std::ssize(outcome.tokens), max_tokens(stream));
    preemptions += outcome.report.preemptions;
  }
  std::printf("%d streams, %lld preemptions\n", kStreams, static_cast<long long>(preemptions));
  EXPECT_GT(preemptions, 0);
  server.expect_balanced_pages();
}

TEST_F(ConcurrentStreams, SurvivorsOfVanishingClientsAreUndisturbed) {
  Server server(*model_, *backend_, 24, 16);
  for (int s = 0; s < kStreams; ++s) {
    server.start(s, prompt(s), max_tokens(s), s % 3 == 0 ? 1 + s % 4 : -1);
  }
  int cancelled = 0;
  for (const auto& [stream, outcome] : server.wait_all()) {
    const std::vector<std::int32_t>& alone = solo().at(stream).tokens;
    if (stream % 3 == 0 && !outcome.failure.ok()) {
      ++cancelled;
      EXPECT_EQ(outcome.failure.code(), base::StatusCode::kCancelled);
      ASSERT_LE(outcome.tokens.size(), alone.size());
      EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), alone.begin()));
    } else {
      EXPECT_TRUE(outcome.failure.ok()) << stream << ": " << outcome.failure.message();
      EXPECT_EQ(outcome.tokens, alone) << "stream " << stream;
    }
  }
  server.expect_balanced_pages();
  // Both happened: most of the 22 clients left in mid-stream (who is told late may find its answer complete), and pages
  // were taken from others.
  EXPECT_GE(cancelled, 11);
  EXPECT_GT(server.preemptions(), 0);
}

}  // namespace
}  // namespace tessera
