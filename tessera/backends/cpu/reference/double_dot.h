// The one inner product of the reference backend.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::backends::cpu {

// sum_i a[i] * b[i] in double, of floats or doubles. Element i goes to partial sum i % 8, and the eight are added in
// order: a fixed order, for which a compiler need not wait for each addition.
template <typename A, typename B>
double double_dot(const A* a, const B* b, std::int64_t n) {
  constexpr std::int64_t kPartials = 8;
  std::array<double, kPartials> partial{};
  std::int64_t i = 0;
  for (; i + kPartials <= n; i += kPartials) {
    for (std::int64_t p = 0; p < kPartials; ++p)
      partial[p] += static_cast<double>(a[i + p]) * static_cast<double>(b[i + p]);
  }
  for (; i < n; ++i) partial[i % kPartials] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double sum = 0.0;
  for (const double p : partial) sum += p;
  return sum;
}

}  // namespace tessera::backends::cpu
