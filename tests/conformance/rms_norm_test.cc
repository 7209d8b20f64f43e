#include <algorithm>
#include <cmath>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {
namespace {

class RmsNormTest : public BackendTest {
 protected:
  HostMatrix run(const HostMatrix& in, const HostMatrix& weight_values, float epsilon, std::int64_t padding) {
    const ops::Weight weight = device_.weight(weight_values, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
    const DeviceMatrix device_in = device_.upload_matrix(in, padding);
    const DeviceMatrix out = device_.output_matrix(in.rows, in.cols, padding * 2);
    backend().rms_norm(stream(), {device_in.view(), &weight, epsilon, out.view()});
    return device_.download_matrix(out);
  }
  static std::vector<double> formula(const HostMatrix& in, const HostMatrix& weight, float epsilon) {
    std::vector<double> out;
    for (std::int64_t t = 0; t < in.rows; ++t) {
      long double squares = 0.0L;
      for (std::int64_t i = 0; i < in.cols; ++i) {
        squares += static_cast<long double>(in.at(t, i)) * static_cast<long double>(in.at(t, i));
      }
      const long double root =
          std::sqrt(squares / static_cast<long double>(in.cols) + static_cast<long double>(epsilon));
      for (std::int64_t i = 0; i < in.cols; ++i) {
        out.push_back(static_cast<double>(static_cast<long double>(in.at(t, i)) / root *
                                          static_cast<long double>(weight.at(0, i))));
      }
    }
    return out;
  }
  Tolerance allowed() const { return tolerance(kOneRounding, {1e-7, 3e-6, 1e-11}); }
};
INSTANTIATE_TEST_SUITE_P(Backends, RmsNormTest, all_backends(), backend_case_name);

TEST_P(RmsNormTest, MatchesTheFormula) {
  constexpr std::uint64_t kSeed = 201;
  for (const std::int64_t hidden : {1, 2, 7, 8, 9, 16, 31, 64, 65, 100, 576, 577, 4100}) {
    for (const std::int64_t tokens : {1, 3, 9}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", hidden " << hidden << ", tokens " << tokens);
      Random random(kSeed + static_cast<std::uint64_t>(hidden * 16 + tokens));
      const HostMatrix in = random_matrix(random, tokens, hidden, 3.0f);
      const HostMatrix weight = random_matrix(random, 1, hidden);
      EXPECT_TRUE(near(run(in, weight, 1e-5f, 3), formula(in, weight, 1e-5f), allowed()));
      EXPECT_TRUE(near(run(in, weight, 1e-6f, 0), formula(in, weight, 1e-6f), allowed()));
    }
  }
}

TEST_P(RmsNormTest, MatchesTheFormulaOverManyMagnitudes) {
  constexpr std::uint64_t kSeed = 202;
  for (const float spread : {1e-12f, 1e-4f, 1.0f, 1e4f, 1e12f}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", spread " << spread);
    Random random(kSeed);
    const HostMatrix in = random_matrix(random, 2, 100, spread);
    const HostMatrix weight = random_matrix(random, 1, 100);
    Tolerance t = allowed();
    t.absolute *= static_cast<double>(std::min(spread, 1.0f));
    EXPECT_TRUE(near(run(in, weight, 1e-5f, 1), formula(in, weight, 1e-5f), t));
  }
}

TEST_P(RmsNormTest, ZeroRowGivesZeros) {
  Random random(203);
  const HostMatrix out = run(HostMatrix(2, 33), random_matrix(random, 1, 33), 1e-5f, 0);
  for (const float value : out.values) EXPECT_EQ(value, 0.0f);
}

TEST_P(RmsNormTest, MayWriteOverItsInput) {
  Random random(204);
  const HostMatrix in = random_matrix(random, 5, 77);
  const HostMatrix weight_values = random_matrix(random, 1, 77);
  const HostMatrix apart = run(in, weight_values, 1e-5f, 3);
  const ops::Weight weight = device_.weight(weight_values, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
  const DeviceMatrix x = device_.upload_matrix(in, 3);
  backend().rms_norm(stream(), {x.view(), &weight, 1e-5f, x.view()});
  EXPECT_TRUE(same_bits(device_.download_matrix(x), apart));
}

TEST_P(RmsNormTest, ReadsABF16WeightAsF32) {
  Random random(205);
  const HostMatrix in = random_matrix(random, 2, 40);
  const HostMatrix weight_values = random_bf16_matrix(random, 1, 40);
  const ops::Weight weight = device_.weight(weight_values, ops::WeightFormat::kBF16, ops::WeightUsage::kVector);
  const DeviceMatrix x = device_.upload_matrix(in);
  const DeviceMatrix out = device_.output_matrix(2, 40);
  backend().rms_norm(stream(), {x.view(), &weight, 1e-5f, out.view()});
  EXPECT_TRUE(same_bits(device_.download_matrix(out), run(in, weight_values, 1e-5f, 0)));
}

TEST_P(RmsNormTest, RowDoesNotDependOnTheBatch) {
  Random random(206);
  for (const std::int64_t hidden : {33, 576}) {
    const HostMatrix in = random_matrix(random, 33, hidden);
    const HostMatrix weight = random_matrix(random, 1, hidden);
    const HostMatrix together = run(in, weight, 1e-5f, 0);
    for (const std::int64_t t : {0, 1, 17, 32}) {
      EXPECT_TRUE(same_bits(run(in.slice(t, t + 1), weight, 1e-5f, 0), together.slice(t, t + 1))) << "row " << t;
    }
  }
}

TEST_P(RmsNormTest, TakesNoTokens) {
  Random random(207);
  EXPECT_TRUE(run(HostMatrix(0, 16), random_matrix(random, 1, 16), 1e-5f, 0).values.empty());
}

}  // namespace
}  // namespace tessera::conformance
