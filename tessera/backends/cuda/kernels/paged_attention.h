// Causal attention over paged K and V (ops/transformer.h, PagedAttentionParams), on the tensor cores and yet as
// accurate as in F32: queries and weights are split into three BF16 numbers each, which hold all their bits; stored
// keys and values are BF16 already, or FP8, which widens to BF16 exactly, with its scales applied to scores and weights
// in F32.
//
// Order of summation for a query at position p: its keys 0 .. p are cut into splits of split_keys(p) keys, a split into
// tiles, which are dealt to four warps; each warp adds up its tiles in order (online softmax), the warps' results are
// merged in order, and so are the splits'. Nothing else decides the order: whether the splits are computed one after
// another by one block or by as many blocks as there are splits, with a merge kernel behind them, only depends on how
// busy the device is otherwise.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/kernels/kv_rows.h"
#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

inline constexpr std::int32_t kSplitsMax = 32;
inline constexpr std::int32_t kSplitKeysMin = 512;
inline constexpr std::int32_t kHeadDimMax = 256;

// Keys of a split for the query at a position: at least 512, and so many that there are at most 32 splits.
constexpr std::int64_t split_keys(std::int64_t position) {
  std::int64_t keys = kSplitKeysMin;
  while (keys * kSplitsMax < position + 1) keys *= 2;
  return keys;
}

// Queries of one KV head that a block takes together: query row f of a sequence is its query f / group with head
// f % group of the KV head's group.
inline constexpr std::int32_t kTileRows = 16;  // At most.
struct AttentionTile {
  std::int32_t row = 0;          // Of the page table.
  std::int32_t q_len = 0;        // Queries of the sequence.
  std::int32_t token_begin = 0;  // Its first query in q.
  std::int32_t first = 0;        // First query row of the tile.
  std::int32_t count = 0;
};

struct PagedAttentionKernel {
  const float* q = nullptr;
  std::int64_t q_stride = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  const AttentionTile* tiles = nullptr;  // Device memory.
  std::int64_t num_tiles = 0;
  const std::int32_t* table = nullptr;
  std::int64_t max_pages_per_row = 0;
  const std::int32_t* kv_lens = nullptr;
  KvRows cache;  // Parts K and V.
  std::int32_t kv_heads = 0;
  std::int32_t group = 0;
  std::int32_t head_dim = 0;
  float softmax_scale = 1.0f;
  // Where splits are computed apart: how many blocks a tile gets, and room for their results (partial_floats each).
  // 1 and null where a block takes all splits.
  std::int32_t split_blocks = 1;
  float* partials = nullptr;
};

// Floats of partial results for one split of one query row: the weighted sum, the largest score, the sum of weights.
constexpr std::int64_t partial_floats(std::int32_t head_dim) { return head_dim + 2; }

void launch_paged_attention(const PagedAttentionKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
