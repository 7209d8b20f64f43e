// Honest comparison of a result with what it should be: first NaN and infinity must sit in the same places, then every
// element must be near in absolute plus relative terms, then the whole must point the same way (cosine). A failure
// names the worst coordinate.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace tessera::conformance {

struct Tolerance {
  double absolute = 0.0;
  double relative = 0.0;         // |actual - expected| <= absolute + relative * |expected|
  double cosine_distance = 0.0;  // 1 - cosine of the two, as vectors.
};

// Both are row-major [n / cols, cols].
template <typename Actual, typename Expected>
testing::AssertionResult near(std::span<const Actual> actual, std::span<const Expected> expected, std::int64_t cols,
                              const Tolerance& tolerance) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " elements, expected " << expected.size();
  }
  double worst_ratio = 0.0;
  std::size_t worst = 0;
  std::size_t outside = 0;
  double product = 0.0;
  double actual_norm = 0.0;
  double expected_norm = 0.0;
  const auto at = [&](std::size_t i) {
    return testing::Message() << "[" << i / static_cast<std::size_t>(cols) << ", " << i % static_cast<std::size_t>(cols)
                              << "] is " << actual[i] << ", expected " << expected[i];
  };
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<double>(actual[i]);
    const double e = static_cast<double>(expected[i]);
    if (std::isnan(a) != std::isnan(e)) return testing::AssertionFailure() << "NaN disagrees: " << at(i);
    if ((std::isinf(a) || std::isinf(e)) && a != e) {
      return testing::AssertionFailure() << "infinity disagrees: " << at(i);
    }
    if (!std::isfinite(e)) continue;
    const double allowed = tolerance.absolute + tolerance.relative * std::abs(e);
    const double error = std::abs(a - e);
    if (error > allowed) {
      ++outside;
      const double ratio = error / std::max(allowed, 1e-300);
      if (ratio > worst_ratio) {
        worst_ratio = ratio;
        worst = i;
      }
    }
    product += a * e;
    actual_norm += a * a;
    expected_norm += e * e;
  }
  if (outside > 0) {
    return testing::AssertionFailure() << outside << " of " << actual.size() << " elements are off; the worst, "
                                       << worst_ratio << " times what is allowed: " << at(worst);
  }
  if (actual_norm == 0.0 && expected_norm == 0.0) return testing::AssertionSuccess();
  const double distance = 1.0 - product / std::sqrt(actual_norm * expected_norm);
  // 1 - cosine of equal vectors is off by the rounding of the sums themselves.
  if (!(distance <= tolerance.cosine_distance + 1e-14)) {
    return testing::AssertionFailure() << "cosine distance " << distance << ", allowed " << tolerance.cosine_distance;
  }
  return testing::AssertionSuccess();
}

// Equal to the bit; NaNs with equal bits are equal.
template <typename T>
testing::AssertionResult same_bits(std::span<const T> actual, std::span<const T> expected, std::int64_t cols) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " elements, expected " << expected.size();
  }
  std::size_t different = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    bool same = false;
    if constexpr (std::is_same_v<T, float>) {
      same = std::bit_cast<std::uint32_t>(actual[i]) == std::bit_cast<std::uint32_t>(expected[i]);
    } else {
      same = actual[i] == expected[i];
    }
    if (!same && different++ == 0) first = i;
  }
  if (different == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << different << " of " << actual.size() << " elements differ, the first at ["
                                     << first / static_cast<std::size_t>(cols) << ", "
                                     << first % static_cast<std::size_t>(cols)
                                     << "]: " << testing::PrintToString(actual[first]) << ", expected "
                                     << testing::PrintToString(expected[first]);
}

}  // namespace tessera::conformance
