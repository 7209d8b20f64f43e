// The kernels by themselves, on every target that this processor has: conversions over all codes, and the promises of
// kernels.h that the conformance suite does not reach through the ops.
#include "tessera/backends/cpu/simd/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/base/dtype.h"

namespace tessera::backends::cpu::simd {
namespace {

const Kernels& kernels_of(SimdTarget target) {
  switch (target) {
    case SimdTarget::kAvx512Bf16:
      return avx512_bf16_kernels();
    case SimdTarget::kAvx512:
      return avx512_kernels();
    case SimdTarget::kAvx2:
    case SimdTarget::kBest:
      break;
  }
  return avx2_kernels();
}

class KernelsTest : public testing::TestWithParam<SimdTarget> {
 protected:
  const Kernels& kernels_ = kernels_of(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Targets, KernelsTest, testing::ValuesIn(available_simd_targets()),
                         [](const auto& target) { return simd_target_name(target.param); });

bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

// Floats whose bits are spread over all there are, and the neighbourhood of every rounding boundary of a narrower type
// that keeps `kept` bits: the code, its upper neighbour, the midpoint, and one bit to either side of each.
std::vector<float> floats_around(int kept) {
  std::vector<float> values;
  const int dropped = 32 - kept;
  for (std::uint32_t code = 0; code < (1u << kept); ++code) {
    const std::uint32_t bits = code << dropped;
    for (const std::uint32_t offset :
         {0u, 1u, (1u << (dropped - 1)) - 1, 1u << (dropped - 1), (1u << (dropped - 1)) + 1, (1u << dropped) - 1}) {
      values.push_back(std::bit_cast<float>(bits + offset));
    }
  }
  return values;
}

TEST_P(KernelsTest, WidensEveryBf16Code) {
  std::vector<std::uint16_t> codes;
  for (std::uint32_t code = 0; code < 65536; ++code) codes.push_back(static_cast<std::uint16_t>(code));
  std::vector<float> out(codes.size());
  kernels_.bf16_to_f32(codes.data(), std::ssize(codes), out.data());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    ASSERT_TRUE(same(out[i], base::to_float(base::BF16{codes[i]}))) << "code " << i << " gives " << out[i];
  }
}

TEST_P(KernelsTest, WidensEveryF8Code) {
  std::vector<std::uint8_t> codes;
  for (std::uint32_t code = 0; code < 256; ++code) codes.push_back(static_cast<std::uint8_t>(code));
  std::vector<float> out(codes.size());
  kernels_.f8_to_f32(codes.data(), std::ssize(codes), out.data());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    ASSERT_TRUE(same(out[i], base::to_float(base::F8E4M3{codes[i]}))) << "code " << i << " gives " << out[i];
  }
}

TEST_P(KernelsTest, RoundsToBf16AtEveryBoundary) {
  const std::vector<float> in = floats_around(16);
  std::vector<std::uint16_t> out(in.size());
  kernels_.f32_to_bf16(in.data(), std::ssize(in), out.data());
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(out[i], base::to_bf16(in[i]).bits) << in[i] << " (" << std::bit_cast<std::uint32_t>(in[i]) << ")";
  }
}

TEST_P(KernelsTest, RoundsToF8AtEveryBoundary) {
  // Sign, exponent and three bits of mantissa, with all exponents of F32; and multiples of half of the smallest code.
  std::vector<float> in = floats_around(12);
  for (int i = -64; i <= 64; ++i) {
    const float middle = static_cast<float>(i) * 0x1.0p-10f;
    for (const float value : {middle, std::nextafter(middle, 1.0f), std::nextafter(middle, -1.0f)}) in.push_back(value);
  }
  std::vector<std::uint8_t> out(in.size());
  kernels_.f32_to_f8(in.data(), 1.0f, std::ssize(in), out.data());
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(out[i], base::to_f8e4m3(in[i]).bits) << in[i] << " (" << std::bit_cast<std::uint32_t>(in[i]) << ")";
  }
}

TEST_P(KernelsTest, QuantizesByDivision) {
  for (const float scale : {0.0078125f, 0.3f, 1.7f, 1e-30f}) {
    std::vector<float> in;
    for (int i = 0; i < 1000; ++i) in.push_back(static_cast<float>(i * 7919 % 2001 - 1000) * scale * 0.448f);
    std::vector<std::uint8_t> out(in.size());
    kernels_.f32_to_f8(in.data(), scale, std::ssize(in), out.data());
    for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], base::to_f8e4m3(in[i] / scale).bits) << in[i];
  }
}

TEST_P(KernelsTest, ConversionsTouchNothingBeyondTheirCount) {
  for (std::int64_t count = 0; count < 40; ++count) {
    const std::vector<float> in(static_cast<std::size_t>(count), 1.0f);
    std::vector<std::uint16_t> bf16(static_cast<std::size_t>(count) + 1, 0x1234);
    std::vector<std::uint8_t> f8(static_cast<std::size_t>(count) + 1, 0x55);
    kernels_.f32_to_bf16(in.data(), count, bf16.data());
    kernels_.f32_to_f8(in.data(), 1.0f, count, f8.data());
    EXPECT_EQ(bf16.back(), 0x1234) << count;
    EXPECT_EQ(f8.back(), 0x55) << count;
    std::vector<float> out(static_cast<std::size_t>(count) + 1, -7.0f);
    kernels_.bf16_to_f32(bf16.data(), count, out.data());
    EXPECT_EQ(out.back(), -7.0f) << count;
    kernels_.f8_to_f32(f8.data(), count, out.data());
    EXPECT_EQ(out.back(), -7.0f) << count;
    for (std::int64_t i = 0; i < count; ++i) EXPECT_EQ(out[static_cast<std::size_t>(i)], 1.0f);
  }
}

TEST_P(KernelsTest, LargestMagnitudeShowsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::int64_t count = 1; count < 40; ++count) {
    for (std::int64_t at = 0; at < count; ++at) {
      std::vector<float> x(static_cast<std::size_t>(count), 0.5f);
      x[static_cast<std::size_t>(at)] = -3.0f;
      EXPECT_EQ(kernels_.largest_magnitude(x.data(), count), 3.0f);
      x[static_cast<std::size_t>(at)] = -kInfinity;
      EXPECT_EQ(kernels_.largest_magnitude(x.data(), count), kInfinity);
      x[static_cast<std::size_t>(at)] = std::nanf("");
      EXPECT_TRUE(std::isnan(kernels_.largest_magnitude(x.data(), count)));
    }
  }
}

TEST_P(KernelsTest, GreedyFindsTheFirstOfEquals) {
  for (std::int64_t count = 1; count < 70; ++count) {
    for (std::int64_t at = 0; at < count; ++at) {
      std::vector<float> logits(static_cast<std::size_t>(count), -2.0f);
      for (std::int64_t i = at; i < count; i += 3) logits[static_cast<std::size_t>(i)] = 5.0f;
      const GreedyResult result = kernels_.greedy(logits.data(), count);
      EXPECT_EQ(result.index, at);
      EXPECT_EQ(result.maximum, 5.0f);
      double sum = 0.0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - 5.0);
      EXPECT_NEAR(result.sum, sum, 1e-6 * sum);
      logits[static_cast<std::size_t>(at)] = std::nanf("");
      EXPECT_TRUE(kernels_.greedy(logits.data(), count).has_nan);
    }
  }
}

TEST_P(KernelsTest, Int16GroupsAreOffByATinyPartOfTheirLargest) {
  constexpr std::int64_t kPlaces[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (const float largest : {1e-44f, 1e-36f, 1.0f, 1.9999999f, 2.0f, 777.7f, 1e37f}) {
    std::vector<float> in;
    in.reserve(96);
    for (int i = 0; i < 96; ++i) in.push_back(largest * static_cast<float>(i * 29 % 63 - 31) / 31.0f);
    in[32] = -largest;
    std::vector<Int16Group> out(3);
    kernels_.int16_groups(in.data(), 96, out.data());
    for (std::size_t g = 0; g < 3; ++g) {
      std::int32_t sum = 0;
      for (std::size_t i = 0; i < 32; ++i) {
        const std::int16_t x = out[g].x[i];
        sum += x;
        const double expected = in[g * 32 + i / 8 * 8 + static_cast<std::size_t>(kPlaces[i % 8])];
        // The rounding of the largest that is just below a power of two may lose a whole unit of 2^-15.
        const double allowed = std::max(static_cast<double>(largest) * 0x1.0p-14, 0x1.0p-126);
        EXPECT_NEAR(static_cast<double>(x) * static_cast<double>(out[g].scale), expected, allowed) << largest;
      }
      EXPECT_EQ(out[g].offset, -8 * sum);
    }
  }
}

TEST_P(KernelsTest, Int16GroupsKeepSmallIntegersAndShowWhatIsNotFinite) {
  std::vector<float> in(64);
  for (int i = 0; i < 32; ++i) in[static_cast<std::size_t>(i)] = static_cast<float>(i - 16);
  std::vector<Int16Group> out(2);
  kernels_.int16_groups(in.data(), 64, out.data());
  EXPECT_EQ(static_cast<float>(out[0].x[0]) * out[0].scale, -16.0f);
  EXPECT_EQ(static_cast<float>(out[0].x[31]) * out[0].scale, 15.0f);
  EXPECT_TRUE(std::isfinite(out[1].scale));
  EXPECT_EQ(out[1].offset, 0);
  for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    in[40] = value;
    kernels_.int16_groups(in.data(), 64, out.data());
    EXPECT_FALSE(std::isnan(out[0].scale));
    EXPECT_TRUE(std::isnan(out[1].scale));
  }
}

TEST_P(KernelsTest, SigmoidIsTheFormula) {
  std::vector<float> in;
  for (int i = -400; i <= 400; ++i) in.push_back(static_cast<float>(i) * 0.2f);
  std::vector<float> out(in.size());
  kernels_.sigmoid(in.data(), std::ssize(in), out.data());
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double expected = 1.0 / (1.0 + std::exp(-static_cast<double>(in[i])));
    EXPECT_NEAR(static_cast<double>(out[i]), expected, 1e-6 * expected) << in[i];
  }
}

TEST(SimdBackend, RefusesATargetThatTheProcessorLacks) {
  for (const SimdTarget target : {SimdTarget::kAvx2, SimdTarget::kAvx512, SimdTarget::kAvx512Bf16}) {
    const std::vector<SimdTarget> available = available_simd_targets();
    const bool has = std::find(available.begin(), available.end(), target) != available.end();
    const auto backend = make_simd_backend({.threads = 1, .target = target});
    ASSERT_EQ(backend.has_value(), has) << simd_target_name(target);
    if (has) {
      EXPECT_EQ((*backend)->name(), "simd (" + simd_target_name(target) + ")");
      EXPECT_TRUE((*backend)->supports(ops::KvFormat::kF8E4M3));
      EXPECT_FALSE((*backend)->supports(ops::KvFormat::kF32));
    } else {
      EXPECT_EQ(backend.error().code(), base::StatusCode::kUnavailable);
    }
  }
}

TEST(SimdBackend, RefusesThreadCountsOutOfRange) {
  for (const int threads : {-1, 100'000}) {
    const auto backend = make_simd_backend({.threads = threads});
    ASSERT_FALSE(backend.has_value());
    EXPECT_EQ(backend.error().code(), base::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
