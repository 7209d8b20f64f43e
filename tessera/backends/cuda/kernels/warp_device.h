// Sums and maxima over a warp or a block, in an order that is always the same.
#pragma once

#include <cuda_runtime.h>

namespace tessera::backends::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// Every lane gets the sum; a fixed tree.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, offset));
  return value;
}

}  // namespace tessera::backends::cuda
