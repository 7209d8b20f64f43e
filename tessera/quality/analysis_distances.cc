#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/quality/analysis_parts.h"

namespace tessera::quality {

namespace {

// A KL that is not a number says that a distribution was not one: as far away as can be.
double kl_of(const PositionDistance& distance) {
  return std::isnan(distance.kl) ? std::numeric_limits<double>::infinity() : distance.kl;
}

// Sums over the positions of each passage that `wanted` takes; passages without one are left out.
struct PassageSums {
  std::vector<Unit> kl;
  std::vector<Unit> agreement;
  std::vector<Unit> overlap;
  std::vector<double> all_kl;
  bool same = true;
};

template <typename Wanted>
void add_passage(const PassageDistances& passage, Wanted wanted, PassageSums& sums) {
  Unit kl;
  Unit agreement;
  Unit overlap;
  for (const PositionDistance& position : passage.positions) {
    if (!wanted(position)) continue;
    const double value = kl_of(position);
    kl.numerator += value;
    agreement.numerator += position.same_best ? 1.0 : 0.0;
    overlap.numerator += position.rank_overlap;
    kl.denominator += 1.0;
    sums.all_kl.push_back(value);
    sums.same = sums.same && value == 0.0 && position.same_best;
  }
  if (kl.denominator == 0.0) return;
  agreement.denominator = overlap.denominator = kl.denominator;
  sums.kl.push_back(kl);
  sums.agreement.push_back(agreement);
  sums.overlap.push_back(overlap);
}

Estimate mean(std::span<const Unit> units, std::uint64_t seed) {
  return {measure(Measure::kRatio, units), bootstrap_interval(Measure::kRatio, units, seed)};
}

// Top-1 agreement is a share, and often all of it: resampling would call 100% certain.
Estimate mean_share(std::span<const Unit> units) { return {measure(Measure::kRatio, units), rate_interval(units)}; }

// 0, 1, 2 to 3, 4 to 7, ...: the number of a position's bin.
int bin_of(std::int32_t position) { return std::bit_width(static_cast<std::uint32_t>(std::max(position, 0))); }

struct Context {
  const Evaluation& evaluation;
  const TaskDistances& distances;
  std::uint64_t seed(std::string_view what, std::string_view which) const {
    return seed_for(evaluation.seed, {"distances", what, which, distances.task, evaluation.plans[distances.plan].name});
  }
};

std::vector<PositionBin> bins_of(const Context& context) {
  std::set<int> bins;
  for (const PassageDistances& passage : context.distances.passages) {
    for (const PositionDistance& position : passage.positions) bins.insert(bin_of(position.position));
  }
  std::vector<PositionBin> result;
  result.reserve(bins.size());
  for (const int bin : bins) {
    PassageSums sums;
    for (const PassageDistances& passage : context.distances.passages) {
      add_passage(passage, [bin](const PositionDistance& p) { return bin_of(p.position) == bin; }, sums);
    }
    PositionBin one;
    one.first = bin == 0 ? 0 : static_cast<std::int32_t>(std::int64_t{1} << (bin - 1));
    one.last = static_cast<std::int32_t>((std::int64_t{1} << bin) - 1);
    one.passages = static_cast<std::int64_t>(sums.kl.size());
    one.positions = static_cast<std::int64_t>(sums.all_kl.size());
    one.kl = mean(sums.kl, context.seed("bin", std::to_string(bin)));
    one.agreement = mean_share(sums.agreement);
    result.push_back(one);
  }
  return result;
}

void summarize(const Context& context, const std::string& cell, std::vector<DistanceSummary>& summaries) {
  PassageSums sums;
  for (const PassageDistances& passage : context.distances.passages) {
    if (cell.empty() || passage.cell == cell) {
      add_passage(passage, [](const PositionDistance&) { return true; }, sums);
    }
  }
  if (sums.kl.empty()) return;
  DistanceSummary summary{.plan = context.distances.plan, .cell = cell};
  summary.passages = static_cast<std::int64_t>(sums.kl.size());
  summary.positions = static_cast<std::int64_t>(sums.all_kl.size());
  summary.word = sums.same ? DistanceWord::kSame : DistanceWord::kMeasured;
  summary.kl = mean(sums.kl, context.seed("kl", cell));
  summary.agreement = mean_share(sums.agreement);
  summary.overlap = mean(sums.overlap, context.seed("overlap", cell));
  std::ranges::sort(sums.all_kl);
  summary.kl_median = sorted_quantile(sums.all_kl, 0.5);
  summary.kl_p99 = sorted_quantile(sums.all_kl, 0.99);
  summary.kl_worst = sums.all_kl.back();
  if (cell.empty()) summary.bins = bins_of(context);
  summaries.push_back(std::move(summary));
}

void list_worst(const TaskDistances& distances, std::vector<WorstPosition>& worst) {
  std::vector<WorstPosition> all;
  for (const PassageDistances& passage : distances.passages) {
    for (const PositionDistance& position : passage.positions) {
      if (kl_of(position) > 0.0) all.push_back({distances.plan, passage.question, passage.cell, position});
    }
  }
  const std::size_t count = std::min(all.size(), kWorstPositions);
  // Equal ones in an order that does not depend on that of the passages.
  const auto key = [](const WorstPosition& one) {
    return std::tuple<double, std::string_view, std::int32_t>(-kl_of(one.distance), one.question,
                                                              one.distance.position);
  };
  std::ranges::partial_sort(all, all.begin() + static_cast<std::ptrdiff_t>(count), {}, key);
  all.resize(count);
  for (WorstPosition& one : all) worst.push_back(std::move(one));
}

std::vector<std::string> cells_of(const TaskDistances& distances) {
  std::vector<std::string> cells;
  std::set<std::string> seen;
  for (const PassageDistances& passage : distances.passages) {
    if (!passage.cell.empty() && seen.insert(passage.cell).second) cells.push_back(passage.cell);
  }
  if (cells.size() < 2) cells.clear();
  return cells;
}

// Sum of KL and number of positions by passage.
using SumsByQuestion = std::unordered_map<std::string_view, Unit>;
SumsByQuestion sums_by_question(const TaskDistances& distances) {
  SumsByQuestion result;
  for (const PassageDistances& passage : distances.passages) {
    if (passage.positions.empty()) continue;
    Unit unit;
    for (const PositionDistance& position : passage.positions) {
      unit.numerator += kl_of(position);
      unit.denominator += 1.0;
    }
    result.emplace(passage.question, unit);
  }
  return result;
}

// The passages that both were led through.
std::vector<Unit> pair_units(const TaskDistances& first, const TaskDistances& second) {
  const SumsByQuestion others = sums_by_question(second);
  const SumsByQuestion own = sums_by_question(first);
  std::vector<Unit> units;
  units.reserve(own.size());
  for (const PassageDistances& passage : first.passages) {
    const auto one = own.find(passage.question);
    const auto other = others.find(passage.question);
    if (one == own.end() || other == others.end() || one->second.denominator != other->second.denominator) continue;
    units.push_back(
        {one->second.numerator, one->second.denominator, other->second.numerator, other->second.denominator});
  }
  return units;
}

std::uint64_t pair_seed(const Evaluation& evaluation, const std::string& task, const DistancePair& pair) {
  return seed_for(evaluation.seed,
                  {"pair", task, evaluation.plans[pair.first].name, evaluation.plans[pair.second].name});
}

DistancePair pair_of(const Evaluation& evaluation, const TaskDistances& first, const TaskDistances& second) {
  DistancePair pair{.first = first.plan, .second = second.plan};
  const std::vector<Unit> units = pair_units(first, second);
  pair.passages = static_cast<std::int64_t>(units.size());
  if (units.empty()) return pair;
  const std::uint64_t seed = pair_seed(evaluation, first.task, pair);
  pair.difference = measure(Measure::kDifference, units);
  pair.interval = bootstrap_interval(Measure::kDifference, units, seed);
  pair.p = swap_test(units, seed);
  return pair;
}

}  // namespace

std::vector<DistanceAnalysis> analyse_distances(const Evaluation& evaluation) {
  std::vector<std::string> tasks;
  std::map<std::string, std::vector<const TaskDistances*>> by_task;
  for (const TaskDistances& distances : evaluation.distances) {
    if (distances.plan == 0 || distances.plan >= evaluation.plans.size()) continue;
    std::vector<const TaskDistances*>& of_task = by_task[distances.task];
    if (of_task.empty()) tasks.push_back(distances.task);
    of_task.push_back(&distances);
  }
  std::vector<DistanceAnalysis> result;
  result.reserve(tasks.size());
  for (const std::string& task : tasks) {
    DistanceAnalysis analysis{.task = task};
    const std::vector<const TaskDistances*>& plans = by_task[task];
    for (const TaskDistances* distances : plans) {
      const Context context{evaluation, *distances};
      summarize(context, "", analysis.summaries);
      for (const std::string& cell : cells_of(*distances)) summarize(context, cell, analysis.summaries);
      list_worst(*distances, analysis.worst);
    }
    for (std::size_t first = 0; first < plans.size(); ++first) {
      for (std::size_t second = first + 1; second < plans.size(); ++second) {
        analysis.pairs.push_back(pair_of(evaluation, *plans[first], *plans[second]));
      }
    }
    result.push_back(std::move(analysis));
  }
  return result;
}

double pair_p(const Evaluation& evaluation, const std::string& task, const DistancePair& pair, std::size_t resamples) {
  const auto of = [&](std::size_t plan) {
    return std::ranges::find_if(evaluation.distances, [&](const TaskDistances& distances) {
      return distances.plan == plan && distances.task == task;
    });
  };
  const auto first = of(pair.first);
  const auto second = of(pair.second);
  if (first == evaluation.distances.end() || second == evaluation.distances.end()) return pair.p;
  return swap_test(pair_units(*first, *second), pair_seed(evaluation, task, pair), resamples);
}

}  // namespace tessera::quality
