// Numbers from samples, each with an interval. Samples come in cycles, in which everything that is compared was
// measured shortly one after the other; the bootstrap (Efron 1979) draws whole cycles, so what neighbouring steps have
// in common (a busy machine, a growing context) widens the interval instead of hiding in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tessera::bench {

struct Estimate {
  double value = 0.0;
  double low = 0.0;  // 95 % interval.
  double high = 0.0;
};

struct BootstrapOptions {
  std::uint64_t seed = 20261130;
  int resamples = 2000;
};

// The nearest-rank percentile: the smallest sample that at least `share` of all are not above. Not of nothing.
double percentile(std::vector<double> samples, double share);

// `statistic` takes indices of cycles, with repetitions, in no order; called once with each of 0 .. cycles - 1 for the
// value itself. The interval is the 2.5th to the 97.5th percentile of the resamples.
Estimate bootstrap(std::size_t cycles, const std::function<double(std::span<const std::size_t>)>& statistic,
                   const BootstrapOptions& options = {});

}  // namespace tessera::bench
