#include "tests/simulation/scenario.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/base/arithmetic.h"

namespace tessera::simulation {

using request::EngineRole;
using test_support::ContextOracleModel;

namespace {

engine::EngineConfig engine_config(Dice& dice, const engine::EngineConfig& base, request::EngineId id, EngineRole role,
                                   ops::KvFormat format) {
  engine::EngineConfig config = base;
  config.id = id;
  config.role = role;
  config.kv_format = format;
  config.pages = dice.range(12, 48);
  config.running_max = dice.range(2, 12);
  return config;
}

bool faults_in_steps(FaultSet faults) {
  return faults.has(FaultKind::kMapping) || faults.has(FaultKind::kRecords) || faults.has(FaultKind::kSlots) ||
         faults.has(FaultKind::kPayload);
}

}  // namespace

base::Nanoseconds sweep_time(const engine::EngineConfig& config, base::Nanoseconds turn) {
  // Portions of up to 64 pages come at their times; one may just have passed when a page changes, and an engine that
  // rests does so for a millisecond at least.
  const std::int64_t rate = config.integrity.sweep_pages_per_second;
  const std::int64_t portion = std::clamp<std::int64_t>(rate / 4, 1, 64);
  const std::int64_t portions = base::ceil_div(config.pages, portion) + 1;
  return base::Nanoseconds(std::chrono::seconds(portions * portion)) / rate + std::chrono::milliseconds(2) + 2 * turn;
}

Scenario make_scenario(Dice& dice, const ScenarioChoices& choices) {
  const FaultSet faults = choices.faults;
  Scenario scenario;
  engine::EngineConfig base;
  base.page_size = static_cast<std::int32_t>(dice.one_of<int>(std::array{2, 4, 4, 8}));
  base.chunked_prefill_size = dice.one_of<int>(std::array{4, 8, 16, 5});
  base.scored_prompt_size = dice.range(1, 8);
  base.sequences_max = 256;
  base.commands_max = dice.chance(0.2) ? 4 : 256;
  // Nothing that a level checks may give a false alarm.
  base.integrity.level = dice.one_of<kv_cache::IntegrityLevel>(std::array{
      kv_cache::IntegrityLevel::kTags, kv_cache::IntegrityLevel::kDigest, kv_cache::IntegrityLevel::kDigestStep});
  base.integrity.sweep_pages_per_second = dice.range(1, 2000);
  if (faults.has(FaultKind::kPayload)) {
    base.integrity.level = dice.one_of<kv_cache::IntegrityLevel>(
        std::array{kv_cache::IntegrityLevel::kDigest, kv_cache::IntegrityLevel::kDigestStep});
    // So fast that many sweeps come by in a run.
    base.integrity.sweep_pages_per_second = dice.range(500, 20'000);
  }
  base.integrity.level = choices.level.value_or(base.integrity.level);
  base.audit_interval = std::chrono::seconds(1);
  base.handoff.timeout = std::chrono::milliseconds(dice.range(100, 1000));
  base.handoff.prefill_ahead_max = dice.range(1, 8);
  base.handoff.chunk_pages = static_cast<std::int32_t>(dice.range(1, 4));
  base.handoff.chunks_per_tick = static_cast<std::int32_t>(dice.range(1, 8));

  scenario.server.kv = dice.chance(0.5) ? test_support::OracleKv::kLatents : test_support::OracleKv::kKeysAndValues;
  if (dice.chance(0.2)) scenario.server.event_queue = 8;
  scenario.server.router.live_sequences_max = 64;
  auto& engines = scenario.server.engines;
  // Of ten: two unified engines, one (twice), two pairs (three times), or one.
  const std::int64_t shape = !choices.shape.has_value()               ? dice.range(0, 9)
                             : choices.shape == EngineShape::kUnified ? dice.range(0, 2)
                                                                      : dice.range(3, 9);
  if (shape < 3) {
    const auto format = dice.one_of<ops::KvFormat>(std::array{ops::KvFormat::kBF16, ops::KvFormat::kF8E4M3});
    const std::int64_t count = shape == 0 ? 2 : 1;
    for (std::int64_t i = 0; i < count; ++i) {
      engines.push_back(
          {engine_config(dice, base, static_cast<std::int32_t>(1 + i), EngineRole::kUnified, format), {}, {}});
    }
  } else {
    const std::int64_t pairs = shape < 6 ? 2 : 1;
    const auto decode = dice.chance(0.8) ? ops::KvFormat::kF8E4M3 : ops::KvFormat::kBF16;
    for (std::int64_t i = 0; i < pairs; ++i) {
      engines.push_back(
          {engine_config(dice, base, static_cast<std::int32_t>(1 + i), EngineRole::kPrefill, ops::KvFormat::kBF16),
           {},
           {}});
    }
    for (std::int64_t i = 0; i < pairs; ++i) {
      engines.push_back(
          {engine_config(dice, base, static_cast<std::int32_t>(11 + i), EngineRole::kDecode, decode), {}, {}});
    }
  }
  TrafficOptions& traffic = scenario.traffic;
  traffic.live_max = dice.range(4, 24);
  traffic.burst_chance = dice.chance(0.3) ? 0.01 : 0.2;
  traffic.burst_max = dice.range(1, 8);
  traffic.prompt_max = dice.range(8, 64);
  traffic.generated_max = dice.range(2, 40);
  traffic.tenants = dice.range(1, 3);
  traffic.trees = dice.range(1, 5);
  traffic.abort_share = dice.chance(0.3) ? 0.0 : 0.15;
  if (faults_in_steps(faults) && dice.chance(0.95)) {
    // Full batches, of which one row is to fail and not its neighbours; and room enough for what is in quarantine.
    traffic.live_max = dice.range(32, 48);
    traffic.burst_chance = 0.8;
    traffic.burst_max = dice.range(4, 8);
    traffic.generated_max = dice.range(40, 60);
    for (test_support::OracleEngine& engine : engines) {
      engine.config.running_max = dice.range(10, 20);
      const std::int64_t tokens = engine.config.running_max * (traffic.prompt_max + traffic.generated_max) / 2;
      engine.config.pages += 24 + tokens / base.page_size;
      engine.config.chunked_prefill_size *= 4;
      engine.config.handoff.prefill_ahead_max = 16;
    }
  }
  if (shape >= 3 && faults.empty() && dice.chance(0.3)) {
    // What is prefilled queues up for a decode engine's pages.
    for (test_support::OracleEngine& engine : engines) {
      if (engine.config.role == EngineRole::kDecode) engine.config.pages = dice.range(12, 16);
    }
    traffic.live_max = 24;
    traffic.burst_chance = 0.2;
    traffic.abort_share = 0.15;
  }
  scenario.latency_turns_max = dice.chance(0.5) ? 0 : dice.range(1, 20);
  scenario.pause_turns_max = dice.chance(0.7) ? 0 : dice.range(1, 100);
  // An engine that is busy elsewhere sweeps later.
  if (faults.has(FaultKind::kPayload)) scenario.pause_turns_max = 0;
  // So little room on the way that messages have to wait, and nothing else in between that keeps them.
  if (faults.has(FaultKind::kTransport) ? dice.chance(0.1) : dice.chance(0.25)) {
    scenario.server.loopback.bytes_in_flight_max = dice.range(1500, 3500);
    scenario.latency_turns_max = 0;
  }
  scenario.rewrites_at_once = dice.chance(0.7);
  const bool may_lose = faults.has(FaultKind::kTransport) || faults.has(FaultKind::kRestarts);
  // Longer than any deadline that a disturbed handoff has; where none is disturbed, nobody waits for a deadline.
  scenario.stall_after = std::chrono::milliseconds(may_lose ? 10'000 : 500);
  scenario.starves_after = std::chrono::milliseconds(may_lose ? 20'000 : 900);
  return scenario;
}

Traffic::Traffic(const TrafficOptions& options, std::int64_t page_size, std::int64_t chunk, Dice dice)
    : options_(options), page_size_(page_size), chunk_(chunk), dice_(dice) {
  for (std::int64_t i = 0; i < options_.trees; ++i) {
    std::vector<std::int32_t> trunk;
    // Half of the trees grow out of an earlier one.
    if (i > 0 && dice_.chance(0.5)) {
      const auto& from = trunks_[static_cast<std::size_t>(dice_.range(0, i - 1))];
      trunk.assign(from.begin(), from.begin() + dice_.range(0, std::ssize(from)));
    }
    const std::int64_t length = dice_.range(1, std::max<std::int64_t>(1, options_.prompt_max));
    while (std::ssize(trunk) < length) {
      trunk.push_back(static_cast<std::int32_t>(dice_.range(0, ContextOracleModel::kVocab - 2)));
    }
    trunks_.push_back(std::move(trunk));
  }
}

std::int64_t Traffic::prompt_length() {
  std::int64_t length = dice_.range(1, options_.prompt_max);
  // On and around the ends of pages and chunks.
  const std::int64_t unit = dice_.chance(0.5) ? page_size_ : chunk_;
  if (dice_.chance(0.4)) length = (length / unit) * unit + dice_.range(-1, 1);
  return std::clamp<std::int64_t>(length, 1, options_.prompt_max);
}

request::SamplingParams Traffic::sampling() {
  request::SamplingParams sampling;
  sampling.temperature = 0.0f;
  if (dice_.chance(0.4)) {
    sampling.temperature = 0.5f + 0.1f * static_cast<float>(dice_.range(0, 10));
    if (dice_.chance(0.5)) sampling.top_p = 0.1f * static_cast<float>(dice_.range(5, 10));
    if (dice_.chance(0.5)) sampling.top_k = static_cast<std::int32_t>(dice_.range(1, 50));
  }
  sampling.seed = dice_.next();
  sampling.max_tokens = static_cast<std::int32_t>(dice_.range(1, options_.generated_max));
  const std::int64_t stops = dice_.chance(0.3) ? dice_.range(1, 4) : 0;
  for (std::int64_t i = 0; i < stops; ++i) {
    sampling.stop_token_ids.push_back(static_cast<std::int32_t>(dice_.range(0, ContextOracleModel::kVocab - 2)));
  }
  sampling.ignore_eos = dice_.chance(0.1);
  if (dice_.chance(0.1)) {
    sampling.logprobs = true;
    sampling.top_logprobs = static_cast<std::int32_t>(dice_.range(0, 3));
  }
  if (dice_.chance(0.1)) sampling.prompt_logprobs = static_cast<std::int32_t>(dice_.range(0, 3));
  return sampling;
}

ClientRequest Traffic::next() {
  ClientRequest request;
  request.tenant = "tenant " + std::to_string(dice_.range(1, options_.tenants));
  const std::int64_t length = prompt_length();
  if (dice_.chance(0.6)) {
    const auto& trunk = trunks_[static_cast<std::size_t>(dice_.range(0, std::ssize(trunks_) - 1))];
    const std::int64_t common = std::min<std::int64_t>(length, dice_.range(0, std::ssize(trunk)));
    request.prompt.assign(trunk.begin(), trunk.begin() + common);
  }
  while (std::ssize(request.prompt) < length) {
    request.prompt.push_back(static_cast<std::int32_t>(dice_.range(0, ContextOracleModel::kVocab - 2)));
  }
  const std::int64_t choices = dice_.chance(0.15) ? dice_.range(2, 4) : 1;
  const request::SamplingParams first = sampling();
  for (std::int64_t i = 0; i < choices; ++i) {
    request.choices.push_back(first);
    request.choices.back().seed += static_cast<std::uint64_t>(i);
  }
  return request;
}

}  // namespace tessera::simulation
