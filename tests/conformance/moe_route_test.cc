#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "tests/conformance/backend_test.h"
#include "tests/conformance/independent.h"

namespace tessera::conformance {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Routing {
  std::int32_t n_group = 1;
  std::int32_t topk_group = 1;
  std::int32_t taken = 1;
  bool norm = true;
  float factor = 1.0f;
};

struct Routed {
  std::vector<std::int32_t> ids;  // [tokens, taken]
  HostMatrix weights;             // [tokens, taken]
};

class MoeRouteTest : public BackendTest {
 protected:
  Routed run(const HostMatrix& logits, const std::optional<HostMatrix>& bias, const Routing& routing,
             std::int64_t padding = 0) {
    ops::Weight bias_weight;
    if (bias.has_value()) bias_weight = device_.weight(*bias, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
    const DeviceMatrix device_logits = device_.upload_matrix(logits, padding);
    const std::int64_t count = logits.rows * routing.taken;
    const auto ids = device_.upload(std::vector<std::int32_t>(static_cast<std::size_t>(count), -7));
    const DeviceMatrix weights = device_.output_matrix(logits.rows, routing.taken);
    ops::MoeRouteParams params;
    params.logits = device_logits.view();
    params.correction_bias = bias.has_value() ? &bias_weight : nullptr;
    params.n_group = routing.n_group;
    params.topk_group = routing.topk_group;
    params.num_experts_per_tok = routing.taken;
    params.norm_topk_prob = routing.norm;
    params.routed_scaling_factor = routing.factor;
    params.expert_ids = ids.data();
    params.expert_weights = weights.view().f32();
    backend().moe_route(stream(), params);
    return {device_.download(ids), device_.download_matrix(weights)};
  }

  struct Expected {
    std::vector<std::int32_t> ids;
    std::vector<double> weights;
    double margin = std::numeric_limits<double>::infinity();  // By which the last thing chosen beat the next.
  };
  // One token, without NaN, in double throughout.
  static Expected formula(const HostMatrix& logits, std::int64_t t, const std::optional<HostMatrix>& bias,
                          const Routing& routing) {
    const std::int64_t experts = logits.cols;
    std::vector<double> score;
    std::vector<double> choice;
    for (std::int64_t e = 0; e < experts; ++e) {
      score.push_back(1.0 / (1.0 + std::exp(-static_cast<double>(logits.at(t, e)))));
      choice.push_back(score.back() + (bias.has_value() ? static_cast<double>(bias->at(0, e)) : 0.0));
    }
    Expected out;
    // Takes the best `count` one after another, the first of equals.
    const auto take = [&out](std::vector<std::pair<double, std::int32_t>> from, std::int64_t count) {
      std::vector<std::int32_t> taken;
      for (std::int64_t i = 0; i < count; ++i) {
        auto best = from.begin();
        for (auto it = from.begin(); it != from.end(); ++it) {
          if (it->first > best->first) best = it;
        }
        const double value = best->first;
        taken.push_back(best->second);
        from.erase(best);
        if (i == count - 1) {
          for (const auto& [other, index] : from) out.margin = std::min(out.margin, value - other);
        }
      }
      return taken;
    };
    const std::int64_t size = experts / routing.n_group;
    std::vector<std::pair<double, std::int32_t>> groups;
    for (std::int32_t g = 0; g < routing.n_group; ++g) {
      std::vector<double> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::sort(members.rbegin(), members.rend());
      groups.emplace_back(size > 1 ? members[0] + members[1] : members[0], g);
    }
    std::vector<std::int32_t> kept = take(groups, routing.topk_group);
    std::sort(kept.begin(), kept.end());
    std::vector<std::pair<double, std::int32_t>> candidates;
    for (const std::int32_t g : kept) {
      for (std::int64_t i = 0; i < size; ++i) {
        candidates.emplace_back(choice[static_cast<std::size_t>(g * size + i)],
                                static_cast<std::int32_t>(g * size + i));
      }
    }
    out.ids = take(candidates, routing.taken);
    std::sort(out.ids.begin(), out.ids.end());
    double sum = 0.0;
    for (const std::int32_t e : out.ids) sum += score[static_cast<std::size_t>(e)];
    for (const std::int32_t e : out.ids) {
      const double own = score[static_cast<std::size_t>(e)];
      out.weights.push_back((routing.norm ? own / (sum + 1e-20) : own) * static_cast<double>(routing.factor));
    }
    return out;
  }
  static std::vector<std::int32_t> ids_of(const Routed& routed, std::int64_t t, const Routing& routing) {
    const auto begin = routed.ids.begin() + t * routing.taken;
    return {begin, begin + routing.taken};
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, MoeRouteTest, all_backends(), backend_case_name);

TEST_P(MoeRouteTest, MatchesTheFormula) {
  std::uint64_t seed = 1601;
  struct Case {
    std::int64_t experts;
    Routing routing;
  };
  const std::vector<Case> cases = {{384, {1, 1, 8, true, 2.827f}}, {256, {8, 4, 8, true, 2.5f}},
                                   {160, {1, 1, 8, true, 2.5f}},   {16, {4, 1, 3, true, 1.0f}},
                                   {16, {4, 2, 8, false, 2.5f}},   {7, {1, 1, 7, true, 1.0f}},
                                   {1, {1, 1, 1, true, 1.5f}},     {24, {3, 3, 5, false, 1.0f}}};
  for (const Case& c : cases) {
    for (const bool biased : {false, true}) {
      ++seed;
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << c.experts << " experts, " << c.routing.topk_group
                                      << " of " << c.routing.n_group << " groups, " << c.routing.taken << " taken, "
                                      << (biased ? "biased" : "unbiased"));
      Random random(seed);
      const HostMatrix logits = random_matrix(random, 67, c.experts, 2.0f);
      std::optional<HostMatrix> bias;
      if (biased) bias = random_matrix(random, 1, c.experts, 0.3f);
      const Routed routed = run(logits, bias, c.routing, 5);
      int compared = 0;
      for (std::int64_t t = 0; t < logits.rows; ++t) {
        const Expected expected = formula(logits, t, bias, c.routing);
        if (expected.margin < 1e-6) continue;  // F32 may see it otherwise.
        ++compared;
        ASSERT_EQ(ids_of(routed, t, c.routing), expected.ids) << "token " << t;
        for (std::int64_t j = 0; j < c.routing.taken; ++j) {
          const double want = expected.weights[static_cast<std::size_t>(j)];
          EXPECT_NEAR(static_cast<double>(routed.weights.at(t, j)), want, 2e-6 * want) << "token " << t;
        }
      }
      EXPECT_GE(compared, 60);
    }
  }
}

TEST_P(MoeRouteTest, ABiasInBf16WouldChooseOthers) {
  // Two experts with equal scores, told apart by a bias that BF16 cannot: rounded, they would tie and the first win.
  HostMatrix logits(1, 4);
  HostMatrix bias(1, 4);
  logits.at(0, 3) = 5.0f;
  bias.at(0, 1) = 1.0f;
  bias.at(0, 2) = 1.0f + 0x1.0p-10f;
  bias.at(0, 3) = -8.0f;
  EXPECT_EQ(nearest_bf16(bias.at(0, 2)), 1.0f);
  EXPECT_EQ(run(logits, bias, {1, 1, 1}).ids, std::vector<std::int32_t>{2});

  // And at the size of a model, where trained biases lie close together.
  constexpr std::uint64_t kSeed = 1650;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const Routing routing{1, 1, 8, true, 2.827f};
  const HostMatrix many = random_matrix(random, 200, 384, 0.2f);
  HostMatrix near_bias = random_matrix(random, 1, 384, 0.02f);
  HostMatrix rounded = near_bias;
  for (std::int64_t e = 0; e < 384; ++e) {
    near_bias.at(0, e) += 6.0f;
    rounded.at(0, e) = nearest_bf16(near_bias.at(0, e));
  }
  const Routed routed = run(many, near_bias, routing);
  int compared = 0;
  int others = 0;
  for (std::int64_t t = 0; t < many.rows; ++t) {
    const Expected expected = formula(many, t, near_bias, routing);
    if (expected.margin < 2e-6) continue;
    ++compared;
    EXPECT_EQ(ids_of(routed, t, routing), expected.ids) << "token " << t;
    if (formula(many, t, rounded, routing).ids != expected.ids) ++others;
  }
  EXPECT_GE(compared, 150);
  EXPECT_GE(others, 100);
}

TEST_P(MoeRouteTest, TheBiasOnlySelects) {
  HostMatrix logits(1, 4);
  logits.at(0, 0) = 1.0f;
  logits.at(0, 1) = 0.5f;
  HostMatrix bias(1, 4);
  bias.at(0, 2) = 10.0f;
  bias.at(0, 3) = 7.0f;
  const Routed routed = run(logits, bias, {1, 1, 2, false, 3.0f});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{2, 3}));
  EXPECT_FLOAT_EQ(routed.weights.at(0, 0), 1.5f);
  EXPECT_FLOAT_EQ(routed.weights.at(0, 1), 1.5f);
}

TEST_P(MoeRouteTest, TiesGoToTheLowerGroupAndTheLowerExpert) {
  const HostMatrix equal(3, 32);
  EXPECT_EQ(run(equal, std::nullopt, {1, 1, 3}).ids, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(run(equal.slice(0, 1), std::nullopt, {8, 2, 5}).ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  HostMatrix logits(1, 32);
  for (const std::int64_t e : {9, 12, 14, 30}) logits.at(0, e) = 2.0f;
  EXPECT_EQ(run(logits, std::nullopt, {1, 1, 3}).ids, (std::vector<std::int32_t>{9, 12, 14}));
  EXPECT_EQ(run(logits, std::nullopt, {1, 1, 6}).ids, (std::vector<std::int32_t>{0, 1, 9, 12, 14, 30}));
  // Groups of 4: 3 has two of the best, 2 and 7 one each, and so 2 comes before 7.
  EXPECT_EQ(run(logits, std::nullopt, {8, 2, 3}).ids, (std::vector<std::int32_t>{9, 12, 14}));
  EXPECT_EQ(run(logits, std::nullopt, {8, 2, 5}).ids, (std::vector<std::int32_t>{8, 9, 10, 12, 14}));
  // Bias and score may add up to a tie.
  HostMatrix bias(1, 4);
  bias.at(0, 1) = 0.5f;
  HostMatrix scores(1, 4);
  scores.at(0, 0) = kInfinity;  // 1 against 0.5 + 0.5.
  scores.at(0, 2) = kInfinity;
  EXPECT_EQ(run(scores, bias, {1, 1, 2}).ids, (std::vector<std::int32_t>{0, 1}));
  // Scores are F32, where different logits may have one.
  HostMatrix saturated(1, 2);
  saturated.at(0, 0) = 20.0f;
  saturated.at(0, 1) = 25.0f;
  EXPECT_EQ(run(saturated, std::nullopt, {1, 1, 1}).ids, (std::vector<std::int32_t>{0}));
}

TEST_P(MoeRouteTest, AGroupIsWorthItsTwoLargest) {
  HostMatrix logits(1, 12);
  for (std::int64_t e = 0; e < 12; ++e) logits.at(0, e) = -6.0f;
  logits.at(0, 0) = 9.0f;  // The best expert, alone in its group.
  logits.at(0, 4) = 1.0f;  // Two good ones.
  logits.at(0, 5) = 1.0f;
  for (std::int64_t e = 8; e < 12; ++e) logits.at(0, e) = 0.2f;  // Four fair ones.
  EXPECT_EQ(run(logits, std::nullopt, {3, 1, 2}).ids, (std::vector<std::int32_t>{4, 5}));
  EXPECT_EQ(run(logits, std::nullopt, {3, 2, 3}).ids, (std::vector<std::int32_t>{4, 5, 8}));
  EXPECT_EQ(run(logits, std::nullopt, {3, 3, 3}).ids, (std::vector<std::int32_t>{0, 4, 5}));
}

TEST_P(MoeRouteTest, NaNIsChosenLastAndSpoilsItsTokenAlone) {
  constexpr std::uint64_t kSeed = 1660;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const Routing routing{1, 1, 3, true, 2.0f};
  HostMatrix logits = random_matrix(random, 5, 8);
  const Routed sound = run(logits, std::nullopt, routing);
  for (std::int64_t e = 0; e < 8; ++e) logits.at(1, e) = kNaN;
  for (std::int64_t e = 0; e < 8; ++e) logits.at(2, e) = e == 6 ? 1.0f : kNaN;
  for (std::int64_t e = 0; e < 8; ++e) logits.at(3, e) = e % 2 == 0 ? kNaN : -static_cast<float>(e);
  const Routed routed = run(logits, std::nullopt, routing);
  for (const std::int64_t t : {0, 4}) {
    EXPECT_EQ(ids_of(routed, t, routing), ids_of(sound, t, routing));
    EXPECT_TRUE(same_bits(routed.weights.slice(t, t + 1), sound.weights.slice(t, t + 1)));
  }
  EXPECT_EQ(ids_of(routed, 1, routing), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(ids_of(routed, 2, routing), (std::vector<std::int32_t>{0, 1, 6}));
  EXPECT_EQ(ids_of(routed, 3, routing), (std::vector<std::int32_t>{1, 3, 5}));
  for (std::int64_t j = 0; j < 3; ++j) {
    EXPECT_TRUE(std::isnan(routed.weights.at(1, j)));
    EXPECT_TRUE(std::isnan(routed.weights.at(2, j)));
    EXPECT_TRUE(std::isfinite(routed.weights.at(3, j)));
  }

  // In groups: one without a number is worth least, one with a single number too.
  HostMatrix grouped(1, 8);
  for (std::int64_t e = 0; e < 8; ++e) grouped.at(0, e) = e < 2 || e == 4 ? kNaN : -3.0f;
  grouped.at(0, 5) = 9.0f;
  EXPECT_EQ(run(grouped, std::nullopt, {4, 2, 3}).ids, (std::vector<std::int32_t>{2, 3, 6}));
  HostMatrix bias(1, 8);
  bias.at(0, 6) = kNaN;
  EXPECT_EQ(run(HostMatrix(1, 8), bias, {1, 1, 7}).ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 7}));
}

TEST_P(MoeRouteTest, InfiniteLogitsAreScoresOfOneAndZero) {
  HostMatrix logits(2, 4);
  logits.at(0, 1) = kInfinity;
  logits.at(0, 2) = -kInfinity;
  for (std::int64_t e = 0; e < 4; ++e) logits.at(1, e) = -kInfinity;
  const Routed routed = run(logits, std::nullopt, {1, 1, 2, true, 1.0f});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{0, 1, 0, 1}));
  EXPECT_NEAR(routed.weights.at(0, 0), 1.0f / 3.0f, 1e-6f);
  EXPECT_NEAR(routed.weights.at(0, 1), 2.0f / 3.0f, 1e-6f);
  EXPECT_EQ(routed.weights.at(1, 0), 0.0f);  // Zero over 1e-20, not over zero.
  EXPECT_EQ(routed.weights.at(1, 1), 0.0f);
}

TEST_P(MoeRouteTest, ATokenDependsOnItselfAlone) {
  constexpr std::uint64_t kSeed = 1670;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const Routing routing{8, 4, 8, true, 2.5f};
  const HostMatrix logits = random_matrix(random, 33, 256);
  const HostMatrix bias = random_matrix(random, 1, 256, 0.1f);
  const Routed whole = run(logits, bias, routing);
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    const Routed alone = run(logits.slice(t, t + 1), bias, routing);
    EXPECT_EQ(alone.ids, ids_of(whole, t, routing));
    EXPECT_TRUE(same_bits(alone.weights, whole.weights.slice(t, t + 1)));
  }
  EXPECT_TRUE(run(HostMatrix(0, 256), bias, routing).ids.empty());
}

using MoeRouteDeathTest = MoeRouteTest;
INSTANTIATE_TEST_SUITE_P(Backends, MoeRouteDeathTest, all_backends(), backend_case_name);

TEST_P(MoeRouteDeathTest, RefusesGroupsAndCountsThatDoNotFit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const HostMatrix logits(1, 8);
  EXPECT_DEATH(run(logits, std::nullopt, {3, 1, 1}), "8 experts in 3 groups");
  EXPECT_DEATH(run(logits, std::nullopt, {8, 1, 1}), "8 experts in 8 groups");
  EXPECT_DEATH(run(logits, std::nullopt, {2, 3, 1}), "3 of 2 groups");
  EXPECT_DEATH(run(logits, std::nullopt, {2, 1, 5}), "5 of 4 experts");
  EXPECT_DEATH(run(logits, HostMatrix(1, 7), {1, 1, 1}), "expected \\[1, 8\\]");
}

}  // namespace
}  // namespace tessera::conformance
