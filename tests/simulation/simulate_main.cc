// simulate: runs servers from seeds until a judge objects or enough was seen. README.md beside this has the commands.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/logging.h"
#include "tests/simulation/campaigns.h"
#include "tests/simulation/simulation.h"

namespace tessera::simulation {
namespace {

constexpr FaultKind kStepKinds[] = {FaultKind::kMapping, FaultKind::kRecords, FaultKind::kSlots, FaultKind::kPayload};

struct Options {
  std::uint64_t seed = 1;
  std::int64_t worlds = 1;
  std::int64_t steps = 5000;
  std::int64_t steps_total = 0;
  std::int64_t injections_total = 0;
  std::int64_t each_min = 0;
  std::vector<std::string> faults;
  std::optional<EngineShape> shape;
  std::optional<kv_cache::IntegrityLevel> level;
  bool trace = false;
  bool recompute = false;
  bool storm = false;
  bool every_allocation = false;
  std::string log_level = "off";
};

constexpr EngineShape kShapes[] = {EngineShape::kUnified, EngineShape::kSplit};
const char* shape_name(EngineShape shape) { return shape == EngineShape::kUnified ? "unified" : "split"; }

std::int64_t sum_of(const StepFaultCounts& counts, FaultKind kind) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < kStepFaultNames.size(); ++i) {
    if (kind_of(static_cast<StepFault>(i)) == kind) sum += counts[i];
  }
  return sum;
}

std::int64_t found(const SimulationCounts& counts, FaultKind kind) {
  return sum_of(counts.stepped.detected, kind) + sum_of(counts.stepped.elsewhere, kind);
}

// What --injections-total counts: mapping and slot faults; where none are asked for, those that are.
std::int64_t injections(const SimulationCounts& counts, FaultSet faults) {
  std::int64_t sum = 0;
  const bool mapped = faults.has(FaultKind::kMapping) || faults.has(FaultKind::kSlots);
  for (const FaultKind kind : kStepKinds) {
    if (mapped && kind != FaultKind::kMapping && kind != FaultKind::kSlots) continue;
    sum += found(counts, kind);
  }
  return sum;
}

// The rarest of the kinds of step faults that were asked for.
std::int64_t rarest(const SimulationCounts& counts, FaultSet faults) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < kStepFaultNames.size(); ++i) {
    if (faults.has(kind_of(static_cast<StepFault>(i)))) {
      least = std::min(least, counts.stepped.detected[i] + counts.stepped.elsewhere[i]);
    }
  }
  return least;
}

template <std::size_t N>
std::string named(const std::array<std::int64_t, N>& counts, const std::array<std::string_view, N>& names) {
  std::string text;
  for (std::size_t i = 0; i < N; ++i) text += fmt::format("{}{} {}", i == 0 ? "" : ", ", counts[i], names[i]);
  return text;
}

void print_faults(const StepCounts& stepped) {
  fmt::print("  injected  in a step  elsewhere  given back unread\n");
  for (const FaultKind kind : kStepKinds) {
    if (sum_of(stepped.injected, kind) == 0) continue;
    fmt::print("{:>10} {:>10} {:>10} {:>18}  {}, all kinds\n", sum_of(stepped.injected, kind),
               sum_of(stepped.detected, kind), sum_of(stepped.elsewhere, kind), sum_of(stepped.gone, kind),
               kFaultNames[static_cast<std::size_t>(kind)]);
    for (std::size_t i = 0; i < kStepFaultNames.size(); ++i) {
      if (kind_of(static_cast<StepFault>(i)) != kind) continue;
      fmt::print("{:>10} {:>10} {:>10} {:>18}    {}\n", stepped.injected[i], stepped.detected[i], stepped.elsewhere[i],
                 stepped.gone[i], kStepFaultNames[i]);
    }
  }
}

void print_counts(const SimulationCounts& counts, double seconds) {
  const auto milliseconds = [](base::Nanoseconds time) { return static_cast<double>(time.count()) * 1e-6; };
  const StepCounts& stepped = counts.stepped;
  const JudgeCounts& judged = counts.judged;
  fmt::print("{} checked steps of {} rows ({:.1f} each) in {} turns, {:.1f} s\n", stepped.steps, stepped.rows,
             static_cast<double>(stepped.rows) / static_cast<double>(std::max<std::int64_t>(stepped.steps, 1)),
             counts.turns, seconds);
  fmt::print("{} sequences: {} finished, {} cancelled, {} corrupted, {} too large, {} failed otherwise\n",
             judged.submitted, judged.finished, judged.cancelled, judged.corrupted, judged.too_large, judged.failed);
  fmt::print(
      "{} tokens, of which {} were wrong and found late; {} with log-probabilities, and {} of prompts; {} sequences "
      "computed "
      "again; {} refused; longest wait of one {:.0f} ms\n",
      judged.tokens, judged.tokens_wrong, judged.logprobs, judged.prompt_logprobs, judged.recomputes,
      judged.turned_away, milliseconds(judged.longest_wait));
  fmt::print(
      "{} preemptions on unified engines, {} on decode engines; {} prompt tokens from the cache, {} cached pages "
      "evicted, {} flushes; {} audits of all leases, {} pages rewritten, {} swept\n",
      counts.preemptions_first, counts.preemptions_decode, counts.prefix_hit_tokens, stepped.evicted, counts.flushes,
      counts.audits, counts.rewritten, counts.pages_swept);
  fmt::print("clients left: {} on the first engine; {} on the decode engine\n", named(counts.left_first, kPlaceNames),
             named(counts.left_decode, kPlaceNames));
  fmt::print("{} messages: {}; {} had to wait for room; {} allocations failed\n", counts.messages,
             named(counts.messages_disturbed, kWireFaultNames), counts.messages_refused, counts.allocations_failed);
  fmt::print("{} engines ended, with {} sequences; {} on other engines went on\n", counts.restarts,
             counts.lost_in_restarts, counts.spared_in_restarts);
  fmt::print(
      "{} rows failed a check, all of which had to and no others; {} checks failed outside of steps; {} entries were "
      "wrong only between two checks; longest life of changed bytes that a sweep is to find {:.1f} ms\n",
      stepped.rows_failed, stepped.failed_elsewhere, stepped.restored, milliseconds(stepped.longest_undetected));
  print_faults(stepped);
}

std::string replay_command(const Options& options, std::uint64_t seed) {
  std::string command = fmt::format("simulate --seed {} --steps {}", seed, options.steps);
  for (std::size_t i = 0; i < options.faults.size(); ++i) {
    command += i == 0 ? " --faults " : ",";
    command += options.faults[i];
  }
  if (options.shape.has_value()) command += fmt::format(" --shape {}", shape_name(*options.shape));
  if (options.level.has_value()) command += fmt::format(" --level {}", kv_cache::integrity_level_name(*options.level));
  if (options.recompute) command += " --recompute";
  return command;
}

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
  const bool in_steps = std::ranges::any_of(kStepKinds, [&](FaultKind kind) { return faults.has(kind); });
  if (options.injections_total > 0 && !in_steps) {
    fmt::print(stderr, "--injections-total needs faults that are made in steps: mapping, records, slots or payload\n");
    return 2;
  }
  if (faults.has(FaultKind::kPayload) && options.level == kv_cache::IntegrityLevel::kTags) {
    fmt::print(stderr, "at the level tags nobody looks for changed bytes\n");
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  SimulationCounts sum;
  double told = 0.0;
  const auto enough = [&](std::int64_t worlds) {
    if (options.steps_total > 0) return sum.stepped.steps >= options.steps_total;
    if (options.injections_total > 0) {
      return injections(sum, faults) >= options.injections_total && rarest(sum, faults) >= options.each_min;
    }
    return worlds >= options.worlds;
  };
  for (std::int64_t world = 0; !enough(world); ++world) {
    const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(world);
    Simulation simulation(
        {.seed = seed,
         .choices = {.faults = faults, .shape = options.shape, .level = options.level},
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
      fmt::print(stderr, "seed {}: {} steps, {} faults, {:.0f} s\n", seed, sum.stepped.steps, injections(sum, faults),
                 told);
    }
  }
  print_counts(sum, seconds());
  return 0;
}

}  // namespace
}  // namespace tessera::simulation

int main(int argc, char** argv) {
  namespace kv_cache = tessera::kv_cache;
  using tessera::simulation::EngineShape;
  tessera::simulation::Options options;
  CLI::App app("Simulates servers from seeds, and judges every token, page and error.");
  app.add_option("--seed", options.seed, "of the first world");
  auto* worlds = app.add_option("--worlds", options.worlds, "how many seeds, one after another");
  app.add_option("--steps", options.steps, "checked steps of one world")->check(CLI::PositiveNumber);
  auto* steps_total =
      app.add_option("--steps-total", options.steps_total, "instead of --worlds: until so many steps were checked");
  auto* injections_total = app.add_option("--injections-total", options.injections_total,
                                          "instead of --worlds: until so many mapping and slot faults (or, without "
                                          "those, faults of the other kinds) were detected");
  worlds->check(CLI::PositiveNumber)->excludes(steps_total)->excludes(injections_total);
  steps_total->check(CLI::PositiveNumber)->excludes(injections_total);
  injections_total->check(CLI::PositiveNumber);
  app.add_option("--each-min", options.each_min, "and until so many were of each kind")
      ->check(CLI::PositiveNumber)
      ->needs(injections_total);
  auto* faults =
      app.add_option("--faults", options.faults, "mapping, records, slots, payload, transport, allocations, restarts");
  faults->delimiter(',');
  const std::map<std::string, EngineShape> shapes = {{"unified", EngineShape::kUnified},
                                                     {"split", EngineShape::kSplit}};
  auto* shape = app.add_option("--shape", options.shape, "instead of either: unified or split engines")
                    ->transform(CLI::CheckedTransformer(shapes));
  std::map<std::string, kv_cache::IntegrityLevel> levels;
  for (const auto level :
       {kv_cache::IntegrityLevel::kTags, kv_cache::IntegrityLevel::kDigest, kv_cache::IntegrityLevel::kDigestStep}) {
    levels.emplace(kv_cache::integrity_level_name(level), level);
  }
  auto* level = app.add_option("--level", options.level, "instead of any: tags, digest or digest-step")
                    ->transform(CLI::CheckedTransformer(levels));
  auto* recompute = app.add_flag("--recompute", options.recompute, "failed checks are answered by computing again");
  auto* storm =
      app.add_flag("--storm", options.storm, "an hour in which 30% of the requests are cancelled, and what follows");
  auto* every =
      app.add_flag("--every-allocation", options.every_allocation, "fail every allocation of a run of --steps in turn");
  for (CLI::Option* plan : {storm, every}) {
    for (CLI::Option* other : {faults, shape, level, recompute, worlds, steps_total, injections_total}) {
      plan->excludes(other);
    }
  }
  storm->excludes(every);
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
