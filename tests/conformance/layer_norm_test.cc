#include <cmath>
#include <limits>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {
namespace {

class LayerNormTest : public BackendTest {
 protected:
  HostMatrix run(const HostMatrix& in, const HostMatrix& weight, const HostMatrix& bias, float epsilon,
                 std::int64_t padding = 0) {
    const ops::Weight w = device_.weight(weight, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
    const ops::Weight b = device_.weight(bias, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
    const DeviceMatrix device_in = device_.upload_matrix(in, padding);
    const DeviceMatrix out = device_.output_matrix(in.rows, in.cols, 2 * padding);
    backend().layer_norm(stream(), {device_in.view(), &w, &b, epsilon, out.view()});
    return device_.download_matrix(out);
  }
  static std::vector<double> formula(const HostMatrix& in, const HostMatrix& weight, const HostMatrix& bias,
                                     float epsilon) {
    std::vector<double> out;
    for (std::int64_t t = 0; t < in.rows; ++t) {
      long double mean = 0.0L;
      for (std::int64_t i = 0; i < in.cols; ++i) mean += static_cast<long double>(in.at(t, i)) / in.cols;
      long double variance = 0.0L;
      for (std::int64_t i = 0; i < in.cols; ++i) {
        const long double off = static_cast<long double>(in.at(t, i)) - mean;
        variance += off * off / in.cols;
      }
      for (std::int64_t i = 0; i < in.cols; ++i) {
        out.push_back(static_cast<double>((static_cast<long double>(in.at(t, i)) - mean) /
                                              std::sqrt(variance + static_cast<long double>(epsilon)) *
                                              static_cast<long double>(weight.at(0, i)) +
                                          static_cast<long double>(bias.at(0, i))));
      }
    }
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LayerNormTest, all_backends(), backend_case_name);

TEST_P(LayerNormTest, MatchesTheFormulaOverOddShapes) {
  std::uint64_t seed = 1301;
  for (const std::int64_t cols : {1, 2, 7, 16, 33, 128, 577}) {
    for (const std::int64_t rows : {1, 3, 17}) {
      for (const float offset : {0.0f, 30.0f}) {
        ++seed;
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", [" << rows << ", " << cols << "] around " << offset);
        Random random(seed);
        HostMatrix in = random_matrix(random, rows, cols);
        for (float& value : in.values) value += offset;
        const HostMatrix weight = random_matrix(random, 1, cols);
        const HostMatrix bias = random_matrix(random, 1, cols);
        const Tolerance allowed = tolerance({1e-7, 0x1.0p-23, 1e-13}, {3e-5, 1e-5, 1e-9});
        EXPECT_TRUE(near(run(in, weight, bias, 1e-6f), formula(in, weight, bias, 1e-6f), allowed));
        EXPECT_TRUE(same_bits(run(in, weight, bias, 1e-6f, 5), run(in, weight, bias, 1e-6f)));
      }
    }
  }
}

TEST_P(LayerNormTest, EqualElementsGiveTheBias) {
  HostMatrix in(2, 24);
  for (std::int64_t i = 0; i < 24; ++i) in.at(1, i) = 3.0f;
  Random random(1390);
  const HostMatrix bias = random_matrix(random, 1, 24);
  const HostMatrix out = run(in, random_matrix(random, 1, 24), bias, 1e-6f);
  for (std::int64_t t = 0; t < 2; ++t) {
    EXPECT_TRUE(near(out.slice(t, t + 1), bias, Tolerance{1e-6, 1e-6, 1e-9})) << "row " << t;
  }
}

TEST_P(LayerNormTest, ARowDependsOnItselfAloneAndNaNStaysInItsRow) {
  constexpr std::uint64_t kSeed = 1391;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  HostMatrix in = random_matrix(random, 9, 130);
  const HostMatrix weight = random_matrix(random, 1, 130);
  const HostMatrix bias = random_matrix(random, 1, 130);
  const HostMatrix whole = run(in, weight, bias, 1e-6f);
  for (std::int64_t t = 0; t < 9; ++t) {
    EXPECT_TRUE(same_bits(run(in.slice(t, t + 1), weight, bias, 1e-6f), whole.slice(t, t + 1)));
  }
  in.at(4, 129) = std::numeric_limits<float>::quiet_NaN();
  const HostMatrix damaged = run(in, weight, bias, 1e-6f);
  EXPECT_TRUE(same_bits(damaged.slice(0, 4), whole.slice(0, 4)));
  EXPECT_TRUE(same_bits(damaged.slice(5, 9), whole.slice(5, 9)));
  for (std::int64_t i = 0; i < 130; ++i) EXPECT_TRUE(std::isnan(damaged.at(4, i)));
}

TEST_P(LayerNormTest, WorksInPlaceAndOnNothing) {
  Random random(1392);
  const HostMatrix in = random_matrix(random, 3, 40);
  const HostMatrix weight = random_matrix(random, 1, 40);
  const HostMatrix bias = random_matrix(random, 1, 40);
  const ops::Weight w = device_.weight(weight, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
  const ops::Weight b = device_.weight(bias, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
  const DeviceMatrix x = device_.upload_matrix(in, 3);
  backend().layer_norm(stream(), {x.view(), &w, &b, 1e-6f, x.view()});
  EXPECT_TRUE(same_bits(device_.download_matrix(x), run(in, weight, bias, 1e-6f)));
  EXPECT_EQ(run(HostMatrix(0, 40), weight, bias, 1e-6f).rows, 0);
}

}  // namespace
}  // namespace tessera::conformance
