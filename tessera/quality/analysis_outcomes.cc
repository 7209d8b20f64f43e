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

// What one outcome adds to a metric's sums; none where it does not have the metric. Of a rate it may be nothing (no
// call was made), which is an answer beside another plan's that is something.
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
  if (!numerator.has_value() || !denominator.has_value()) return std::nullopt;
  const bool nothing = metric.kind == MetricKind::kRate && *numerator == 0.0 && *denominator == 0.0;
  if (*denominator <= 0.0 && !nothing) return std::nullopt;
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
    if (!part.has_value() || part->denominator == 0.0) continue;
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

// A difference of rates as if questions had flipped: (won - lost) / n is the difference.
struct RateFlips {
  double lost = 0.0;
  double won = 0.0;
  double n = 0.0;
};

// Each question counts as lost or won by what it adds to the linearised difference, so that one call of ten is a tenth
// of a flip; and the questions are as many as their weights leave of them, (sum)^2 / (sum of squares) (Kish 1965), or
// fewer where those that flipped are heavier than that. Where each question has one call, these are the questions lost,
// won, and all.
RateFlips rate_flips(std::span<const Unit> units) {
  Unit sums;
  for (const Unit& unit : units) add_unit(sums, unit);
  const double rate = (sums.numerator + sums.other_numerator) / (sums.denominator + sums.other_denominator);
  RateFlips flips;
  double squares = 0.0;
  double squared_changes = 0.0;
  for (const Unit& unit : units) {
    const double weight = 0.5 * (unit.denominator / sums.denominator + unit.other_denominator / sums.other_denominator);
    squares += weight * weight;
    const double change = (unit.other_numerator - rate * unit.other_denominator) / sums.other_denominator -
                          (unit.numerator - rate * unit.denominator) / sums.denominator;
    squared_changes += change * change;
    (change < 0.0 ? flips.lost : flips.won) += std::abs(change);
  }
  const double changes = flips.lost + flips.won;
  flips.n = 1.0 / std::max(squares, changes > 0.0 ? squared_changes / changes : 0.0);
  // Where the two plans make their calls in different questions, more than all of them could seem to flip.
  const double shrink = flips.n / std::max(1.0, changes);
  flips.lost *= shrink;
  flips.won *= shrink;
  return flips;
}

void compare_rate(Comparison& comparison, std::span<const Unit> units, double margin, std::uint64_t seed) {
  // Resampling questions of which few differ shows too little spread, and none where none does: the interval is no
  // narrower than one that knows how little so few flips say.
  const RateFlips flips = rate_flips(units);
  const Interval floor = tango_interval(flips.lost, flips.won, flips.n);
  comparison.interval = {std::min(comparison.bootstrap.low, floor.low),
                         std::max(comparison.bootstrap.high, floor.high)};
  comparison.p = swap_test(units, seed);
  // Many small losses are few whole ones to that interval. It does not reach across the 0 that the swap test of the
  // same questions rejects.
  if (comparison.p < kSignificance && comparison.bootstrap.excludes_zero() && !comparison.interval.excludes_zero()) {
    (comparison.difference < 0.0 ? comparison.interval.high : comparison.interval.low) =
        comparison.difference < 0.0 ? comparison.bootstrap.high : comparison.bootstrap.low;
  }
  fill_power(comparison, margin);
  if (flips.lost + flips.won == 0.0) comparison.detectable = detectable_difference(flips.n, 0.0);
  // Both intervals must come to lie within the margin.
  const std::optional<double> needed = questions_to_equivalence(flips.lost, flips.won, flips.n, margin);
  const double half = 0.5 * (comparison.bootstrap.high - comparison.bootstrap.low);
  comparison.questions_to_equivalence = std::nullopt;
  const double left = margin - std::abs(comparison.difference);
  if (!needed.has_value() || !std::isfinite(half) || left <= 0.0) return;
  const double resampled = std::pow(half / left, 2.0);
  // The rounding of the weights is no question.
  comparison.questions_to_equivalence =
      std::ceil(static_cast<double>(units.size()) * std::max(*needed / flips.n, resampled) - 1e-6);
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

// The pairs of a cell that have the metric; none where one of the two has nothing to divide by in any of them.
std::vector<Unit> units_of(const Metric& metric, const std::string& cell, std::span<const Pair> pairs) {
  std::vector<Unit> units;
  units.reserve(pairs.size());
  Unit sums;
  for (const Pair& pair : pairs) {
    if (!in_cell(*pair.reference, cell)) continue;
    const std::optional<Share> reference = share(*pair.reference, metric);
    const std::optional<Share> other = share(*pair.other, metric);
    if (!reference.has_value() || !other.has_value()) continue;
    // What neither has says nothing.
    if (reference->denominator == 0.0 && other->denominator == 0.0) continue;
    units.push_back({reference->numerator, reference->denominator, other->numerator, other->denominator});
    add_unit(sums, units.back());
  }
  if (sums.denominator <= 0.0 || sums.other_denominator <= 0.0) units.clear();
  return units;
}

std::uint64_t comparison_seed(const Evaluation& evaluation, const TaskInfo& task, const Comparison& comparison) {
  return seed_for(evaluation.seed, {"comparison", task.name, task.metrics[comparison.metric].name, comparison.cell,
                                    evaluation.plans[comparison.plan].name});
}

Comparison compare(const Evaluation& evaluation, const TaskOutcomes& task, std::size_t metric_index, std::size_t plan,
                   const std::string& cell, std::span<const Pair> pairs) {
  const Metric& metric = task.task.metrics[metric_index];
  Comparison comparison{.plan = plan, .metric = metric_index, .cell = cell};
  const std::vector<Unit> units = units_of(metric, cell, pairs);
  comparison.skipped = std::ranges::count_if(pairs, [&cell](const Pair& pair) {
    return in_cell(*pair.reference, cell) && !(pair.reference->skipped.empty() && pair.other->skipped.empty());
  });
  comparison.questions = static_cast<std::int64_t>(units.size());
  if (units.empty()) {
    comparison.interval = comparison.bootstrap = {-1.0, 1.0};
    return comparison;
  }
  const double margin = evaluation.equivalence_points / 100.0;
  const std::uint64_t seed = comparison_seed(evaluation, task.task, comparison);
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
  if (metric.kind != MetricKind::kAccuracy) {
    for (std::optional<double>* const advice :
         {&comparison.questions_to_equivalence, &comparison.questions_to_difference}) {
      if (advice->has_value()) *advice = std::max(**advice, static_cast<double>(kUnitsMin));
    }
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
        if (plan > 0 && task.task.metrics[metric].compared) {
          analysis.comparisons.push_back(compare(evaluation, task, metric, plan, cell, pairs[plan]));
        }
      }
    }
  }
  for (std::size_t plan = 1; plan < plans; ++plan) list_flips(task, plan, pairs[plan], analysis.flips);
  return analysis;
}

double comparison_p(const Evaluation& evaluation, std::size_t task, const Comparison& comparison,
                    std::size_t resamples) {
  const TaskOutcomes& outcomes = evaluation.tasks[task];
  const std::vector<Unit> units =
      units_of(outcomes.task.metrics[comparison.metric], comparison.cell, pairs_of(outcomes, comparison.plan));
  return swap_test(units, comparison_seed(evaluation, outcomes.task, comparison), resamples);
}

}  // namespace tessera::quality
