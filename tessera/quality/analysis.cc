#include "tessera/quality/analysis.h"

#include <algorithm>
#include <vector>

#include "tessera/quality/analysis_parts.h"

namespace tessera::quality {

namespace {

// Adjusts the p-values of all that `members` point to.
template <typename Member>
void adjust(const std::vector<Member*>& members) {
  std::vector<double> p;
  p.reserve(members.size());
  for (const Member* member : members) p.push_back(member->p);
  const std::vector<double> adjusted = holm(p);
  for (std::size_t i = 0; i < members.size(); ++i) members[i]->p_adjusted = adjusted[i];
}

Verdict verdict_of(const Comparison& comparison, MetricKind kind, double margin) {
  if (comparison.verdict == Verdict::kSame) return Verdict::kSame;
  if (kind != MetricKind::kAccuracy && comparison.questions < kUnitsMin) return Verdict::kNotEnoughData;
  const bool within = comparison.questions > 0 && comparison.interval.inside(margin);
  const bool shown = comparison.p_adjusted < kSignificance && comparison.interval.excludes_zero();
  if (shown) return within ? Verdict::kDifferentWithin : Verdict::kDifferent;
  return within ? Verdict::kEquivalent : Verdict::kNotEnoughData;
}

// Whether any answers to so many questions could show a difference: one that could not is no test.
bool can_differ(const Comparison& comparison, MetricKind kind) {
  if (kind != MetricKind::kAccuracy) return comparison.questions >= kUnitsMin;
  return mcnemar_exact(comparison.questions, 0) < kSignificance;
}

// Of a family so large that the usual resamples have no p that is small enough. What is not small by itself stays.
template <typename Member, typename Again>
void sharpen(Member& member, std::size_t family, Again again) {
  const std::size_t resamples = swap_resamples(family);
  if (resamples > kResamples && member.p < kSignificance) member.p = again(resamples);
}

void judge_comparisons(const Evaluation& evaluation, Analysis& analysis) {
  std::vector<Comparison*> of_tasks;
  std::vector<Comparison*> of_cells;
  const auto metrics_of = [&](const TaskAnalysis& task) -> const std::vector<Metric>& {
    return evaluation.tasks[task.task].task.metrics;
  };
  for (TaskAnalysis& task : analysis.tasks) {
    for (Comparison& comparison : task.comparisons) {
      if (!can_differ(comparison, metrics_of(task)[comparison.metric].kind)) continue;
      (comparison.cell.empty() ? of_tasks : of_cells).push_back(&comparison);
    }
  }
  analysis.task_family = of_tasks.size();
  analysis.cell_family = of_cells.size();
  for (TaskAnalysis& task : analysis.tasks) {
    for (Comparison& comparison : task.comparisons) {
      const MetricKind kind = metrics_of(task)[comparison.metric].kind;
      if (kind == MetricKind::kAccuracy || !can_differ(comparison, kind)) continue;
      sharpen(comparison, comparison.cell.empty() ? of_tasks.size() : of_cells.size(),
              [&](std::size_t resamples) { return comparison_p(evaluation, task.task, comparison, resamples); });
    }
  }
  adjust(of_tasks);
  adjust(of_cells);
  for (TaskAnalysis& task : analysis.tasks) {
    const std::vector<Metric>& metrics = metrics_of(task);
    for (Comparison& comparison : task.comparisons) {
      comparison.verdict =
          verdict_of(comparison, metrics[comparison.metric].kind, evaluation.equivalence_points / 100.0);
    }
  }
}

DistanceWord word_of(const DistanceSummary& summary, const DistanceAnalysis& task, std::size_t repetition) {
  if (summary.word == DistanceWord::kSame || summary.plan == repetition) return summary.word;
  // Engines are deterministic: where the repetition gave the reference's bits, there is no noise to be above of.
  const bool silent = std::ranges::any_of(task.summaries, [repetition](const DistanceSummary& one) {
    return one.plan == repetition && one.cell.empty() && one.word == DistanceWord::kSame;
  });
  if (silent) return DistanceWord::kAboveNoise;
  for (const DistancePair& pair : task.pairs) {
    const bool first = pair.first == summary.plan && pair.second == repetition;
    const bool second = pair.second == summary.plan && pair.first == repetition;
    if (!first && !second) continue;
    if (pair.passages < kUnitsMin) return DistanceWord::kNotEnoughData;
    const bool farther = second ? pair.difference > 0.0 : pair.difference < 0.0;
    return pair.apart && farther ? DistanceWord::kAboveNoise : DistanceWord::kNotAboveNoise;
  }
  return summary.word;
}

void judge_distances(const Evaluation& evaluation, Analysis& analysis) {
  // Whether a plan is above noise is another question than which of two plans lies farther: how many of these were
  // asked takes nothing from it.
  std::vector<DistancePair*> pairs;
  std::vector<DistancePair*> with_repetition;
  const auto family_of = [&](const DistancePair& pair) -> std::vector<DistancePair*>& {
    return pair.first == analysis.repetition || pair.second == analysis.repetition ? with_repetition : pairs;
  };
  for (DistanceAnalysis& task : analysis.distances) {
    for (DistancePair& pair : task.pairs) {
      if (pair.passages >= kUnitsMin) family_of(pair).push_back(&pair);
    }
  }
  analysis.pair_family = pairs.size();
  analysis.noise_family = with_repetition.size();
  for (DistanceAnalysis& task : analysis.distances) {
    for (DistancePair& pair : task.pairs) {
      if (pair.passages < kUnitsMin) continue;
      sharpen(pair, family_of(pair).size(),
              [&](std::size_t resamples) { return pair_p(evaluation, task.task, pair, resamples); });
    }
  }
  for (const std::vector<DistancePair*>& family : {pairs, with_repetition}) {
    adjust(family);
    for (DistancePair* pair : family) pair->apart = pair->p_adjusted < kSignificance && pair->interval.excludes_zero();
  }
  if (!analysis.repetition.has_value()) return;
  for (DistanceAnalysis& task : analysis.distances) {
    for (DistanceSummary& summary : task.summaries) {
      // The pairs are of whole tasks: a cell has no word of its own about noise.
      if (summary.cell.empty()) summary.word = word_of(summary, task, *analysis.repetition);
    }
  }
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame:
      return "same";
    case Verdict::kEquivalent:
      return "equivalent";
    case Verdict::kDifferent:
      return "different";
    case Verdict::kDifferentWithin:
      return "different_within";
    case Verdict::kNotEnoughData:
      return "not_enough_data";
  }
  return "not_enough_data";
}

std::string_view distance_word_name(DistanceWord word) {
  switch (word) {
    case DistanceWord::kSame:
      return "same";
    case DistanceWord::kMeasured:
      return "measured";
    case DistanceWord::kAboveNoise:
      return "above_noise";
    case DistanceWord::kNotAboveNoise:
      return "not_above_noise";
    case DistanceWord::kNotEnoughData:
      return "not_enough_data";
  }
  return "measured";
}

Analysis analyse(const Evaluation& evaluation) {
  Analysis analysis;
  for (std::size_t plan = 1; plan < evaluation.plans.size() && !analysis.repetition.has_value(); ++plan) {
    const std::string& description = evaluation.plans[plan].description;
    if (!description.empty() && description == evaluation.plans[0].description) analysis.repetition = plan;
  }
  analysis.tasks.reserve(evaluation.tasks.size());
  for (std::size_t task = 0; task < evaluation.tasks.size(); ++task) {
    analysis.tasks.push_back(analyse_outcomes(evaluation, task));
  }
  analysis.distances = analyse_distances(evaluation);
  judge_comparisons(evaluation, analysis);
  judge_distances(evaluation, analysis);
  return analysis;
}

}  // namespace tessera::quality
