#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/quality/report.h"
#include "tessera/quality/report_words.h"

namespace tessera::quality {

namespace {

using boost::json::array;
using boost::json::object;
using boost::json::value;

// JSON has no infinities.
value number(double x) { return std::isfinite(x) ? value(x) : value(nullptr); }
value number(const std::optional<double>& x) { return x.has_value() ? number(*x) : value(nullptr); }
value numbers(const Interval& interval) { return array{number(interval.low), number(interval.high)}; }
// Keeps lines as they are, but is well-formed UTF-8.
value words(const std::string& text) {
  std::string kept;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (at > 0) kept += '\n';
    kept += shown_text(std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
  return value(kept);
}
value words(const std::vector<std::string>& texts) {
  array all;
  all.reserve(texts.size());
  for (const std::string& text : texts) all.push_back(words(text));
  return all;
}

std::string_view kind_name(MetricKind kind) {
  switch (kind) {
    case MetricKind::kAccuracy:
      return "accuracy";
    case MetricKind::kRate:
      return "rate";
    case MetricKind::kPerplexity:
      return "perplexity";
    case MetricKind::kMean:
      return "mean";
  }
  return "accuracy";
}

value estimate(const Estimate& one) {
  return object{{"value", number(one.value)}, {"interval", numbers(one.interval)}};
}

class Writer {
 public:
  Writer(const Evaluation& evaluation, const Analysis& analysis) : evaluation_(evaluation), analysis_(analysis) {}

  value root(bool with_outcomes) const {
    array tasks;
    tasks.reserve(analysis_.tasks.size());
    for (const TaskAnalysis& one : analysis_.tasks) tasks.push_back(task(one, with_outcomes));
    array far;
    far.reserve(analysis_.distances.size());
    for (const DistanceAnalysis& one : analysis_.distances) far.push_back(distances(one));
    return object{{"schema", "tessera-evaluation-1"},
                  {"version", words(evaluation_.version)},
                  {"command", words(evaluation_.command)},
                  {"date", words(evaluation_.date)},
                  {"limit", evaluation_.limit},
                  // As text: many readers keep numbers as doubles.
                  {"seed", std::to_string(evaluation_.seed)},
                  {"resamples", kResamples},
                  {"equivalence_points", number(evaluation_.equivalence_points)},
                  {"families", object{{"tasks", analysis_.task_family},
                                      {"cells", analysis_.cell_family},
                                      {"kl_pairs", analysis_.pair_family},
                                      {"kl_pairs_with_repetition", analysis_.noise_family}}},
                  {"repetition", analysis_.repetition.has_value() ? plan(*analysis_.repetition) : value(nullptr)},
                  {"plans", plans()},
                  {"tasks", std::move(tasks)},
                  {"distances", std::move(far)}};
  }

 private:
  value plan(std::size_t index) const { return value(plan_name(evaluation_, index)); }

  value plans() const {
    array all;
    all.reserve(evaluation_.plans.size());
    for (std::size_t i = 0; i < evaluation_.plans.size(); ++i) {
      const PlanInfo& one = evaluation_.plans[i];
      all.push_back(object{{"name", plan(i)},
                           {"reference", i == 0},
                           {"description", words(one.description)},
                           {"model", words(one.respondent.model)},
                           {"precision", words(one.respondent.precision)},
                           {"digest", words(one.respondent.digest)},
                           {"context_tokens", one.respondent.context_tokens}});
    }
    return all;
  }

  static value cell(const std::string& name) { return name.empty() ? value(nullptr) : words(name); }

  value value_object(const TaskInfo& info, const MetricValue& one) const {
    return object{{"metric", words(info.metrics[one.metric].name)},
                  {"cell", cell(one.cell)},
                  {"plan", plan(one.plan)},
                  {"questions", one.questions},
                  {"skipped", one.skipped},
                  {"numerator", number(one.numerator)},
                  {"denominator", number(one.denominator)},
                  {"value", one.result.has_value() ? number(one.result->value) : value(nullptr)},
                  {"interval", one.result.has_value() ? numbers(one.result->interval) : value(nullptr)}};
  }

  value comparison_object(const TaskInfo& info, const Comparison& one) const {
    const MetricKind kind = info.metrics[one.metric].kind;
    value counts = nullptr;
    if (kind == MetricKind::kAccuracy) {
      counts = object{{"both_right", one.counts.both_right},
                      {"both_wrong", one.counts.both_wrong},
                      {"lost", one.counts.lost},
                      {"won", one.counts.won}};
    }
    const bool some = one.questions > 0;
    return object{{"metric", words(info.metrics[one.metric].name)},
                  {"cell", cell(one.cell)},
                  {"plan", plan(one.plan)},
                  {"questions", one.questions},
                  {"skipped", one.skipped},
                  {"counts", std::move(counts)},
                  {"reference_value", some ? number(one.reference_value) : value(nullptr)},
                  {"value", some ? number(one.other_value) : value(nullptr)},
                  {"difference", some ? number(one.difference) : value(nullptr)},
                  {"interval", numbers(one.interval)},
                  {"bootstrap_interval", numbers(one.bootstrap)},
                  {"p", number(one.p)},
                  {"p_adjusted", number(one.p_adjusted)},
                  {"verdict", verdict_name(one.verdict)},
                  {"verdict_text", verdict_text(evaluation_, one, kind)},
                  {"detectable_difference", number(one.detectable)},
                  {"questions_to_equivalence", number(one.questions_to_equivalence)},
                  {"questions_to_difference", number(one.questions_to_difference)}};
  }

  value outcomes(const TaskOutcomes& task) const {
    object all;
    for (std::size_t i = 0; i < task.by_plan.size(); ++i) {
      array of_plan;
      of_plan.reserve(task.by_plan[i].size());
      for (const Outcome& one : task.by_plan[i]) {
        object scores;
        for (const auto& [name, score] : one.scores) scores[shown_text(name)] = number(score);
        of_plan.push_back(object{{"question", words(one.question)},
                                 {"cell", cell(one.cell)},
                                 {"scores", std::move(scores)},
                                 {"expected", words(one.expected)},
                                 {"answer", words(one.answer)},
                                 {"skipped", words(one.skipped)}});
      }
      all[plan_name(evaluation_, i)] = std::move(of_plan);
    }
    return all;
  }

  value task(const TaskAnalysis& analysis, bool with_outcomes) const {
    const TaskOutcomes& task = evaluation_.tasks[analysis.task];
    const TaskInfo& info = task.task;
    array metrics;
    metrics.reserve(info.metrics.size());
    for (const Metric& metric : info.metrics) {
      metrics.push_back(
          object{{"name", words(metric.name)}, {"kind", kind_name(metric.kind)}, {"compared", metric.compared}});
    }
    array values;
    values.reserve(analysis.values.size());
    for (const MetricValue& one : analysis.values) values.push_back(value_object(info, one));
    array comparisons;
    comparisons.reserve(analysis.comparisons.size());
    for (const Comparison& one : analysis.comparisons) comparisons.push_back(comparison_object(info, one));
    array flips;
    flips.reserve(analysis.flips.size());
    for (const Flip& one : analysis.flips) {
      flips.push_back(object{{"plan", plan(one.plan)},
                             {"question", words(one.question)},
                             {"cell", cell(one.cell)},
                             {"lost", words(one.lost)},
                             {"won", words(one.won)},
                             {"expected", words(one.expected)},
                             {"reference_answer", words(one.reference_answer)},
                             {"answer", words(one.other_answer)}});
    }
    object result{{"task", words(info.name)},
                  {"about", words(info.about)},
                  {"chance", number(info.chance)},
                  {"questions_in_data", task.questions},
                  {"data_digest", words(task.data_digest)},
                  {"metrics", std::move(metrics)},
                  {"cells", words(analysis.cells)},
                  {"values", std::move(values)},
                  {"comparisons", std::move(comparisons)},
                  {"flips", std::move(flips)}};
    if (with_outcomes) result["outcomes"] = outcomes(task);
    return result;
  }

  value summary(const DistanceSummary& one) const {
    array bins;
    bins.reserve(one.bins.size());
    for (const PositionBin& bin : one.bins) {
      bins.push_back(object{{"first", bin.first},
                            {"last", bin.last},
                            {"passages", bin.passages},
                            {"positions", bin.positions},
                            {"kl", estimate(bin.kl)},
                            {"top1_agreement", estimate(bin.agreement)}});
    }
    return object{{"plan", plan(one.plan)},
                  {"cell", cell(one.cell)},
                  {"passages", one.passages},
                  {"positions", one.positions},
                  {"word", distance_word_name(one.word)},
                  {"kl", estimate(one.kl)},
                  {"kl_median", number(one.kl_median)},
                  {"kl_p99", number(one.kl_p99)},
                  {"kl_worst", number(one.kl_worst)},
                  {"top1_agreement", estimate(one.agreement)},
                  {"rank_overlap", estimate(one.overlap)},
                  {"by_position", std::move(bins)}};
  }

  value distances(const DistanceAnalysis& analysis) const {
    array summaries;
    summaries.reserve(analysis.summaries.size());
    for (const DistanceSummary& one : analysis.summaries) summaries.push_back(summary(one));
    array pairs;
    pairs.reserve(analysis.pairs.size());
    for (const DistancePair& one : analysis.pairs) {
      pairs.push_back(object{{"first", plan(one.first)},
                             {"second", plan(one.second)},
                             {"passages", one.passages},
                             {"difference", number(one.difference)},
                             {"interval", numbers(one.interval)},
                             {"p", number(one.p)},
                             {"p_adjusted", number(one.p_adjusted)},
                             {"apart", one.apart}});
    }
    array worst;
    worst.reserve(analysis.worst.size());
    for (const WorstPosition& one : analysis.worst) {
      worst.push_back(object{{"plan", plan(one.plan)},
                             {"question", words(one.question)},
                             {"cell", cell(one.cell)},
                             {"position", one.distance.position},
                             {"kl", number(one.distance.kl)},
                             {"reference_best", one.distance.reference_best},
                             {"best", one.distance.other_best},
                             {"reference_logprob", number(one.distance.reference_logprob)},
                             {"logprob", number(one.distance.other_logprob)},
                             {"rank_overlap", number(one.distance.rank_overlap)}});
    }
    return object{{"task", words(analysis.task)},
                  {"summaries", std::move(summaries)},
                  {"pairs", std::move(pairs)},
                  {"worst_positions", std::move(worst)}};
  }

  const Evaluation& evaluation_;
  const Analysis& analysis_;
};

}  // namespace

std::string report_json(const Evaluation& evaluation, const Analysis& analysis, bool with_outcomes) {
  return boost::json::serialize(Writer(evaluation, analysis).root(with_outcomes)) + "\n";
}

}  // namespace tessera::quality
