#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/quality/analysis_parts.h"

namespace tessera::quality {

namespace {

std::optional<double> score(const Outcome& outcome, const std::string& name) {
  const auto found = outcome.scores.find(name);
  if (found == outcome.scores.end() || !std::isfinite(found->second)) return std::nullopt;
  return found->second;
}

// What one outcome adds to a metric's sums; none where it does not have the metric.
struct Share {
  double numerator = 0.0;
  double denominator = 0.0;
};
std::optional<Share> share(const Outcome& outcome, const Metric& metric) {
  if (!outcome.skipped.empty()) return std::nullopt;
  if (metric.kind == MetricKind::kAccuracy) {
    const std::optional<double> right = score(outcome, metric.name);
    if (!right.has_value()) return std::nullopt;
    return Share{*right > 0.5 ? 1.0 : 0.0, 1.0};
  }
  const std::optional<double> numerator = score(outcome, metric.numerator);
  const std::optional<double> denominator = score(outcome, metric.denominator);
  if (!numerator.has_value() || !denominator.has_value() || *denominator <= 0.0) return std::nullopt;
  return Share{*numerator, *denominator};
}

bool in_cell(const Outcome& outcome, const std::string& cell) { return cell.empty() || outcome.cell == cell; }

// The cells in the order of the questions; none where the task is one cell.
std::vector<std::string> cells_of(const TaskOutcomes& task) {
  std::vector<std::string> cells;
  std::set<std::string> seen;
  for (const std::vector<Outcome>& outcomes : task.by_plan) {
    for (const Outcome& outcome : outcomes) {
      if (!outcome.cell.empty() && seen.insert(outcome.cell).second) cells.push_back(outcome.cell);
    }
  }
  if (cells.size() < 2) cells.clear();
  return cells;
}

struct Pair {
  const Outcome* reference = nullptr;
  const Outcome* other = nullptr;
};

// The questions that both have, in the reference's order.
std::vector<Pair> pairs_of(const TaskOutcomes& task, std::size_t plan) {
  std::unordered_map<std::string_view, const Outcome*> others;
  for (const Outcome& outcome : task.by_plan[plan]) others.emplace(outcome.question, &outcome);
  std::vector<Pair> pairs;
  pairs.reserve(others.size());
  for (const Outcome& outcome : task.by_plan[0]) {
    const auto found = others.find(outcome.question);
    if (found == others.end()) continue;
    pairs.push_back({&outcome, found->second});
    others.erase(found);
  }
  return pairs;
}

MetricValue value_of(const Evaluation& evaluation, const TaskOutcomes& task, std::size_t metric_index, std::size_t plan,
                     const std::string& cell) {
  const Metric& metric = task.task.metrics[metric_index];
  MetricValue value{.plan = plan, .metric = metric_index, .cell = cell, .result = std::nullopt};
  std::vector<Unit> units;
  units.reserve(task.by_plan[plan].size());
  for (const Outcome& outcome : task.by_plan[plan]) {
    if (!in_cell(outcome, cell)) continue;
    value.skipped += outcome.skipped.empty() ? 0 : 1;
    const std::optional<Share> part = share(outcome, metric);
    if (!part.has_value()) continue;
    units.push_back({part->numerator, part->denominator});
    value.numerator += part->numerator;
    value.denominator += part->denominator;
  }
  value.questions = static_cast<std::int64_t>(units.size());
  if (value.denominator <= 0.0) return value;
  const double ratio = value.numerator / value.denominator;
  if (metric.kind == MetricKind::kAccuracy) {
    value.result = Estimate{ratio, wilson_interval(value.numerator, value.denominator)};
  } else if (metric.kind == MetricKind::kRate) {
    value.result = Estimate{ratio, rate_interval(units)};
  } else {
    // The same resamples for every plan: equal answers have equal intervals.
    const std::uint64_t seed = seed_for(evaluation.seed, {"value", task.task.name, metric.name, cell});
    const Interval interval = bootstrap_interval(Measure::kRatio, units, seed);
    value.result = Estimate{ratio, interval};
    if (metric.kind == MetricKind::kPerplexity) {
      value.result = Estimate{std::exp(-ratio), {std::exp(-interval.high), std::exp(-interval.low)}};
    }
  }
  return value;
}

// Of measures whose intervals shrink with the root of the number of units.
void fill_power(Comparison& comparison, double margin) {
  const auto n = static_cast<double>(comparison.questions);
  const double half = 0.5 * (comparison.interval.high - comparison.interval.low);
  const double reach = half * (1.0 + kNormal80 / kNormal975);
  comparison.detectable = reach;
  if (!std::isfinite(half)) return;
  const double distance = std::abs(comparison.difference);
  if (distance < margin) comparison.questions_to_equivalence = std::ceil(n * std::pow(half / (margin - distance), 2.0));
  if (distance > 0.0) comparison.questions_to_difference = std::ceil(n * std::pow(reach / distance, 2.0));
}

void compare_accuracy(Comparison& comparison, std::span<const Unit> units, double margin) {
  PairCounts& counts = comparison.counts;
  for (const Unit& unit : units) {
    const bool reference = unit.numerator > 0.5;
    const bool other = unit.other_numerator > 0.5;
    if (reference) ++(other ? counts.both_right : counts.lost);
    if (!reference) ++(other ? counts.won : counts.both_wrong);
  }
  const auto n = static_cast<double>(counts.total());
  const auto lost = static_cast<double>(counts.lost);
  const auto won = static_cast<double>(counts.won);
  comparison.interval = tango_interval(lost, won, n);
  comparison.p = mcnemar_exact(counts.lost, counts.won);
  const double flip_rate = static_cast<double>(counts.flips()) / n;
  comparison.detectable = detectable_difference(n, flip_rate);
  comparison.questions_to_equivalence = questions_to_equivalence(lost, won, n, margin);
  if (counts.lost != counts.won) {
    comparison.questions_to_difference = std::ceil(questions_to_detect(comparison.difference, flip_rate));
  }
}

void compare_rate(Comparison& comparison, std::span<const Unit> units, double margin, std::uint64_t seed) {
  // Resampling questions that hardly differ shows hardly any spread. What that many questions without a flip leave open
  // is left open here too, while fewer differ than could be significant at all.
  const auto differ = std::ranges::count_if(units, [](const Unit& unit) {
    return unit.numerator != unit.other_numerator || unit.denominator != unit.other_denominator;
  });
  comparison.interval = comparison.bootstrap;
  if (differ < kDifferingMin) {
    const Interval unflipped = tango_interval(0.0, 0.0, static_cast<double>(units.size()));
    comparison.interval = {std::min(comparison.bootstrap.low, comparison.difference + unflipped.low),
                           std::max(comparison.bootstrap.high, comparison.difference + unflipped.high)};
  }
  comparison.p = swap_test(units, seed);
  fill_power(comparison, margin);
}

// Perplexities and means: relative differences.
void compare_relative(Comparison& comparison, MetricKind kind, std::span<const Unit> units, double margin,
                      std::uint64_t seed) {
  if (kind == MetricKind::kPerplexity) {
    comparison.reference_value = std::exp(-comparison.reference_value);
    comparison.other_value = std::exp(-comparison.other_value);
    comparison.difference = std::expm1(-comparison.difference);
    comparison.bootstrap = {std::expm1(-comparison.bootstrap.high), std::expm1(-comparison.bootstrap.low)};
  } else {
    // Of pairs the reference's own value hardly adds to the spread: it divides as if it were known.
    const double scale = std::abs(comparison.reference_value);
    comparison.difference /= scale;
    comparison.bootstrap = {comparison.bootstrap.low / scale, comparison.bootstrap.high / scale};
  }
  comparison.interval = comparison.bootstrap;
  comparison.p = swap_test(units, seed);
  fill_power(comparison, margin);
  const bool same = std::ranges::all_of(units, [](const Unit& unit) {
    return unit.numerator == unit.other_numerator && unit.denominator == unit.other_denominator;
  });
  if (same) comparison.verdict = Verdict::kSame;
}

Comparison compare(const Evaluation& evaluation, const TaskOutcomes& task, std::size_t metric_index, std::size_t plan,
                   const std::string& cell, std::span<const Pair> pairs) {
  const Metric& metric = task.task.metrics[metric_index];
  Comparison comparison{.plan = plan, .metric = metric_index, .cell = cell};
  std::vector<Unit> units;
  units.reserve(pairs.size());
  for (const Pair& pair : pairs) {
    if (!in_cell(*pair.reference, cell)) continue;
    comparison.skipped += pair.reference->skipped.empty() && pair.other->skipped.empty() ? 0 : 1;
    const std::optional<Share> reference = share(*pair.reference, metric);
    const std::optional<Share> other = share(*pair.other, metric);
    if (!reference.has_value() || !other.has_value()) continue;
    units.push_back({reference->numerator, reference->denominator, other->numerator, other->denominator});
  }
  comparison.questions = static_cast<std::int64_t>(units.size());
  if (units.empty()) {
    comparison.interval = comparison.bootstrap = {-1.0, 1.0};
    return comparison;
  }
  const double margin = evaluation.equivalence_points / 100.0;
  const std::uint64_t seed =
      seed_for(evaluation.seed, {"comparison", task.task.name, metric.name, cell, evaluation.plans[plan].name});
  comparison.reference_value = measure(Measure::kRatio, units);
  comparison.difference = measure(Measure::kDifference, units);
  comparison.other_value = comparison.reference_value + comparison.difference;
  comparison.bootstrap = bootstrap_interval(Measure::kDifference, units, seed);
  if (metric.kind == MetricKind::kAccuracy) {
    compare_accuracy(comparison, units, margin);
  } else if (metric.kind == MetricKind::kRate) {
    compare_rate(comparison, units, margin, seed);
  } else {
    compare_relative(comparison, metric.kind, units, margin, seed);
  }
  return comparison;
}

void list_flips(const TaskOutcomes& task, std::size_t plan, std::span<const Pair> pairs, std::vector<Flip>& flips) {
  for (const Pair& pair : pairs) {
    Flip flip{.plan = plan};
    for (const Metric& metric : task.task.metrics) {
      if (metric.kind != MetricKind::kAccuracy) continue;
      const std::optional<Share> reference = share(*pair.reference, metric);
      const std::optional<Share> other = share(*pair.other, metric);
      if (!reference.has_value() || !other.has_value() || reference->numerator == other->numerator) continue;
      (reference->numerator > other->numerator ? flip.lost : flip.won).push_back(metric.name);
    }
    if (flip.lost.empty() && flip.won.empty()) continue;
    flip.question = pair.reference->question;
    flip.cell = pair.reference->cell;
    flip.expected = pair.reference->expected;
    flip.reference_answer = pair.reference->answer;
    flip.other_answer = pair.other->answer;
    flips.push_back(std::move(flip));
  }
}

}  // namespace

TaskAnalysis analyse_outcomes(const Evaluation& evaluation, std::size_t task_index) {
  const TaskOutcomes& task = evaluation.tasks[task_index];
  TaskAnalysis analysis{.task = task_index, .cells = cells_of(task)};
  const std::size_t plans = std::min(evaluation.plans.size(), task.by_plan.size());
  std::vector<std::vector<Pair>> pairs(plans);
  for (std::size_t plan = 1; plan < plans; ++plan) pairs[plan] = pairs_of(task, plan);
  std::vector<std::string> groups{""};
  groups.insert(groups.end(), analysis.cells.begin(), analysis.cells.end());
  for (std::size_t metric = 0; metric < task.task.metrics.size(); ++metric) {
    for (const std::string& cell : groups) {
      for (std::size_t plan = 0; plan < plans; ++plan) {
        analysis.values.push_back(value_of(evaluation, task, metric, plan, cell));
        if (plan > 0) analysis.comparisons.push_back(compare(evaluation, task, metric, plan, cell, pairs[plan]));
      }
    }
  }
  for (std::size_t plan = 1; plan < plans; ++plan) list_flips(task, plan, pairs[plan], analysis.flips);
  return analysis;
}

}  // namespace tessera::quality
