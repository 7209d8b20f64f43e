// For tests: evaluations that are drawn, so that what is true of them is known.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/quality/bootstrap.h"
#include "tessera/quality/evaluation.h"

namespace tessera::quality::sample {

inline double uniform(Random& random) { return static_cast<double>(random.next() >> 11) * 0x1p-53; }

// `count` questions with one accuracy metric, "right": the reference is right with probability `right`; then the other
// plan loses a right answer and wins a wrong one such that lost and won questions have these probabilities.
inline TaskOutcomes accuracy_task(std::size_t count, double right, double lost, double won, Random& random) {
  TaskOutcomes task;
  task.task.name = "drawn";
  task.task.metrics = {{.name = "right", .kind = MetricKind::kAccuracy, .numerator = "", .denominator = ""}};
  task.questions = static_cast<std::int64_t>(count);
  task.by_plan.resize(2);
  for (std::size_t i = 0; i < count; ++i) {
    const bool reference = uniform(random) < right;
    const double flips = reference ? lost / right : won / (1.0 - right);
    const bool other = (uniform(random) < flips) != reference;
    Outcome outcome;
    outcome.question = fmt::format("q{}", i);
    outcome.scores["right"] = reference ? 1.0 : 0.0;
    task.by_plan[0].push_back(outcome);
    outcome.scores["right"] = other ? 1.0 : 0.0;
    task.by_plan[1].push_back(outcome);
  }
  return task;
}

inline Evaluation evaluation_of(std::vector<TaskOutcomes> tasks, std::size_t plans) {
  Evaluation evaluation;
  evaluation.version = "0.1.0";
  evaluation.command = "tessera evaluate --plan bf16 --plan fp8:decode-kv=fp8_e4m3";
  evaluation.date = "2026-11-30";
  evaluation.seed = 17;
  for (std::size_t plan = 0; plan < plans; ++plan) {
    PlanInfo info;
    info.name = fmt::format("plan{}", plan);
    info.description = fmt::format("role=split number={}", plan);
    info.respondent.model = "drawn-model";
    evaluation.plans.push_back(info);
  }
  evaluation.tasks = std::move(tasks);
  return evaluation;
}

// Passages whose positions' KL are exponential with a mean that is `mean` times a factor of the passage's own (so that
// positions of a passage are alike), the same factor for every plan that is drawn with the same `passage_seed`.
inline TaskDistances distances(const std::string& task, std::size_t plan, std::size_t passages, std::size_t positions,
                               double mean, std::uint64_t passage_seed, Random& random) {
  TaskDistances result;
  result.task = task;
  result.plan = plan;
  Random factors(passage_seed);
  for (std::size_t i = 0; i < passages; ++i) {
    PassageDistances passage;
    passage.question = fmt::format("q{}", i);
    passage.cell = i % 2 == 0 ? "even" : "odd";
    const double factor = -std::log1p(-uniform(factors));
    for (std::size_t j = 0; j < positions; ++j) {
      PositionDistance one;
      one.position = static_cast<std::int32_t>(j);
      one.kl = -std::log1p(-uniform(random)) * mean * factor;
      one.same_best = one.kl <= 4.0 * mean;
      one.rank_overlap = mean == 0.0 ? 1.0 : 0.98;
      one.reference_best = 5;
      one.other_best = one.same_best ? 5 : 6;
      one.reference_logprob = -0.7;
      one.other_logprob = -0.7 - one.kl;
      passage.positions.push_back(one);
    }
    result.passages.push_back(std::move(passage));
  }
  return result;
}

// Every kind of metric, cells, skipped questions, distances, a repetition of the reference, and answers that try to get
// out of the report.
inline Evaluation full_evaluation(std::uint64_t seed) {
  Random random(seed);
  Evaluation evaluation = evaluation_of({}, 4);
  evaluation.plans[0].name = "bf16";
  evaluation.plans[1].name = "again";
  evaluation.plans[1].description = evaluation.plans[0].description;
  evaluation.plans[2].name = "fp8-kv";
  evaluation.plans[3].name = "<b>int4</b>";
  evaluation.plans[3].respondent.precision = "prefill f8 weights, bf16 KV; decode int4 weights, f8_e4m3 KV";
  evaluation.plans[3].respondent.digest = "0123456789abcdef";
  const std::vector<double> lost{0.0, 0.0, 0.01, 0.09};

  TaskOutcomes arithmetic;
  arithmetic.task.name = "arithmetic";
  arithmetic.task.about = "Sums <of> numbers; right when the last number is.";
  arithmetic.task.metrics = {{.name = "exact", .kind = MetricKind::kAccuracy, .numerator = "", .denominator = ""},
                             {.name = "flexible", .kind = MetricKind::kAccuracy, .numerator = "", .denominator = ""}};
  arithmetic.task.chance = 0.1;
  arithmetic.questions = 900;
  TaskOutcomes calls;
  calls.task.name = "calls";
  calls.task.metrics = {
      {.name = "valid_calls", .kind = MetricKind::kRate, .numerator = "valid", .denominator = "calls"}};
  TaskOutcomes text;
  text.task.name = "text";
  text.task.metrics = {
      {.name = "word_perplexity", .kind = MetricKind::kPerplexity, .numerator = "loglik", .denominator = "words"},
      {.name = "nats", .kind = MetricKind::kMean, .numerator = "nats", .denominator = "words"}};
  for (std::size_t plan = 0; plan < evaluation.plans.size(); ++plan) {
    std::vector<Outcome> sums;
    std::vector<Outcome> called;
    std::vector<Outcome> read;
    Random same(seed + 1);
    for (std::size_t i = 0; i < 600; ++i) {
      Outcome outcome;
      outcome.question = fmt::format("sum/{}", i);
      outcome.cell = fmt::format("{} digits", 1 + i % 3);
      const bool right = (uniform(same) < 0.9 - 0.2 * static_cast<double>(i % 3)) && uniform(random) >= lost[plan];
      outcome.scores = {{"exact", right ? 1.0 : 0.0}, {"flexible", right || i % 7 == 0 ? 1.0 : 0.0}};
      outcome.expected = fmt::format("{}", i);
      outcome.answer = right ? outcome.expected
                             : "<script>alert(1)</script>\x1b[31m & \"quoted\" 'text'\nsecond line \xff \xe4\xb8\xad";
      if (i % 200 == 7) {
        outcome.scores.clear();
        outcome.skipped = "too long for the context";
      }
      sums.push_back(outcome);
    }
    for (std::size_t i = 0; i < 80; ++i) {
      Outcome outcome;
      outcome.question = fmt::format("call/{}", i);
      const double count = 1.0 + static_cast<double>(i % 4);
      outcome.scores = {{"calls", count}, {"valid", plan == 3 && i % 9 == 0 ? count - 1.0 : count}};
      called.push_back(outcome);
    }
    for (std::size_t i = 0; i < 60; ++i) {
      Outcome outcome;
      outcome.question = fmt::format("page/{}", i);
      const double words = 200.0 + static_cast<double>(i);
      const double shift = plan < 2 ? 0.0 : 0.004 * static_cast<double>(plan - 1) * (0.5 + uniform(random));
      const double nats = words * (2.2 + 0.3 * uniform(same) + shift);
      outcome.scores = {{"words", words}, {"loglik", -nats}, {"nats", nats}};
      read.push_back(outcome);
    }
    arithmetic.by_plan.push_back(std::move(sums));
    calls.by_plan.push_back(std::move(called));
    text.by_plan.push_back(std::move(read));
  }
  evaluation.tasks = {arithmetic, calls, text};
  evaluation.distances = {distances("text", 1, 60, 40, 0.0, seed, random),
                          distances("text", 2, 60, 40, 1e-4, seed, random),
                          distances("text", 3, 60, 40, 2e-2, seed, random)};
  return evaluation;
}

}  // namespace tessera::quality::sample
