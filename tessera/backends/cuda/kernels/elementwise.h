// Embedding rows, RMSNorm, LayerNorm, RoPE and SwiGLU (ops/transformer.h). All pointers are device memory.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

struct EmbeddingKernel {
  const void* table = nullptr;  // [vocab, hidden], dense, F32 or BF16
  bool table_is_bf16 = false;
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  const std::int32_t* token_ids = nullptr;  // [tokens]; one outside the table gives zeros and a fault.
  std::int64_t tokens = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
};
void launch_embedding(const EmbeddingKernel& kernel, const Launch& launch);

struct RmsNormKernel {
  const float* in = nullptr;
  std::int64_t in_stride = 0;
  const float* weight = nullptr;  // [hidden]
  float epsilon = 0.0f;
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  float* out = nullptr;  // May be in.
  std::int64_t out_stride = 0;
};
void launch_rms_norm(const RmsNormKernel& kernel, const Launch& launch);

// Sums are in double, so that the mean of nearly equal elements does not hide their differences.
struct LayerNormKernel {
  const float* in = nullptr;
  std::int64_t in_stride = 0;
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width]
  float epsilon = 0.0f;
  std::int64_t tokens = 0;
  std::int64_t width = 0;
  float* out = nullptr;  // May be in.
  std::int64_t out_stride = 0;
};
void launch_layer_norm(const LayerNormKernel& kernel, const Launch& launch);

struct RopeKernel {
  float* x = nullptr;
  std::int64_t x_stride = 0;
  const std::int32_t* positions = nullptr;     // [tokens]
  const float* inverse_frequencies = nullptr;  // [rotary_dim / 2]
  std::int64_t tokens = 0;
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t rotary_dim = 0;
  bool interleaved = false;
  float magnitude = 1.0f;
};
void launch_rope(const RopeKernel& kernel, const Launch& launch);

struct SwigluKernel {
  const float* gate = nullptr;
  std::int64_t gate_stride = 0;
  const float* up = nullptr;
  std::int64_t up_stride = 0;
  std::int64_t tokens = 0;
  std::int64_t width = 0;
  float* out = nullptr;  // May be gate or up.
  std::int64_t out_stride = 0;
};
void launch_swiglu(const SwigluKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
