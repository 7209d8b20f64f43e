// Latent attention in its absorbed form (ops/mla.h, MlaForm::kAbsorbed), between the products that take queries into
// latent space and values out of it (linear.h does those): over the stored rows [latent | rope], which all heads share.
//
// On the tensor cores: a query or a weight is the sum of two BF16 numbers (16 bits), a stored element is one (FP8
// widens to BF16 exactly, with the scales of latent and rope applied to their parts of a score, and the latent's to the
// weight, in F32); sums are F32.
//
// Order of summation for a token that sees n keys (positions 0 .. n - 1, or the first n of its selection): they are cut
// into splits of split_keys(n - 1) keys, a split into tiles of 64 (online softmax, tile after tile), and the splits are
// merged in order. Whether one block walks over all splits or each has its own, with a merge kernel behind them,
// changes no bit. All pointers are device memory.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/kernels/kv_rows.h"
#include "tessera/backends/cuda/kernels/paged_attention.h"
#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

inline constexpr std::int32_t kLatentRankMax = 512;
inline constexpr std::int32_t kLatentRopeMax = 64;
inline constexpr std::int32_t kLatentTileHeads = 16;

// Some heads of one token.
struct LatentTile {
  std::int32_t row = 0;    // Of the page table.
  std::int32_t q_len = 0;  // Queries of the sequence.
  std::int32_t query = 0;  // Which of them.
  std::int32_t token = 0;  // Its row in q.
  std::int32_t first_head = 0;
  std::int32_t heads = 0;  // <= kLatentTileHeads
};

// Selected positions of each token; null where all are seen.
struct SelectedPositions {
  const std::int32_t* positions = nullptr;  // [tokens, width], ascending.
  const std::int32_t* counts = nullptr;     // [tokens]
  std::int32_t width = 0;
};

struct MlaAbsorbedKernel {
  const LatentTile* tiles = nullptr;
  std::int64_t num_tiles = 0;
  const float* latent_queries = nullptr;  // [tokens of the run, heads, rank]
  std::int32_t first_token = 0;           // Of the run.
  const float* q = nullptr;               // [tokens, heads * (nope + rope)], for the rotated part.
  std::int64_t q_stride = 0;
  std::int32_t heads = 0;
  std::int32_t rank = 0;
  std::int32_t rope = 0;
  std::int32_t nope = 0;
  const std::int32_t* table = nullptr;
  std::int64_t max_pages_per_row = 0;
  const std::int32_t* kv_lens = nullptr;
  std::int32_t page_size = 0;
  KvRowsPart rows;  // The part of latents.
  SelectedPositions selection;
  float softmax_scale = 1.0f;
  float* sums = nullptr;  // Out, [tokens of the run, heads, rank]; zeros where a token sees nothing.
  // Where splits are computed apart: how many blocks a tile gets, and their results, [tokens of the run, heads,
  // kSplitsMax, latent_partial_floats]. 1 and null where a block takes all splits.
  std::int32_t split_blocks = 1;
  float* partials = nullptr;
};

constexpr std::int64_t latent_partial_floats(std::int32_t rank) { return rank + 2; }

void launch_mla_absorbed(const MlaAbsorbedKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
