#include "tessera/quality/distances.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "tessera/base/check.h"

namespace tessera::quality {

namespace {

// The likeliest tokens, likeliest first; of equally likely ones the lower id first. What is not a number is the least
// likely.
struct Ranking {
  std::array<std::int32_t, kRankDepth> tokens{};
  std::size_t depth = 0;
};

Ranking ranking_of(std::span<const float> logprobs) {
  Ranking ranking;
  std::array<float, kRankDepth> values{};
  for (std::size_t token = 0; token < logprobs.size(); ++token) {
    const float value = std::isnan(logprobs[token]) ? -std::numeric_limits<float>::infinity() : logprobs[token];
    if (ranking.depth == kRankDepth && value <= values.back()) continue;
    std::size_t at = ranking.depth < kRankDepth ? ranking.depth++ : kRankDepth - 1;
    for (; at > 0 && values[at - 1] < value; --at) {
      values[at] = values[at - 1];
      ranking.tokens[at] = ranking.tokens[at - 1];
    }
    values[at] = value;
    ranking.tokens[at] = static_cast<std::int32_t>(token);
  }
  return ranking;
}

// Webber, Moffat and Zobel 2010, equation 30: rankings of the same depth.
double rank_overlap(const Ranking& a, const Ranking& b) {
  double common = 0.0;
  double sum = 0.0;
  double weight = 1.0;
  for (std::size_t depth = 1; depth <= a.depth; ++depth) {
    const std::int32_t one = a.tokens[depth - 1];
    const std::int32_t other = b.tokens[depth - 1];
    const auto before = static_cast<std::ptrdiff_t>(depth - 1);
    if (one == other) {
      common += 1.0;
    } else {
      common += std::find(b.tokens.begin(), b.tokens.begin() + before, one) != b.tokens.begin() + before ? 1.0 : 0.0;
      common += std::find(a.tokens.begin(), a.tokens.begin() + before, other) != a.tokens.begin() + before ? 1.0 : 0.0;
    }
    weight *= kRankPersistence;
    sum += common / static_cast<double>(depth) * weight;
  }
  // Rounding must not make two equal orders differ from 1.
  if (common == static_cast<double>(a.depth) && a.tokens == b.tokens) return 1.0;
  return common / static_cast<double>(a.depth) * weight + (1.0 - kRankPersistence) / kRankPersistence * sum;
}

double total(std::span<const float> logprobs) {
  double sum = 0.0;
  for (const float logprob : logprobs) sum += std::exp(static_cast<double>(logprob));
  return sum;
}

double divergence(std::span<const float> reference, std::span<const float> other) {
  const double log_reference = std::log(total(reference));
  const double log_other = std::log(total(other));
  double sum = 0.0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double p = std::exp(static_cast<double>(reference[i]) - log_reference);
    if (p == 0.0) {
      sum += std::exp(static_cast<double>(other[i]) - log_other);
      continue;
    }
    const double d = (static_cast<double>(other[i]) - log_other) - (static_cast<double>(reference[i]) - log_reference);
    if (d == -std::numeric_limits<double>::infinity()) return std::numeric_limits<double>::infinity();
    sum += p * (std::expm1(d) - d);
  }
  return std::isnan(sum) ? std::numeric_limits<double>::infinity() : sum;
}

}  // namespace

PositionDistance position_distance(std::int32_t position, std::int32_t token, std::span<const float> reference,
                                   std::span<const float> other) {
  TESSERA_CHECK(!reference.empty() && reference.size() == other.size());
  TESSERA_CHECK(token >= 0 && static_cast<std::size_t>(token) < reference.size());
  const Ranking of_reference = ranking_of(reference);
  const Ranking of_other = ranking_of(other);
  PositionDistance distance;
  distance.position = position;
  distance.kl = divergence(reference, other);
  distance.reference_best = of_reference.tokens[0];
  distance.other_best = of_other.tokens[0];
  distance.same_best = distance.reference_best == distance.other_best;
  distance.rank_overlap = rank_overlap(of_reference, of_other);
  distance.reference_logprob = static_cast<double>(reference[static_cast<std::size_t>(token)]);
  distance.other_logprob = static_cast<double>(other[static_cast<std::size_t>(token)]);
  return distance;
}

}  // namespace tessera::quality
