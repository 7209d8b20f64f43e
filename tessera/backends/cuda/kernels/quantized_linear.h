// Products with FP8 and INT4 weights (ops/transformer.h, LinearParams), and the arrangement of INT4 words. All pointers
// are device memory. product_weight.h has layouts and the order of summation.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/kernels/product_weight.h"
#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

struct QuantizedLinearKernel {
  const float* in = nullptr;  // [tokens, k]
  std::int64_t in_stride = 0;
  std::int64_t tokens = 0;
  ProductWeight weight;
  const float* bias = nullptr;  // [n] or null
  float* out = nullptr;         // [tokens, n]
  std::int64_t out_stride = 0;
  bool add = false;  // To what out holds.
};
void launch_quantized_linear(const QuantizedLinearKernel& kernel, const Launch& launch);

// Brings the words of `chunks` chunks of INT4, in place, from a checkpoint's order into that of product_weight.h.
void launch_arrange_int4(std::byte* data, std::int64_t chunks, const Launch& launch);

}  // namespace tessera::backends::cuda
