#include <cmath>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {
namespace {

class SwigluTest : public BackendTest {
 protected:
  HostMatrix run(const HostMatrix& gate, const HostMatrix& up, std::int64_t padding = 0) {
    const DeviceMatrix device_gate = device_.upload_matrix(gate, padding);
    const DeviceMatrix device_up = device_.upload_matrix(up, padding * 2);
    const DeviceMatrix out = device_.output_matrix(gate.rows, gate.cols, padding * 3);
    backend().swiglu(stream(), {device_gate.view(), device_up.view(), out.view()});
    return device_.download_matrix(out);
  }
  static std::vector<double> formula(const HostMatrix& gate, const HostMatrix& up) {
    std::vector<double> out;
    for (std::size_t i = 0; i < gate.values.size(); ++i) {
      const double g = gate.values[i];
      // The logistic function in the form that cannot overflow.
      const double sigmoid = g >= 0 ? 1.0 / (1.0 + std::exp(-g)) : std::exp(g) / (1.0 + std::exp(g));
      out.push_back(g * sigmoid * static_cast<double>(up.values[i]));
    }
    return out;
  }
  Tolerance allowed() const { return tolerance({1e-37, 0x1.0p-23, 1e-13}, {1e-30, 2e-6, 1e-11}); }
};
INSTANTIATE_TEST_SUITE_P(Backends, SwigluTest, all_backends(), backend_case_name);

TEST_P(SwigluTest, MatchesTheFormula) {
  constexpr std::uint64_t kSeed = 401;
  for (const std::int64_t width : {1, 5, 8, 17, 64, 100, 1536, 1537}) {
    for (const std::int64_t tokens : {1, 4}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", width " << width << ", tokens " << tokens);
      Random random(kSeed + static_cast<std::uint64_t>(width));
      const HostMatrix gate = random_matrix(random, tokens, width, 4.0f);
      const HostMatrix up = random_matrix(random, tokens, width);
      EXPECT_TRUE(near(run(gate, up, 3), formula(gate, up), allowed()));
    }
  }
}

TEST_P(SwigluTest, SaturatesWithoutOverflow) {
  HostMatrix gate(1, 14);
  gate.values = {0.0f,   -0.0f, 20.0f,  -20.0f,  60.0f,   -60.0f, 87.0f,
                 -87.0f, 89.0f, 104.0f, -104.0f, -150.0f, 1e30f,  -1e30f};
  HostMatrix up(1, 14);
  for (float& value : up.values) value = 1.5f;
  // Where the result is subnormal a backend may give zero.
  EXPECT_TRUE(near(run(gate, up), formula(gate, up), {1e-36, 2e-6, 1e-11}));
}

TEST_P(SwigluTest, MayWriteOverEitherInput) {
  Random random(402);
  const HostMatrix gate = random_matrix(random, 3, 77);
  const HostMatrix up = random_matrix(random, 3, 77);
  const HostMatrix apart = run(gate, up);
  {
    const DeviceMatrix g = device_.upload_matrix(gate, 2);
    const DeviceMatrix u = device_.upload_matrix(up, 2);
    backend().swiglu(stream(), {g.view(), u.view(), g.view()});
    EXPECT_TRUE(same_bits(device_.download_matrix(g), apart));
  }
  {
    const DeviceMatrix g = device_.upload_matrix(gate, 2);
    const DeviceMatrix u = device_.upload_matrix(up, 2);
    backend().swiglu(stream(), {g.view(), u.view(), u.view()});
    EXPECT_TRUE(same_bits(device_.download_matrix(u), apart));
  }
}

TEST_P(SwigluTest, TakesTwoHalvesOfOneMatrix) {
  Random random(403);
  const HostMatrix both = random_matrix(random, 3, 2 * 45);
  HostMatrix gate(3, 45);
  HostMatrix up(3, 45);
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t i = 0; i < 45; ++i) {
      gate.at(t, i) = both.at(t, i);
      up.at(t, i) = both.at(t, 45 + i);
    }
  }
  const DeviceMatrix fused = device_.upload_matrix(both);
  const DeviceMatrix out = device_.output_matrix(3, 45);
  const ops::ConstMatrix first(fused.view().f32(), base::DType::kF32, 3, 45, 90);
  const ops::ConstMatrix second(fused.view().f32() + 45, base::DType::kF32, 3, 45, 90);
  backend().swiglu(stream(), {first, second, out.view()});
  EXPECT_TRUE(same_bits(device_.download_matrix(out), run(gate, up)));
}

TEST_P(SwigluTest, RowDoesNotDependOnTheBatch) {
  Random random(404);
  const HostMatrix gate = random_matrix(random, 33, 53);
  const HostMatrix up = random_matrix(random, 33, 53);
  const HostMatrix together = run(gate, up);
  for (const std::int64_t t : {0, 1, 16, 32}) {
    EXPECT_TRUE(same_bits(run(gate.slice(t, t + 1), up.slice(t, t + 1)), together.slice(t, t + 1))) << "row " << t;
  }
}

TEST_P(SwigluTest, TakesNoTokens) { EXPECT_TRUE(run(HostMatrix(0, 9), HostMatrix(0, 9)).values.empty()); }

}  // namespace
}  // namespace tessera::conformance
