#include "tessera/planner/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace tessera::planner {
namespace {

using ::testing::HasSubstr;

TEST(Routing, UniformFollowsTheFormula) {
  const std::vector<double> p = expert_probabilities({}, 384, 8);
  for (const std::int64_t batch : {0, 1, 2, 8, 64, 4096}) {
    const double formula = 384 * (1 - std::pow(1 - 8.0 / 384, static_cast<double>(batch)));
    EXPECT_NEAR(expected_experts(p, batch), formula, 1e-9) << batch;
  }
  // Counted by hand elsewhere: 8, 59.5, 110, 188, 284 of 384.
  EXPECT_NEAR(expected_experts(p, 8), 59.5, 0.1);
  EXPECT_NEAR(expected_experts(p, 16), 110, 0.5);
  EXPECT_NEAR(expected_experts(p, 32), 188, 0.5);
  EXPECT_NEAR(expected_experts(p, 64), 284, 0.5);
}

TEST(Routing, AllExpertsWhereATokenTakesAll) {
  for (const double exponent : {0.0, 1.0, 3.0}) {
    EXPECT_DOUBLE_EQ(expected_experts(expert_probabilities({exponent}, 5, 5), 1), 5.0) << exponent;
  }
  EXPECT_DOUBLE_EQ(expected_experts(expert_probabilities({}, 1, 1), 3), 1.0);
}

TEST(Routing, ZipfProbabilitiesSumToTheChoices) {
  for (const double exponent : {0.0, 0.3, 0.8, 1.0, 1.5, 4.0, 10.0}) {
    for (const std::int64_t k : {1, 2, 8, 383}) {
      const std::vector<double> p = expert_probabilities({exponent}, 384, k);
      EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), static_cast<double>(k), 1e-9) << exponent << " " << k;
      for (std::size_t e = 0; e < p.size(); ++e) {
        EXPECT_GT(p[e], 0.0);
        EXPECT_LE(p[e], e > 0 ? p[e - 1] : 1.0);
      }
      // Below the cap they fall as the exponent says.
      if (p[381] < 1.0) {
        EXPECT_NEAR(p[383] / p[381], std::pow(382.0 / 384.0, exponent), 1e-9);
      }
      EXPECT_NEAR(expected_experts(p, 1), static_cast<double>(k), 1e-9);
    }
  }
}

TEST(Routing, SkewTouchesFewerExperts) {
  double before = 1e9;
  for (const double exponent : {0.0, 0.5, 1.0, 2.0}) {
    const double touched = expected_experts(expert_probabilities({exponent}, 256, 8), 32);
    EXPECT_LT(touched, before);
    before = touched;
  }
}

// Tokens drawn so that each expert is taken with exactly its probability (systematic sampling: one random start, unit
// steps through the cumulated probabilities); the mean number of different experts is what the formula says.
TEST(Routing, ExpectationEqualsTheMeanOfDraws) {
  constexpr std::uint64_t kSeed = 20261130;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  constexpr int kBatch = 16;
  constexpr int kTrials = 4000;
  const std::vector<double> p = expert_probabilities({1.0}, 64, 6);
  double sum = 0;
  double squares = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<bool> touched(p.size(), false);
    for (int token = 0; token < kBatch; ++token) {
      double next = unit(random);
      double below = 0;
      for (std::size_t e = 0; e < p.size(); ++e) {
        below += p[e];
        if (next < below) {
          touched[e] = true;
          next += 1.0;
        }
      }
    }
    const auto count = static_cast<double>(std::count(touched.begin(), touched.end(), true));
    sum += count;
    squares += count * count;
  }
  const double mean = sum / kTrials;
  const double error = std::sqrt((squares / kTrials - mean * mean) / kTrials);
  EXPECT_NEAR(expected_experts(p, kBatch), mean, 5 * error);
  EXPECT_LT(error, 0.1);
}

TEST(Routing, ParsesAndRefuses) {
  EXPECT_EQ(parse_routing("uniform")->zipf_exponent, 0.0);
  EXPECT_EQ(parse_routing("zipf:0.8")->zipf_exponent, 0.8);
  EXPECT_EQ(routing_text(*parse_routing("zipf:0.8")), "zipf:0.8");
  EXPECT_EQ(routing_text({}), "uniform");
  for (const char* text : {"", "zipf", "zipf:", "zipf:x", "zipf:1x", "zipf:-1", "zipf:11", "zipf:nan", "flat"}) {
    const auto routing = parse_routing(text);
    ASSERT_FALSE(routing.has_value()) << text;
    EXPECT_THAT(routing.error().message(), HasSubstr("expected uniform or zipf:S")) << text;
  }
}

}  // namespace
}  // namespace tessera::planner
