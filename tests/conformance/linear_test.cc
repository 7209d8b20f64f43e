#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {
namespace {

enum class Bias { kNone, kAdded };

class LinearTest : public BackendTest {
 protected:
  struct Problem {
    HostMatrix in;
    HostMatrix weight;
    HostMatrix bias;      // Empty: none.
    HostMatrix residual;  // Empty: overwrite.
    ops::WeightFormat format = ops::WeightFormat::kF32;
  };
  static Problem make(std::uint64_t seed, std::int64_t tokens, std::int64_t k, std::int64_t n, ops::WeightFormat format,
                      Bias bias, ops::OutputMode mode) {
    Random random(seed);
    Problem p;
    p.format = format;
    p.in = random_matrix(random, tokens, k);
    p.weight = format == ops::WeightFormat::kBF16 ? random_bf16_matrix(random, n, k) : random_matrix(random, n, k);
    if (bias == Bias::kAdded) p.bias = random_matrix(random, 1, n);
    if (mode == ops::OutputMode::kAdd) p.residual = random_matrix(random, tokens, n);
    return p;
  }
  HostMatrix run(const Problem& p, std::int64_t padding = 0) {
    const ops::Weight weight = device_.weight(p.weight, p.format, ops::WeightUsage::kLinear);
    ops::Weight bias;
    if (p.bias.rows > 0) bias = device_.weight(p.bias, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
    const DeviceMatrix in = device_.upload_matrix(p.in, padding);
    const bool add = p.residual.cols > 0;
    const DeviceMatrix out = add ? device_.upload_matrix(p.residual, padding * 2)
                                 : device_.output_matrix(p.in.rows, p.weight.rows, padding * 2);
    backend().linear(stream(), {in.view(), &weight, p.bias.rows > 0 ? &bias : nullptr, out.view(),
                                add ? ops::OutputMode::kAdd : ops::OutputMode::kOverwrite});
    return device_.download_matrix(out);
  }
  // The outputs, and what rounding errors are measured against: of an element's terms the sum of magnitudes (the
  // largest of any element), and over all elements the squares of the terms beside the squares of the outputs.
  struct Expected {
    std::vector<double> values;
    double magnitude = 0.0;
    double squares_of_terms = 0.0;
    double squares_of_values = 0.0;
  };
  static Expected formula(const Problem& p) {
    Expected expected;
    for (std::int64_t t = 0; t < p.in.rows; ++t) {
      for (std::int64_t n = 0; n < p.weight.rows; ++n) {
        long double sum = 0.0L;
        long double magnitude = 0.0L;
        for (std::int64_t k = 0; k < p.in.cols; ++k) {
          const long double term =
              static_cast<long double>(p.in.at(t, k)) * static_cast<long double>(p.weight.at(n, k));
          sum += term;
          magnitude += std::abs(term);
          expected.squares_of_terms += static_cast<double>(term * term);
        }
        if (p.bias.rows > 0) sum += static_cast<long double>(p.bias.at(0, n));
        if (p.residual.cols > 0) sum += static_cast<long double>(p.residual.at(t, n));
        expected.values.push_back(static_cast<double>(sum));
        expected.squares_of_values += static_cast<double>(sum * sum);
        expected.magnitude = std::max(expected.magnitude, static_cast<double>(magnitude));
      }
    }
    return expected;
  }
  Tolerance allowed(const Problem& p, const Expected& expected) const {
    const Tolerance exact{1e-14 * expected.magnitude, 0x1.0p-23, 1e-13};
    // Rounding an activation to BF16 is off by 2^-8 of it at most, and errors of that size point anywhere: 1 - cosine
    // is about half the square of error over result, which is large where terms cancel. F32 sums are off by a few units
    // in 2^24 of the terms.
    const double cancelled = expected.squares_of_terms / std::max(expected.squares_of_values, 1e-30);
    const Tolerance wide = p.format == ops::WeightFormat::kBF16
                               ? Tolerance{0x1.0p-8 * expected.magnitude + 1e-6, 1e-6, 2e-5 + 2 * 0x1.0p-16 * cancelled}
                               : Tolerance{1e-6 * expected.magnitude + 1e-6, 1e-6, 1e-11};
    return tolerance(exact, wide);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LinearTest, all_backends(), backend_case_name);

TEST_P(LinearTest, MatchesTheFormulaOverOddShapes) {
  std::uint64_t seed = 501;
  for (const auto format : {ops::WeightFormat::kF32, ops::WeightFormat::kBF16}) {
    for (const std::int64_t k : {1, 3, 8, 15, 31, 32, 64, 100, 577}) {
      for (const std::int64_t n : {1, 2, 7, 16, 33, 66}) {
        for (const std::int64_t tokens : {1, 2, 3, 4, 5, 8, 33}) {
          ++seed;
          const Bias bias = seed % 2 == 0 ? Bias::kAdded : Bias::kNone;
          const ops::OutputMode mode = seed % 3 == 0 ? ops::OutputMode::kAdd : ops::OutputMode::kOverwrite;
          SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ops::weight_format_name(format) << ", tokens "
                                          << tokens << ", K " << k << ", N " << n);
          const Problem p = make(seed, tokens, k, n, format, bias, mode);
          const Expected expected = formula(p);
          ASSERT_TRUE(near(run(p, seed % 4), expected.values, allowed(p, expected)));
        }
      }
    }
  }
}

TEST_P(LinearTest, MatchesTheFormulaOverModelShapes) {
  std::uint64_t seed = 3001;
  for (const auto format : {ops::WeightFormat::kF32, ops::WeightFormat::kBF16}) {
    for (const auto& [k, n] : {std::pair{576, 1536}, {1536, 576}, {576, 192}, {128, 3000}}) {
      for (const std::int64_t tokens : {1, 7}) {
        ++seed;
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", tokens " << tokens << ", K " << k << ", N " << n);
        const Problem p = make(seed, tokens, k, n, format, Bias::kNone, ops::OutputMode::kAdd);
        const Expected expected = formula(p);
        ASSERT_TRUE(near(run(p), expected.values, allowed(p, expected)));
      }
    }
  }
}

TEST_P(LinearTest, IsExactWhereEveryStepIs) {
  // Small integers: every product and sum is exact in F32 and in BF16, so any layout or index error shows.
  constexpr std::uint64_t kSeed = 502;
  Random random(kSeed);
  for (const auto format : {ops::WeightFormat::kF32, ops::WeightFormat::kBF16}) {
    for (const auto& [tokens, k, n] : {std::tuple{1, 45, 19}, {6, 128, 64}, {37, 77, 101}}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", tokens " << tokens << ", K " << k << ", N " << n);
      Problem p;
      p.format = format;
      p.in = HostMatrix(tokens, k);
      p.weight = HostMatrix(n, k);
      for (float& value : p.in.values) value = static_cast<float>(random.below(17) - 8);
      for (float& value : p.weight.values) value = static_cast<float>(random.below(17) - 8);
      const HostMatrix out = run(p);
      const Expected expected = formula(p);
      for (std::size_t i = 0; i < out.values.size(); ++i) {
        ASSERT_EQ(static_cast<double>(out.values[i]), expected.values[i]) << "element " << i;
      }
    }
  }
}

TEST_P(LinearTest, RowDoesNotDependOnTheBatch) {
  std::uint64_t seed = 503;
  for (const auto format : {ops::WeightFormat::kF32, ops::WeightFormat::kBF16}) {
    for (const auto& [k, n] : {std::pair{100, 33}, {577, 65}, {576, 1536}}) {
      SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << ops::weight_format_name(format) << ", K " << k
                                      << ", N " << n);
      const Problem together = make(seed, 33, k, n, format, Bias::kNone, ops::OutputMode::kAdd);
      const HostMatrix out = run(together);
      for (const auto& [begin, end] : {std::pair{0, 1}, {32, 33}, {5, 6}, {0, 2}, {7, 11}, {3, 19}}) {
        Problem part = together;
        part.in = together.in.slice(begin, end);
        part.residual = together.residual.slice(begin, end);
        ASSERT_TRUE(same_bits(run(part), out.slice(begin, end))) << "rows " << begin << " to " << end;
      }
    }
  }
}

TEST_P(LinearTest, NaNStaysInItsRow) {
  constexpr std::uint64_t kSeed = 504;
  for (const auto format : {ops::WeightFormat::kF32, ops::WeightFormat::kBF16}) {
    Problem p = make(kSeed, 9, 100, 20, format, Bias::kNone, ops::OutputMode::kOverwrite);
    const HostMatrix clean = run(p);
    p.in.at(4, 50) = std::nanf("");
    const HostMatrix out = run(p);
    for (std::int64_t t = 0; t < 9; ++t) {
      if (t == 4) {
        for (std::int64_t n = 0; n < 20; ++n) EXPECT_TRUE(std::isnan(out.at(t, n)));
      } else {
        EXPECT_TRUE(same_bits(out.slice(t, t + 1), clean.slice(t, t + 1))) << "row " << t;
      }
    }
  }
}

TEST_P(LinearTest, TakesNoTokens) {
  const Problem p = make(505, 0, 16, 8, ops::WeightFormat::kF32, Bias::kAdded, ops::OutputMode::kOverwrite);
  EXPECT_TRUE(run(p).values.empty());
}

TEST_P(LinearTest, TakesAWeightInPlaceAtAnyAlignment) {
  // A checkpoint's tensor may begin at any byte of a mapped file.
  constexpr std::uint64_t kSeed = 506;
  const std::int64_t k = 45;
  const std::int64_t n = 19;
  const Problem p = make(kSeed, 3, k, n, ops::WeightFormat::kBF16, Bias::kNone, ops::OutputMode::kOverwrite);
  const HostMatrix expected = run(p);
  for (const std::size_t offset : {0u, 1u, 2u, 3u}) {
    std::vector<std::byte> file(static_cast<std::size_t>(n * k) * 2 + 8);
    for (std::size_t i = 0; i < p.weight.values.size(); ++i) {
      const base::BF16 value = base::to_bf16(p.weight.values[i]);
      std::memcpy(file.data() + offset + i * 2, &value, 2);
    }
    auto weight = backend().prepare_weight(
        {ops::WeightFormat::kBF16, ops::WeightUsage::kLinear, n, k, file.data() + offset, nullptr, 0, true});
    ASSERT_TRUE(weight.has_value());
    const DeviceMatrix in = device_.upload_matrix(p.in);
    const DeviceMatrix out = device_.output_matrix(3, n);
    backend().linear(stream(), {in.view(), &*weight, nullptr, out.view(), ops::OutputMode::kOverwrite});
    EXPECT_TRUE(same_bits(device_.download_matrix(out), expected)) << "offset " << offset;
  }
}

}  // namespace
}  // namespace tessera::conformance
