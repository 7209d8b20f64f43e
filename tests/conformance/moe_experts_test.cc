#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tests/conformance/guarded_scratch.h"
#include "tests/conformance/quantized_weight.h"

namespace tessera::conformance {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Routed experts in host memory.
struct HostExperts {
  std::vector<StoredWeight> gate;
  std::vector<StoredWeight> up;
  std::vector<StoredWeight> down;
  std::int64_t hidden() const { return gate[0].cols; }
  std::int64_t intermediate() const { return gate[0].rows; }
};

// A batch of tokens and what each takes.
struct Tokens {
  HostMatrix in;
  HostMatrix residual;
  std::int32_t taken = 1;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  Tokens slice(std::int64_t begin, std::int64_t end) const {
    return {in.slice(begin, end),
            residual.slice(begin, end),
            taken,
            {ids.begin() + begin * taken, ids.begin() + end * taken},
            {weights.begin() + begin * taken, weights.begin() + end * taken}};
  }
};

class MoeExpertsTest : public BackendTest {
 protected:
  static HostExperts make_experts(Random& random, const WeightCase& c, std::int64_t experts, std::int64_t hidden,
                                  std::int64_t intermediate) {
    HostExperts made;
    // Sums of a row's products keep their inputs' magnitude.
    const double in_spread = 1.0 / std::sqrt(static_cast<double>(hidden));
    const double middle_spread = 1.0 / std::sqrt(static_cast<double>(intermediate));
    for (std::int64_t e = 0; e < experts; ++e) {
      made.gate.push_back(random_stored_weight(random, c.format, intermediate, hidden, c.group_size, in_spread));
      made.up.push_back(random_stored_weight(random, c.format, intermediate, hidden, c.group_size, in_spread));
      made.down.push_back(random_stored_weight(random, c.format, hidden, intermediate, c.group_size, middle_spread));
    }
    return made;
  }
  static Tokens make_tokens(Random& random, std::int64_t tokens, std::int64_t hidden, std::int64_t experts,
                            std::int32_t taken) {
    Tokens made{random_matrix(random, tokens, hidden), random_matrix(random, tokens, hidden), taken, {}, {}};
    for (std::int64_t t = 0; t < tokens; ++t) {
      // Ascending and distinct, drawn by skipping.
      std::int64_t left = taken;
      for (std::int64_t e = 0; e < experts && left > 0; ++e) {
        if (random.below(experts - e) >= left) continue;
        made.ids.push_back(static_cast<std::int32_t>(e));
        made.weights.push_back(static_cast<float>(random.uniform()));
        --left;
      }
    }
    return made;
  }
  base::Result<ops::ExpertStack> try_prepare(const HostExperts& experts) {
    std::vector<ops::WeightSource> gate;
    std::vector<ops::WeightSource> up;
    std::vector<ops::WeightSource> down;
    for (std::size_t e = 0; e < experts.gate.size(); ++e) {
      gate.push_back(experts.gate[e].source());
      up.push_back(experts.up[e].source());
      down.push_back(experts.down[e].source());
    }
    return backend().prepare_experts({gate, up, down});
  }
  ops::ExpertStack prepare(const HostExperts& experts) {
    auto stack = try_prepare(experts);
    EXPECT_TRUE(stack.has_value()) << (stack.has_value() ? "" : stack.error().message());
    return stack.has_value() ? std::move(*stack) : ops::ExpertStack{};
  }
  HostMatrix run(const ops::ExpertStack& stack, const Tokens& tokens, std::int64_t padding = 0) {
    const DeviceMatrix in = device_.upload_matrix(tokens.in, padding);
    const DeviceMatrix out = device_.upload_matrix(tokens.residual, 2 * padding);
    const auto ids = device_.upload(tokens.ids);
    const auto weights = device_.upload(tokens.weights);
    const GuardedScratch scratch(
        device_, backend().moe_experts_scratch_bytes(stack, tokens.taken, std::max(tokens.in.rows, scratch_tokens_)));
    ops::MoeExpertsParams params;
    params.in = in.view();
    params.experts = &stack;
    params.num_experts_per_tok = tokens.taken;
    params.expert_ids = ids.data();
    params.expert_weights = weights.data();
    params.out = out.view();
    params.scratch = scratch.data();
    backend().moe_experts(stream(), params);
    scratch.expect_guards_whole();
    return device_.download_matrix(out);
  }
  static std::vector<double> formula(const HostExperts& experts, const Tokens& tokens) {
    std::vector<double> out;
    const std::int64_t hidden = experts.hidden();
    const std::int64_t intermediate = experts.intermediate();
    for (std::int64_t t = 0; t < tokens.in.rows; ++t) {
      std::vector<long double> sums;
      for (std::int64_t n = 0; n < hidden; ++n) sums.push_back(static_cast<long double>(tokens.residual.at(t, n)));
      for (std::int64_t j = 0; j < tokens.taken; ++j) {
        const auto place = static_cast<std::size_t>(t * tokens.taken + j);
        const auto e = static_cast<std::size_t>(tokens.ids[place]);
        std::vector<double> middle;
        for (std::int64_t m = 0; m < intermediate; ++m) {
          double gate = 0.0;
          double up = 0.0;
          for (std::int64_t k = 0; k < hidden; ++k) {
            const double x = tokens.in.at(t, k);
            gate += x * static_cast<double>(experts.gate[e].values.at(m, k));
            up += x * static_cast<double>(experts.up[e].values.at(m, k));
          }
          middle.push_back(gate / (1.0 + std::exp(-gate)) * up);
        }
        for (std::int64_t n = 0; n < hidden; ++n) {
          double sum = 0.0;
          for (std::int64_t m = 0; m < intermediate; ++m) {
            sum += middle[static_cast<std::size_t>(m)] * static_cast<double>(experts.down[e].values.at(n, m));
          }
          sums[static_cast<std::size_t>(n)] += static_cast<long double>(tokens.weights[place]) * sum;
        }
      }
      for (const long double sum : sums) out.push_back(static_cast<double>(sum));
    }
    return out;
  }
  // Token by token. Kernels may round activations to BF16 before each of the two products: that is off by some 0.5% of
  // what a token's experts put out, which is of magnitude 1 and up.
  testing::AssertionResult near_formula(const HostMatrix& actual, const HostExperts& experts, const Tokens& tokens) {
    const std::vector<double> expected = formula(experts, tokens);
    for (std::int64_t t = 0; t < actual.rows; ++t) {
      const std::vector<double> row(expected.begin() + t * actual.cols, expected.begin() + (t + 1) * actual.cols);
      double squares = 0.0;
      for (const double value : row) squares += value * value;
      const double size = std::max(1.0, std::sqrt(squares / static_cast<double>(row.size())));
      const Tolerance allowed = tolerance({1e-12, 0x1.0p-23, 1e-13}, {3e-2 * size, 1e-2, 1e-4});
      testing::AssertionResult result = near(actual.slice(t, t + 1), row, allowed);
      if (!result) return result << ", token " << t;
    }
    return testing::AssertionSuccess();
  }
  std::int64_t scratch_tokens_ = 0;  // Scratch is for so many tokens at least.
};
INSTANTIATE_TEST_SUITE_P(Backends, MoeExpertsTest, all_backends(), backend_case_name);

TEST_P(MoeExpertsTest, MatchesTheFormulaInEveryFormat) {
  std::uint64_t seed = 1701;
  for (const WeightCase& c : weight_cases()) {
    const bool int4 = c.format == ops::WeightFormat::kInt4Group;
    for (const auto& [hidden, intermediate] :
         int4 ? std::vector<std::pair<std::int64_t, std::int64_t>>{{256, 128}, {128, 384}}
              : std::vector<std::pair<std::int64_t, std::int64_t>>{{160, 130}, {129, 33}, {7, 3}}) {
      for (const std::int64_t count : {1, 2, 17}) {
        ++seed;
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << case_text(c) << ", hidden " << hidden
                                        << ", intermediate " << intermediate << ", tokens " << count);
        Random random(seed);
        const HostExperts experts = make_experts(random, c, 6, hidden, intermediate);
        const ops::ExpertStack stack = prepare(experts);
        EXPECT_EQ(stack.experts, 6);
        EXPECT_EQ(stack.hidden, hidden);
        EXPECT_EQ(stack.intermediate, intermediate);
        EXPECT_EQ(stack.format, c.format);
        EXPECT_GT(stack.bytes(), 0);
        const Tokens tokens = make_tokens(random, count, hidden, 6, static_cast<std::int32_t>(1 + seed % 3));
        EXPECT_TRUE(near_formula(run(stack, tokens, 3), experts, tokens));
      }
    }
  }
}

TEST_P(MoeExpertsTest, MoreExpertsThanTokensAndEveryTokenToOneExpert) {
  constexpr std::uint64_t kSeed = 1751;
  for (const WeightCase& c : {weight_cases()[1], weight_cases()[2], weight_cases()[4]}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << case_text(c));
    Random random(kSeed);
    HostExperts experts = make_experts(random, c, 40, 64, 32);
    const Tokens few = make_tokens(random, 3, 64, 40, 8);
    Tokens skewed = make_tokens(random, 70, 64, 40, 1);
    for (std::int32_t& id : skewed.ids) id = 39;
    const ops::ExpertStack stack = prepare(experts);
    EXPECT_TRUE(near_formula(run(stack, few), experts, few));
    EXPECT_TRUE(near_formula(run(stack, skewed), experts, skewed));
    Tokens all = make_tokens(random, 2, 64, 40, 40);
    EXPECT_TRUE(near_formula(run(stack, all), experts, all));
  }
}

TEST_P(MoeExpertsTest, AnExpertThatNobodyTakesDoesNotMatter) {
  constexpr std::uint64_t kSeed = 1752;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  HostExperts experts = make_experts(random, {ops::WeightFormat::kF32, 0}, 4, 24, 16);
  Tokens tokens = make_tokens(random, 5, 24, 3, 2);  // Of the first three.
  const HostMatrix sound = run(prepare(experts), tokens);
  for (StoredWeight* weight : {&experts.gate[3], &experts.up[3], &experts.down[3]}) {
    std::fill(weight->data.begin(), weight->data.end(), std::byte{0xff});
  }
  EXPECT_TRUE(same_bits(run(prepare(experts), tokens), sound));
}

TEST_P(MoeExpertsTest, ATokensResultDoesNotDependOnTheBatch) {
  std::uint64_t seed = 1760;
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Random random(seed);
    const HostExperts experts = make_experts(random, c, 5, 128, 128);
    const ops::ExpertStack stack = prepare(experts);
    const Tokens tokens = make_tokens(random, 300, 128, 5, 2);
    const HostMatrix whole = run(stack, tokens);
    for (const std::int64_t t : {0, 1, 31, 32, 33, 255, 256, 299}) {
      EXPECT_TRUE(same_bits(run(stack, tokens.slice(t, t + 1)), whole.slice(t, t + 1))) << "token " << t;
    }
    EXPECT_TRUE(same_bits(run(stack, tokens.slice(5, 50)), whole.slice(5, 50)));
    EXPECT_TRUE(same_bits(run(stack, tokens.slice(40, 300)), whole.slice(40, 300)));
    EXPECT_EQ(run(stack, tokens.slice(0, 0)).rows, 0);
  }
}

TEST_P(MoeExpertsTest, ScratchMayBeForMoreTokens) {
  std::uint64_t seed = 1765;
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Random random(seed);
    const HostExperts experts = make_experts(random, c, 5, 128, 128);
    const ops::ExpertStack stack = prepare(experts);
    const Tokens tokens = make_tokens(random, 33, 128, 5, 2);
    scratch_tokens_ = 0;
    const HostMatrix own = run(stack, tokens);
    const HostMatrix one = run(stack, tokens.slice(7, 8));
    scratch_tokens_ = 500;
    EXPECT_TRUE(same_bits(run(stack, tokens), own));
    EXPECT_TRUE(same_bits(run(stack, tokens.slice(7, 8)), one));
  }
}

TEST_P(MoeExpertsTest, AVeryLargeBatchIsTheSumOfItsParts) {
  // More than any backend holds at a time.
  constexpr std::uint64_t kSeed = 1769;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const HostExperts experts = make_experts(random, {ops::WeightFormat::kBF16, 0}, 3, 16, 8);
  const ops::ExpertStack stack = prepare(experts);
  const Tokens tokens = make_tokens(random, 33000, 16, 3, 1);
  const HostMatrix whole = run(stack, tokens);
  for (const auto& [begin, end] : {std::pair{0, 10}, {32760, 32780}, {32990, 33000}}) {
    EXPECT_TRUE(same_bits(run(stack, tokens.slice(begin, end)), whole.slice(begin, end))) << "from " << begin;
  }
}

TEST_P(MoeExpertsTest, NaNWeightsSpoilTheirTokenAlone) {
  constexpr std::uint64_t kSeed = 1770;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const HostExperts experts = make_experts(random, {ops::WeightFormat::kBF16, 0}, 4, 32, 32);
  const ops::ExpertStack stack = prepare(experts);
  Tokens tokens = make_tokens(random, 5, 32, 4, 2);
  const HostMatrix sound = run(stack, tokens);
  tokens.weights[2 * 2 + 1] = kNaN;
  tokens.in.at(4, 3) = kNaN;
  const HostMatrix damaged = run(stack, tokens);
  for (const std::int64_t t : {0, 1, 3}) EXPECT_TRUE(same_bits(damaged.slice(t, t + 1), sound.slice(t, t + 1)));
  for (const std::int64_t t : {2, 4}) {
    for (std::int64_t i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(damaged.at(t, i))) << "token " << t;
  }
}

TEST_P(MoeExpertsTest, UsesMappedWeightsInPlace) {
  std::uint64_t seed = 1780;
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Random random(seed);
    const HostExperts experts = make_experts(random, c, 3, 128, 128);
    const Tokens tokens = make_tokens(random, 3, 128, 3, 2);
    std::vector<ops::WeightSource> gate;
    std::vector<ops::WeightSource> up;
    std::vector<ops::WeightSource> down;
    for (std::size_t e = 0; e < 3; ++e) {
      gate.push_back(experts.gate[e].source());
      up.push_back(experts.up[e].source());
      down.push_back(experts.down[e].source());
    }
    for (auto* sources : {&gate, &up, &down}) {
      for (ops::WeightSource& source : *sources) {
        source.outlives_backend = true;
        source.scales_outlive_backend = true;
      }
    }
    auto stack = backend().prepare_experts({gate, up, down});
    ASSERT_TRUE(stack.has_value());
    if (device_.arithmetic() == Arithmetic::kDouble) {
      EXPECT_EQ(stack->bytes(), 0);
    }
    EXPECT_TRUE(same_bits(run(*stack, tokens), run(prepare(experts), tokens)));
  }
}

TEST_P(MoeExpertsTest, RefusesGroupsThatDoNotFitNamingTheExpert) {
  Random random(1790);
  HostExperts experts = make_experts(random, {ops::WeightFormat::kInt4Group, 32}, 2, 64, 32);
  for (auto* weights : {&experts.gate, &experts.up, &experts.down}) {
    for (StoredWeight& weight : *weights) weight.group_size = 64;
  }
  const auto stack = try_prepare(experts);  // Groups of 64 do not divide the down projections' rows of 32.
  ASSERT_FALSE(stack.has_value());
  EXPECT_EQ(stack.error().code(), base::StatusCode::kInvalidArgument);
  EXPECT_NE(stack.error().message().find("down projection of expert 0"), std::string::npos) << stack.error().message();
}

using MoeExpertsDeathTest = MoeExpertsTest;
INSTANTIATE_TEST_SUITE_P(Backends, MoeExpertsDeathTest, all_backends(), backend_case_name);

TEST_P(MoeExpertsDeathTest, RefusesExpertsThatAreNotThereAndStacksThatDoNotFit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Random random(1791);
  HostExperts experts = make_experts(random, {ops::WeightFormat::kF32, 0}, 2, 16, 8);
  const ops::ExpertStack stack = prepare(experts);
  Tokens tokens = make_tokens(random, 2, 16, 2, 1);
  for (const std::int32_t id : {2, -1}) {
    tokens.ids[1] = id;
    if (!backend().name().starts_with("cuda")) {
      EXPECT_DEATH(run(stack, tokens), "expert " + std::to_string(id) + " of 2");
      continue;
    }
    // A device sees its own memory while it runs: the token is spoiled, and no other.
    const HostMatrix out = run(stack, tokens);
    for (std::int64_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(std::isfinite(out.at(0, i)));
      EXPECT_TRUE(std::isnan(out.at(1, i)));
    }
  }
  tokens = make_tokens(random, 2, 15, 2, 1);
  EXPECT_DEATH(run(stack, tokens), "expected \\[2, 16\\]");
  experts.up.pop_back();
  experts.up.push_back(random_stored_weight(random, ops::WeightFormat::kF32, 9, 16));
  EXPECT_DEATH(static_cast<void>(try_prepare(experts)), "\\[9, 16\\], expected \\[8, 16\\]");
  experts.up.pop_back();
  experts.up.push_back(random_stored_weight(random, ops::WeightFormat::kBF16, 8, 16));
  EXPECT_DEATH(static_cast<void>(try_prepare(experts)), "several formats");
}

}  // namespace
}  // namespace tessera::conformance
