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

// Both [vocab_size], log-probabilities of one position; `token` is the text's own.
PositionDistance position_distance(std::int32_t position, std::int32_t token, std::span<const float> reference,
                                   std::span<const float> other);

}  // namespace tessera::quality
