// Products with F32 and BF16 weights (ops/transformer.h, LinearParams). All pointers are device memory.
//
// A BF16 weight lies row-major with rows of `pitch` elements, a multiple of kLinearPitch; the elements past K are zero.
// That is a layout that both mma fragments (below) and bulk tensor copies can be loaded from.
//
// Order of summation with BF16 weights, whatever the number of tokens: K is cut into units of 64; unit u belongs to
// slice u % 8; a slice adds its units up in order, on the tensor cores, in F32; then the slices are added in order,
// then bias, then residual. Activations are rounded to BF16.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

inline constexpr std::int64_t kLinearPitch = 64;

struct LinearKernel {
  const float* in = nullptr;  // [tokens, k]
  std::int64_t in_stride = 0;
  std::int64_t tokens = 0;
  std::int64_t k = 0;
  const void* weight = nullptr;  // [n, pitch]
  bool weight_is_bf16 = false;
  std::int64_t pitch = 0;
  std::int64_t n = 0;
  const float* bias = nullptr;  // [n] or null
  float* out = nullptr;         // [tokens, n]
  std::int64_t out_stride = 0;
  bool add = false;  // To what out holds.
  // As many products of the same shape: the i-th begins i steps (elements) further in each.
  std::int32_t batches = 1;
  std::int64_t in_batch = 0;
  std::int64_t weight_batch = 0;
  std::int64_t out_batch = 0;
};
void launch_linear(const LinearKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
