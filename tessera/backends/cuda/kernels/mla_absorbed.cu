#include "tessera/backends/cuda/kernels/attention_merge_device.h"
#include "tessera/backends/cuda/kernels/fault_device.h"
#include "tessera/backends/cuda/kernels/kv_rows_device.h"
#include "tessera/backends/cuda/kernels/mla_absorbed.h"
#include "tessera/backends/cuda/kernels/mma_device.h"
#include "tessera/backends/cuda/kernels/selection_device.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTerms = 2;         // BF16 numbers that an F32 is split into.
constexpr int kKeys = 64;         // Of a tile: eight for each warp.
constexpr int kWeightRow = 72;    // Elements from one row of weights to the next: an odd number of 16 bytes.
constexpr int kPairsPerWarp = 4;  // Of sixteen latent elements; eight warps have kLatentRankMax of them.
static_assert(kWarps * kPairsPerWarp * 16 == kLatentRankMax);

__host__ __device__ constexpr int padded(int elements) { return (elements + 15) / 16 * 16; }

// Shared memory, in order: the queries' terms [term][head][row], the keys [key][row], the weights' terms
// [term][head][kWeightRow], then floats: scales of latent and rope of each key (the latter negative for a key that must
// not be seen), and each warp's largest score and sum of weights of each head. A row is [latent | rope], each padded
// with zeros to a multiple of 16, and 8 elements more so that eight rows lie in all banks.
struct Shared {
  int rank16;
  int row;  // Elements.
  __host__ __device__ explicit Shared(const MlaAbsorbedKernel& p)
      : rank16(padded(p.rank)), row(padded(p.rank) + padded(p.rope) + 8) {}
  __host__ __device__ int query_term() const { return kLatentTileHeads * row; }
  __host__ __device__ int keys_at() const { return kTerms * query_term(); }
  __host__ __device__ int weights_at() const { return keys_at() + kKeys * row; }
  __host__ __device__ int floats_at() const { return weights_at() + kTerms * kLatentTileHeads * kWeightRow; }
  __host__ __device__ int bytes() const { return floats_at() * 2 + (2 * kKeys + 2 * kWarps * kLatentTileHeads) * 4; }
};

__device__ __forceinline__ float* latent_partial(const MlaAbsorbedKernel& p, const LatentTile& tile, int head,
                                                 std::int64_t split) {
  const std::int64_t row = static_cast<std::int64_t>(tile.token - p.first_token) * p.heads + tile.first_head + head;
  return p.partials + (row * kSplitsMax + split) * latent_partial_floats(p.rank);
}

__device__ __forceinline__ float* latent_sums(const MlaAbsorbedKernel& p, const LatentTile& tile, int head) {
  return p.sums + (static_cast<std::int64_t>(tile.token - p.first_token) * p.heads + tile.first_head + head) * p.rank;
}

// The queries' terms, with zeros in the padding and for heads that the tile does not have.
__device__ void load_queries(const MlaAbsorbedKernel& p, const Shared& s, const LatentTile& tile,
                             __nv_bfloat16* queries) {
  const int width = s.row - 8;
  for (int i = threadIdx.x; i < kLatentTileHeads * width; i += kThreads) {
    const int head = i / width;
    const int e = i % width;
    float x = 0.0f;
    if (head < tile.heads) {
      const std::int64_t h = tile.first_head + head;
      if (e < p.rank) {
        x = p.latent_queries[(static_cast<std::int64_t>(tile.token - p.first_token) * p.heads + h) * p.rank + e];
      } else if (e >= s.rank16 && e < s.rank16 + p.rope) {
        x = p.q[tile.token * p.q_stride + h * (p.nope + p.rope) + p.nope + e - s.rank16];
      }
    }
#pragma unroll
    for (int t = 0; t < kTerms; ++t) queries[t * s.query_term() + head * s.row + e] = take_bf16(x);
  }
}

// Keys first .. first + 63 of what the token sees, of which those from `end` on do not exist: rows of codes as BF16,
// and their scales. A warp takes eight keys.
__device__ void load_keys(const MlaAbsorbedKernel& p, const Shared& s, const LatentTile& tile, std::int64_t first,
                          std::int64_t end, __nv_bfloat16* keys, float* scales) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const std::int32_t* table = p.table + tile.row * p.max_pages_per_row;
  const bool fp8 = p.rows.element == KvElement::kF8E4M3;
  const int width = s.row - 8;
  const bool vector = p.rank == s.rank16 && p.rope % 16 == 0 && p.rows.row_bytes % 16 == 0;
#pragma unroll 4
  for (int i = 0; i < kKeys / kWarps; ++i) {
    const int key = warp * (kKeys / kWarps) + i;
    const std::int64_t index = first + key;
    const std::int64_t position = index < end ? position_of_key(p.selection, tile.token, index) : -1;
    __nv_bfloat16* to = keys + key * s.row;
    if (position < 0) {
      for (int e = lane; e < width; e += 32) to[e] = __float2bfloat16_rn(0.0f);
      if (lane == 0) {
        scales[key] = 0.0f;
        scales[kKeys + key] = -1.0f;
      }
      continue;
    }
    const std::int64_t page = table[position / p.page_size];
    const std::int64_t slot = position % p.page_size;
    const std::byte* from = row_data(p.rows, page, slot);
    if (lane == 0) {
      const auto* at = reinterpret_cast<const std::uint16_t*>(row_scales(p.rows, page, slot));
      scales[key] = fp8 ? bf16_bits_to_float(at[0]) : 1.0f;
      scales[kKeys + key] = fp8 ? bf16_bits_to_float(at[1]) : 1.0f;
    }
    if (vector && fp8) {
      for (int c = lane; c < width / 16; c += 32) {
        const uint4 codes = *reinterpret_cast<const uint4*>(from + c * 16);
        auto* out = reinterpret_cast<uint4*>(to + c * 16);
        out[0] = {widen_fp8(codes.x & 0xffff), widen_fp8(codes.x >> 16), widen_fp8(codes.y & 0xffff),
                  widen_fp8(codes.y >> 16)};
        out[1] = {widen_fp8(codes.z & 0xffff), widen_fp8(codes.z >> 16), widen_fp8(codes.w & 0xffff),
                  widen_fp8(codes.w >> 16)};
      }
    } else if (vector) {
      for (int c = lane; c < width / 8; c += 32) {
        reinterpret_cast<uint4*>(to)[c] = reinterpret_cast<const uint4*>(from)[c];
      }
    } else {
      for (int e = lane; e < width; e += 32) {
        const int element = e < s.rank16 ? e : p.rank + e - s.rank16;
        const bool exists = e < s.rank16 ? e < p.rank : e < s.rank16 + p.rope;
        __nv_bfloat16 x = __float2bfloat16_rn(0.0f);
        if (exists && fp8) {
          const std::uint32_t both = widen_fp8(static_cast<std::uint32_t>(from[element]));
          x = __ushort_as_bfloat16(static_cast<unsigned short>(both & 0xffff));
        } else if (exists) {
          x = reinterpret_cast<const __nv_bfloat16*>(from)[element];
        }
        to[e] = x;
      }
    }
  }
}

// Scores of sixteen heads and this warp's eight keys: lane (g, c) has heads g and g + 8, keys 2c and 2c + 1.
__device__ __forceinline__ void scores_of_keys(const MlaAbsorbedKernel& p, const Shared& s,
                                               const __nv_bfloat16* queries, const __nv_bfloat16* keys,
                                               const float* scales, float (&scores)[4]) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int first_key = warp * 8;
  float parts[2][4] = {};  // Of latent and rope.
  const __nv_bfloat16* key = keys + (first_key + lane / 4) * s.row + lane % 4 * 2;
  const __nv_bfloat16* query = queries + lane % 16 * s.row + lane / 16 * 8;
  const auto step = [&](float(&sums)[4], int e) {
    const auto b0 = *reinterpret_cast<const std::uint32_t*>(key + e);
    const auto b1 = *reinterpret_cast<const std::uint32_t*>(key + e + 8);
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      std::uint32_t a[4];
      load_matrices(a, query + t * s.query_term() + e);
      mma(sums, a[0], a[1], a[2], a[3], b0, b1);
    }
  };
#pragma unroll 4
  for (int e = 0; e < s.rank16; e += 16) step(parts[0], e);
#pragma unroll 4
  for (int e = s.rank16; e < s.row - 8; e += 16) step(parts[1], e);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int k = first_key + lane % 4 * 2 + i % 2;
    const float rope_scale = scales[kKeys + k];
    const float score = fmaf(parts[1][i], rope_scale, __fmul_rn(parts[0][i], scales[k]));
    // A scale is positive, or NaN in damaged memory; then the score is NaN, and so is the result.
    scores[i] = rope_scale < 0.0f ? kNoScore : __fmul_rn(score, p.softmax_scale);
  }
}

// Grid: tiles, blocks of splits.
__global__ void __launch_bounds__(kThreads, 1) mla_absorbed_kernel(MlaAbsorbedKernel p, DeviceFault* fault) {
  extern __shared__ uint4 memory[];
  const Shared s(p);
  auto* queries = reinterpret_cast<__nv_bfloat16*>(memory);
  __nv_bfloat16* keys = queries + s.keys_at();
  __nv_bfloat16* weights = queries + s.weights_at();
  auto* scales = reinterpret_cast<float*>(queries + s.floats_at());
  float* warp_largest = scales + 2 * kKeys;
  float* warp_total = warp_largest + kWarps * kLatentTileHeads;
  const LatentTile tile = p.tiles[blockIdx.x];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int c = lane % 4;

  const std::int64_t kv_len = p.kv_lens[tile.row];
  const bool reads = kv_len > 0 && kv_len >= tile.q_len;
  if (kv_len > 0 && !reads && threadIdx.x == 0 && blockIdx.y == 0) {
    report_fault(fault, FaultKind::kQueriesOverKeys, tile.row, tile.q_len, kv_len);
  }
  const std::int64_t seen = reads ? keys_seen(p.selection, tile.token, kv_len - tile.q_len + tile.query) : 0;
  if (seen == 0) {
    for (int i = threadIdx.x; blockIdx.y == 0 && i < tile.heads * p.rank; i += kThreads) {
      latent_sums(p, tile, i / p.rank)[i % p.rank] = 0.0f;
    }
    return;
  }
  const std::int64_t keys_a_split = split_keys(seen - 1);
  const std::int64_t splits = (seen + keys_a_split - 1) / keys_a_split;
  const bool apart = p.partials != nullptr;
  if (blockIdx.y >= splits) return;
  load_queries(p, s, tile, queries);

  float all_largest[2] = {kNoScore, kNoScore};
  float all_total[2] = {};
  float all_sums[kPairsPerWarp][2][4] = {};
  for (std::int64_t split = blockIdx.y; split < splits; split += gridDim.y) {
    const std::int64_t end = min(seen, (split + 1) * keys_a_split);
    float largest[2] = {kNoScore, kNoScore};
    float total[2] = {};
    float sums[kPairsPerWarp][2][4] = {};
    for (std::int64_t first = split * keys_a_split; first < end; first += kKeys) {
      __syncthreads();  // All are done with the keys and weights of before.
      load_keys(p, s, tile, first, end, keys, scales);
      __syncthreads();
      float scores[4];
      scores_of_keys(p, s, queries, keys, scales, scores);
      float warp_best[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        warp_best[r] = fmaxf(scores[2 * r], scores[2 * r + 1]);
        warp_best[r] = fmaxf(warp_best[r], __shfl_xor_sync(kFullWarp, warp_best[r], 1));
        warp_best[r] = fmaxf(warp_best[r], __shfl_xor_sync(kFullWarp, warp_best[r], 2));
        if (c == 0) warp_largest[warp * kLatentTileHeads + g + r * 8] = warp_best[r];
      }
      __syncthreads();
      float factors[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float best = largest[r];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) best = fmaxf(best, warp_largest[w * kLatentTileHeads + g + r * 8]);
        factors[r] = best == kNoScore ? 1.0f : expf(largest[r] - best);
        largest[r] = best;
        float pair[2];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int k = warp * 8 + c * 2 + i;
          // NaN scores give NaN weights even where no score is a number.
          const float score = scores[2 * r + i];
          const float weight = score == kNoScore ? 0.0f : expf(score - best);
          sum += weight;
          pair[i] = __fmul_rn(weight, scales[k]);
        }
        sum += __shfl_xor_sync(kFullWarp, sum, 1);
        sum += __shfl_xor_sync(kFullWarp, sum, 2);
        if (c == 0) warp_total[warp * kLatentTileHeads + g + r * 8] = sum;
#pragma unroll
        for (int t = 0; t < kTerms; ++t) {
          *reinterpret_cast<std::uint32_t*>(weights + (t * kLatentTileHeads + g + r * 8) * kWeightRow + warp * 8 +
                                            c * 2) = take_bf16_pair(pair[0], pair[1]);
        }
      }
      __syncthreads();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) sum += warp_total[w * kLatentTileHeads + g + r * 8];
        total[r] = __fmaf_rn(total[r], factors[r], sum);
      }
      std::uint32_t a[kKeys / 16][kTerms][4];
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
        for (int t = 0; t < kTerms; ++t) {
          load_matrices(a[k][t], weights + (t * kLatentTileHeads + lane % 16) * kWeightRow + k * 16 + lane / 16 * 8);
        }
      }
#pragma unroll
      for (int j = 0; j < kPairsPerWarp; ++j) {
        const int column = (warp * kPairsPerWarp + j) * 16;
        if (column >= s.rank16) break;
        // The tile's own sums first: tensor cores cut off what they add to a large number, an addition rounds it.
        float tile_sums[2][4] = {};
#pragma unroll
        for (int k = 0; k < kKeys / 16; ++k) {
          std::uint32_t b[4];
          load_transposed(b, keys + (k * 16 + lane / 8 % 2 * 8 + lane % 8) * s.row + column + lane / 16 * 8);
#pragma unroll
          for (int t = 0; t < kTerms; ++t) {
            mma(tile_sums[0], a[k][t][0], a[k][t][1], a[k][t][2], a[k][t][3], b[0], b[1]);
            mma(tile_sums[1], a[k][t][0], a[k][t][1], a[k][t][2], a[k][t][3], b[2], b[3]);
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[j][half][i] = __fmaf_rn(sums[j][half][i], factors[i / 2], tile_sums[half][i]);
          }
        }
      }
    }

    // The split is complete: apart, it is left for the merge kernel; else it is merged here, as that would.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = g + r * 8;
      const Merge merge(all_largest[r], largest[r]);
      const bool counts = !saw_nothing(largest[r], total[r]);
      if (apart) {
        if (head >= tile.heads) continue;
        float* to = latent_partial(p, tile, head, split);
        if (warp == 0 && c == 0) {
          to[p.rank] = largest[r];
          to[p.rank + 1] = total[r];
        }
#pragma unroll
        for (int j = 0; j < kPairsPerWarp; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int column = (warp * kPairsPerWarp + j) * 16 + e / 2 * 8 + c * 2 + e % 2;
            if (column < p.rank) to[column] = sums[j][e / 2][r * 2 + e % 2];
          }
        }
      } else if (counts) {
        all_total[r] = merged(all_total[r], merge.old_factor, total[r], merge.new_factor);
        all_largest[r] = merge.largest;
#pragma unroll
        for (int j = 0; j < kPairsPerWarp; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float& sum = all_sums[j][e / 2][r * 2 + e % 2];
            sum = merged(sum, merge.old_factor, sums[j][e / 2][r * 2 + e % 2], merge.new_factor);
          }
        }
      }
    }
  }
  if (apart) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = g + r * 8;
    if (head >= tile.heads) continue;
    float* to = latent_sums(p, tile, head);
#pragma unroll
    for (int j = 0; j < kPairsPerWarp; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = (warp * kPairsPerWarp + j) * 16 + e / 2 * 8 + c * 2 + e % 2;
        if (column < p.rank) to[column] = all_sums[j][e / 2][r * 2 + e % 2] / all_total[r];
      }
    }
  }
}

// Grid: tiles. Adds up what the blocks of the splits left, in order; a warp a head.
__global__ void __launch_bounds__(kThreads) merge_kernel(MlaAbsorbedKernel p) {
  const LatentTile tile = p.tiles[blockIdx.x];
  const std::int64_t kv_len = p.kv_lens[tile.row];
  if (kv_len < tile.q_len || kv_len <= 0) return;  // Zeros were written.
  const std::int64_t seen = keys_seen(p.selection, tile.token, kv_len - tile.q_len + tile.query);
  if (seen == 0) return;
  const std::int64_t keys_a_split = split_keys(seen - 1);
  const std::int64_t splits = (seen + keys_a_split - 1) / keys_a_split;
  const int lane = threadIdx.x % 32;
  for (int head = threadIdx.x / 32; head < tile.heads; head += kWarps) {
    constexpr int kElements = kLatentRankMax / 32;
    float sums[kElements] = {};
    float largest = kNoScore;
    float total = 0.0f;
    for (std::int64_t split = 0; split < splits; ++split) {
      const float* from = latent_partial(p, tile, head, split);
      if (saw_nothing(from[p.rank], from[p.rank + 1])) continue;
      const Merge merge(largest, from[p.rank]);
      total = merged(total, merge.old_factor, from[p.rank + 1], merge.new_factor);
      largest = merge.largest;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const int column = lane + 32 * i;
        if (column < p.rank) sums[i] = merged(sums[i], merge.old_factor, from[column], merge.new_factor);
      }
    }
    float* to = latent_sums(p, tile, head);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int column = lane + 32 * i;
      if (column < p.rank) to[column] = sums[i] / total;
    }
  }
}

}  // namespace

void launch_mla_absorbed(const MlaAbsorbedKernel& kernel, const Launch& launch) {
  if (kernel.num_tiles == 0) return;
  const int bytes = Shared(kernel).bytes();
  cudaFuncSetAttribute(mla_absorbed_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const dim3 grid(static_cast<unsigned>(kernel.num_tiles), static_cast<unsigned>(kernel.split_blocks));
  mla_absorbed_kernel<<<grid, kThreads, bytes, launch.stream>>>(kernel, launch.fault);
  if (kernel.partials != nullptr) merge_kernel<<<grid.x, kThreads, 0, launch.stream>>>(kernel);
}

}  // namespace tessera::backends::cuda
