// What `tessera bench integrity` says of its samples.
#include <fmt/format.h>

#include <boost/json.hpp>

#include "integrity.h"

namespace tessera::bench {

namespace {

std::vector<double> turns_of(const MeasuredArm& arm, std::span<const std::size_t> cycles) {
  std::vector<double> turns;
  for (const std::size_t cycle : cycles) {
    for (const StepSample& sample : arm.cycles[cycle]) turns.push_back(sample.turn_ms);
  }
  return turns;
}

boost::json::object json_of(const Estimate& estimate) {
  return {{"value", estimate.value}, {"low", estimate.low}, {"high", estimate.high}};
}

boost::json::array json_of(const MeasuredArm& arm, double StepSample::* field) {
  boost::json::array cycles;
  for (const std::vector<StepSample>& cycle : arm.cycles) {
    boost::json::array& samples = cycles.emplace_back(boost::json::array()).as_array();
    for (const StepSample& sample : cycle) samples.emplace_back(sample.*field);
  }
  return cycles;
}

std::string with_interval(const Estimate& estimate, double scale, int digits) {
  return fmt::format("{:.{}f} [{:.{}f}, {:.{}f}]", estimate.value * scale, digits, estimate.low * scale, digits,
                     estimate.high * scale, digits);
}

}  // namespace

ArmEstimates estimate(const IntegrityResult& result, const MeasuredArm& arm) {
  using Cycles = std::span<const std::size_t>;
  const MeasuredArm& none = result.arms.front();
  const std::size_t cycles = arm.cycles.size();
  ArmEstimates e;
  e.share = bootstrap(cycles, [&](Cycles drawn) {
    double check_ns = 0.0;
    double step_ns = 0.0;
    for (const std::size_t cycle : drawn) {
      for (const StepSample& sample : arm.cycles[cycle]) {
        check_ns += sample.check_ns;
        step_ns += sample.step_ns;
      }
    }
    return check_ns / step_ns;
  });
  for (const auto& cycle : arm.cycles) {
    for (const StepSample& sample : cycle) {
      e.check_us += sample.check_ns * 1e-3;
      e.step_ms += sample.step_ns * 1e-6;
      ++e.steps;
    }
  }
  e.check_us /= static_cast<double>(e.steps);
  e.step_ms /= static_cast<double>(e.steps);
  const auto at = [&](double share) {
    return bootstrap(cycles, [&](Cycles drawn) { return percentile(turns_of(arm, drawn), share); });
  };
  const auto more_at = [&](double share) {
    return bootstrap(cycles, [&](Cycles drawn) {
      return percentile(turns_of(arm, drawn), share) - percentile(turns_of(none, drawn), share);
    });
  };
  e.p50_ms = at(0.5);
  e.p95_ms = at(0.95);
  e.p50_more_ms = more_at(0.5);
  e.p95_more_ms = more_at(0.95);
  return e;
}

std::string integrity_table(const IntegrityOptions& options, const IntegrityResult& result) {
  std::string text = fmt::format("{}\n{}\n\n", options.command, result.began);
  text += fmt::format(
      "weights {}, KV {}, backend {}; {} sequences of {} to {} tokens; pages of {} tokens, private to each sequence.\n"
      "Prompts' keys and values are drawn, not computed; decode steps are the model's own.\n"
      "Load averages of the machine: {} before, {} after.\n\n",
      result.weight_format, result.kv_format, result.backend, options.batch, options.context, result.context_end,
      options.page_size, result.load_before, result.load_after);
  text += fmt::format("{:<12} {:>6} {:>9} {:>9}  {:<24} {:<28} {:<28} {:<24} {}\n", "level", "steps", "check us",
                      "step ms", "check/step, %", "token to token p50, ms", "p95, ms", "p50 more than none, ms",
                      "p95 more than none, ms");
  for (const MeasuredArm& arm : result.arms) {
    const ArmEstimates e = estimate(result, arm);
    text +=
        fmt::format("{:<12} {:>6} {:>9.1f} {:>9.2f}  {:<24} {:<28} {:<28}", arm.name, e.steps, e.check_us, e.step_ms,
                    with_interval(e.share, 100.0, 4), with_interval(e.p50_ms, 1.0, 2), with_interval(e.p95_ms, 1.0, 2));
    if (arm.checking == Checking::kOn) {
      text += fmt::format(" {:<24} {:<24}", with_interval(e.p50_more_ms, 1.0, 2), with_interval(e.p95_more_ms, 1.0, 2));
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  text += fmt::format(
      "\nIn brackets: 95 % intervals of a bootstrap over {} cycles of one block of {} steps at each level, resampled "
      "whole.\n"
      "none: the page table, lengths and slots are passed on unchecked; its time is their upload, which any step "
      "needs.\n",
      result.arms.front().cycles.size(), options.block);
  return text;
}

std::string integrity_json(const IntegrityOptions& options, const IntegrityResult& result) {
  boost::json::array arms;
  for (const MeasuredArm& arm : result.arms) {
    const ArmEstimates e = estimate(result, arm);
    boost::json::object entry{{"level", arm.name},
                              {"checked", arm.checking == Checking::kOn},
                              {"engine", arm.engine},
                              {"steps", e.steps},
                              {"check_us", e.check_us},
                              {"step_ms", e.step_ms},
                              {"check_share", json_of(e.share)},
                              {"p50_ms", json_of(e.p50_ms)},
                              {"p95_ms", json_of(e.p95_ms)}};
    if (arm.checking == Checking::kOn) {
      entry["p50_more_ms"] = json_of(e.p50_more_ms);
      entry["p95_more_ms"] = json_of(e.p95_more_ms);
    }
    entry["turn_ms"] = json_of(arm, &StepSample::turn_ms);
    entry["step_ns"] = json_of(arm, &StepSample::step_ns);
    entry["check_ns"] = json_of(arm, &StepSample::check_ns);
    arms.push_back(std::move(entry));
  }
  boost::json::array contexts;
  for (const ContextRange& range : result.contexts) contexts.push_back({{"least", range.least}, {"most", range.most}});
  const BootstrapOptions bootstrap_options;
  const boost::json::object report{{"command", options.command},
                                   {"began", result.began},
                                   {"load_before", result.load_before},
                                   {"load_after", result.load_after},
                                   {"weights", result.weight_format},
                                   {"kv_format", result.kv_format},
                                   {"backend", result.backend},
                                   {"batch", options.batch},
                                   {"context", options.context},
                                   {"page_size", options.page_size},
                                   {"decode", options.decode},
                                   {"block", options.block},
                                   {"repeats", options.repeats},
                                   {"prompts", "drawn"},
                                   {"first_contexts", contexts},
                                   {"bootstrap_seed", bootstrap_options.seed},
                                   {"bootstrap_resamples", bootstrap_options.resamples},
                                   {"levels", arms}};
  return boost::json::serialize(report) + "\n";
}

}  // namespace tessera::bench
