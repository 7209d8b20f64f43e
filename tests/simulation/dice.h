// All that is random in a simulation: one stream of numbers from one seed, the same on every machine.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::simulation {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(base::mix64(seed + base::kMix64Step)) {}
  std::uint64_t next() { return base::mix64(state_ += base::kMix64Step); }
  // Both ends included.
  std::int64_t range(std::int64_t low, std::int64_t high) {
    TESSERA_CHECK(low <= high);
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability; }
  template <typename T>
  const T& one_of(std::span<const T> choices) {
    return choices[static_cast<std::size_t>(range(0, std::ssize(choices) - 1))];
  }
  // Dice of their own for a part, so that what one part asks for does not change another's numbers.
  Dice split() { return Dice(next()); }

 private:
  std::uint64_t state_;
};

}  // namespace tessera::simulation
