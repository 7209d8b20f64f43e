#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tessera/base/check.h"

namespace tessera::bench {

double percentile(std::vector<double> samples, double share) {
  TESSERA_CHECK(!samples.empty() && share > 0.0 && share <= 1.0);
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(samples.size())));
  const auto at = samples.begin() + static_cast<std::ptrdiff_t>(rank) - 1;
  std::ranges::nth_element(samples, at);
  return *at;
}

Estimate bootstrap(std::size_t cycles, const std::function<double(std::span<const std::size_t>)>& statistic,
                   const BootstrapOptions& options) {
  TESSERA_CHECK(cycles > 0 && options.resamples > 0);
  std::vector<std::size_t> drawn(cycles);
  std::iota(drawn.begin(), drawn.end(), std::size_t{0});
  Estimate estimate;
  estimate.value = statistic(drawn);
  std::mt19937_64 random(options.seed);
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(options.resamples));
  for (int i = 0; i < options.resamples; ++i) {
    for (std::size_t& index : drawn) index = static_cast<std::size_t>(random() % cycles);
    values.push_back(statistic(drawn));
  }
  estimate.low = percentile(values, 0.025);
  estimate.high = percentile(std::move(values), 0.975);
  return estimate;
}

}  // namespace tessera::bench
