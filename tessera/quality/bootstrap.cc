#include "tessera/quality/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "tessera/base/check.h"

namespace tessera::quality {

namespace {

double measure_of_sums(Measure what, const Unit& sums) {
  const double first = sums.numerator / sums.denominator;
  return what == Measure::kRatio ? first : sums.other_numerator / sums.other_denominator - first;
}

}  // namespace

std::uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15U;
  std::uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

std::uint64_t seed_for(std::uint64_t seed, std::initializer_list<std::string_view> names) {
  std::uint64_t hash = Random(seed).next();
  for (const std::string_view name : names) {
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    // So that ("ab", "c") is not ("a", "bc").
    hash = Random(hash).next();
  }
  return hash;
}

double measure(Measure what, std::span<const Unit> units) {
  Unit sums;
  for (const Unit& unit : units) add_unit(sums, unit);
  return measure_of_sums(what, sums);
}

Interval rate_interval(std::span<const Unit> units) {
  std::vector<double> hits;
  std::vector<double> chances;
  hits.reserve(units.size());
  chances.reserve(units.size());
  for (const Unit& unit : units) {
    hits.push_back(unit.numerator);
    chances.push_back(unit.denominator);
  }
  return clustered_rate_interval(hits, chances);
}

Interval bootstrap_interval(Measure what, std::span<const Unit> units, std::uint64_t seed) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (units.size() < 2) return {-infinity, infinity};
  TESSERA_CHECK(units.size() < std::size_t{1} << 32);
  Random random(seed);
  std::vector<double> values;
  values.reserve(kResamples);
  for (std::size_t resample = 0; resample < kResamples; ++resample) {
    Unit sums;
    for (std::size_t i = 0; i < units.size(); ++i) add_unit(sums, units[random.below(units.size())]);
    const double value = measure_of_sums(what, sums);
    if (!std::isnan(value)) values.push_back(value);
  }
  if (values.empty()) return {-infinity, infinity};
  std::ranges::sort(values);
  const auto n = static_cast<double>(units.size());
  const double level = normal_below(std::sqrt(n / (n - 1.0)) * student_quantile(0.5 * kSignificance, n - 1.0));
  return {sorted_quantile(values, level), sorted_quantile(values, 1.0 - level)};
}

double swap_test(std::span<const Unit> units, std::uint64_t seed, std::size_t resamples) {
  const double observed = std::abs(measure(Measure::kDifference, units));
  if (std::isnan(observed)) return 1.0;
  // Sums in another order differ in their last bits: those are not "smaller".
  const double reached = observed * (1.0 - 1e-12);
  Random random(seed);
  std::size_t as_large = 1;
  for (std::size_t resample = 0; resample < resamples; ++resample) {
    Unit sums;
    std::uint64_t coins = 0;
    for (std::size_t i = 0; i < units.size(); ++i) {
      if (i % 64 == 0) coins = random.next();
      const Unit& unit = units[i];
      const bool swap = (coins >> (i % 64) & 1) != 0;
      add_unit(sums,
               swap ? Unit{unit.other_numerator, unit.other_denominator, unit.numerator, unit.denominator} : unit);
    }
    const double value = std::abs(measure_of_sums(Measure::kDifference, sums));
    // Where a swap leaves nothing to divide by, nothing speaks against the hypothesis.
    if (std::isnan(value) || value >= reached) ++as_large;
  }
  return static_cast<double>(as_large) / static_cast<double>(resamples + 1);
}

}  // namespace tessera::quality
