// How results of attention over two runs of keys are added. The only place where they are, so that a merge kernel does
// to the bit what one block does alone.
#pragma once

#include <cuda_runtime.h>

namespace tessera::backends::cuda {

inline constexpr float kNoScore = -INFINITY;

// Whether a run of keys had none that is seen, so that its result is left out. A run whose scores are all NaN has no
// largest score either, but its total is NaN and must reach the result.
__device__ __forceinline__ bool saw_nothing(float largest, float total) { return largest == kNoScore && !isnan(total); }

// Factors with which two results are added: old ones are multiplied by `old_factor`, new ones by `new_factor`.
struct Merge {
  float largest;
  float old_factor;
  float new_factor;
  __device__ Merge(float old_largest, float new_largest) {
    largest = fmaxf(old_largest, new_largest);
    old_factor = expf(old_largest - largest);
    new_factor = expf(new_largest - largest);
  }
};
__device__ __forceinline__ float merged(float old_value, float old_factor, float new_value, float new_factor) {
  return __fmaf_rn(new_value, new_factor, __fmul_rn(old_value, old_factor));
}

}  // namespace tessera::backends::cuda
