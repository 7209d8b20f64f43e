// Latent attention in its expanded form (ops/mla.h, MlaForm::kExpanded), on the tensor cores: first the keys and values
// of every head are made from one sequence's latents (BF16 weights, BF16 results), then its queries attend to them. A
// chunk of positions at a time, so that memory is bounded: what a query has summed so far waits in F32 for the next.
//
// A position's expanded row is [for each head: key | value] and one rotated part for all heads, each padded to a
// multiple of 8 elements; it depends on that position alone. A query or a weight of attention is the sum of two BF16
// numbers, sums are F32. Order of summation for a token: its keys (by position, or in the order of its selection) in
// tiles of 64, online softmax, tile after tile. A tile of selected keys ends where a chunk does; chunks are whole tiles
// of positions, and their size follows from the shape alone. All pointers are device memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "tessera/backends/cuda/kernels/kv_rows.h"
#include "tessera/backends/cuda/kernels/mla_absorbed.h"
#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

inline constexpr std::int32_t kExpandedValueMax = 256;  // v_head_dim.
inline constexpr std::int32_t kExpandedQueryMax = 320;  // Nope and rope, each padded to 16.

struct ExpandedShape {
  std::int32_t heads = 0;
  std::int32_t rank = 0;
  std::int32_t rope = 0;
  std::int32_t nope = 0;
  std::int32_t value = 0;
};

constexpr std::int64_t padded8(std::int64_t elements) { return (elements + 7) / 8 * 8; }
// Elements of an expanded row, and where head h's key and value and the rotated part begin in it.
constexpr std::int64_t expanded_key(const ExpandedShape& s, std::int64_t head) {
  return head * (padded8(s.nope) + padded8(s.value));
}
constexpr std::int64_t expanded_value(const ExpandedShape& s, std::int64_t head) {
  return expanded_key(s, head) + padded8(s.nope);
}
constexpr std::int64_t expanded_rope(const ExpandedShape& s) { return expanded_key(s, s.heads); }
constexpr std::int64_t expanded_width(const ExpandedShape& s) { return expanded_rope(s) + padded8(s.rope); }

// Positions of a chunk: whole tiles, in 64 MiB.
constexpr std::int64_t expanded_chunk(const ExpandedShape& s) {
  const std::int64_t tiles = (std::int64_t{64} << 20) / (expanded_width(s) * 2 * 64);
  return (tiles < 1 ? 1 : tiles) * 64;
}

// What a query waits with: the weighted sum of values, the largest score, the sum of weights.
constexpr std::int64_t expanded_sum_floats(const ExpandedShape& s) { return s.value + 2; }

struct ExpandKernel {
  ExpandedShape shape;
  const __nv_bfloat16* weight = nullptr;  // [heads * (nope + value), pitch]; zeros past the rank.
  std::int64_t pitch = 0;
  const std::int32_t* table = nullptr;   // Of the row.
  const std::int32_t* kv_len = nullptr;  // Of the row.
  std::int32_t page_size = 0;
  std::int64_t first_position = 0;    // Of the chunk.
  std::int64_t positions = 0;         // At most, whatever *kv_len is; what lies past that is left out.
  KvRowsPart rows;                    // The part of latents.
  __nv_bfloat16* expanded = nullptr;  // [positions, expanded_width]
};
void launch_expand_latents(const ExpandKernel& kernel, const Launch& launch);

struct MlaExpandedKernel {
  ExpandedShape shape;
  std::int32_t row = 0;    // Of the page table, for reports.
  std::int32_t q_len = 0;  // Queries of the sequence.
  std::int32_t first_token = 0;
  const float* q = nullptr;  // [tokens, heads * (nope + rope)]
  std::int64_t q_stride = 0;
  const std::int32_t* kv_len = nullptr;
  std::int64_t length_max = 0;      // More is not read, whatever *kv_len is: the last chunk's end.
  std::int64_t first_position = 0;  // Of the chunk: called for the chunks in order.
  std::int64_t positions = 0;
  const __nv_bfloat16* expanded = nullptr;
  float* sums_so_far = nullptr;  // [q_len, heads, expanded_sum_floats], between chunks.
  SelectedPositions selection;
  float softmax_scale = 1.0f;
  float* out = nullptr;  // [tokens, heads * value]
  std::int64_t out_stride = 0;
};
void launch_mla_expanded(const MlaExpandedKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
