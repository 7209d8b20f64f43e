// What a verdict must not say: "equivalent" too often at a loss of the whole margin, a pass for want of data, nothing
// of calls that only one plan makes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/quality/analysis.h"
#include "tessera/quality/report_words.h"
#include "tessera/quality/sample_evaluation.h"

namespace tessera::quality {
namespace {

struct Calls {
  double valid = 0.0;
  double calls = 0.0;
};
struct Kind {
  std::size_t questions = 0;
  Calls reference = {};
  Calls other = {};
};

// One task with a rate of valid calls: so many questions of each kind.
Evaluation rated(const std::vector<Kind>& kinds) {
  TaskOutcomes task;
  task.task.name = "calls";
  task.task.metrics = {
      {.name = "valid_calls", .kind = MetricKind::kRate, .numerator = "valid", .denominator = "calls"}};
  task.by_plan.resize(2);
  for (const Kind& kind : kinds) {
    for (std::size_t i = 0; i < kind.questions; ++i) {
      Outcome outcome;
      outcome.question = fmt::format("q{}", task.by_plan[0].size());
      outcome.scores = {{"valid", kind.reference.valid}, {"calls", kind.reference.calls}};
      task.by_plan[0].push_back(outcome);
      outcome.scores = {{"valid", kind.other.valid}, {"calls", kind.other.calls}};
      task.by_plan[1].push_back(outcome);
    }
  }
  return sample::evaluation_of({task}, 2);
}

Comparison first_comparison(const Evaluation& evaluation) { return analyse(evaluation).tasks.at(0).comparisons.at(0); }

// P(k of n) at probability p.
double binomial(std::size_t k, std::size_t n, double p) {
  const auto x = static_cast<double>(k);
  const auto of = static_cast<double>(n);
  return std::exp(std::lgamma(of + 1.0) - std::lgamma(x + 1.0) - std::lgamma(of - x + 1.0) + x * std::log(p) +
                  (of - x) * std::log1p(-p));
}

TEST(Verdicts, InvalidCallsWhereNoneIsDueCount) {
  const Comparison worse = first_comparison(rated({{400, {1.0, 1.0}, {1.0, 1.0}}, {100, {}, {0.0, 1.0}}}));
  EXPECT_EQ(worse.questions, 500);
  EXPECT_NEAR(worse.difference, -0.2, 1e-12);
  EXPECT_EQ(worse.verdict, Verdict::kDifferent);
  const Comparison better = first_comparison(rated({{400, {1.0, 1.0}, {1.0, 1.0}}, {100, {0.0, 1.0}, {}}}));
  EXPECT_NEAR(better.difference, 0.2, 1e-12);
  EXPECT_EQ(better.verdict, Verdict::kDifferent);
  // Questions to which neither makes a call say nothing of calls.
  EXPECT_EQ(first_comparison(rated({{400, {1.0, 1.0}, {1.0, 1.0}}, {100, {}, {}}})).questions, 400);
}

TEST(Verdicts, APlanWithoutCallsHasNoRate) {
  const Evaluation evaluation = rated({{400, {1.0, 1.0}, {}}});
  const Comparison one = first_comparison(evaluation);
  EXPECT_EQ(one.verdict, Verdict::kNotEnoughData);
  EXPECT_EQ(one.questions, 0);
  EXPECT_EQ(one.p, 1.0);
  EXPECT_EQ(open_text(evaluation, one, MetricKind::kRate),
            "on one of the two sides there is nothing that this is a rate of");
}

TEST(Verdicts, EquivalentIsSeldomSaidAtALossOfTheWholeMargin) {
  for (const std::size_t n : {290, 430, 510, 560}) {
    double said = 0.0;
    for (std::size_t lost = 0; lost <= 16; ++lost) {
      const Comparison one =
          first_comparison(rated({{lost, {1.0, 1.0}, {0.0, 1.0}}, {n - lost, {1.0, 1.0}, {1.0, 1.0}}}));
      if (one.interval.inside(0.02)) said += binomial(lost, n, 0.02);
    }
    EXPECT_LE(said, 0.025) << n;
    // Of Tango's interval alone, by scipy.
    if (n == 510) {
      EXPECT_LE(said, 0.0246545);
    }
  }
}

TEST(Verdicts, OneMoreCallThatIsWrongNeverMakesALossSmaller) {
  double low = first_comparison(rated({{300, {1.0, 1.0}, {1.0, 1.0}}})).interval.low;
  for (std::size_t lost = 1; lost < 12; ++lost) {
    const Comparison one =
        first_comparison(rated({{lost, {1.0, 1.0}, {0.0, 1.0}}, {300 - lost, {1.0, 1.0}, {1.0, 1.0}}}));
    EXPECT_LT(one.interval.low, low) << lost;
    low = one.interval.low;
    const Interval tango = tango_interval(static_cast<double>(lost), 0.0, 300.0);
    EXPECT_LE(one.interval.low, tango.low + 1e-9);
    EXPECT_GE(one.interval.high, tango.high - 1e-9);
  }
  // A tenth of what a question is of is a tenth of a loss.
  const Comparison part = first_comparison(rated({{10, {10.0, 10.0}, {9.0, 10.0}}, {290, {10.0, 10.0}, {10.0, 10.0}}}));
  EXPECT_NEAR(part.difference, -1.0 / 300.0, 1e-12);
  EXPECT_NEAR(part.interval.low, tango_interval(1.0, 0.0, 300.0).low, 1e-9);
}

TEST(Verdicts, HeavyQuestionsAreFewer) {
  // 300 calls, but half of them in ten conversations: as sure as (sum)^2 / (sum of squares).
  const Comparison one = first_comparison(rated({{10, {15.0, 15.0}, {15.0, 15.0}}, {150, {1.0, 1.0}, {1.0, 1.0}}}));
  const double squares = 10.0 * 15.0 * 15.0 + 150.0;
  EXPECT_NEAR(one.interval.low, tango_interval(0.0, 0.0, 300.0 * 300.0 / squares).low, 1e-9);
}

TEST(Verdicts, HeavyQuestionsThatFlipWeighMore) {
  // Four lost conversations of three calls, among 397 calls by one: as 4 of 409 / 3.
  const Comparison one = first_comparison(rated({{4, {3.0, 3.0}, {0.0, 3.0}}, {397, {1.0, 1.0}, {1.0, 1.0}}}));
  EXPECT_NEAR(one.difference, -12.0 / 409.0, 1e-12);
  EXPECT_LT(one.interval.low, tango_interval(3.9, 0.0, 409.0 / 3.0).low);
}

TEST(Verdicts, ManySmallLossesAreALoss) {
  // Nine conversations of ten calls lose one each, none wins: the exact p of swapping is 2 / 2^9.
  const Comparison one = first_comparison(rated({{9, {10.0, 10.0}, {9.0, 10.0}}, {71, {10.0, 10.0}, {10.0, 10.0}}}));
  EXPECT_NEAR(one.p, 2.0 / 512.0, 2e-3);
  EXPECT_EQ(one.verdict, Verdict::kDifferent);
  EXPECT_LT(one.interval.high, 0.0);
}

TEST(Verdicts, AdviceIsThatOfTheIntervalThatWillBeUsed) {
  const Evaluation evaluation = rated({{80, {1.0, 1.0}, {1.0, 1.0}}});
  const Comparison one = first_comparison(evaluation);
  ASSERT_EQ(one.verdict, Verdict::kNotEnoughData);
  // z^2 (1 - 0.02) / 0.02 = 188.2
  EXPECT_EQ(one.questions_to_equivalence.value_or(0.0), 189.0);
  EXPECT_EQ(first_comparison(rated({{189, {1.0, 1.0}, {1.0, 1.0}}})).verdict, Verdict::kEquivalent);
  EXPECT_NEAR(one.detectable, detectable_difference(80.0, 0.0), 1e-9);
}

TEST(Verdicts, NoAdviceIsForFewerThanAVerdictNeeds) {
  TaskOutcomes task;
  task.task.name = "text";
  task.task.metrics = {
      {.name = "perplexity", .kind = MetricKind::kPerplexity, .numerator = "loglik", .denominator = "words"}};
  task.by_plan.resize(2);
  for (int i = 0; i < 4; ++i) {
    Outcome outcome;
    outcome.question = fmt::format("q{}", i);
    outcome.scores = {{"loglik", -230.0 - i}, {"words", 100.0}};
    task.by_plan[0].push_back(outcome);
    outcome.scores["loglik"] -= 10.0 + 0.001 * i;
    task.by_plan[1].push_back(outcome);
  }
  Evaluation evaluation = sample::evaluation_of({task}, 2);
  const Comparison far = first_comparison(evaluation);
  EXPECT_EQ(far.verdict, Verdict::kNotEnoughData);
  EXPECT_GE(far.questions_to_difference.value_or(0.0), static_cast<double>(kUnitsMin));
  const std::string words = open_text(evaluation, far, MetricKind::kPerplexity);
  EXPECT_TRUE(words.contains("at least 10 are needed")) << words;
  evaluation.equivalence_points = 50.0;
  EXPECT_GE(first_comparison(evaluation).questions_to_equivalence.value_or(0.0), static_cast<double>(kUnitsMin));
}

// Plan 1 is the reference once more; `passages` of each.
Evaluation distant(std::size_t plans, std::size_t passages, double again, double other) {
  Random random(11);
  Evaluation evaluation = sample::evaluation_of({}, plans);
  evaluation.plans[1].description = evaluation.plans[0].description;
  for (std::size_t plan = 1; plan < plans; ++plan) {
    evaluation.distances.push_back(sample::distances("t", plan, passages, 20, plan == 1 ? again : other, 5, random));
  }
  return evaluation;
}

std::string_view word(const Evaluation& evaluation, std::size_t plan) {
  const Analysis analysis = analyse(evaluation);
  for (const DistanceSummary& one : analysis.distances.at(0).summaries) {
    if (one.plan == plan && one.cell.empty()) return distance_word_name(one.word);
  }
  return "none";
}

TEST(Verdicts, NoPlanPassesForWantOfPassages) {
  // The repetition gave the same bits: any distance at all is more.
  EXPECT_EQ(word(distant(3, 5, 0.0, 1e-6), 2), "above_noise");
  EXPECT_EQ(word(distant(3, 5, 0.0, 0.0), 2), "same");
  EXPECT_EQ(word(distant(3, 5, 1e-4, 1e-2), 2), "not_enough_data");
  EXPECT_EQ(word(distant(3, 30, 1e-4, 1e-2), 2), "above_noise");
  EXPECT_EQ(word(distant(3, 30, 1e-4, 1e-4), 2), "not_above_noise");
  EXPECT_EQ(word(distant(3, 5, 1e-4, 1e-2), 1), "measured");
}

TEST(Verdicts, NoiseHasAFamilyOfItsOwn) {
  const Analysis analysis = analyse(distant(12, 12, 1e-4, 1e-3));
  // 10 pairs with the repetition, 45 without.
  EXPECT_EQ(analysis.pair_family, 45U);
  for (const DistancePair& pair : analysis.distances.at(0).pairs) {
    if (pair.first == 1) {
      EXPECT_LE(pair.p_adjusted, std::min(1.0, 10.0 * pair.p) + 1e-12);
    }
  }
  EXPECT_EQ(word(distant(12, 12, 1e-4, 1e-3), 7), "above_noise");
}

TEST(Verdicts, WhatCanNeverDifferIsInNoFamily) {
  Evaluation evaluation = rated({{9, {1.0, 1.0}, {0.0, 1.0}}});
  evaluation.tasks.push_back(rated({{400, {1.0, 1.0}, {}}}).tasks[0]);
  Random random(3);
  evaluation.tasks.push_back(sample::accuracy_task(5, 0.5, 0.1, 0.1, random));
  evaluation.tasks.push_back(sample::accuracy_task(0, 0.5, 0.1, 0.1, random));
  evaluation.tasks.push_back(sample::accuracy_task(34, 1.0, 0.0, 0.0, random));
  // Six flips in one direction: p is 1/32.
  for (std::size_t i = 0; i < 6; ++i) evaluation.tasks.back().by_plan[1][i].scores["right"] = 0.0;
  const Analysis analysis = analyse(evaluation);
  EXPECT_EQ(analysis.task_family, 1U);
  EXPECT_EQ(analysis.tasks.back().comparisons[0].p_adjusted, 0.03125);
  EXPECT_EQ(analysis.tasks.back().comparisons[0].verdict, Verdict::kDifferent);
  const Comparison& few = analysis.tasks[0].comparisons[0];
  EXPECT_EQ(few.verdict, Verdict::kNotEnoughData);
  EXPECT_LT(few.p, kSignificance);
  // Not for want of significance among others.
  EXPECT_FALSE(open_text(evaluation, few, MetricKind::kRate).contains("so many comparisons"));
  EXPECT_EQ(analyse(distant(4, 9, 1e-4, 1e-3)).pair_family, 0U);
}

TEST(Verdicts, WhatIsNotComparedHasAValueAndNoVerdict) {
  Evaluation evaluation = sample::full_evaluation(3);
  evaluation.tasks[2].task.metrics[1].compared = false;
  const Analysis analysis = analyse(evaluation);
  EXPECT_EQ(analysis.task_family, 12U);
  EXPECT_EQ(analysis.tasks[2].comparisons.size(), 3U);
  ASSERT_EQ(analysis.tasks[2].values.size(), 8U);
  EXPECT_TRUE(analysis.tasks[2].values[7].result.has_value());
}

TEST(Verdicts, LargeFamiliesLeaveRoomForASwapTest) {
  // Twenty questions that all fail: the exact p is 2 / 2^20, which 600 comparisons do not hide.
  Evaluation evaluation = rated({{20, {1.0, 1.0}, {0.0, 1.0}}});
  constexpr std::size_t kOthers = 600;
  for (std::size_t i = 0; i < kOthers; ++i) {
    const std::string name = fmt::format("metric{}", i);
    evaluation.tasks[0].task.metrics.push_back(
        {.name = name, .kind = MetricKind::kAccuracy, .numerator = "", .denominator = ""});
    for (std::vector<Outcome>& outcomes : evaluation.tasks[0].by_plan) {
      for (Outcome& outcome : outcomes) outcome.scores[name] = 1.0;
    }
  }
  const Analysis analysis = analyse(evaluation);
  EXPECT_EQ(analysis.task_family, kOthers + 1);
  EXPECT_LT(analysis.tasks[0].comparisons[0].p_adjusted, 0.025);
  EXPECT_EQ(analysis.tasks[0].comparisons[0].verdict, Verdict::kDifferent);
}

}  // namespace
}  // namespace tessera::quality
