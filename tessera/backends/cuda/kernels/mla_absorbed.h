// Latent attention in its absorbed form (ops/mla.h, MlaForm::kAbsorbed), between the products that take queries into
// latent space and values out of it (linear.h does those): over the stored rows [latent | rope], which all heads share.
//
// On the tensor cores, as products of sixteen rows, which are eight heads twice: a query or a weight is the sum of two
// 16-bit numbers, and the two lie eight rows apart. Over BF16 rows these are BF16. Over FP8 rows they are F16, which
// holds every e4m3, so that a pair of codes is widened by one instruction; queries are first multiplied by a power of
// two for each head, weights by one for each tile, so that F16's range suffices. The scales of latent and rope are
// applied to their parts of a score, and the latent's to the weight, in F32; sums are F32.
//
// Order of summation for a token that sees n keys (positions 0 .. n - 1, or the first n of its selection): they are cut
// into tiles of latent_tile_keys, these are merged in order to units of latent_unit_keys(n), units in order to groups
// of latent_group_keys(n), and groups in order to the result. In a tile four warps each add up a quarter of a score's
// elements; the quarters are added in order, then the rope part. Which of these pieces one block computes before a
// merge kernel takes over depends on how busy the device is otherwise, and changes no bit. All pointers are device
// memory.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/kernels/kv_rows.h"
#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

inline constexpr std::int32_t kLatentRankMax = 512;
inline constexpr std::int32_t kLatentRopeMax = 64;
inline constexpr std::int32_t kLatentTileHeads = 8;

inline constexpr std::int32_t kLatentUnitKeysMin = 256;
inline constexpr std::int32_t kLatentUnitsMax = 256;
inline constexpr std::int32_t kLatentGroupKeysMin = 1024;
inline constexpr std::int32_t kLatentGroupsMax = 32;

// As many bytes whatever the format.
constexpr std::int32_t latent_tile_keys(bool fp8) { return fp8 ? 64 : 32; }
// At least 256, and so many that there are at most 256 units; at least 1024, at most 32 groups: whole units.
constexpr std::int32_t latent_unit_keys(std::int32_t seen) {
  std::int32_t keys = kLatentUnitKeysMin;
  while (keys < seen / kLatentUnitsMax + (seen % kLatentUnitsMax != 0)) keys *= 2;
  return keys;
}
constexpr std::int32_t latent_group_keys(std::int32_t seen) {
  std::int32_t keys = kLatentGroupKeysMin;
  while (keys < seen / kLatentGroupsMax + (seen % kLatentGroupsMax != 0)) keys *= 2;
  return keys;
}

struct LatentToken {
  std::int32_t row = 0;    // Of the page table.
  std::int32_t q_len = 0;  // Queries of the sequence.
  std::int32_t query = 0;  // Which of them.
  std::int32_t token = 0;  // Its row in q.
};

// Selected positions of each token; null where all are seen.
struct SelectedPositions {
  const std::int32_t* positions = nullptr;  // [tokens, width], ascending.
  const std::int32_t* counts = nullptr;     // [tokens]
  std::int32_t width = 0;
};

struct MlaAbsorbedKernel {
  const LatentToken* tokens = nullptr;  // Null where each row has one query: token i is i rows after `first`.
  std::int64_t num_tokens = 0;          // At most latent_tokens_at_once.
  LatentToken first = {};
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
  float* sums = nullptr;      // Out, [tokens of the run, heads, rank]; zeros where a token sees nothing.
  float* partials = nullptr;  // Room for latent_partials_floats: results of pieces.
};

// Of one head of a piece: the weighted sum, padded to whole quadruples, the largest score, the sum of weights.
constexpr std::int64_t latent_partial_floats(std::int32_t rank) { return (rank + 3) / 4 * 4 + 4; }

// Pieces that a launch computes at most, of eight heads each, over all of its tokens.
inline constexpr std::int64_t kLatentPiecesMax = 2048;
constexpr std::int64_t latent_head_tiles(std::int32_t heads) {
  return (heads + kLatentTileHeads - 1) / kLatentTileHeads;
}
// How many tokens a launch may take: those whose groups are no more pieces than that.
constexpr std::int64_t latent_tokens_at_once(std::int32_t heads) {
  const std::int64_t tokens = kLatentPiecesMax / kLatentGroupsMax / latent_head_tiles(heads);
  return tokens < 1 ? 1 : tokens;
}
constexpr std::int64_t latent_partials_floats(std::int32_t heads, std::int32_t rank, std::int64_t tokens) {
  // A token's own pieces are at most as many as units may be, or groups of heads that are alone more than a launch.
  const std::int64_t tiles = tokens * latent_head_tiles(heads);
  const std::int64_t most = latent_head_tiles(heads) * kLatentGroupsMax;
  const std::int64_t pieces = kLatentPiecesMax > most ? kLatentPiecesMax : most;
  return (tiles * kLatentUnitsMax < pieces ? tiles * kLatentUnitsMax : pieces) * kLatentTileHeads *
         latent_partial_floats(rank);
}

void launch_mla_absorbed(const MlaAbsorbedKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
