#include "tests/serving/serving_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::test_support {

namespace {

constexpr request::EngineId kFirstEngine = 1;
constexpr request::EngineId kDecodeEngine = 2;

OracleServerOptions server_options(const HarnessOptions& options) {
  const bool split = options.pools == Pools::kSplit;
  engine::EngineConfig config;
  config.id = kFirstEngine;
  config.role = split ? request::EngineRole::kPrefill : request::EngineRole::kUnified;
  config.kv_format = options.prefill_kv;
  config.page_size = options.page_size;
  config.pages = split ? options.prefill_pages : options.pages;
  config.running_max = options.running_max;
  config.chunked_prefill_size = options.chunk;
  config.scored_prompt_size = options.scored_chunk;
  config.handoff.timeout = options.handoff_timeout;
  config.handoff.prefill_ahead_max = options.prefill_ahead_max;
  config.handoff.chunk_pages = 3;
  config.integrity = options.integrity;
  config.observer = options.first_observer;
  OracleServerOptions server;
  server.kv = options.kv;
  server.context = options.context;
  server.event_queue = options.event_queue;
  server.router = options.router;
  server.engines.push_back({config, split ? nullptr : options.before_decode_forward, options.on_first_batch});
  if (split) {
    config.id = kDecodeEngine;
    config.role = request::EngineRole::kDecode;
    config.kv_format = options.decode_kv;
    config.pages = options.pages;
    config.observer = options.decode_observer;
    server.engines.push_back({config, options.before_decode_forward, options.on_decode_batch});
  }
  return server;
}

}  // namespace

std::vector<std::int32_t> Heard::ids() const {
  std::vector<std::int32_t> out;
  for (const request::TokenEvent& event : tokens) out.push_back(event.token);
  return out;
}

ServingHarness::ServingHarness(const HarnessOptions& options)
    : options_(options), reference_(backends::cpu::make_reference_backend()) {
  const base::Clock& clock =
      options.driving == Driving::kByHand ? static_cast<const base::Clock&>(manual_clock_) : system_clock_;
  ops::Backend& backend = options.backend != nullptr ? *options.backend : *reference_;
  server_ = std::make_unique<OracleServer>(server_options(options), backend, clock);
  if (options.driving == Driving::kThreads) server_->start_threads();
}

ServingHarness::~ServingHarness() { server_->stop(); }

std::vector<std::int32_t> ServingHarness::expected(const std::vector<std::int32_t>& prompt, std::int64_t count) const {
  return oracle_tokens(prompt, count, flavors());
}

router::Subscriber ServingHarness::listen(request::SequenceId id) {
  {
    std::lock_guard lock(mutex_);
    heard_[id];
  }
  return [this, id](router::SequenceEvent event) {
    {
      std::lock_guard lock(mutex_);
      Heard& heard = heard_[id];
      if (heard.ended()) ++heard.after_terminal;
      if (auto* token = std::get_if<request::TokenEvent>(&event)) {
        heard.tokens.push_back(std::move(*token));
      } else if (auto* logprobs = std::get_if<request::PromptLogprobsEvent>(&event)) {
        heard.prompt_logprobs.push_back(std::move(*logprobs));
      } else if (auto* finished = std::get_if<request::SequenceFinished>(&event)) {
        heard.finished = finished->reason;
        heard.report = finished->report;
        ++heard.terminals;
      } else {
        auto& failed = std::get<request::SequenceFailed>(event);
        heard.failed = failed.status;
        heard.report = failed.report;
        ++heard.terminals;
      }
    }
    changed_.notify_all();
  };
}

base::Status ServingHarness::try_submit(std::vector<std::int32_t> prompt, request::SamplingParams sampling) {
  request::SequenceSpec spec;
  spec.id = router().next_id();
  spec.request_id = "request-" + std::to_string(spec.id);
  spec.tenant = "tenant";
  spec.prompt = std::move(prompt);
  spec.sampling = std::move(sampling);
  const request::SequenceId id = spec.id;
  base::Status status = router().submit(std::move(spec), listen(id));
  if (!status.ok()) {
    std::lock_guard lock(mutex_);
    heard_.erase(id);
  }
  return status;
}

request::SequenceId ServingHarness::submit(std::vector<std::int32_t> prompt, request::SamplingParams sampling) {
  const base::Status status = try_submit(std::move(prompt), std::move(sampling));
  TESSERA_CHECK(status.ok(), status.to_string());
  std::lock_guard lock(mutex_);
  return heard_.rbegin()->first;
}

request::SequenceId ServingHarness::submit(std::vector<std::int32_t> prompt, std::int32_t max_tokens) {
  return submit(std::move(prompt), greedy(max_tokens));
}

Heard ServingHarness::heard(request::SequenceId id) const {
  std::lock_guard lock(mutex_);
  return heard_.at(id);
}

bool ServingHarness::turn() {
  bool moved = false;
  for (std::size_t i = 0; i < server_->engine_count(); ++i) {
    moved |= server_->engine(i).loop().turn() == engine::Turn::kMoved;
  }
  moved |= router().pump(base::Nanoseconds(0)) > 0;
  manual_clock_.advance(std::chrono::microseconds(100));
  return moved;
}

void ServingHarness::run_until_ended() {
  if (options_.driving == Driving::kThreads) {
    std::unique_lock lock(mutex_);
    const bool all = changed_.wait_for(lock, std::chrono::seconds(240), [&] {
      return std::ranges::all_of(heard_, [](const auto& entry) { return entry.second.ended(); });
    });
    ASSERT_TRUE(all) << "some sequences did not end";
    return;
  }
  ASSERT_TRUE(run_until([&] { return router().live() == 0; })) << router().live() << " sequences did not end";
  // What aborts and handoffs leave behind is cleaned up without anybody asking.
  for (int i = 0; i < 100 && turn(); ++i) {
  }
}

std::int64_t ServingHarness::preemptions() {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < server_->engine_count(); ++i) sum += server_->engine(i).loop().stats().preemptions;
  return sum;
}

void ServingHarness::expect_pages_balance(std::int64_t quarantined_first, std::int64_t quarantined_decode) {
  if (options_.driving == Driving::kThreads) {
    // Aborted sequences leave the engines within a few turns.
    const auto busy = [&] {
      std::int64_t leased = 0;
      for (const auto& engine : router().snapshot().engines) leased += engine.stats.pages_leased + engine.stats.waiting;
      return leased > 0;
    };
    for (int i = 0; i < 500 && busy(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(busy());
  }
  server_->stop();
  const auto check = [](engine::Engine& engine, std::int64_t quarantined) {
    const request::EngineStats stats = engine.loop().stats();
    EXPECT_EQ(engine.loop().live(), 0) << "engine " << engine.info().id;
    EXPECT_EQ(stats.pages_leased, 0) << "engine " << engine.info().id;
    EXPECT_EQ(stats.pages_quarantined, quarantined) << "engine " << engine.info().id;
    EXPECT_EQ(stats.pages_free + stats.pages_cached + stats.pages_quarantined, stats.pages_total);
    EXPECT_EQ(engine.loop().pool().double_frees(), 0);
    const base::Status audit = engine.loop().audit();
    EXPECT_TRUE(audit.ok()) << audit.to_string();
  };
  check(first(), quarantined_first);
  if (options_.pools == Pools::kSplit) check(decode(), quarantined_decode);
}

std::vector<std::int32_t> make_prompt(std::uint64_t seed, std::int64_t length) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
  for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(random() % (ContextOracleModel::kVocab - 1));
  return prompt;
}

std::vector<std::int32_t> make_prompt_after(std::vector<std::int32_t> beginning, std::uint64_t seed,
                                            std::int64_t length) {
  const std::vector<std::int32_t> rest = make_prompt(seed, length);
  beginning.insert(beginning.end(), rest.begin(), rest.end());
  return beginning;
}

request::SamplingParams greedy(std::int32_t max_tokens) {
  request::SamplingParams sampling;
  sampling.temperature = 0.0f;
  sampling.max_tokens = max_tokens;
  return sampling;
}

}  // namespace tessera::test_support
