// What a token sees: positions in order, all of them or selected ones.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/kernels/mla_absorbed.h"

namespace tessera::backends::cuda {

// How many keys a token at `position` sees. Selected positions behind it are left out.
__device__ __forceinline__ std::int64_t keys_seen(const SelectedPositions& selection, std::int64_t token,
                                                  std::int64_t position) {
  if (selection.positions == nullptr) return position + 1;
  const std::int32_t* selected = selection.positions + token * selection.width;
  std::int32_t low = 0;
  std::int32_t high = min(max(selection.counts[token], 0), selection.width);
  if (high > 0 && selected[high - 1] <= position) return high;  // As of a token that generates.
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (selected[middle] <= position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Position of key i of what a token sees; negative where the selection says nonsense.
__device__ __forceinline__ std::int64_t position_of_key(const SelectedPositions& selection, std::int64_t token,
                                                        std::int64_t i) {
  return selection.positions == nullptr ? i : selection.positions[token * selection.width + i];
}

}  // namespace tessera::backends::cuda
