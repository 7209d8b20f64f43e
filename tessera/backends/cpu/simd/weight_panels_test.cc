// Quantized weights in panels: what the conformance suite's sound weights do not reach, and the memory they take.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/dtype.h"

namespace tessera::backends::cpu::simd {
namespace {

using ops::WeightFormat;

class WeightPanelsTest : public testing::TestWithParam<SimdTarget> {
 protected:
  void SetUp() override {
    auto made = make_simd_backend({.threads = 2, .target = GetParam()});
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    backend_ = std::move(*made);
  }
  static std::vector<float> multiply(ops::Backend& backend, const ops::Weight& weight, std::vector<float> in) {
    const std::int64_t rows = std::ssize(in) / weight.cols;
    std::vector<float> out(static_cast<std::size_t>(rows * weight.rows));
    const auto stream = backend.make_stream();
    backend.linear(*stream, {ops::f32_matrix(in.data(), rows, weight.cols), &weight, nullptr,
                             ops::f32_matrix(out.data(), rows, weight.rows), ops::OutputMode::kOverwrite});
    return out;
  }
  std::unique_ptr<ops::Backend> backend_;
};
INSTANTIATE_TEST_SUITE_P(Targets, WeightPanelsTest, testing::ValuesIn(available_simd_targets()),
                         [](const auto& target) { return simd_target_name(target.param); });

// An FP8 weight with codes of every kind but NaN.
struct F8Weight {
  F8Weight(WeightFormat format_in, std::int64_t rows_in, std::int64_t cols_in)
      : format(format_in), rows(rows_in), cols(cols_in) {
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const auto code = static_cast<std::uint8_t>(i * 37 % 251);
      codes.push_back((code & 0x7f) == 0x7f ? std::uint8_t{0x7e} : code);
    }
    const std::int64_t count =
        format == WeightFormat::kF8Channel ? rows : base::ceil_div(rows, 128) * base::ceil_div(cols, 128);
    for (std::int64_t i = 0; i < count; ++i) scales.push_back(0.37f * static_cast<float>(i + 1));
  }
  ops::WeightSource source() const {
    return {format, ops::WeightUsage::kLinear, rows, cols, codes.data(), scales.data()};
  }
  WeightFormat format;
  std::int64_t rows;
  std::int64_t cols;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

TEST_P(WeightPanelsTest, AnF8CodeThatIsNaNSpoilsItsOutputAlone) {
  for (const auto format : {WeightFormat::kF8Block128, WeightFormat::kF8Channel}) {
    F8Weight f8(format, 35, 140);
    for (const std::int64_t rows : {1, 3, 40}) {
      const std::vector<float> in(static_cast<std::size_t>(rows * f8.cols), 0.5f);
      const auto sound = multiply(*backend_, *backend_->prepare_weight(f8.source()), in);
      F8Weight damaged = f8;
      damaged.codes[17 * 140 + 139] = 0xff;
      const auto out = multiply(*backend_, *backend_->prepare_weight(damaged.source()), in);
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (i % 35 == 17) {
          EXPECT_TRUE(std::isnan(out[i])) << i;
        } else {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(sound[i])) << i;
        }
      }
    }
  }
}

TEST_P(WeightPanelsTest, ScalesOfAnyMagnitudeGiveTheReferencesNumbers) {
  const auto reference = make_reference_backend();
  for (const auto format : {WeightFormat::kF8Block128, WeightFormat::kF8Channel}) {
    for (const float magnitude : {1e-30f, 1e-5f, 100.0f, 127.9f, 128.0f, 3e4f, 1e30f}) {
      F8Weight f8(format, 20, 300);
      f8.scales = format == WeightFormat::kF8Channel ? std::vector<float>(20, magnitude)
                                                     : std::vector<float>{magnitude, 1.7f * magnitude, 1e-3f};
      // A one in place k reads column k.
      std::vector<float> ones(static_cast<std::size_t>(f8.cols * f8.cols));
      for (std::int64_t i = 0; i < f8.cols; ++i) ones[static_cast<std::size_t>(i * f8.cols + i)] = 1.0f;
      const auto expected = multiply(*reference, *reference->prepare_weight(f8.source()), ones);
      const auto out = multiply(*backend_, *backend_->prepare_weight(f8.source()), ones);
      for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], expected[i]) << i << ", scale " << magnitude;
    }
  }
}

TEST_P(WeightPanelsTest, TakeNoMoreThanTheSourceAndPadding) {
  for (const std::int64_t rows : {16, 17, 100}) {
    for (const std::int64_t cols : {128, 384, 1024}) {
      const std::int64_t panels = base::ceil_div(rows, 16);
      const std::vector<std::byte> bytes(static_cast<std::size_t>(rows * cols * 4));
      const auto stored = [&](WeightFormat format, std::int32_t group) {
        const auto weight = backend_->prepare_weight(
            {format, ops::WeightUsage::kLinear, rows, cols, bytes.data(), bytes.data(), group});
        EXPECT_TRUE(weight.has_value());
        return weight->storage.bytes();
      };
      // Whole panels; a line for the scales of outputs, and lines that are not full.
      EXPECT_LE(stored(WeightFormat::kF8Block128, 0), panels * (16 * cols + 64 + 64));
      EXPECT_LE(stored(WeightFormat::kF8Channel, 0), panels * (16 * cols + 64 + 64));
      for (const std::int32_t group : {32, 64, 128}) {
        EXPECT_LE(stored(WeightFormat::kInt4Group, group), panels * (8 * cols + 32 * (cols / group) + 32));
      }
    }
  }
}

TEST_P(WeightPanelsTest, ActivationsThatAreNotFiniteSpoilTheirRowOfAnInt4Product) {
  const std::vector<std::uint32_t> words(16 * 8, 0x7a3245e2u);
  const std::vector<base::BF16> scales(16 * 2, base::to_bf16(0.5f));
  const auto weight = backend_->prepare_weight(
      {WeightFormat::kInt4Group, ops::WeightUsage::kLinear, 16, 64, words.data(), scales.data(), 32});
  std::vector<float> in(3 * 64, 1.0f);
  const auto sound = multiply(*backend_, *weight, in);
  for (const float value : {std::nanf(""), INFINITY, -INFINITY}) {
    in[64 + 40] = value;
    const auto out = multiply(*backend_, *weight, in);
    for (std::size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(out[i], sound[i]);
      EXPECT_TRUE(std::isnan(out[16 + i]));
      EXPECT_EQ(out[32 + i], sound[32 + i]);
    }
  }
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
