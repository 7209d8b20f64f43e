// The other backends against the reference, at the sizes of a real model.
#include <cmath>

#include "tests/conformance/model_sizes.h"

namespace tessera::conformance {
namespace {

class AgainstReferenceTest : public BackendTest {
 protected:
  Device reference_{backends_under_test().front()};
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AgainstReferenceTest);  // A machine may run the reference alone.
INSTANTIATE_TEST_SUITE_P(Backends, AgainstReferenceTest, testing::Range<std::size_t>(1, backends_under_test().size()),
                         backend_case_name);

TEST_P(AgainstReferenceTest, Linear) {
  std::uint64_t seed = 1401;
  for (const auto format : {ops::WeightFormat::kF32, ops::WeightFormat::kBF16}) {
    for (const std::int64_t tokens : {1, 4, 40}) {
      for (const auto& [k, n] : {std::pair{kHidden, kIntermediate}, {kIntermediate, kHidden}}) {
        SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", tokens " << tokens << ", K " << k << ", N " << n);
        Random random(seed);
        const HostMatrix in = random_matrix(random, tokens, k);
        const HostMatrix weight = random_bf16_matrix(random, n, k);
        // The elements are near sqrt(K); rounding activations to BF16 is off by about 2^-10 of that.
        const double unit = std::sqrt(static_cast<double>(k));
        const Tolerance t = format == ops::WeightFormat::kBF16 ? Tolerance{0.01 * unit, 0.0, 1e-5}
                                                               : Tolerance{1e-5 * unit, 1e-6, 1e-12};
        EXPECT_TRUE(near(linear(device_, in, weight, format), linear(reference_, in, weight, format), t));
      }
    }
  }
}

TEST_P(AgainstReferenceTest, Attention) {
  constexpr std::uint64_t kSeed = 1402;
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    EXPECT_TRUE(near(attention(device_, format, kSeed), attention(reference_, format, kSeed), {1e-5, 1e-4, 1e-9}));
  }
}

TEST_P(AgainstReferenceTest, SampledTokensAreTheSame) {
  constexpr std::uint64_t kSeed = 1403;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const HostMatrix logits = random_matrix(random, 48, 49152, 3.0f);
  const std::vector<ops::SampleRow> rows = sample_rows(random, 48);
  const Sampled actual = sample(device_, logits, rows);
  const Sampled expected = sample(reference_, logits, rows);
  EXPECT_EQ(actual.tokens, expected.tokens);
  EXPECT_TRUE(
      near(std::span<const float>(actual.logprobs), std::span<const float>(expected.logprobs), 1, {1e-5, 1e-6, 1e-12}));
}

}  // namespace
}  // namespace tessera::conformance
