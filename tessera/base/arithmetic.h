// Small integer arithmetic shared by every room. C++20, so that device code may include it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace tessera::base {

constexpr std::int64_t ceil_div(std::int64_t numerator, std::int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}
constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}

// a * b and a + b for values that came from outside; empty on overflow or when an operand is negative.
constexpr std::optional<std::int64_t> checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}
constexpr std::optional<std::int64_t> checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// splitmix64's finalizer (Steele, Lea and Flood 2014): spreads 64 bits over 64 bits, one to one. What it is used for
// depends on its exact values: digests' seeds, sampling, hashes that processes compare.
constexpr std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
// The step of splitmix64's state.
inline constexpr std::uint64_t kMix64Step = 0x9e3779b97f4a7c15ull;

}  // namespace tessera::base
