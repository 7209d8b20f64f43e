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
constexpr Flavors kSplitFlavors{.prompt = 1, .generated = 2};

std::unique_ptr<engine::Engine> make_engine(const engine::EngineConfig& config, engine::EngineParts parts) {
  auto made = engine::Engine::create(config, std::move(parts));
  TESSERA_CHECK(made.has_value(), made.has_value() ? "" : made.error().to_string());
  return std::move(*made);
}

}  // namespace

std::vector<std::int32_t> Heard::ids() const {
  std::vector<std::int32_t> out;
  for (const request::TokenEvent& event : tokens) out.push_back(event.token);
  return out;
}

ServingHarness::ServingHarness(const HarnessOptions& options)
    : options_(options),
      backend_(backends::cpu::make_reference_backend()),
      events_(std::make_unique<request::EngineEventQueue>(options.event_queue)),
      transport_(std::make_unique<kv_transfer::LoopbackTransport>(kv_transfer::LoopbackOptions{})) {
  const bool split = options.pools == Pools::kSplit;
  const base::Clock& clock =
      options.driving == Driving::kByHand ? static_cast<const base::Clock&>(manual_clock_) : system_clock_;
  first_model_ = std::make_unique<ContextOracleModel>(
      *backend_, ContextOracleOptions{.kv = options.kv,
                                      .flavor = kSplitFlavors.prompt,
                                      .context = options.context,
                                      .before_forward = split ? nullptr : options.before_decode_forward,
                                      .on_batch = options.on_first_batch});
  decode_model_ = std::make_unique<ContextOracleModel>(
      *backend_, ContextOracleOptions{.kv = options.kv,
                                      .flavor = kSplitFlavors.generated,
                                      .context = options.context,
                                      .before_forward = options.before_decode_forward,
                                      .on_batch = options.on_decode_batch});
  engine::EngineConfig config;
  config.id = kFirstEngine;
  config.role = split ? request::EngineRole::kPrefill : request::EngineRole::kUnified;
  config.kv_format = options.prefill_kv;
  config.page_size = options.page_size;
  config.pages = split ? options.prefill_pages : options.pages;
  config.running_max = options.running_max;
  config.chunked_prefill_size = options.chunk;
  config.handoff.timeout = options.handoff_timeout;
  config.handoff.prefill_ahead_max = options.prefill_ahead_max;
  config.handoff.chunk_pages = 3;
  config.integrity = options.integrity;
  config.observer = options.first_observer;
  first_ = make_engine(
      config, {*first_model_, *backend_, *events_, clock, split ? transport_->make_endpoint(kFirstEngine) : nullptr});
  decode_ = first_.get();
  if (split) {
    config.id = kDecodeEngine;
    config.role = request::EngineRole::kDecode;
    config.kv_format = options.decode_kv;
    config.pages = options.pages;
    config.observer = options.decode_observer;
    decode_engine_ =
        make_engine(config, {*decode_model_, *backend_, *events_, clock, transport_->make_endpoint(kDecodeEngine)});
    decode_ = decode_engine_.get();
  }
  std::vector<request::EngineEndpoint*> endpoints{first_.get()};
  if (split) endpoints.push_back(decode_engine_.get());
  auto router = router::Router::create(options.router, endpoints, *events_, clock);
  TESSERA_CHECK(router.has_value(), router.has_value() ? "" : router.error().to_string());
  router_ = std::move(*router);
  if (options.driving == Driving::kThreads) {
    first_->start();
    if (split) decode_engine_->start();
    router_->start();
  }
}

ServingHarness::~ServingHarness() { stop_threads(); }

void ServingHarness::stop_threads() {
  if (std::exchange(stopped_, true)) return;
  router_->stop();
  first_->stop();
  if (decode_engine_ != nullptr) decode_engine_->stop();
}

Flavors ServingHarness::flavors() const {
  return options_.pools == Pools::kSplit ? kSplitFlavors : Flavors{kSplitFlavors.prompt, kSplitFlavors.prompt};
}

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
  spec.id = router_->next_id();
  spec.request_id = "request-" + std::to_string(spec.id);
  spec.tenant = "tenant";
  spec.prompt = std::move(prompt);
  spec.sampling = std::move(sampling);
  const request::SequenceId id = spec.id;
  base::Status status = router_->submit(std::move(spec), listen(id));
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
  bool moved = first_->loop().turn() == engine::Turn::kMoved;
  if (decode_engine_ != nullptr) moved |= decode_engine_->loop().turn() == engine::Turn::kMoved;
  moved |= router_->pump(base::Nanoseconds(0)) > 0;
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
  ASSERT_TRUE(run_until([&] { return router_->live() == 0; })) << router_->live() << " sequences did not end";
  // What aborts and handoffs leave behind is cleaned up without anybody asking.
  for (int i = 0; i < 100 && turn(); ++i) {
  }
}

std::int64_t ServingHarness::preemptions() {
  std::int64_t sum = first_->loop().stats().preemptions;
  if (decode_engine_ != nullptr) sum += decode_engine_->loop().stats().preemptions;
  return sum;
}

void ServingHarness::expect_pages_balance(std::int64_t quarantined_first, std::int64_t quarantined_decode) {
  if (options_.driving == Driving::kThreads) {
    // Aborted sequences leave the engines within a few turns.
    const auto busy = [&] {
      std::int64_t leased = 0;
      for (const auto& engine : router_->snapshot().engines) leased += engine.stats.pages_leased + engine.stats.waiting;
      return leased > 0;
    };
    for (int i = 0; i < 500 && busy(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(busy());
  }
  stop_threads();
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
  check(*first_, quarantined_first);
  if (decode_engine_ != nullptr) check(*decode_engine_, quarantined_decode);
}

std::vector<std::int32_t> make_prompt(std::uint64_t seed, std::int64_t length) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
  for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(random() % (ContextOracleModel::kVocab - 1));
  return prompt;
}

request::SamplingParams greedy(std::int32_t max_tokens) {
  request::SamplingParams sampling;
  sampling.temperature = 0.0f;
  sampling.max_tokens = max_tokens;
  return sampling;
}

}  // namespace tessera::test_support
