// Leads plans through passages, token by token, and measures how far their distributions lie from the first plan's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/quality/distribution_source.h"
#include "tessera/quality/outcome.h"

namespace tessera::quality {

// Of the reference's distributions, which lie in memory while the others' are compared with them, so much at once; a
// single passage may have more.
inline constexpr std::int64_t kReferenceBytesMax = std::int64_t{256} << 20;
inline constexpr std::size_t kBlockPassagesMax = 32;

// By passage, then by source: whether its distances are wanted; [0], of the reference, means nothing.
using WantedDistances = std::vector<std::vector<bool>>;

// Every passage's distances of every source that they are wanted of, as soon as they are measured: `sink` says which
// passage and which source; its errors end everything. sources[0] is the reference. The sources are prepared with all
// passages, whatever is wanted. A wanted passage that is too long for one of them is left out for all, and `left_out`
// is told. invalid_argument: the vocabularies differ. cancelled: `stop` was set, or a source ended for such a reason.
// From this thread.
base::Status compare_sources(std::span<DistributionSource* const> sources, std::span<const Passage> passages,
                             const WantedDistances& wanted,
                             const std::function<base::Status(std::size_t, std::size_t, PassageDistances)>& sink,
                             const std::function<void(std::size_t)>& left_out, const std::atomic<bool>& stop);

}  // namespace tessera::quality
