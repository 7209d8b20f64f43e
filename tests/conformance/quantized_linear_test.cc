// linear with weights in FP8 and INT4, and with a router's; linear_test.cc has the plain formats and the rest of the
// op.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/conformance/quantized_weight.h"

namespace tessera::conformance {
namespace {

class QuantizedLinearTest : public BackendTest {
 protected:
  ops::Weight prepare(const ops::WeightSource& source) {
    auto weight = backend().prepare_weight(source);
    EXPECT_TRUE(weight.has_value()) << (weight.has_value() ? "" : weight.error().message());
    return weight.has_value() ? std::move(*weight) : ops::Weight{};
  }
  HostMatrix run(const ops::Weight& weight, const HostMatrix& in, std::int64_t padding = 0) {
    const DeviceMatrix device_in = device_.upload_matrix(in, padding);
    const DeviceMatrix out = device_.output_matrix(in.rows, weight.rows, padding);
    backend().linear(stream(), {device_in.view(), &weight, nullptr, out.view(), ops::OutputMode::kOverwrite});
    return device_.download_matrix(out);
  }
  // The product, and the largest sum of the magnitudes of an element's terms.
  static std::vector<double> formula(const HostMatrix& in, const HostMatrix& weight, double& magnitude) {
    std::vector<double> out;
    for (std::int64_t t = 0; t < in.rows; ++t) {
      for (std::int64_t n = 0; n < weight.rows; ++n) {
        long double sum = 0.0L;
        long double terms = 0.0L;
        for (std::int64_t k = 0; k < in.cols; ++k) {
          const long double term = static_cast<long double>(in.at(t, k)) * static_cast<long double>(weight.at(n, k));
          sum += term;
          terms += std::abs(term);
        }
        out.push_back(static_cast<double>(sum));
        magnitude = std::max(magnitude, static_cast<double>(terms));
      }
    }
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, QuantizedLinearTest, all_backends(), backend_case_name);

TEST_P(QuantizedLinearTest, MatchesTheFormulaOverUnevenBlocksAndGroups) {
  std::uint64_t seed = 1401;
  for (const WeightCase& c : weight_cases()) {
    const bool int4 = c.format == ops::WeightFormat::kInt4Group;
    const std::vector<std::int64_t> widths = int4 ? std::vector<std::int64_t>{c.group_size, 3L * c.group_size, 384}
                                                  : std::vector<std::int64_t>{1, 31, 127, 128, 129, 300};
    for (const std::int64_t k : widths) {
      for (const std::int64_t n : {1, 7, 127, 130, 257}) {
        for (const std::int64_t tokens : {1, 3, 9}) {
          ++seed;
          SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << case_text(c) << ", tokens " << tokens << ", K "
                                          << k << ", N " << n);
          Random random(seed);
          const StoredWeight stored = random_stored_weight(random, c.format, n, k, c.group_size);
          const HostMatrix in = random_matrix(random, tokens, k);
          double magnitude = 0.0;
          const std::vector<double> expected = formula(in, stored.values, magnitude);
          // Rounding an activation to BF16 is off by 2^-8 of it at most.
          const Tolerance allowed =
              tolerance({1e-14 * magnitude, 0x1.0p-23, 1e-13}, {0x1.0p-8 * magnitude + 1e-6, 1e-6, 2e-5});
          const ops::Weight weight = prepare(stored.source());
          EXPECT_TRUE(near(run(weight, in, 3), expected, allowed));
        }
      }
    }
  }
}

TEST_P(QuantizedLinearTest, AddsBiasAndResidual) {
  std::uint64_t seed = 1481;
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Random random(seed);
    const StoredWeight stored = random_stored_weight(random, c.format, 130, 256, c.group_size);
    const HostMatrix in = random_bf16_matrix(random, 4, 256);
    const HostMatrix bias_values = random_matrix(random, 1, 130);
    const HostMatrix residual = random_matrix(random, 4, 130);
    double magnitude = 0.0;
    std::vector<double> expected = formula(in, stored.values, magnitude);
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::int64_t n = 0; n < 130; ++n) {
        expected[static_cast<std::size_t>(t * 130 + n)] +=
            static_cast<double>(bias_values.at(0, n)) + static_cast<double>(residual.at(t, n));
      }
    }
    const ops::Weight weight = prepare(stored.source());
    const ops::Weight bias = device_.weight(bias_values, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
    const DeviceMatrix device_in = device_.upload_matrix(in);
    const DeviceMatrix out = device_.upload_matrix(residual, 7);
    backend().linear(stream(), {device_in.view(), &weight, &bias, out.view(), ops::OutputMode::kAdd});
    const Tolerance allowed =
        tolerance({1e-14 * magnitude, 0x1.0p-23, 1e-13}, {0x1.0p-8 * magnitude + 1e-6, 1e-6, 2e-5});
    EXPECT_TRUE(near(device_.download_matrix(out), expected, allowed));
  }
}

TEST_P(QuantizedLinearTest, AOneInPlaceKReadsColumnKToTheBit) {
  std::uint64_t seed = 1491;
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Random random(seed);
    const std::int64_t k = c.format == ops::WeightFormat::kInt4Group ? 256 : 259;
    const StoredWeight stored = random_stored_weight(random, c.format, 131, k, c.group_size);
    HostMatrix ones(k, k);
    HostMatrix columns(k, 131);
    for (std::int64_t i = 0; i < k; ++i) {
      ones.at(i, i) = 1.0f;
      for (std::int64_t n = 0; n < 131; ++n)
        columns.at(i, n) = stored.values.at(n, i) + 0.0f;  // No -0: sums have none.
    }
    HostMatrix got = run(prepare(stored.source()), ones);
    for (float& value : got.values) value += 0.0f;
    EXPECT_TRUE(same_bits(got, columns));
  }
}

TEST_P(QuantizedLinearTest, TheKnownWordOfThePackedFormat) {
  // compressed-tensors packs [-6, 6, -3, -4, -6, -5, 2, -1] to 0x7a3245e2.
  StoredWeight stored;
  stored.format = ops::WeightFormat::kInt4Group;
  stored.rows = 1;
  stored.cols = 32;
  stored.group_size = 32;
  for (int i = 0; i < 4; ++i) {
    for (const int byte : {0xe2, 0x45, 0x32, 0x7a}) stored.data.push_back(static_cast<std::byte>(byte));
  }
  stored.scales = {std::byte{0x80}, std::byte{0x3f}};  // 1 in BF16.
  HostMatrix ones(32, 32);
  for (std::int64_t i = 0; i < 32; ++i) ones.at(i, i) = 1.0f;
  const HostMatrix out = run(prepare(stored.source()), ones);
  const std::vector<float> expected = {-6, 6, -3, -4, -6, -5, 2, -1};
  for (std::int64_t i = 0; i < 32; ++i) EXPECT_EQ(out.at(i, 0), expected[static_cast<std::size_t>(i % 8)]);
}

TEST_P(QuantizedLinearTest, ATokensResultDoesNotDependOnTheBatch) {
  std::uint64_t seed = 1501;
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Random random(seed);
    const StoredWeight stored = random_stored_weight(random, c.format, 150, 384, c.group_size);
    const ops::Weight weight = prepare(stored.source());
    const HostMatrix in = random_matrix(random, 65, 384);
    const HostMatrix whole = run(weight, in);
    for (const std::int64_t t : {0, 1, 31, 32, 64}) {
      EXPECT_TRUE(same_bits(run(weight, in.slice(t, t + 1)), whole.slice(t, t + 1))) << "token " << t;
    }
    EXPECT_TRUE(same_bits(run(weight, in.slice(3, 20)), whole.slice(3, 20)));
    EXPECT_EQ(run(weight, HostMatrix(0, 384)).rows, 0);
  }
}

// Long rows: several blocks of k, the last one short, and many tiles of rows.
TEST_P(QuantizedLinearTest, ATokensResultDoesNotDependOnTheBatchInLongRows) {
  std::uint64_t seed = 1531;
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Random random(seed);
    const std::int64_t k = 2048 + std::max(c.group_size, 32);
    const StoredWeight stored = random_stored_weight(random, c.format, 33, k, c.group_size);
    const ops::Weight weight = prepare(stored.source());
    const HostMatrix in = random_bf16_matrix(random, 65, k);
    const HostMatrix whole = run(weight, in);
    for (const std::int64_t t : {0, 31, 64}) {
      EXPECT_TRUE(same_bits(run(weight, in.slice(t, t + 1)), whole.slice(t, t + 1))) << "token " << t;
    }
    double magnitude = 0.0;
    const std::vector<double> expected = formula(in, stored.values, magnitude);
    const Tolerance allowed =
        tolerance({1e-14 * magnitude, 0x1.0p-23, 1e-13}, {0x1.0p-8 * magnitude + 1e-6, 1e-6, 2e-5});
    EXPECT_TRUE(near(whole, expected, allowed));
  }
}

TEST_P(QuantizedLinearTest, UsesMappedBytesWhereverTheyLie) {
  std::uint64_t seed = 1511;
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Random random(seed);
    const StoredWeight stored = random_stored_weight(random, c.format, 140, 256, c.group_size);
    const HostMatrix in = random_matrix(random, 2, 256);
    const HostMatrix expected = run(prepare(stored.source()), in);
    for (const std::size_t offset : {0, 1, 2, 3, 5}) {
      std::vector<std::byte> file(stored.data.size() + stored.scales.size() + 64);
      std::memcpy(file.data() + offset, stored.data.data(), stored.data.size());
      std::byte* scales = file.data() + offset + stored.data.size() + 3;
      if (!stored.scales.empty()) std::memcpy(scales, stored.scales.data(), stored.scales.size());
      ops::WeightSource source = stored.source();
      source.data = file.data() + offset;
      source.scales = stored.scales.empty() ? nullptr : scales;
      source.outlives_backend = true;
      source.scales_outlive_backend = true;
      const ops::Weight weight = prepare(source);
      EXPECT_TRUE(same_bits(run(weight, in), expected)) << "offset " << offset;
      // There is no second copy of a quantized weight.
      const bool quantized = !stored.scales.empty();
      if (quantized && device_.arithmetic() == Arithmetic::kDouble) {
        EXPECT_EQ(weight.storage.bytes(), 0);
      }
    }
  }
}

TEST_P(QuantizedLinearTest, KeepsNoPointerIntoBytesThatDie) {
  std::uint64_t seed = 1521;
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Random random(seed);
    const StoredWeight stored = random_stored_weight(random, c.format, 33, 128, c.group_size);
    const HostMatrix in = random_matrix(random, 2, 128);
    const HostMatrix expected = run(prepare(stored.source()), in);
    StoredWeight dying = stored;
    const ops::Weight copied = prepare(dying.source());
    // Only the scales die: a file stored them in another dtype, and they were converted.
    StoredWeight scales_dying = stored;
    ops::WeightSource mapped = scales_dying.source();
    mapped.outlives_backend = true;
    const ops::Weight in_place = prepare(mapped);
    std::fill(dying.data.begin(), dying.data.end(), std::byte{0x7f});
    std::fill(dying.scales.begin(), dying.scales.end(), std::byte{0x7f});
    std::fill(scales_dying.scales.begin(), scales_dying.scales.end(), std::byte{0x7f});
    EXPECT_TRUE(same_bits(run(copied, in), expected));
    EXPECT_TRUE(same_bits(run(in_place, in), expected));
  }
}

TEST_P(QuantizedLinearTest, RefusesGroupsThatDoNotFit) {
  const std::vector<std::byte> bytes(1 << 16);
  const auto refusal = [&](std::int64_t cols, std::int32_t group) {
    const auto weight = backend().prepare_weight(
        {ops::WeightFormat::kInt4Group, ops::WeightUsage::kLinear, 8, cols, bytes.data(), bytes.data(), group});
    EXPECT_FALSE(weight.has_value());
    if (weight.has_value()) return std::string();
    EXPECT_EQ(weight.error().code(), base::StatusCode::kInvalidArgument);
    return weight.error().message();
  };
  EXPECT_NE(refusal(96, 48).find("48"), std::string::npos);
  EXPECT_NE(refusal(96, 0).find("groups of 0"), std::string::npos);
  EXPECT_NE(refusal(96, -32).find("-32"), std::string::npos);
  EXPECT_NE(refusal(96, 64).find("[8, 96]"), std::string::npos);
  EXPECT_NE(refusal(40, 32).find("[8, 40]"), std::string::npos);
  EXPECT_NE(refusal(0, 32).find("[8, 0]"), std::string::npos);
}

TEST_P(QuantizedLinearTest, ARoutersProductIsNotRounded) {
  std::uint64_t seed = 1531;
  for (const auto format : {ops::WeightFormat::kF32, ops::WeightFormat::kBF16}) {
    for (const std::int64_t experts : {3, 64, 160, 257}) {
      SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << ops::weight_format_name(format) << ", experts "
                                      << experts);
      Random random(seed);
      const StoredWeight stored = random_stored_weight(random, format, experts, 200);
      const ops::Weight weight = prepare(stored.source(ops::WeightUsage::kRouter));
      EXPECT_EQ(weight.format, ops::WeightFormat::kF32);
      const HostMatrix in = random_matrix(random, 5, 200);
      double magnitude = 0.0;
      const std::vector<double> expected = formula(in, stored.values, magnitude);
      // F32 sums, whatever the backend does elsewhere.
      const Tolerance allowed =
          tolerance({1e-14 * magnitude, 0x1.0p-23, 1e-13}, {1e-6 * magnitude + 1e-6, 1e-6, 1e-11});
      const HostMatrix whole = run(weight, in);
      EXPECT_TRUE(near(whole, expected, allowed));
      for (std::int64_t t = 0; t < 5; ++t) {
        EXPECT_TRUE(same_bits(run(weight, in.slice(t, t + 1)), whole.slice(t, t + 1)));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::conformance
