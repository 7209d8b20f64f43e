#include <cmath>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {
namespace {

struct RopeShape {
  std::int32_t heads;
  std::int32_t head_dim;
  std::int32_t rotary_dim;
};

std::vector<float> frequencies(std::int32_t rotary_dim, double theta) {
  std::vector<float> out;
  for (std::int32_t i = 0; i < rotary_dim / 2; ++i) {
    out.push_back(static_cast<float>(std::pow(theta, -2.0 * i / rotary_dim)));
  }
  return out;
}

class RopeTest : public BackendTest {
 protected:
  HostMatrix run(const HostMatrix& x, const RopeShape& shape, ops::RopeStyle style, float magnitude,
                 const std::vector<std::int32_t>& positions, const std::vector<float>& inverse) {
    const DeviceMatrix matrix = device_.upload_matrix(x, 7);
    const auto device_positions = device_.upload(positions);
    const auto device_inverse = device_.upload(inverse);
    ops::RopeParams params;
    params.x = matrix.view();
    params.positions = device_positions.span();
    params.inverse_frequencies = device_inverse.span();
    params.heads = shape.heads;
    params.head_dim = shape.head_dim;
    params.rotary_dim = shape.rotary_dim;
    params.style = style;
    params.magnitude = magnitude;
    backend().rope(stream(), params);
    return device_.download_matrix(matrix);
  }
  // Multiplies each pair, as a complex number, by magnitude * e^(i * angle).
  static std::vector<double> formula(const HostMatrix& x, const RopeShape& shape, ops::RopeStyle style, float magnitude,
                                     const std::vector<std::int32_t>& positions, const std::vector<float>& inverse) {
    std::vector<double> out(x.values.begin(), x.values.end());
    for (std::int64_t t = 0; t < x.rows; ++t) {
      for (std::int32_t h = 0; h < shape.heads; ++h) {
        for (std::int32_t i = 0; i < shape.rotary_dim / 2; ++i) {
          const volatile float angle =
              static_cast<float>(positions[static_cast<std::size_t>(t)]) * inverse[static_cast<std::size_t>(i)];
          const std::int64_t base = t * x.cols + static_cast<std::int64_t>(h) * shape.head_dim;
          const std::int64_t first = base + (style == ops::RopeStyle::kHalf ? i : 2 * i);
          const std::int64_t second = style == ops::RopeStyle::kHalf ? first + shape.rotary_dim / 2 : first + 1;
          const double length = std::hypot(out[first], out[second]) * static_cast<double>(magnitude);
          const double direction = std::atan2(out[second], out[first]) + static_cast<double>(angle);
          out[first] = length * std::cos(direction);
          out[second] = length * std::sin(direction);
        }
      }
    }
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, RopeTest, all_backends(), backend_case_name);

TEST_P(RopeTest, MatchesTheFormula) {
  constexpr std::uint64_t kSeed = 301;
  const std::vector<std::int32_t> positions = {0, 1, 2, 63, 64, 4095, 8191, 131071};
  for (const RopeShape& shape :
       {RopeShape{1, 64, 64}, {9, 64, 64}, {3, 80, 80}, {2, 128, 64}, {2, 128, 128}, {3, 10, 6}, {5, 2, 2}}) {
    for (const ops::RopeStyle style : {ops::RopeStyle::kHalf, ops::RopeStyle::kInterleaved}) {
      for (const float magnitude : {1.0f, 1.25f}) {
        SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << shape.heads << " heads of " << shape.head_dim
                                        << ", rotary " << shape.rotary_dim << ", style " << static_cast<int>(style));
        Random random(kSeed + static_cast<std::uint64_t>(shape.head_dim));
        const HostMatrix x = random_matrix(random, std::ssize(positions), shape.heads * shape.head_dim);
        const std::vector<float> inverse = frequencies(shape.rotary_dim, 1e5);
        // Angles of 131071 leave atan2 and cos about 1e-10 of absolute error in the formula itself.
        EXPECT_TRUE(near(run(x, shape, style, magnitude, positions, inverse),
                         formula(x, shape, style, magnitude, positions, inverse),
                         tolerance({1e-9, 0x1.0p-23, 1e-13}, {2e-6, 2e-6, 1e-11})));
      }
    }
  }
}

TEST_P(RopeTest, LeavesTheRestOfAHeadAlone) {
  constexpr std::uint64_t kSeed = 302;
  Random random(kSeed);
  const RopeShape shape{3, 80, 24};
  const HostMatrix x = random_matrix(random, 4, 240);
  const HostMatrix out = run(x, shape, ops::RopeStyle::kHalf, 1.0f, {5, 6, 7, 8}, frequencies(24, 1e4));
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t c = 0; c < x.cols; ++c) {
      if (c % 80 >= 24) {
        EXPECT_EQ(out.at(t, c), x.at(t, c));
      }
    }
  }
}

TEST_P(RopeTest, PositionZeroIsTheIdentity) {
  Random random(303);
  const HostMatrix x = random_matrix(random, 2, 128);
  for (const ops::RopeStyle style : {ops::RopeStyle::kHalf, ops::RopeStyle::kInterleaved}) {
    EXPECT_TRUE(same_bits(run(x, {2, 64, 64}, style, 1.0f, {0, 0}, frequencies(64, 1e4)), x));
  }
}

TEST_P(RopeTest, RowDoesNotDependOnTheBatch) {
  Random random(304);
  const RopeShape shape{3, 80, 80};
  const HostMatrix x = random_matrix(random, 33, 240);
  const std::vector<float> inverse = frequencies(80, 1e4);
  std::vector<std::int32_t> positions;
  for (int t = 0; t < 33; ++t) positions.push_back(static_cast<std::int32_t>(random.below(8192)));
  const HostMatrix together = run(x, shape, ops::RopeStyle::kHalf, 1.0f, positions, inverse);
  for (const std::int64_t t : {0, 1, 16, 32}) {
    const HostMatrix alone =
        run(x.slice(t, t + 1), shape, ops::RopeStyle::kHalf, 1.0f, {positions[static_cast<std::size_t>(t)]}, inverse);
    EXPECT_TRUE(same_bits(alone, together.slice(t, t + 1))) << "row " << t;
  }
}

TEST_P(RopeTest, TakesNoTokens) {
  EXPECT_TRUE(
      run(HostMatrix(0, 64), {1, 64, 64}, ops::RopeStyle::kHalf, 1.0f, {}, frequencies(64, 1e4)).values.empty());
}

}  // namespace
}  // namespace tessera::conformance
