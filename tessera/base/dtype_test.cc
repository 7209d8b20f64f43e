#include "tessera/base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tessera::base {
namespace {

TEST(Bf16, RoundTripsEveryValue) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const BF16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(to_float(value)))));
    } else {
      EXPECT_EQ(to_bf16(to_float(value)), value);
    }
  }
}

TEST(Bf16, RoundsTiesToEven) {
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80u);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82u);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81u);
}

TEST(Bf16, RoundUpIsNeverBelow) {
  std::mt19937 rng(7);
  std::uniform_real_distribution<float> uniform(0.0f, 1000.0f);
  for (int i = 0; i < 10000; ++i) {
    const float value = uniform(rng);
    const float up = to_float(to_bf16_round_up(value));
    EXPECT_GE(up, value);
    EXPECT_LE(up, value * (1.0f + 1.0f / 128.0f));
  }
}

TEST(F8E4M3, RoundTripsEveryValue) {
  for (int bits = 0; bits < 256; ++bits) {
    const F8E4M3 value{static_cast<std::uint8_t>(bits)};
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(to_f8e4m3(to_float(value)))));
    } else {
      EXPECT_EQ(to_f8e4m3(to_float(value)), value) << bits;
    }
  }
}

// The nearest representable value, found by search over all codes, ties to the even mantissa.
TEST(F8E4M3, RoundsToNearestEven) {
  std::mt19937 rng(11);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (int i = 0; i < 20000; ++i) {
    const float value = normal(rng) * std::exp2(static_cast<float>(static_cast<int>(rng() % 20u)) - 12.0f);
    int best = -1;
    double best_distance = std::numeric_limits<double>::infinity();
    for (int bits = 0; bits < 256; ++bits) {
      const float candidate = to_float(F8E4M3{static_cast<std::uint8_t>(bits)});
      if (std::isnan(candidate) || std::signbit(candidate) != std::signbit(value)) continue;
      const double distance = std::abs(static_cast<double>(candidate) - value);
      if (distance < best_distance || (distance == best_distance && bits % 2 == 0)) {
        best = bits;
        best_distance = distance;
      }
    }
    EXPECT_EQ(to_f8e4m3(value).bits, best) << value;
  }
}

TEST(F8E4M3, Saturates) {
  EXPECT_EQ(to_float(to_f8e4m3(1e9f)), 448.0f);
  EXPECT_EQ(to_float(to_f8e4m3(-std::numeric_limits<float>::infinity())), -448.0f);
  EXPECT_EQ(to_float(to_f8e4m3(460.0f)), 448.0f);
}

TEST(DType, NamesRoundTrip) {
  for (DType d : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kI32, DType::kBool}) {
    EXPECT_EQ(dtype_from_name(dtype_name(d)), d);
  }
  EXPECT_FALSE(dtype_from_name("F64x").has_value());
}

}  // namespace
}  // namespace tessera::base
