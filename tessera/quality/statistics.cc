#include "tessera/quality/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <boost/math/special_functions/beta.hpp>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "tessera/base/check.h"

namespace tessera::quality {

namespace {

namespace bm = boost::math;
// No exceptions, and the same arithmetic where long double is wider and where it is not.
using Quiet = bm::policies::policy<
    bm::policies::domain_error<bm::policies::ignore_error>, bm::policies::overflow_error<bm::policies::ignore_error>,
    bm::policies::evaluation_error<bm::policies::ignore_error>, bm::policies::promote_double<false>>;

// With fewer clusters that have a miss (or, at small rates, a hit) their variance is as good as unknown.
constexpr double kInformingClusters = 6.0;
constexpr int kBisections = 200;  // More than halve an interval of doubles down to one.

// The x between low and high at which `above` turns from true to false.
template <typename Above>
double bisect(double low, double high, Above above) {
  for (int i = 0; i < kBisections; ++i) {
    const double middle = 0.5 * (low + high);
    (above(middle) ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// Variance of (won - lost) under the hypothesis that its mean is n * difference (Tango 1998, eq. 3 and after).
double tango_variance(double lost, double won, double n, double difference) {
  const double a = 2.0 * n;
  const double b = -won - lost + (2.0 * n - won + lost) * difference;
  const double c = -lost * difference * (1.0 - difference);
  const double q = (std::sqrt(std::max(0.0, b * b - 4.0 * a * c)) - b) / (2.0 * a);
  return std::max(0.0, n * (2.0 * q + difference * (1.0 - difference)));
}

}  // namespace

Interval wilson_interval(double successes, double n) {
  if (n <= 0.0) return {0.0, 1.0};
  const double z2 = kNormal975 * kNormal975;
  const double p = successes / n;
  const double middle = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
  const double half = kNormal975 * std::sqrt(p * (1.0 - p) / n + z2 / (4.0 * n * n)) / (1.0 + z2 / n);
  // At its ends the formula gives 0 and 1 but for rounding.
  return {p <= 0.0 ? 0.0 : std::max(0.0, middle - half), p >= 1.0 ? 1.0 : std::min(1.0, middle + half)};
}

double mcnemar_exact(std::int64_t lost, std::int64_t won) {
  TESSERA_CHECK(lost >= 0 && won >= 0);
  const std::int64_t fewer = std::min(lost, won);
  if (lost == won) return 1.0;
  // P(X <= k) of a binomial of n at 1/2 is I_{1/2}(n - k, k + 1).
  const auto flips = static_cast<double>(lost + won);
  const auto k = static_cast<double>(fewer);
  return std::min(1.0, 2.0 * bm::ibeta(flips - k, k + 1.0, 0.5, Quiet()));
}

Interval tango_interval(double lost, double won, double n) {
  if (n <= 0.0) return {-1.0, 1.0};
  const double observed = (won - lost) / n;
  const auto score = [&](double difference) { return won - lost - n * difference; };
  const auto reach = [&](double difference) {
    return kNormal975 * std::sqrt(tango_variance(lost, won, n, difference));
  };
  return {bisect(-1.0, observed, [&](double d) { return score(d) > reach(d); }),
          bisect(observed, 1.0, [&](double d) { return -score(d) <= reach(d); })};
}

std::vector<double> holm(std::span<const double> p_values) {
  std::vector<std::size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return p_values[i]; });
  std::vector<double> adjusted(p_values.size());
  double largest = 0.0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    largest = std::max(largest, static_cast<double>(order.size() - rank) * p_values[order[rank]]);
    adjusted[order[rank]] = std::min(1.0, largest);
  }
  return adjusted;
}

double questions_to_detect(double difference, double flip_rate) {
  const double d = std::abs(difference);
  if (d <= 0.0) return std::numeric_limits<double>::infinity();
  const double rate = std::max(d, flip_rate);
  const double root = kNormal975 * std::sqrt(rate) + kNormal80 * std::sqrt(std::max(0.0, rate - d * d));
  return root * root / (d * d);
}

double detectable_difference(double n, double flip_rate) {
  if (n <= 0.0 || questions_to_detect(1.0, flip_rate) > n) return 1.0;
  return bisect(0.0, 1.0, [&](double d) { return questions_to_detect(d, flip_rate) > n; });
}

std::optional<double> questions_to_equivalence(double lost, double won, double n, double margin) {
  if (n <= 0.0 || margin <= 0.0 || std::abs(won - lost) / n >= margin) return std::nullopt;
  const auto outside = [&](double scale) {
    return !tango_interval(lost * scale, won * scale, n * scale).inside(margin);
  };
  double enough = 1.0;
  while (outside(enough)) {
    enough *= 2.0;
    if (enough * n > 1e12) return std::nullopt;
  }
  // Half a question is near enough.
  double too_few = 0.0;
  while ((enough - too_few) * n > 0.5) {
    const double middle = 0.5 * (too_few + enough);
    (outside(middle) ? too_few : enough) = middle;
  }
  return std::ceil(enough * n);
}

Interval clustered_rate_interval(std::span<const double> hits, std::span<const double> chances) {
  TESSERA_CHECK(hits.size() == chances.size());
  const double total_hits = std::accumulate(hits.begin(), hits.end(), 0.0);
  const double total = std::accumulate(chances.begin(), chances.end(), 0.0);
  if (total <= 0.0) return {0.0, 1.0};
  const double rate = total_hits / total;
  double squares = 0.0;
  double clusters = 0.0;
  double with_hit = 0.0;
  double with_miss = 0.0;
  for (std::size_t i = 0; i < hits.size(); ++i) {
    const double residual = hits[i] - rate * chances[i];
    squares += residual * residual;
    clusters += chances[i] > 0.0 ? 1.0 : 0.0;
    with_hit += hits[i] > 0.0 ? 1.0 : 0.0;
    with_miss += hits[i] < chances[i] ? 1.0 : 0.0;
  }
  double effective = clusters;
  if (squares > 0.0 && clusters > 1.0) {
    const double variance = squares / (total * total) * clusters / (clusters - 1.0);
    effective = std::min(total, rate * (1.0 - rate) / variance);
    const double informing = std::min(with_hit, with_miss);
    if (informing < kInformingClusters) {
      effective = std::min(effective, clusters);
    } else {
      const double widened = student_quantile(1.0 - 0.5 * kSignificance, informing - 1.0) / kNormal975;
      effective /= widened * widened;
    }
  }
  return wilson_interval(rate * effective, effective);
}

double normal_below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double student_quantile(double p, double degrees_of_freedom) {
  TESSERA_CHECK(p > 0.0 && p < 1.0 && degrees_of_freedom > 0.0);
  return bm::quantile(bm::students_t_distribution<double, Quiet>(degrees_of_freedom), p);
}

double sorted_quantile(std::span<const double> ascending, double p) {
  if (ascending.empty()) return 0.0;
  const double at = std::clamp(p, 0.0, 1.0) * static_cast<double>(ascending.size() - 1);
  const auto index = static_cast<std::size_t>(at);
  const double low = ascending[index];
  const double high = ascending[std::min(index + 1, ascending.size() - 1)];
  const double part = at - static_cast<double>(index);
  // Two infinities have no difference.
  return part == 0.0 || low == high ? low : low + (high - low) * part;
}

}  // namespace tessera::quality
