// Distances against scipy.special.rel_entr and the package rbo (tests/goldens/quality), and at the edges.
#include "tessera/quality/distances.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tessera/quality/statistics_goldens.h"

namespace tessera::quality {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Distances, AreThoseOfScipyAndRbo) {
  for (const boost::json::value& row : golden("distances").as_array()) {
    const std::vector<float> reference = golden_numbers<float>(row.at("reference"));
    const std::vector<float> other = golden_numbers<float>(row.at("other"));
    const PositionDistance distance = position_distance(7, 2, reference, other);
    const double kl = row.at("kl_terms").to_number<double>();
    // scipy forms each term from probabilities: of small divergences the last digits are its rounding.
    EXPECT_NEAR(distance.kl, kl, 1e-9 * kl + 1e-14);
    EXPECT_NEAR(distance.kl, row.at("kl").to_number<double>(), 1e-9 * kl + 1e-14);
    EXPECT_NEAR(distance.rank_overlap, row.at("rank_overlap").to_number<double>(), 1e-12);
    const std::vector<int> best = golden_numbers<int>(row.at("best"));
    EXPECT_EQ(distance.reference_best, best[0]);
    EXPECT_EQ(distance.other_best, best[1]);
    EXPECT_EQ(distance.same_best, best[0] == best[1]);
    EXPECT_EQ(distance.position, 7);
    EXPECT_EQ(distance.reference_logprob, static_cast<double>(reference[2]));
    EXPECT_EQ(distance.other_logprob, static_cast<double>(other[2]));
  }
}

TEST(Distances, OfEqualDistributionsAreNothing) {
  const std::vector<float> logprobs = golden_numbers<float>(golden("distances").at(4).at("other"));
  const PositionDistance distance = position_distance(0, 0, logprobs, logprobs);
  EXPECT_EQ(distance.kl, 0.0);
  EXPECT_TRUE(distance.same_best);
  EXPECT_EQ(distance.rank_overlap, 1.0);
}

TEST(Distances, OfDisjointOrdersOverlapIsNone) {
  std::vector<float> falling;
  std::vector<float> rising;
  for (int i = 0; i < 40; ++i) {
    falling.push_back(static_cast<float>(-i));
    rising.push_back(static_cast<float>(i - 40));
  }
  const PositionDistance distance = position_distance(0, 0, falling, rising);
  EXPECT_EQ(distance.rank_overlap, 0.0);
  EXPECT_EQ(distance.reference_best, 0);
  EXPECT_EQ(distance.other_best, 39);
}

TEST(Distances, OfEquallyLikelyTokensTheLowerIdIsBest) {
  const std::vector<float> even(30, std::log(1.0F / 30.0F));
  std::vector<float> uneven = even;
  uneven[4] += 1e-3F;
  const PositionDistance distance = position_distance(0, 0, even, uneven);
  EXPECT_EQ(distance.reference_best, 0);
  EXPECT_EQ(distance.other_best, 4);
  EXPECT_GT(distance.kl, 0.0);
}

TEST(Distances, WhatTheOtherExcludesIsInfinitelyFar) {
  const float half = std::log(0.5F);
  const std::vector<float> both{half, half, -kInfinity};
  const std::vector<float> one{0.0F, -kInfinity, -kInfinity};
  EXPECT_TRUE(std::isinf(position_distance(0, 0, both, one).kl));
  // The other way round it is ln 2: the reference has no probability to miss.
  EXPECT_NEAR(position_distance(0, 0, one, both).kl, std::log(2.0), 1e-7);
  const std::vector<float> broken{std::nanf(""), half, half};
  EXPECT_TRUE(std::isinf(position_distance(0, 0, both, broken).kl));
  EXPECT_TRUE(std::isinf(position_distance(0, 0, broken, both).kl));
}

}  // namespace
}  // namespace tessera::quality
