// The pieces that absorbed latent attention (mla_absorbed.h) cuts a token's keys into: which a launch computes, where
// their results lie, and the launch that merges them.
#pragma once

#include "tessera/backends/cuda/kernels/kv_rows_device.h"
#include "tessera/backends/cuda/kernels/mla_absorbed.h"
#include "tessera/backends/cuda/kernels/selection_device.h"

namespace tessera::backends::cuda {

// What one block computes: a tile, a unit or a group of a token's keys.
enum class LatentPiece : std::int32_t { kTile, kUnit, kGroup };

struct LatentPieces {
  LatentPiece piece = LatentPiece::kGroup;
  std::int64_t pieces = 0;    // Of a token, at most: how far its results lie from the next token's.
  std::int64_t groups = 0;    // Likewise.
  std::int64_t keys_max = 0;  // That a token may see.
};

__device__ __forceinline__ LatentToken token_of(const MlaAbsorbedKernel& p, int index) {
  if (p.tokens != nullptr) return p.tokens[index];
  return {p.first.row + index, 1, 0, p.first.token + index};
}

// How many keys a token sees; none in a row that failed. Never more than the table and the launch have room for,
// whatever stands in kv_lens.
__device__ __forceinline__ std::int32_t keys_of(const MlaAbsorbedKernel& p, const LatentToken& token,
                                                std::int64_t keys_max) {
  const std::int64_t kv_len = kv_len_of(p.kv_lens, token.row, p.max_pages_per_row, p.page_size);
  if (kv_len <= 0 || kv_len < token.q_len) return 0;
  const std::int64_t seen = keys_seen(p.selection, token.token, kv_len - token.q_len + token.query);
  return static_cast<std::int32_t>(min(seen, keys_max));
}

template <bool kFp8>
__device__ __forceinline__ std::int32_t piece_keys(LatentPiece piece, std::int32_t seen) {
  return piece == LatentPiece::kTile   ? latent_tile_keys(kFp8)
         : piece == LatentPiece::kUnit ? latent_unit_keys(seen)
                                       : latent_group_keys(seen);
}

// Of head `head` of a head tile.
__device__ __forceinline__ float* latent_partial(const MlaAbsorbedKernel& p, std::int64_t token_tile, int pieces,
                                                 int piece, int head) {
  return p.partials + ((token_tile * pieces + piece) * kLatentTileHeads + head) * latent_partial_floats(p.rank);
}

// Merges what the kernel that was launched before it leaves in `partials`, into `sums` (mla_merge.cu).
void launch_mla_merge(const MlaAbsorbedKernel& kernel, const LatentPieces& pieces, const Launch& launch);

}  // namespace tessera::backends::cuda
