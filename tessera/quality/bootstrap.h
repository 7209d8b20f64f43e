// Resampling, seeded: the same seed and data give the same numbers everywhere, since neither the generator nor its use
// is left to a library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/quality/statistics.h"

namespace tessera::quality {

inline constexpr std::size_t kResamples = 10'000;

// SplitMix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  // 0 to count - 1, count under 2^32: the upper half of next(), times count, by 2^32.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>((next() >> 32) * count >> 32); }

 private:
  std::uint64_t state_;
};

// A seed for one figure of an evaluation, so that no figure depends on which others are computed.
std::uint64_t seed_for(std::uint64_t seed, std::initializer_list<std::string_view> names);

// One independent unit of an evaluation (a question, a passage) as two plans did it: their measures are sums by sums.
// With one plan, the other's are 0.
struct Unit {
  double numerator = 0.0;
  double denominator = 0.0;
  double other_numerator = 0.0;
  double other_denominator = 0.0;
};
inline void add_unit(Unit& sums, const Unit& unit) {
  sums.numerator += unit.numerator;
  sums.denominator += unit.denominator;
  sums.other_numerator += unit.other_numerator;
  sums.other_denominator += unit.other_denominator;
}

enum class Measure : std::uint8_t {
  kRatio,       // sum(numerator) / sum(denominator)
  kDifference,  // sum(other_numerator) / sum(other_denominator) - the same of the first
};
double measure(Measure what, std::span<const Unit> units);

// clustered_rate_interval() of units whose ratio is a share; what the other plan had does not matter.
Interval rate_interval(std::span<const Unit> units);

// Percentile bootstrap (Efron 1979) with units drawn whole, kResamples times, so that what is inside one may depend on
// each other; with the levels widened for few units as Student's t is wider than the normal (the expanded percentile
// interval, Hesterberg 2015). Resamples whose measure does not exist (a sum of denominators that is 0) are left out.
// units: at least one; fewer than two: everything.
Interval bootstrap_interval(Measure what, std::span<const Unit> units, std::uint64_t seed);

// Two-sided p of the hypothesis that which plan is which does not matter: each unit's plans are swapped or not, by
// coin, `resamples` times; the share of differences at least as large, counting the observed one (Phipson and Smyth
// 2010). More resamples begin with the same ones.
double swap_test(std::span<const Unit> units, std::uint64_t seed, std::size_t resamples = kResamples);
// How many resamples the tests of a family need, so that as many times the smallest p they can give is under half of
// kSignificance.
inline std::size_t swap_resamples(std::size_t family) { return std::max(kResamples, 40 * family); }

}  // namespace tessera::quality
