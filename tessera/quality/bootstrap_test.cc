// Resampling against numpy on the same indices, scipy's own bootstrap and its exact permutation test, and how often the
// intervals cover the truth.
#include "tessera/quality/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tessera/quality/sample_evaluation.h"
#include "tessera/quality/statistics_goldens.h"

namespace tessera::quality {
namespace {

TEST(Bootstrap, IntervalsAreThoseOfNumpyOnTheSameResamples) {
  for (const boost::json::value& row : golden("bootstrap").as_array()) {
    std::vector<Unit> units;
    for (const boost::json::value& unit : row.at("units").as_array()) {
      const std::vector<double> numbers = golden_numbers(unit);
      units.push_back({numbers[0], numbers[1], numbers[2], numbers[3]});
    }
    const std::uint64_t seed = std::stoull(std::string(row.at("seed").as_string()));
    for (const auto& [what, name] : {std::pair{Measure::kRatio, "ratio"}, {Measure::kDifference, "difference"}}) {
      const std::vector<double> expected = golden_numbers(row.at(name));
      const Interval interval = bootstrap_interval(what, units, seed);
      EXPECT_NEAR(interval.low, expected[0], 1e-9) << name << " of " << units.size();
      EXPECT_NEAR(interval.high, expected[1], 1e-9) << name << " of " << units.size();
    }
  }
}

TEST(Bootstrap, IntervalIsNearThatOfScipy) {
  const boost::json::value& row = golden("library_bootstrap");
  const std::vector<double> values = golden_numbers(row.at("values"));
  const std::vector<double> weights = golden_numbers(row.at("weights"));
  const std::vector<double> expected = golden_numbers(row.at("interval"));
  std::vector<Unit> units;
  for (std::size_t i = 0; i < values.size(); ++i) units.push_back({values[i], weights[i]});
  const Interval interval = bootstrap_interval(Measure::kRatio, units, 1);
  const double tolerance = 0.04 * (expected[1] - expected[0]);
  EXPECT_NEAR(interval.low, expected[0], tolerance);
  EXPECT_NEAR(interval.high, expected[1], tolerance);
}

TEST(Bootstrap, SwapTestIsNearTheExactPermutationTest) {
  for (const boost::json::value& row : golden("swaps").as_array()) {
    const std::vector<double> reference = golden_numbers(row.at("reference"));
    const std::vector<double> other = golden_numbers(row.at("other"));
    std::vector<Unit> units;
    for (std::size_t i = 0; i < reference.size(); ++i) units.push_back({reference[i], 1.0, other[i], 1.0});
    const double expected = row.at("p").to_number<double>();
    const double error = std::sqrt(expected * (1.0 - expected) / static_cast<double>(kResamples));
    EXPECT_NEAR(swap_test(units, 3), expected, 4.0 * error + 2e-4);
  }
}

TEST(Bootstrap, SeedsGiveTheSameAndOtherNumbers) {
  std::vector<Unit> units;
  for (int i = 0; i < 30; ++i) units.push_back({static_cast<double>(i % 7), 1.0, static_cast<double>(i % 5), 1.0});
  EXPECT_EQ(bootstrap_interval(Measure::kRatio, units, 8), bootstrap_interval(Measure::kRatio, units, 8));
  EXPECT_EQ(swap_test(units, 8), swap_test(units, 8));
  std::set<std::uint64_t> seeds{seed_for(1, {}),          seed_for(2, {}),          seed_for(1, {"a"}),
                                seed_for(1, {"ab", "c"}), seed_for(1, {"a", "bc"}), seed_for(1, {"abc"}),
                                seed_for(1, {"", "abc"})};
  EXPECT_EQ(seeds.size(), 7U);
}

TEST(Bootstrap, FirstNumbersAreThoseOfTheGenerator) {
  // The first outputs of SplitMix64 from 0, as the generator's authors' test vectors have them.
  Random random(0);
  EXPECT_EQ(random.next(), 0xe220a8397b1dcdafU);
  EXPECT_EQ(random.next(), 0x6e789e6aa1b965f4U);
  EXPECT_EQ(random.next(), 0x06c45d188009454fU);
}

TEST(Bootstrap, FewUnitsSupportNothing) {
  const std::vector<Unit> one{{1.0, 2.0, 3.0, 4.0}};
  const Interval interval = bootstrap_interval(Measure::kRatio, one, 1);
  EXPECT_TRUE(std::isinf(interval.low) && std::isinf(interval.high));
  EXPECT_EQ(swap_test(one, 1), 1.0);
  const std::vector<Unit> nothing(12);
  EXPECT_TRUE(std::isinf(bootstrap_interval(Measure::kRatio, nothing, 1).low));
  EXPECT_EQ(swap_test(nothing, 1), 1.0);
}

TEST(Bootstrap, IntervalsOverClustersCoverTheTruth) {
  constexpr int kDraws = 200;
  for (const std::size_t passages : {12, 50}) {
    Random random(77 + passages);
    int covered = 0;
    for (int i = 0; i < kDraws; ++i) {
      std::vector<Unit> units;
      for (std::size_t j = 0; j < passages; ++j) {
        // 40 positions that share their passage's level, 0.5 to 1.5: mean 1.
        const double level = 0.5 + sample::uniform(random);
        Unit unit;
        for (int position = 0; position < 40; ++position) {
          unit.numerator += -std::log1p(-sample::uniform(random)) * level;
          unit.denominator += 1.0;
        }
        units.push_back(unit);
      }
      const Interval interval = bootstrap_interval(Measure::kRatio, units, static_cast<std::uint64_t>(i));
      covered += interval.low <= 1.0 && 1.0 <= interval.high ? 1 : 0;
    }
    // 95%, less three standard errors of 200 draws.
    EXPECT_GT(covered, 0.90 * kDraws) << passages;
  }
}

}  // namespace
}  // namespace tessera::quality
