#include "tessera/backends/cuda/kernels/attention_merge_device.h"
#include "tessera/backends/cuda/kernels/fault_device.h"
#include "tessera/backends/cuda/kernels/kv_rows_device.h"
#include "tessera/backends/cuda/kernels/mla_expanded.h"
#include "tessera/backends/cuda/kernels/mma_device.h"
#include "tessera/backends/cuda/kernels/selection_device.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

__host__ __device__ constexpr int padded(int elements) { return (elements + 15) / 16 * 16; }

constexpr int kExpandPositions = 64;  // Of a block,
constexpr int kExpandFeatures = 128;  // sixteen for each warp.
constexpr int kExpandThreads = kExpandFeatures / 16 * 32;

// Where a position's row lies in the cache.
struct CacheRow {
  const std::byte* data;
  const std::byte* scales;
};
__device__ __forceinline__ CacheRow cache_row(const ExpandKernel& p, std::int64_t position) {
  const std::int64_t page = p.table[position / p.page_size];
  const std::int64_t slot = position % p.page_size;
  return {row_data(p.rows, page, slot), row_scales(p.rows, page, slot)};
}

// An element as it is stored: BF16, or a code without its scale.
__device__ __forceinline__ float stored_element(const KvRowsPart& part, const std::byte* row, int element) {
  if (part.element == KvElement::kBF16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[element]);
  const std::uint32_t both = widen_fp8(static_cast<std::uint32_t>(row[element]));
  return __uint_as_float(both << 16);
}
__device__ __forceinline__ float stored_scale(const KvRowsPart& part, const std::byte* scales, int group) {
  if (part.element == KvElement::kBF16) return 1.0f;
  return bf16_bits_to_float(reinterpret_cast<const std::uint16_t*>(scales)[group]);
}

// Grid: positions, features; the last block of features copies the rotated parts. The latents' codes lie in shared
// memory, scales are applied to the products.
__global__ void __launch_bounds__(kExpandThreads) expand_kernel(ExpandKernel p) {
  extern __shared__ uint4 memory[];
  __shared__ float scales[kExpandPositions];
  auto* latents = reinterpret_cast<__nv_bfloat16*>(memory);
  const std::int64_t first = p.first_position + static_cast<std::int64_t>(blockIdx.x) * kExpandPositions;
  const std::int64_t kv_len = min(std::int64_t{*p.kv_len}, p.first_position + p.positions);
  if (first >= kv_len) return;
  const ExpandedShape& s = p.shape;
  const std::int64_t width = expanded_width(s);
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  if (blockIdx.y == gridDim.y - 1) {
    const int padded_rope = static_cast<int>(padded8(s.rope));
    for (int i = threadIdx.x; i < kExpandPositions * padded_rope; i += kExpandThreads) {
      const std::int64_t position = first + i / padded_rope;
      const int e = i % padded_rope;
      if (position >= kv_len) continue;
      const CacheRow row = cache_row(p, position);
      const float x =
          e < s.rope ? stored_element(p.rows, row.data, s.rank + e) * stored_scale(p.rows, row.scales, 1) : 0.0f;
      p.expanded[(position - p.first_position) * width + expanded_rope(s) + e] = __float2bfloat16_rn(x);
    }
    return;
  }

  const int rank16 = padded(s.rank);
  const int row_elements = rank16 + 8;
  for (int position = warp; position < kExpandPositions; position += kExpandThreads / 32) {
    const bool exists = first + position < kv_len;
    CacheRow row{};
    if (exists) row = cache_row(p, first + position);
    if (lane == 0) scales[position] = exists ? stored_scale(p.rows, row.scales, 0) : 0.0f;
    for (int e = lane; e < rank16; e += 32) {
      const float x = exists && e < s.rank ? stored_element(p.rows, row.data, e) : 0.0f;
      latents[position * row_elements + e] = __float2bfloat16_rn(x);
    }
  }
  __syncthreads();

  const std::int64_t features = static_cast<std::int64_t>(s.heads) * (s.nope + s.value);
  const std::int64_t first_feature = static_cast<std::int64_t>(blockIdx.y) * kExpandFeatures + warp * 16;
  if (first_feature >= features) return;
  const int g = lane / 4;
  const int c = lane % 4;
  // Rows past the last are read as the last one, and not stored.
  const __nv_bfloat16* rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) rows[i] = p.weight + min(first_feature + i * 8 + g, features - 1) * p.pitch + c * 2;
  float sums[kExpandPositions / 8][4] = {};
  for (int e = 0; e < rank16; e += 16) {
    std::uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = __ldg(reinterpret_cast<const std::uint32_t*>(rows[i % 2] + e + i / 2 * 8));
#pragma unroll
    for (int n = 0; n < kExpandPositions / 8; ++n) {
      const __nv_bfloat16* latent = latents + (n * 8 + g) * row_elements + e + c * 2;
      mma(sums[n], a[0], a[1], a[2], a[3], *reinterpret_cast<const std::uint32_t*>(latent),
          *reinterpret_cast<const std::uint32_t*>(latent + 8));
    }
  }
#pragma unroll
  for (int n = 0; n < kExpandPositions / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t feature = first_feature + i / 2 * 8 + g;
      const int position = n * 8 + c * 2 + i % 2;
      if (feature >= features || first + position >= kv_len) continue;
      const std::int64_t head = feature / (s.nope + s.value);
      const std::int64_t within = feature % (s.nope + s.value);
      const std::int64_t at =
          within < s.nope ? expanded_key(s, head) + within : expanded_value(s, head) + within - s.nope;
      p.expanded[(first - p.first_position + position) * width + at] =
          __float2bfloat16_rn(__fmul_rn(sums[n][i], scales[position]));
    }
  }
}

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kTerms = 2;  // BF16 numbers that an F32 is split into.
constexpr int kKeys = 64;  // Of a tile.
constexpr int kQueries = kWarps * 16;

// Shared memory: the queries' terms [term][query][row], keys [key][row], values [key][value row]. Rows of queries and
// keys are [nope | rope], each padded with zeros to a multiple of 16, and 8 elements more.
struct Shared {
  int nope16;
  int row;  // Elements.
  int value_row;
  __host__ __device__ explicit Shared(const ExpandedShape& s)
      : nope16(padded(s.nope)), row(padded(s.nope) + padded(s.rope) + 8), value_row(padded(s.value) + 8) {}
  __host__ __device__ int query_term() const { return kQueries * row; }
  __host__ __device__ int keys_at() const { return kTerms * query_term(); }
  __host__ __device__ int values_at() const { return keys_at() + kKeys * row; }
  __host__ __device__ int bytes() const { return (values_at() + kKeys * value_row) * 2; }
};

// `count` elements to shared memory and zeros up to `to_count`, by one warp. From has 8 elements to a multiple of 16
// bytes.
__device__ __forceinline__ void copy_elements(__nv_bfloat16* to, const __nv_bfloat16* from, int count, int to_count,
                                              int lane) {
  for (int i = lane; i < to_count / 8; i += 32) {
    if (i * 8 + 8 <= count) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    } else {
      for (int e = i * 8; e < i * 8 + 8; ++e) to[e] = e < count ? from[e] : __float2bfloat16_rn(0.0f);
    }
  }
}

// Grid: tiles of queries, heads. A tile is 64 queries, sixteen a warp; one where each has a selection of its own.
template <int kValuePairs>
__global__ void __launch_bounds__(kThreads) mla_expanded_kernel(MlaExpandedKernel p, DeviceFault* fault) {
  extern __shared__ uint4 memory[];
  const ExpandedShape& d = p.shape;
  const Shared s(d);
  auto* queries = reinterpret_cast<__nv_bfloat16*>(memory);
  __nv_bfloat16* keys = queries + s.keys_at();
  __nv_bfloat16* values = queries + s.values_at();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const std::int64_t head = blockIdx.y;
  const bool selects = p.selection.positions != nullptr;
  const int tile_queries = selects ? 1 : kQueries;
  const int first_query = static_cast<int>(blockIdx.x) * tile_queries;
  const int count = min(tile_queries, p.q_len - first_query);
  float* out = p.out + (p.first_token + static_cast<std::int64_t>(first_query)) * p.out_stride + head * d.value;

  const std::int64_t kv_len = min(std::int64_t{*p.kv_len}, p.length_max);
  const bool reads = kv_len > 0 && kv_len >= p.q_len;
  if (kv_len > 0 && !reads && threadIdx.x == 0)
    report_fault(fault, FaultKind::kQueriesOverKeys, p.row, p.q_len, kv_len);
  // How many keys the queries of rows g and g + 8 of this warp see, and the tile's last one.
  const auto keys_of = [&](int query) -> std::int64_t {
    if (!reads || query >= count) return 0;
    const std::int64_t token = p.first_token + static_cast<std::int64_t>(first_query) + query;
    return keys_seen(p.selection, token, kv_len - p.q_len + first_query + query);
  };
  const std::int64_t seen[2] = {keys_of(warp * 16 + g), keys_of(warp * 16 + g + 8)};
  const std::int64_t seen_by_last = keys_of(count - 1);
  if (seen_by_last == 0) {  // Nor do the others see any.
    for (int i = threadIdx.x; i < count * d.value; i += kThreads) out[i / d.value * p.out_stride + i % d.value] = 0.0f;
    return;
  }
  // The chunk's part of what they see. A tile whose queries stand before the chunk is finished.
  const std::int64_t last_position = kv_len - p.q_len + first_query + count - 1;
  if (p.first_position > last_position) return;
  const bool last_chunk = p.first_position + p.positions > last_position;
  const std::int64_t first_token = p.first_token + static_cast<std::int64_t>(first_query);
  const std::int64_t begin = keys_seen(p.selection, first_token, p.first_position - 1);
  const std::int64_t end = min(seen_by_last, keys_seen(p.selection, first_token, p.first_position + p.positions - 1));

  const int query_width = d.nope + d.rope;
  for (int i = threadIdx.x; i < kQueries * (s.row - 8); i += kThreads) {
    const int query = i / (s.row - 8);
    const int e = i % (s.row - 8);
    const int element = e < s.nope16 ? e : d.nope + e - s.nope16;
    const bool exists = query < count && (e < s.nope16 ? e < d.nope : element < query_width);
    float x = exists ? p.q[(p.first_token + static_cast<std::int64_t>(first_query) + query) * p.q_stride +
                           head * query_width + element]
                     : 0.0f;
#pragma unroll
    for (int t = 0; t < kTerms; ++t) queries[t * s.query_term() + query * s.row + e] = take_bf16(x);
  }

  const std::int64_t width = expanded_width(d);
  float largest[2] = {kNoScore, kNoScore};
  float total[2] = {};
  float sums[kValuePairs][2][4] = {};
  if (p.first_position > 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = warp * 16 + g + r * 8;
      if (query >= count) continue;
      const float* from =
          p.sums_so_far + ((static_cast<std::int64_t>(first_query) + query) * d.heads + head) * expanded_sum_floats(d);
      largest[r] = from[d.value];
      total[r] = from[d.value + 1];
#pragma unroll
      for (int j = 0; j < kValuePairs; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = j * 16 + e / 2 * 8 + c * 2 + e % 2;
          if (column < d.value) sums[j][e / 2][r * 2 + e % 2] = from[column];
        }
      }
    }
  }
  for (std::int64_t first = begin; first < end; first += kKeys) {
    __syncthreads();  // All are done with the tile of before.
    for (int key = warp; key < kKeys; key += kWarps) {
      const std::int64_t index = first + key;
      const std::int64_t position = index < end ? position_of_key(p.selection, first_token, index) : -1;
      __nv_bfloat16* to = keys + key * s.row;
      __nv_bfloat16* to_value = values + key * s.value_row;
      if (position < 0) {  // Seen by nobody.
        for (int e = lane; e < s.row - 8; e += 32) to[e] = __float2bfloat16_rn(0.0f);
        for (int e = lane; e < s.value_row - 8; e += 32) to_value[e] = __float2bfloat16_rn(0.0f);
        continue;
      }
      const __nv_bfloat16* from = p.expanded + (position - p.first_position) * width;
      copy_elements(to, from + expanded_key(d, head), d.nope, s.nope16, lane);
      copy_elements(to + s.nope16, from + expanded_rope(d), d.rope, s.row - 8 - s.nope16, lane);
      copy_elements(to_value, from + expanded_value(d, head), d.value, s.value_row - 8, lane);
    }
    __syncthreads();
    if (warp * 16 >= count) continue;

    float scores[kKeys / 8][4] = {};
    const __nv_bfloat16* query = queries + (warp * 16 + lane % 16) * s.row + lane / 16 * 8;
    for (int e = 0; e < s.row - 8; e += 16) {
      std::uint32_t a[kTerms][4];
#pragma unroll
      for (int t = 0; t < kTerms; ++t) load_matrices(a[t], query + t * s.query_term() + e);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        std::uint32_t b[4];
        load_matrices(b, keys + (n * 16 + lane / 16 * 8 + lane % 8) * s.row + e + lane / 8 % 2 * 8);
#pragma unroll
        for (int t = 0; t < kTerms; ++t) {
          mma(scores[2 * n], a[t][0], a[t][1], a[t][2], a[t][3], b[0], b[1]);
          mma(scores[2 * n + 1], a[t][0], a[t][1], a[t][2], a[t][3], b[2], b[3]);
        }
      }
    }
    float factors[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float best = largest[r];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = n * 8 + c * 2 + i;
          float& score = scores[n][2 * r + i];
          score = first + key < min(seen[r], end) ? __fmul_rn(score, p.softmax_scale) : kNoScore;
          best = fmaxf(best, score);
        }
      }
      best = fmaxf(best, __shfl_xor_sync(kFullWarp, best, 1));
      best = fmaxf(best, __shfl_xor_sync(kFullWarp, best, 2));
      factors[r] = best == kNoScore ? 1.0f : expf(largest[r] - best);
      largest[r] = best;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[n][2 * r + i];
          // NaN scores give NaN weights even where no score is a number.
          score = score == kNoScore ? 0.0f : expf(score - best);
          sum += score;
        }
      }
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      total[r] = __fmaf_rn(total[r], factors[r], sum);
    }
    std::uint32_t a[kKeys / 16][kTerms][4];
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float* pair = &scores[2 * k + i / 2][i % 2 * 2];
          a[k][t][i] = take_bf16_pair(pair[0], pair[1]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kValuePairs; ++j) {
      if (j * 16 >= s.value_row - 8) break;
      // The tile's own sums first: tensor cores cut off what they add to a large number, an addition rounds it.
      float tile_sums[2][4] = {};
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        std::uint32_t b[4];
        load_transposed(b, values + (k * 16 + lane / 8 % 2 * 8 + lane % 8) * s.value_row + j * 16 + lane / 16 * 8);
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
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = warp * 16 + g + r * 8;
    if (query >= count) continue;
    float* to = last_chunk ? out + query * p.out_stride
                           : p.sums_so_far + ((static_cast<std::int64_t>(first_query) + query) * d.heads + head) *
                                                 expanded_sum_floats(d);
    if (!last_chunk && c == 0) {
      to[d.value] = largest[r];
      to[d.value + 1] = total[r];
    }
#pragma unroll
    for (int j = 0; j < kValuePairs; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = j * 16 + e / 2 * 8 + c * 2 + e % 2;
        const float sum = sums[j][e / 2][r * 2 + e % 2];
        if (column < d.value) to[column] = last_chunk ? sum / total[r] : sum;
      }
    }
  }
}

unsigned ceil_div(std::int64_t a, std::int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

template <int kValuePairs>
void launch_values(const MlaExpandedKernel& kernel, const Launch& launch) {
  const int bytes = Shared(kernel.shape).bytes();
  cudaFuncSetAttribute(mla_expanded_kernel<kValuePairs>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const int tile_queries = kernel.selection.positions != nullptr ? 1 : kQueries;
  const dim3 grid(ceil_div(kernel.q_len, tile_queries), static_cast<unsigned>(kernel.shape.heads));
  mla_expanded_kernel<kValuePairs><<<grid, kThreads, bytes, launch.stream>>>(kernel, launch.fault);
}

}  // namespace

void launch_expand_latents(const ExpandKernel& kernel, const Launch& launch) {
  const ExpandedShape& s = kernel.shape;
  const int bytes = kExpandPositions * (padded(s.rank) + 8) * 2;
  cudaFuncSetAttribute(expand_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const std::int64_t features = static_cast<std::int64_t>(s.heads) * (s.nope + s.value);
  const dim3 grid(ceil_div(kernel.positions, kExpandPositions), ceil_div(features, kExpandFeatures) + 1);
  expand_kernel<<<grid, kExpandThreads, bytes, launch.stream>>>(kernel);
}

void launch_mla_expanded(const MlaExpandedKernel& kernel, const Launch& launch) {
  if (kernel.q_len == 0) return;
  if (kernel.shape.value <= 128) {
    launch_values<8>(kernel, launch);
  } else {
    launch_values<16>(kernel, launch);
  }
}

}  // namespace tessera::backends::cuda
