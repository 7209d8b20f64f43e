// The formulas against scipy, statsmodels and numpy (tests/goldens/quality), and what must hold of them when drawn many
// times: intervals cover the truth, tests are wrong as seldom as they say, power is what was promised.
#include "tessera/quality/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tessera/quality/bootstrap.h"
#include "tessera/quality/sample_evaluation.h"
#include "tessera/quality/statistics_goldens.h"

namespace tessera::quality {
namespace {

TEST(Statistics, WilsonIntervalIsThatOfStatsmodels) {
  for (const boost::json::value& row : golden("wilson").as_array()) {
    const std::vector<double> expected = golden_numbers(row);
    const Interval interval = wilson_interval(expected[0], expected[1]);
    EXPECT_NEAR(interval.low, expected[2], 1e-12);
    EXPECT_NEAR(interval.high, expected[3], 1e-12);
  }
  EXPECT_EQ(wilson_interval(0.0, 0.0), (Interval{0.0, 1.0}));
}

TEST(Statistics, McNemarIsTheBinomialTestOfScipy) {
  for (const boost::json::value& row : golden("mcnemar").as_array()) {
    const std::vector<double> expected = golden_numbers(row);
    const double p = mcnemar_exact(static_cast<std::int64_t>(expected[0]), static_cast<std::int64_t>(expected[1]));
    EXPECT_NEAR(p, expected[2], 1e-9 * expected[2]) << expected[0] << " lost, " << expected[1] << " won";
  }
}

TEST(Statistics, TangoIntervalIsThatOfTheLikelihood) {
  for (const boost::json::value& row : golden("tango").as_array()) {
    const std::vector<double> expected = golden_numbers(row);
    const Interval interval = tango_interval(expected[0], expected[1], expected[2]);
    // The oracle finds a maximum by search: half of a double's digits.
    EXPECT_NEAR(interval.low, expected[3], 2e-7) << row;
    EXPECT_NEAR(interval.high, expected[4], 2e-7) << row;
  }
  EXPECT_EQ(tango_interval(0.0, 0.0, 0.0), (Interval{-1.0, 1.0}));
  EXPECT_NEAR(tango_interval(5.0, 0.0, 5.0).low, -1.0, 1e-12);
  EXPECT_NEAR(tango_interval(0.0, 5.0, 5.0).high, 1.0, 1e-12);
}

TEST(Statistics, HolmIsThatOfStatsmodels) {
  for (const boost::json::value& row : golden("holm").as_array()) {
    const std::vector<double> expected = golden_numbers(row.at("adjusted"));
    const std::vector<double> adjusted = holm(golden_numbers(row.at("p")));
    ASSERT_EQ(adjusted.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(adjusted[i], expected[i], 1e-14);
  }
  EXPECT_TRUE(holm({}).empty());
}

TEST(Statistics, StudentAndQuantilesAreThoseOfScipyAndNumpy) {
  for (const boost::json::value& row : golden("student").as_array()) {
    const std::vector<double> expected = golden_numbers(row);
    EXPECT_NEAR(student_quantile(expected[0], expected[1]), expected[2], 1e-9 * std::abs(expected[2]));
  }
  for (const boost::json::value& row : golden("quantiles").as_array()) {
    const std::vector<double> values = golden_numbers(row.at("values"));
    EXPECT_NEAR(sorted_quantile(values, row.at("p").to_number<double>()), row.at("quantile").to_number<double>(),
                1e-14);
  }
  EXPECT_NEAR(normal_below(kNormal975), 0.975, 1e-15);
  EXPECT_NEAR(normal_below(kNormal80), 0.8, 1e-15);
}

TEST(Statistics, QuestionsToDetectIsNearTheExactPower) {
  for (const boost::json::value& row : golden("detect").as_array()) {
    const std::vector<double> expected = golden_numbers(row);
    const double questions = questions_to_detect(expected[0], expected[1]);
    // The exact test, which is never wrong more often than 5%, needs some more than the approximation.
    EXPECT_LT(questions, 1.01 * expected[2]) << row;
    EXPECT_GT(questions, 0.90 * expected[2]) << row;
    EXPECT_NEAR(detectable_difference(questions, expected[1]), expected[0], 1e-9);
  }
  EXPECT_EQ(detectable_difference(2.0, 0.0), 1.0);
  EXPECT_EQ(detectable_difference(0.0, 0.5), 1.0);
}

TEST(Statistics, QuestionsToEquivalenceAreTheFewest) {
  // Without a flip the interval is z^2 / (n + z^2) wide to both sides.
  const double z2 = kNormal975 * kNormal975;
  const auto none = questions_to_equivalence(0.0, 0.0, 50.0, 0.02);
  ASSERT_TRUE(none.has_value());
  EXPECT_NEAR(*none, std::ceil(z2 * 0.98 / 0.02), 1.0);
  for (const auto& [lost, won, n] : {std::tuple{3.0, 5.0, 200.0}, {10.0, 10.0, 100.0}, {1.0, 0.0, 300.0}}) {
    const auto enough = questions_to_equivalence(lost, won, n, 0.02);
    ASSERT_TRUE(enough.has_value());
    const auto inside = [&, scale = 1.0 / n](double m) {
      return tango_interval(lost * scale * m, won * scale * m, m).inside(0.02);
    };
    EXPECT_TRUE(inside(*enough + 1.0));
    EXPECT_FALSE(inside(*enough - 2.0));
  }
  EXPECT_FALSE(questions_to_equivalence(10.0, 0.0, 100.0, 0.02).has_value());
  EXPECT_FALSE(questions_to_equivalence(0.0, 0.0, 100.0, 0.0).has_value());
}

TEST(Statistics, ClusteredRateIsThatOfTheLinearisedVariance) {
  for (const boost::json::value& row : golden("clustered").as_array()) {
    const std::vector<double> expected = golden_numbers(row.at("interval"));
    const Interval interval =
        clustered_rate_interval(golden_numbers(row.at("hits")), golden_numbers(row.at("chances")));
    EXPECT_NEAR(interval.low, expected[0], 1e-12);
    EXPECT_NEAR(interval.high, expected[1], 1e-12);
  }
  // All of 60 calls in 20 conversations: as sure as 20 independent ones.
  const std::vector<double> three(20, 3.0);
  EXPECT_EQ(clustered_rate_interval(three, three), wilson_interval(20.0, 20.0));
  EXPECT_EQ(clustered_rate_interval({}, {}), (Interval{0.0, 1.0}));
}

struct Truth {
  double lost;
  double won;
  std::size_t n;
};

PairCounts draw(const Truth& truth, Random& random) {
  PairCounts counts;
  for (std::size_t i = 0; i < truth.n; ++i) {
    const double u = sample::uniform(random);
    if (u < truth.lost) {
      ++counts.lost;
    } else if (u < truth.lost + truth.won) {
      ++counts.won;
    } else {
      ++counts.both_right;
    }
  }
  return counts;
}

TEST(Statistics, TangoCoversTheTruthAndMcNemarIsSeldomWrong) {
  constexpr int kDraws = 3000;
  Random random(20261130);
  for (const Truth& truth : {Truth{0.05, 0.05, 300}, Truth{0.002, 0.002, 200}, Truth{0.02, 0.08, 150},
                             Truth{0.2, 0.2, 60}, Truth{0.0, 0.01, 400}}) {
    int covered = 0;
    int different = 0;
    for (int i = 0; i < kDraws; ++i) {
      const PairCounts counts = draw(truth, random);
      const Interval interval = tango_interval(static_cast<double>(counts.lost), static_cast<double>(counts.won),
                                               static_cast<double>(counts.total()));
      const double difference = truth.won - truth.lost;
      covered += interval.low <= difference && difference <= interval.high ? 1 : 0;
      different += mcnemar_exact(counts.lost, counts.won) < kSignificance && interval.excludes_zero() ? 1 : 0;
    }
    // Three standard errors of 95% in 3000 draws are 1.2 points; the score interval wavers by a point with its grid.
    EXPECT_GT(covered, 0.93 * kDraws) << truth.lost << ' ' << truth.won;
    if (truth.lost == truth.won) {
      EXPECT_LT(different, 0.05 * kDraws);
    }
  }
}

TEST(Statistics, PowerIsAsPromised) {
  constexpr int kDraws = 2000;
  Random random(4);
  for (const auto& [n, rate] : {std::pair{400.0, 0.10}, {1000.0, 0.04}, {200.0, 0.0}}) {
    const double difference = detectable_difference(n, rate);
    const double flips = std::max(rate, difference);
    const Truth truth{0.5 * (flips - difference), 0.5 * (flips + difference), static_cast<std::size_t>(n)};
    int found = 0;
    for (int i = 0; i < kDraws; ++i) {
      const PairCounts counts = draw(truth, random);
      found += mcnemar_exact(counts.lost, counts.won) < kSignificance ? 1 : 0;
    }
    // Of the test that the approximation is of; the exact one has a little less.
    EXPECT_GT(found, 0.72 * kDraws) << n << ' ' << rate;
    EXPECT_LT(found, 0.86 * kDraws) << n << ' ' << rate;
  }
}

TEST(Statistics, ClusteredRateCoversTheTruth) {
  constexpr int kDraws = 1500;
  Random random(9);
  int covered = 0;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<double> hits;
    std::vector<double> chances;
    for (int j = 0; j < 60; ++j) {
      // A conversation in which nearly all calls are right or few are: as one, the calls are right at 0.8.
      const double right = sample::uniform(random) < 0.75 ? 0.98 : 0.26;
      double hit = 0.0;
      for (int call = 0; call < 5; ++call) hit += sample::uniform(random) < right ? 1.0 : 0.0;
      hits.push_back(hit);
      chances.push_back(5.0);
    }
    const Interval interval = clustered_rate_interval(hits, chances);
    covered += interval.low <= 0.8 && 0.8 <= interval.high ? 1 : 0;
  }
  EXPECT_GT(covered, 0.93 * kDraws);
}

TEST(Statistics, ClusteredRateCoversTheTruthNearOne) {
  constexpr int kDraws = 600;
  constexpr int kClusters = 100;
  constexpr int kChances = 40;
  for (const double rate : {0.95, 0.99, 0.995, 0.999}) {
    Random random(31);
    int covered = 0;
    for (int i = 0; i < kDraws; ++i) {
      std::vector<double> hits;
      std::vector<double> chances;
      for (int j = 0; j < kClusters; ++j) {
        // u^s is a draw of Beta(1/s, 1), of mean 1 / (s + 1): most texts have hardly a miss, a few have most.
        const double miss = std::pow(sample::uniform(random), rate / (1.0 - rate));
        double hit = 0.0;
        for (int chance = 0; chance < kChances; ++chance) hit += sample::uniform(random) < miss ? 0.0 : 1.0;
        hits.push_back(hit);
        chances.push_back(kChances);
      }
      const Interval interval = clustered_rate_interval(hits, chances);
      covered += interval.low <= rate && rate <= interval.high ? 1 : 0;
    }
    // 95%, less what so few clusters cost (a simulation in numpy has 92 at the least) and two standard errors.
    EXPECT_GT(covered, 0.905 * kDraws) << rate;
  }
}

TEST(Statistics, AMissMakesAClusteredRateNoSurer) {
  // Top-1 agreement of 100 texts of 256 positions.
  std::vector<double> hits(100, 256.0);
  const std::vector<double> chances(100, 256.0);
  const Interval all = clustered_rate_interval(hits, chances);
  EXPECT_EQ(all, wilson_interval(100.0, 100.0));
  hits[17] -= 1.0;
  const Interval one_less = clustered_rate_interval(hits, chances);
  EXPECT_LT(one_less.low, all.low);
  EXPECT_GT(one_less.high - one_less.low, all.high - all.low);
  // A text that is lost whole is one of 100 that are.
  hits[17] = 0.0;
  const Interval whole = clustered_rate_interval(hits, chances);
  EXPECT_NEAR(whole.low, wilson_interval(99.0, 100.0).low, 2e-3);
  EXPECT_NEAR(whole.high, wilson_interval(99.0, 100.0).high, 2e-3);
}

}  // namespace
}  // namespace tessera::quality
