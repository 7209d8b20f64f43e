// How far a vector is from its reference: the norm of the difference over the norm of the reference.
#pragma once

#include <cmath>
#include <limits>
#include <span>

namespace tessera::test_support {

// Infinite where either holds a NaN or infinity, or where sizes differ: such a result equals nothing.
template <typename A, typename B>
double relative_error(std::span<const A> value, std::span<const B> reference) {
  if (value.size() != reference.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double d = static_cast<double>(value[i]) - static_cast<double>(reference[i]);
    difference += d * d;
    norm += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
  }
  const double error = norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace tessera::test_support
