// The formulas by which two plans' answers are told apart, as plain functions of counts. Probabilities and proportions
// are 0 to 1; intervals are 95% and two-sided; nothing here draws random numbers (bootstrap.h does). docs/evaluate.md
// says how a verdict is made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera::quality {

struct Interval {
  double low = 0.0;
  double high = 0.0;
  bool excludes_zero() const { return low > 0.0 || high < 0.0; }
  bool inside(double margin) const { return low >= -margin && high <= margin; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

inline constexpr double kSignificance = 0.05;
inline constexpr double kNormal975 = 1.959963984540054;  // 97.5% of the standard normal distribution lies below it.
inline constexpr double kNormal80 = 0.8416212335729143;  // 80% does: the power of what is called detectable.

// Score interval of a proportion (Wilson 1927). `n` need not be whole (an effective number, see
// clustered_rate_interval); n <= 0: [0, 1].
Interval wilson_interval(double successes, double n);

// What a reference and another plan did with the same questions.
struct PairCounts {
  std::int64_t both_right = 0;
  std::int64_t both_wrong = 0;
  std::int64_t lost = 0;  // Right with the reference, wrong with the other.
  std::int64_t won = 0;   // The reverse.
  std::int64_t total() const { return both_right + both_wrong + lost + won; }
  std::int64_t flips() const { return lost + won; }
};

// Two-sided exact McNemar test: twice the smaller tail of a binomial of all flips at 1/2, at most 1; 1 without flips.
double mcnemar_exact(std::int64_t lost, std::int64_t won);

// Score interval of the difference of paired proportions, (won - lost) / n (Tango 1998). Without a flip it is not empty
// but z^2 / (n + z^2) to both sides. Counts need not be whole; n <= 0: [-1, 1].
Interval tango_interval(double lost, double won, double n);

// Holm's step-down adjustment (1979) for a family of tests: adjusted p-values in the given order.
std::vector<double> holm(std::span<const double> p_values);

// By the normal approximation of McNemar's test (Connor 1987): how many questions make a true difference `difference`
// (not 0) significant with a power of 80%, when a share `flip_rate` of them flips; a rate under |difference|, which
// cannot be, counts as |difference|.
double questions_to_detect(double difference, double flip_rate);
// The inverse: the smallest difference that `n` questions show with that power; 1 where not even that is shown.
double detectable_difference(double n, double flip_rate);
// How many questions of the same kind (the same shares lost and won) bring tango_interval within `margin`; none where
// no number would, since the difference itself lies outside.
std::optional<double> questions_to_equivalence(double lost, double won, double n, double margin);

// A sum of hits by a sum of chances, over clusters (the calls of a conversation, the positions of a passage) that are
// independent only of each other: Wilson's interval with the effective number of chances that the variance of the ratio
// over clusters implies (linearised; Kish 1965, Dean and Pagano 2015), not above the true number. Near 0 and 1 the few
// clusters with a hit, or with a miss, are all that the variance is known by: it is widened as Student's t of the fewer
// of the two, less one, is wider than the normal (Korn and Graubard 1998); and with fewer than six of them, or where
// the variance is 0, so that it implies nothing, the effective number is not above that of clusters with any chance.
// Spans are of one length.
Interval clustered_rate_interval(std::span<const double> hits, std::span<const double> chances);

// The share of the standard normal distribution below x, and the x below which a share p (0 < p < 1) of Student's lies.
double normal_below(double x);
double student_quantile(double p, double degrees_of_freedom);

// Quantile p of ascending values, linear between neighbours (Hyndman and Fan's type 7); 0 of none.
double sorted_quantile(std::span<const double> ascending, double p);

}  // namespace tessera::quality
