// simulate: runs servers from seeds until a judge objects or enough was seen. README.md beside this has the commands.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/base/logging.h"
#include "tests/simulation/campaigns.h"
#include "tests/simulation/simulation.h"

namespace tessera::simulation {
namespace {

struct Options {
  std::uint64_t seed = 1;
  std::int64_t worlds = 1;
  std::int64_t steps = 5000;
  std::int64_t steps_total = 0;
  std::int64_t injections_total = 0;
  std::vector<std::string> faults;
  bool trace = false;
  bool recompute = false;
  bool storm = false;
  bool every_allocation = false;
  std::string log_level = "off";
};

std::int64_t reached(const SimulationCounts& counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts.reached) sum += count;
  return sum;
}

void print_counts(const SimulationCounts& counts, double seconds) {
  fmt::print("{} checked steps of {} rows in {} turns, {:.1f} s\n", counts.steps, counts.rows, counts.turns, seconds);
  fmt::print("{} sequences: {} finished, {} cancelled, {} corrupted, {} failed otherwise; {} tokens\n",
             counts.judged.submitted, counts.judged.finished, counts.judged.cancelled, counts.judged.corrupted,
             counts.judged.failed, counts.judged.tokens);
  fmt::print("{} preemptions, {} prompt tokens from the cache, {} audits of all leases\n", counts.preemptions,
             counts.prefix_hit_tokens, counts.audits);
  fmt::print("{} messages, {} disturbed; {} allocations failed; {} restarts\n", counts.messages,
             counts.messages_disturbed, counts.allocations_failed, counts.restarts);
  fmt::print("{} faults in pages, page tables and slots reached and detected; {} sequences computed again\n",
             reached(counts), counts.judged.recomputes);
  for (std::size_t i = 0; i < counts.reached.size(); ++i) {
    if (counts.reached[i] > 0) fmt::print("  {:>8} {}\n", counts.reached[i], kStepFaultNames[i]);
  }
}

std::string replay_command(const Options& options, std::uint64_t seed) {
  std::string command = fmt::format("simulate --seed {} --steps {}", seed, options.steps);
  for (std::size_t i = 0; i < options.faults.size(); ++i) {
    command += i == 0 ? " --faults " : ",";
    command += options.faults[i];
  }
  if (options.recompute) command += " --recompute";
  return command;
}

constexpr EngineShape kShapes[] = {EngineShape::kUnified, EngineShape::kSplit};
const char* shape_name(EngineShape shape) { return shape == EngineShape::kUnified ? "unified" : "split"; }

int storm(const Options& options) {
  for (const EngineShape shape : kShapes) {
    const auto start = std::chrono::steady_clock::now();
    const StormReport report = run_abort_storm({.seed = options.seed, .shape = shape});
    if (!report.complaint.empty()) {
      fmt::print("{}, seed {}: {}\n", shape_name(shape), options.seed, report.complaint);
      return 1;
    }
    fmt::print(
        "{}: an hour in which 30% of the requests are cancelled; tokens a second of simulated time: {:.1f} before, "
        "{:.1f} during, {:.1f} from 10 s after on\n",
        shape_name(shape), report.before, report.during, report.after);
    print_counts(report.counts, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 0;
}

int every_allocation(const Options& options) {
  for (const EngineShape shape : kShapes) {
    for (const auto kv : {test_support::OracleKv::kKeysAndValues, test_support::OracleKv::kLatents}) {
      const AllocationReport report = fail_every_allocation(options.seed, shape, kv, options.steps);
      const char* kv_name = kv == test_support::OracleKv::kLatents ? "latents" : "keys and values";
      if (!report.complaint.empty()) {
        fmt::print("{}, {}, seed {}: {}\n", shape_name(shape), kv_name, options.seed, report.complaint);
        return 1;
      }
      fmt::print("{}, {}: {} runs, in {} of which an allocation failed; every request was answered\n",
                 shape_name(shape), kv_name, report.runs, report.failures);
    }
  }
  return 0;
}

int simulate(const Options& options) {
  FaultSet faults;
  for (const std::string& name : options.faults) {
    const auto kind = fault_by_name(name);
    if (!kind.has_value()) {
      fmt::print(stderr, "no faults are called '{}'; --help lists what there is\n", name);
      return 2;
    }
    faults.add(*kind);
  }
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  SimulationCounts sum;
  double told = 0.0;
  const auto enough = [&](std::int64_t worlds) {
    if (options.steps_total > 0) return sum.steps >= options.steps_total;
    if (options.injections_total > 0) return reached(sum) >= options.injections_total;
    return worlds >= options.worlds;
  };
  for (std::int64_t world = 0; !enough(world); ++world) {
    const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(world);
    Simulation simulation(
        {.seed = seed,
         .faults = faults,
         .printing = options.trace ? Printing::kOn : Printing::kOff,
         .on_error = options.recompute ? kv_cache::OnIntegrityError::kRecompute : kv_cache::OnIntegrityError::kAbort});
    simulation.run_steps(options.steps);
    simulation.drain();
    if (simulation.complaint().has_value()) {
      fmt::print("{}", simulation.describe_engines());
      fmt::print("seed {}: {}\nreplay with: {} --trace\n", seed, *simulation.complaint(),
                 replay_command(options, seed));
      return 1;
    }
    sum.add(simulation.counts());
    if (options.worlds == 1 && options.steps_total == 0 && options.injections_total == 0) {
      fmt::print("trace {:016x}\n", simulation.hash());
    }
    if (seconds() - told > 2.0) {
      told = seconds();
      fmt::print(stderr, "seed {}: {} steps, {} faults, {:.0f} s\n", seed, sum.steps, reached(sum), told);
    }
  }
  print_counts(sum, seconds());
  return 0;
}

}  // namespace
}  // namespace tessera::simulation

int main(int argc, char** argv) {
  tessera::simulation::Options options;
  CLI::App app("Simulates servers from seeds, and judges every token, page and error.");
  app.add_option("--seed", options.seed, "of the first world");
  app.add_option("--worlds", options.worlds, "how many seeds, one after another");
  app.add_option("--steps", options.steps, "checked steps of one world");
  app.add_option("--steps-total", options.steps_total, "instead of --worlds: until so many steps were checked");
  app.add_option("--injections-total", options.injections_total,
                 "instead of --worlds: until so many faults were reached");
  app.add_option("--faults", options.faults, "mapping, records, slots, payload, transport, allocations, restarts")
      ->delimiter(',');
  app.add_flag("--recompute", options.recompute, "failed checks are answered by computing again");
  app.add_flag("--storm", options.storm, "an hour in which 30% of the requests are cancelled, and what follows");
  app.add_flag("--every-allocation", options.every_allocation, "fail every allocation of a run of --steps in turn");
  app.add_flag("--trace", options.trace, "print what happens");
  app.add_option("--log-level", options.log_level, "of the engines: debug, info, warning, error, off");
  CLI11_PARSE(app, argc, argv);
  if (const auto status = tessera::base::set_log_level(options.log_level); !status.ok()) {
    fmt::print(stderr, "{}\n", status.to_string());
    return 2;
  }
  if (options.storm) return tessera::simulation::storm(options);
  if (options.every_allocation) return tessera::simulation::every_allocation(options);
  return tessera::simulation::simulate(options);
}
