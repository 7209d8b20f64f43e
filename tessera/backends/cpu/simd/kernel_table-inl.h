// The table of one target. A kernels_*.cc names the target and includes this.
#pragma once

#include "tessera/backends/cpu/simd/attention-inl.h"
#include "tessera/backends/cpu/simd/dsa-inl.h"
#include "tessera/backends/cpu/simd/elementwise-inl.h"
#include "tessera/backends/cpu/simd/linear-inl.h"
#include "tessera/backends/cpu/simd/linear_f8-inl.h"
#include "tessera/backends/cpu/simd/linear_int4-inl.h"
#include "tessera/backends/cpu/simd/mla_absorbed-inl.h"
#include "tessera/backends/cpu/simd/mla_expanded-inl.h"

#define TESSERA_SIMD_PASTE_(a, b) a##b
#define TESSERA_SIMD_PASTE(a, b) TESSERA_SIMD_PASTE_(a, b)
#define TESSERA_SIMD_QUOTE_(a) #a
#define TESSERA_SIMD_QUOTE(a) TESSERA_SIMD_QUOTE_(a)

namespace tessera::backends::cpu::simd {

namespace {

void linear(const LinearTask& task) {
  switch (task.format) {
    case ops::WeightFormat::kF32:
      return linear_f32(task);
    case ops::WeightFormat::kBF16:
      return linear_bf16(task);
    case ops::WeightFormat::kF8Block128:
    case ops::WeightFormat::kF8Channel:
      return linear_f8(task);
    case ops::WeightFormat::kInt4Group:
      return linear_int4(task);
  }
}

}  // namespace

const Kernels& TESSERA_SIMD_PASTE(TESSERA_SIMD_TARGET, _kernels)() {
  static constexpr Kernels kKernels = {
      .name = TESSERA_SIMD_QUOTE(TESSERA_SIMD_TARGET),
#if defined(TESSERA_SIMD_BF16_DOT)
      .bf16_activations = true,
#endif
      .linear = linear,
      .attention = attention,
      .attention_merge = attention_merge,
      .mla_absorb = mla_absorb,
      .mla_attend = mla_attend,
      .mla_merge = mla_merge,
      .mla_values = mla_values,
      .mla_expand = mla_expand,
      .index_scores = index_scores,
      .layer_norm = layer_norm,
      .rms_norm = rms_norm,
      .swiglu = swiglu,
      .rope_half = rope_half,
      .greedy = greedy,
      .sigmoid = sigmoid,
      .int16_groups = int16_groups,
      .bf16_to_f32 = bf16_to_f32,
      .f32_to_bf16 = f32_to_bf16,
      .f8_to_f32 = f8_to_f32,
      .f32_to_f8 = f32_to_f8,
      .largest_magnitude = largest_magnitude,
  };
  return kKernels;
}

}  // namespace tessera::backends::cpu::simd
