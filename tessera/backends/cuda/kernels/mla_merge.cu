#include <algorithm>

#include "tessera/backends/cuda/kernels/attention_merge_device.h"
#include "tessera/backends/cuda/kernels/mla_pieces_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kMergeThreads = 256;

// Four columns of a head's result over some keys.
struct Quad {
  float largest = kNoScore;
  float total = 0.0f;
  float4 values = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  __device__ __forceinline__ void add(const Quad& other) {
    if (saw_nothing(other.largest, other.total)) return;
    const Merge merge(largest, other.largest);
    total = merged(total, merge.old_factor, other.total, merge.new_factor);
    largest = merge.largest;
    values.x = merged(values.x, merge.old_factor, other.values.x, merge.new_factor);
    values.y = merged(values.y, merge.old_factor, other.values.y, merge.new_factor);
    values.z = merged(values.z, merge.old_factor, other.values.z, merge.new_factor);
    values.w = merged(values.w, merge.old_factor, other.values.w, merge.new_factor);
  }
};

// Four columns of a head of a piece.
__device__ __forceinline__ Quad load_quad(const float* piece, int rank, int column) {
  Quad quad;
  const auto stats = *reinterpret_cast<const float2*>(piece + (rank + 3) / 4 * 4);
  quad.largest = stats.x;
  quad.total = stats.y;
  if (column < rank) quad.values = *reinterpret_cast<const float4*>(piece + column);
  return quad;
}

// Merges pieces to units, units to groups and groups to the result. `pieces` is the grid of the kernel before, which
// has ended when `griddepcontrol.wait` is over. Grid: tokens, heads, and of columns all where pieces are groups, else
// 128 and the block's warps deal the groups among themselves.
template <bool kFp8, LatentPiece kPiece>
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const __grid_constant__ MlaAbsorbedKernel p, int pieces, std::int64_t keys_max) {
  constexpr int kAtOnce = kPiece == LatentPiece::kUnit ? 4 : 8;  // Pieces that are asked for together.
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const LatentToken token = token_of(p, blockIdx.x);
  const std::int32_t seen = keys_of(p, token, keys_max);
  const int column = (kPiece == LatentPiece::kGroup ? threadIdx.x : blockIdx.z * 32 + lane) * 4;
  float* to = p.sums + (static_cast<std::int64_t>(token.token - p.first_token) * p.heads + blockIdx.y) * p.rank;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (seen == 0) {
    for (int i = threadIdx.x; blockIdx.z == 0 && i < p.rank; i += blockDim.x) to[i] = 0.0f;
    return;
  }
  const std::int32_t keys = piece_keys<kFp8>(kPiece, seen);
  const std::int32_t pieces_seen = (seen + keys - 1) / keys;
  const std::int64_t token_tile = static_cast<std::int64_t>(blockIdx.y / kLatentTileHeads) * gridDim.x + blockIdx.x;
  const float* first = latent_partial(p, token_tile, pieces, 0, blockIdx.y % kLatentTileHeads);
  const std::int64_t stride = kLatentTileHeads * latent_partial_floats(p.rank);
  // Adds pieces begin .. end - 1 to `sum`; of tiles, unit after unit.
  const auto add_pieces = [&](Quad& sum, std::int32_t begin, std::int32_t end) {
    [[maybe_unused]] Quad unit;
    [[maybe_unused]] const std::int32_t pieces_a_unit = latent_unit_keys(seen) / keys;
    for (; begin < end; begin += kAtOnce) {
      Quad parts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i < end) parts[i] = load_quad(first + (begin + i) * stride, p.rank, column);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i >= end) break;
        if constexpr (kPiece == LatentPiece::kTile) {
          unit.add(parts[i]);
          if ((begin + i + 1) % pieces_a_unit == 0) {
            sum.add(unit);
            unit = Quad();
          }
        } else {
          sum.add(parts[i]);
        }
      }
    }
    if constexpr (kPiece == LatentPiece::kTile) sum.add(unit);
  };
  Quad all;
  if constexpr (kPiece == LatentPiece::kGroup) {
    add_pieces(all, 0, pieces_seen);
  } else {
    const std::int32_t pieces_a_group = latent_group_keys(seen) / keys;
    const std::int32_t groups = (pieces_seen + pieces_a_group - 1) / pieces_a_group;
    auto* group_values = reinterpret_cast<float4*>(memory);  // [groups][32]
    auto* group_stats = reinterpret_cast<float2*>(group_values + groups * 32);
    for (int g = warp; g < groups; g += blockDim.x / 32) {
      Quad group;
      add_pieces(group, g * pieces_a_group, min((g + 1) * pieces_a_group, pieces_seen));
      group_values[g * 32 + lane] = group.values;
      if (lane == 0) group_stats[g] = make_float2(group.largest, group.total);
    }
    __syncthreads();
    if (warp != 0) return;
    for (int g = 0; g < groups; ++g) {
      Quad group;
      group.largest = group_stats[g].x;
      group.total = group_stats[g].y;
      group.values = group_values[g * 32 + lane];
      all.add(group);
    }
  }
  const float values[4] = {all.values.x, all.values.y, all.values.z, all.values.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i < p.rank) to[column + i] = values[i] / all.total;
  }
}

template <bool kFp8, LatentPiece kPiece>
void launch_merge(const MlaAbsorbedKernel& p, const LatentPieces& pieces, cudaStream_t stream) {
  // Set up while the kernel before still runs.
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.num_tokens), static_cast<unsigned>(p.heads));
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  if (kPiece == LatentPiece::kGroup) {
    static_assert(128 * 4 == kLatentRankMax);
    config.blockDim = dim3(128);
  } else {
    config.gridDim.z = static_cast<unsigned>((p.rank + 127) / 128);
    config.blockDim = dim3(static_cast<unsigned>(std::min<std::int64_t>(pieces.groups * 32, kMergeThreads)));
    config.dynamicSmemBytes = static_cast<std::size_t>(pieces.groups) * (32 * sizeof(float4) + sizeof(float2));
  }
  cudaLaunchKernelEx(&config, merge_kernel<kFp8, kPiece>, p, static_cast<int>(pieces.pieces), pieces.keys_max);
}

template <bool kFp8>
void launch_format(const MlaAbsorbedKernel& p, const LatentPieces& pieces, cudaStream_t stream) {
  switch (pieces.piece) {
    case LatentPiece::kTile:
      return launch_merge<kFp8, LatentPiece::kTile>(p, pieces, stream);
    case LatentPiece::kUnit:
      return launch_merge<kFp8, LatentPiece::kUnit>(p, pieces, stream);
    case LatentPiece::kGroup:
      return launch_merge<kFp8, LatentPiece::kGroup>(p, pieces, stream);
  }
}

}  // namespace

void launch_mla_merge(const MlaAbsorbedKernel& kernel, const LatentPieces& pieces, const Launch& launch) {
  if (kernel.rows.element == KvElement::kF8E4M3) {
    launch_format<true>(kernel, pieces, launch.stream);
  } else {
    launch_format<false>(kernel, pieces, launch.stream);
  }
}

}  // namespace tessera::backends::cuda
