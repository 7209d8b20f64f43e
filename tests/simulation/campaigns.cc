#include "tests/simulation/campaigns.h"

#include <fmt/format.h>

#include <utility>

namespace tessera::simulation {

using request::EngineRole;
using std::chrono::seconds;

namespace {

constexpr double kStormAbortShare = 0.3;
// Of what it was before.
constexpr double kNormalThroughput = 0.95;

// One unified engine, or a pair.
Scenario plain_scenario(EngineShape shape, test_support::OracleKv kv, std::int64_t pages, std::int64_t running_max) {
  Scenario scenario;
  engine::EngineConfig config;
  config.id = 1;
  config.page_size = 4;
  config.pages = pages;
  config.running_max = running_max;
  config.chunked_prefill_size = 16;
  config.handoff.chunk_pages = 3;
  scenario.server.kv = kv;
  if (shape == EngineShape::kUnified) {
    scenario.server.engines.push_back({config, {}, {}});
    return scenario;
  }
  config.role = EngineRole::kPrefill;
  scenario.server.engines.push_back({config, {}, {}});
  config.id = 2;
  config.role = EngineRole::kDecode;
  config.kv_format = ops::KvFormat::kF8E4M3;
  scenario.server.engines.push_back({config, {}, {}});
  return scenario;
}

}  // namespace

StormReport run_abort_storm(const StormOptions& options) {
  Scenario scenario = plain_scenario(options.shape, test_support::OracleKv::kKeysAndValues, 96, 16);
  scenario.turn = std::chrono::milliseconds(10);
  scenario.stall_after = seconds(5);
  TrafficOptions& traffic = scenario.traffic;
  traffic.live_max = 24;
  traffic.burst_chance = 1.0;  // Whoever ends is followed by another one at once.
  traffic.burst_max = 24;
  traffic.generated_max = 40;
  traffic.abort_share = 0.0;
  traffic.flush_chance = 0.0;
  Simulation simulation({.seed = options.seed}, std::move(scenario));
  StormReport report;
  const auto throughput = [&](base::Nanoseconds duration) {
    const std::int64_t before = simulation.counts().judged.tokens;
    simulation.run_for(duration);
    const double tokens = static_cast<double>(simulation.counts().judged.tokens - before);
    return tokens / std::chrono::duration<double>(duration).count();
  };
  simulation.run_for(seconds(30));
  report.before = throughput(seconds(120));
  simulation.set_abort_share(kStormAbortShare);
  report.during = throughput(options.storm);
  simulation.set_abort_share(0.0);
  simulation.run_for(seconds(10));
  report.after = throughput(seconds(120));
  simulation.drain();
  report.counts = simulation.counts();
  if (simulation.complaint().has_value()) {
    report.complaint = *simulation.complaint();
  } else if (report.after < kNormalThroughput * report.before) {
    report.complaint =
        fmt::format("{:.1f} tokens a second after the storm, {:.1f} before", report.after, report.before);
  }
  return report;
}

AllocationReport fail_every_allocation(std::uint64_t seed, EngineShape shape, test_support::OracleKv kv,
                                       std::int64_t steps) {
  AllocationReport report;
  const std::size_t engines = shape == EngineShape::kUnified ? 1 : 2;
  for (std::size_t engine = 0; engine < engines; ++engine) {
    for (std::int64_t n = 1;; ++n) {
      // So few pages that sequences wait, grow, are preempted, and cached pages are evicted.
      Scenario scenario = plain_scenario(shape, kv, 20, 6);
      scenario.audit_every_turns = 1;
      scenario.traffic.live_max = 8;
      scenario.traffic.burst_chance = 0.3;
      scenario.traffic.abort_share = 0.0;
      Simulation simulation({.seed = seed}, std::move(scenario));
      simulation.fail_allocation(engine, n);
      simulation.run_steps(steps);
      const bool reached = simulation.allocation_failed(engine);
      simulation.drain();
      ++report.runs;
      if (simulation.complaint().has_value()) {
        report.complaint = fmt::format("engine {}, allocation {}: {}\n{}", engine, n, *simulation.complaint(),
                                       simulation.describe_engines());
        return report;
      }
      if (!reached) break;
      ++report.failures;
    }
  }
  return report;
}

}  // namespace tessera::simulation
