// How far two distributions over the same vocabulary lie apart.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/quality/outcome.h"

namespace tessera::quality {

// Rank-biased overlap (Webber, Moffat, Zobel 2010), extrapolated, of the two orders' first kRankDepth, with persistence
// kRankPersistence: 1 when they are the same, weighted towards the top.
inline constexpr std::size_t kRankDepth = 20;
inline constexpr double kRankPersistence = 0.9;

// Both [vocab_size], natural log-probabilities of one position; `token` is the text's own, an index into them.
//
// KL is taken of both made to sum to 1 in double, as sum(p * (exp(d) - 1 - d)), d = log q - log p, which is sum(-p * d)
// since both sum to 1, but no term of which is negative: so the rounding of float32 log-probabilities (1e-6 a token)
// adds 1e-12 and not 1e-6, KL is 0 if and only if the two are the same, and never negative. Infinite where the other
// has no probability for what the reference has, and where a value is not a number. Of equally likely tokens the lower
// id ranks first. Thread-safe.
PositionDistance position_distance(std::int32_t position, std::int32_t token, std::span<const float> reference,
                                   std::span<const float> other);

}  // namespace tessera::quality
