#include <cuda_bf16.h>

#include "tessera/backends/cuda/kernels/attention_merge_device.h"
#include "tessera/backends/cuda/kernels/fault_device.h"
#include "tessera/backends/cuda/kernels/kv_rows_device.h"
#include "tessera/backends/cuda/kernels/mma_device.h"
#include "tessera/backends/cuda/kernels/paged_attention.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kTerms = 3;  // BF16 numbers that an F32 is split into.
constexpr int kStages = 2;
constexpr float kLeaveAlone = -1.0f;  // In place of a factor, none of which is negative.

// Shared memory of a block: the queries' terms, then each warp's stages of keys and values; the latter's place is taken
// by the warps' sums when they meet. Rows are an odd number of 16 bytes apart, so that eight of them lie in all banks.
template <int kDim, bool kFp8>
struct Shape {
  static constexpr int kKeys = kFp8 ? 32 : 16;  // Of a tile.
  static constexpr int kRowBytes = kDim * (kFp8 ? 1 : 2) + 16;
  static constexpr int kTileBytes = kKeys * kRowBytes;
  static constexpr int kQueryRowBytes = kDim * 2 + 16;
  static constexpr int kTermBytes = kTileRows * kQueryRowBytes;
  static constexpr int kQueryBytes = kTerms * kTermBytes;
  static constexpr int kWarpBytes = kStages * 2 * kTileBytes;
  static constexpr int kBytes = kQueryBytes + kWarps * kWarpBytes;
  static_assert(kWarps * kTileRows * kDim * 4 <= kWarps * kWarpBytes);
};

__device__ __forceinline__ float* output(const PagedAttentionKernel& p, const AttentionTile& tile, std::int32_t kv_head,
                                         std::int32_t f) {
  const std::int64_t token = tile.token_begin + f / p.group;
  return p.out + token * p.out_stride + (static_cast<std::int64_t>(kv_head) * p.group + f % p.group) * p.head_dim;
}

// Where split s of a query row leaves its result: head_dim sums, the largest score, the total of the weights.
__device__ __forceinline__ float* partial(const PagedAttentionKernel& p, const AttentionTile& tile,
                                          std::int32_t kv_head, std::int32_t f, std::int64_t s) {
  const std::int64_t token = tile.token_begin + f / p.group;
  const std::int64_t row = (token * p.kv_heads + kv_head) * p.group + f % p.group;
  return p.partials + (row * p.split_blocks + s) * partial_floats(p.head_dim);
}

// Position of a query row of the tile.
__device__ __forceinline__ std::int64_t position_of(const PagedAttentionKernel& p, const AttentionTile& tile,
                                                    std::int64_t kv_len, std::int32_t f) {
  return kv_len - tile.q_len + f / p.group;
}

// Zeros for a row that reads nothing; whether the tile was such a one.
__device__ bool wrote_zeros(const PagedAttentionKernel& p, const AttentionTile& tile, std::int32_t kv_head,
                            std::int64_t kv_len, DeviceFault* fault) {
  if (kv_len >= tile.q_len && kv_len > 0) return false;
  if (kv_len > 0 && threadIdx.x == 0 && blockIdx.z == 0) {
    report_fault(fault, FaultKind::kQueriesOverKeys, tile.row, tile.q_len, kv_len);
  }
  if (blockIdx.z == 0) {
    for (int i = threadIdx.x; i < tile.count * p.head_dim; i += blockDim.x) {
      output(p, tile, kv_head, tile.first + i / p.head_dim)[i % p.head_dim] = 0.0f;
    }
  }
  return true;
}

// The keys and values of one warp: where they lie, and their way into shared memory, tile after tile.
template <int kDim, bool kFp8>
class TileReader {
  using S = Shape<kDim, kFp8>;

 public:
  __device__ TileReader(const PagedAttentionKernel& p, const AttentionTile& tile, std::int32_t kv_head,
                        std::byte* stages)
      : p_(p),
        table_(p.table + tile.row * p.max_pages_per_row),
        head_bytes_(p.head_dim * (kFp8 ? 1 : 2)),
        head_offset_(static_cast<std::int64_t>(kv_head) * head_bytes_),
        kv_head_(kv_head),
        stages_(stages),
        lane_(threadIdx.x % 32) {}

  // Columns past head_dim are zero; nothing writes them until the warps meet.
  __device__ void clear_padding() {
    if (p_.head_dim == kDim) return;
    const int padding = S::kRowBytes - head_bytes_;
    for (int i = lane_; i < kStages * 2 * S::kKeys * padding; i += 32) {
      stages_[i / padding * S::kRowBytes + head_bytes_ + i % padding] = std::byte{0};
    }
    __syncwarp();
  }

  // Looks up where key begin + lane lies, for start(). Keys from `end` on do not exist.
  __device__ void look_up(std::int64_t begin, std::int64_t end) {
    const std::int64_t position = begin + lane_;
    row_ = -1;
    if (lane_ >= S::kKeys || position >= end) return;
    const auto page = static_cast<std::int32_t>(position) / p_.cache.page_size;
    slot_ = static_cast<std::int32_t>(position) - page * p_.cache.page_size;
    page_ = table_[page];
    row_ = 0;
  }

  // Starts copying the tile that was looked up into a stage; zeros for keys that do not exist.
  __device__ void start(int stage) {
    const KvRowsPart& part = p_.cache.parts[0];  // Both parts have the same shape.
    const std::int64_t row =
        row_ < 0 ? -1 : page_ * part.page_stride + static_cast<std::int64_t>(slot_) * part.row_bytes + head_offset_;
    if constexpr (kFp8) {
      next_key_scale_ = 0.0f;
      next_value_scale_ = 0.0f;
      if (row_ >= 0) {
        next_key_scale_ = scale(p_.cache.parts[0]);
        next_value_scale_ = scale(p_.cache.parts[1]);
      }
    }
    std::byte* keys = stages_ + stage * 2 * S::kTileBytes;
    std::byte* values = keys + S::kTileBytes;
    if (p_.head_dim == kDim) {
      constexpr int kChunks = kDim * (kFp8 ? 1 : 2) / 16;
      constexpr int kKeysAtOnce = 32 / kChunks;
      const int offset = lane_ % kChunks * 16;
#pragma unroll
      for (int i = 0; i < S::kKeys / kKeysAtOnce; ++i) {
        const int key = i * kKeysAtOnce + lane_ / kChunks;
        const std::int64_t at = __shfl_sync(kFullWarp, row, key);
        const std::int64_t source = at < 0 ? 0 : at + offset;
        copy_async(keys + key * S::kRowBytes + offset, p_.cache.parts[0].data + source, at < 0);
        copy_async(values + key * S::kRowBytes + offset, p_.cache.parts[1].data + source, at < 0);
      }
    } else if (head_bytes_ % 16 == 0) {
      const int chunks = head_bytes_ / 16;
      for (int i = lane_; i < (S::kKeys * chunks + 31) / 32 * 32; i += 32) {
        const int key = i / chunks;
        const std::int64_t at = __shfl_sync(kFullWarp, row, key % S::kKeys);
        if (key >= S::kKeys) continue;
        const std::int64_t offset = i % chunks * 16;
        const std::int64_t source = at < 0 ? 0 : at + offset;
        copy_async(keys + key * S::kRowBytes + offset, p_.cache.parts[0].data + source, at < 0);
        copy_async(values + key * S::kRowBytes + offset, p_.cache.parts[1].data + source, at < 0);
      }
    } else {  // Sizes that only tests have.
      for (int key = 0; key < S::kKeys; ++key) {
        const std::int64_t at = __shfl_sync(kFullWarp, row, key);
        for (int i = lane_; i < head_bytes_; i += 32) {
          keys[key * S::kRowBytes + i] = at < 0 ? std::byte{0} : p_.cache.parts[0].data[at + i];
          values[key * S::kRowBytes + i] = at < 0 ? std::byte{0} : p_.cache.parts[1].data[at + i];
        }
      }
    }
  }

  // Of key `lane` of the tile last started.
  __device__ float next_key_scale() const { return next_key_scale_; }
  __device__ float next_value_scale() const { return next_value_scale_; }
  __device__ const std::byte* keys(int stage) const { return stages_ + stage * 2 * S::kTileBytes; }
  __device__ const std::byte* values(int stage) const { return keys(stage) + S::kTileBytes; }

 private:
  __device__ float scale(const KvRowsPart& part) const {
    return bf16_bits_to_float(reinterpret_cast<const std::uint16_t*>(row_scales(part, page_, slot_))[kv_head_]);
  }

  const PagedAttentionKernel& p_;
  const std::int32_t* table_;
  const int head_bytes_;
  const std::int64_t head_offset_;
  const std::int32_t kv_head_;
  std::byte* const stages_;
  const int lane_;
  std::int32_t row_ = -1;  // 0 where the key exists.
  std::int64_t page_ = 0;
  std::int32_t slot_ = 0;
  float next_key_scale_ = 0.0f;
  float next_value_scale_ = 0.0f;
};

// What a warp knows of the sixteen query rows: of rows g and g + 8 (index 0 and 1).
template <int kDim>
struct WarpState {
  float largest[2];
  float total[2];
  float sums[kDim / 8][4];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      largest[i] = kNoScore;
      total[i] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0.0f;
    }
  }
};

// One tile of keys and values against the sixteen query rows. limits: the last position that rows g and g + 8 see.
template <int kDim, bool kFp8>
__device__ __forceinline__ void attend_tile(WarpState<kDim>& state, const std::byte* queries, const std::byte* keys,
                                            const std::byte* values, float key_scale, float value_scale,
                                            float softmax_scale, std::int64_t begin, const std::int32_t (&limits)[2]) {
  using S = Shape<kDim, kFp8>;
  constexpr int kTilesN = S::kKeys / 8;
  const int lane = threadIdx.x % 32;
  const int c = lane % 4;

  // With few tiles of keys, the terms of the queries are added up apart, so that enough instructions are independent.
  constexpr int kChains = kTilesN < 4 ? kTerms : 1;
  float chains[kChains][kTilesN][4] = {};
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    std::uint32_t b[kTilesN][2];
    if constexpr (kFp8) {
      // Lane (g, c) gets elements 4c .. 4c + 3 of key g. To mma, its elements are 2c, 2c + 1, 2c + 8, 2c + 9: the
      // queries were stored in that order.
      std::uint32_t raw[4];
      load_matrices(raw, keys + lane * S::kRowBytes + k * 16);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        b[n][0] = widen_fp8(raw[n] & 0xffff);
        b[n][1] = widen_fp8(raw[n] >> 16);
      }
    } else {
      std::uint32_t raw[4];
      load_matrices(raw, keys + (lane / 16 * 8 + lane % 8) * S::kRowBytes + k * 32 + lane / 8 % 2 * 16);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        b[n][0] = raw[2 * n];
        b[n][1] = raw[2 * n + 1];
      }
    }
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      std::uint32_t a[4];
      load_matrices(a, queries + t * S::kTermBytes + lane % 16 * S::kQueryRowBytes + k * 32 + lane / 16 * 16);
#pragma unroll
      for (int n = 0; n < kTilesN; ++n) mma(chains[t % kChains][n], a[0], a[1], a[2], a[3], b[n][0], b[n][1]);
    }
  }

  float largest[2] = {kNoScore, kNoScore};
  float scores[kTilesN][4];
#pragma unroll
  for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = n * 8 + c * 2 + i % 2;
      float score = chains[kChains - 1][n][i];
#pragma unroll
      for (int t = kChains - 2; t >= 0; --t) score += chains[t][n][i];  // The smallest first.
      score = __fmul_rn(score, softmax_scale);
      if constexpr (kFp8) score = __fmul_rn(score, __shfl_sync(kFullWarp, key_scale, key));
      scores[n][i] = begin + key <= limits[i / 2] ? score : kNoScore;
      largest[i / 2] = fmaxf(largest[i / 2], scores[n][i]);
    }
  }
  float factors[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    largest[r] = fmaxf(largest[r], __shfl_xor_sync(kFullWarp, largest[r], 1));
    largest[r] = fmaxf(largest[r], __shfl_xor_sync(kFullWarp, largest[r], 2));
    largest[r] = fmaxf(largest[r], state.largest[r]);
    // A row that has seen nothing yet has only weights of zero.
    factors[r] = largest[r] == kNoScore ? 1.0f : expf(state.largest[r] - largest[r]);
    state.largest[r] = largest[r];
  }
  float totals[2] = {};
#pragma unroll
  for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2;
      // NaN scores give NaN weights even where no score is a number.
      float weight = scores[n][i] == kNoScore ? 0.0f : expf(scores[n][i] - largest[r]);
      totals[r] += weight;
      if constexpr (kFp8) weight = __fmul_rn(weight, __shfl_sync(kFullWarp, value_scale, n * 8 + c * 2 + i % 2));
      scores[n][i] = weight;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    totals[r] += __shfl_xor_sync(kFullWarp, totals[r], 1);
    totals[r] += __shfl_xor_sync(kFullWarp, totals[r], 2);
    state.total[r] = __fmaf_rn(state.total[r], factors[r], totals[r]);
  }
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state.sums[n][i] = __fmul_rn(state.sums[n][i], factors[i / 2]);
  }

#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k) {
    std::uint32_t a[kTerms][4];
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* pair = &scores[2 * k + i / 2][i % 2 * 2];
        a[t][i] = take_bf16_pair(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int d = 0; d < kDim / (kFp8 ? 32 : 16); ++d) {
      const int key = k * 16 + lane / 8 % 2 * 8 + lane % 8;
      std::uint32_t raw[4];
      load_transposed(raw, values + key * S::kRowBytes + d * 32 + lane / 16 * 16);
      constexpr int kColumns = kFp8 ? 4 : 2;  // Tiles of eight elements of the values.
      std::uint32_t b[kColumns][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if constexpr (kFp8) {
            // Lane (g, c) gets elements 2g and 2g + 1 of keys 2c and 2c + 1, four codes in a register: even elements
            // make one tile, odd ones the next.
            b[2 * half][i] = widen_fp8(__byte_perm(raw[2 * half + i], 0, 0x4420));
            b[2 * half + 1][i] = widen_fp8(__byte_perm(raw[2 * half + i], 0, 0x4431));
          } else {
            b[half][i] = raw[2 * half + i];
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          mma(state.sums[kColumns * d + n], a[t][0], a[t][1], a[t][2], a[t][3], b[n][0], b[n][1]);
        }
      }
    }
  }
}

// Grid: tiles, KV heads, split blocks.
template <int kDim, bool kFp8>
__global__ void __launch_bounds__(kThreads) paged_attention_kernel(PagedAttentionKernel p, DeviceFault* fault) {
  using S = Shape<kDim, kFp8>;
  extern __shared__ uint4 shared[];
  __shared__ std::int32_t row_limits[kTileRows];
  // What the warps found of each query row, the factors with which warp i's result is added to those before it, and
  // those with which the split's is added to the splits before it.
  __shared__ float warp_largest[kWarps][kTileRows];
  __shared__ float warp_total[kWarps][kTileRows];
  __shared__ float old_factors[kWarps][kTileRows];
  __shared__ float new_factors[kWarps][kTileRows];
  __shared__ float split_largest[kTileRows];
  __shared__ float split_total[kTileRows];

  const AttentionTile tile = p.tiles[blockIdx.x];
  const std::int32_t kv_head = blockIdx.y;
  const std::int64_t kv_len = kv_len_of(p.kv_lens, tile.row, p.max_pages_per_row, p.cache.page_size);
  if (wrote_zeros(p, tile, kv_head, kv_len, fault)) return;
  const std::int64_t first_position = position_of(p, tile, kv_len, tile.first);
  const std::int64_t last_position = position_of(p, tile, kv_len, tile.first + tile.count - 1);
  const bool apart = p.partials != nullptr;
  // Most blocks of a short sequence have nothing to do.
  if (apart && blockIdx.z * split_keys(first_position) > last_position) return;

  auto* queries = reinterpret_cast<std::byte*>(shared);
  std::byte* stages = queries + S::kQueryBytes;
  auto* warp_sums = reinterpret_cast<float*>(stages);  // [warp][row][kDim], in place of the stages.
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;

  for (int i = threadIdx.x; i < kTileRows * kDim; i += kThreads) {
    const int r = i / kDim;
    const int d = i % kDim;
    const std::int32_t f = tile.first + r;
    float x = 0.0f;
    if (r < tile.count && d < p.head_dim) {
      const std::int64_t head = static_cast<std::int64_t>(kv_head) * p.group + f % p.group;
      x = p.q[(tile.token_begin + f / p.group) * p.q_stride + head * p.head_dim + d];
    }
    // In FP8, the order in which a lane meets the keys' elements (attend_tile).
    const int place = kFp8 ? d / 16 * 16 + d % 16 / 4 * 2 + d % 2 + d / 2 % 2 * 8 : d;
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      *reinterpret_cast<__nv_bfloat16*>(queries + t * S::kTermBytes + r * S::kQueryRowBytes + place * 2) = take_bf16(x);
    }
  }

  TileReader<kDim, kFp8> reader(p, tile, kv_head, stages + warp * S::kWarpBytes);
  constexpr int kElements = kTileRows * kDim / kThreads;  // Sums that a thread keeps from split to split.

  // Query rows of one tile may have splits of two sizes, where the sequence is long and the tile spans the limit.
  for (std::int64_t split = split_keys(first_position); split <= split_keys(last_position); split *= 2) {
    float sums[kElements] = {};
    float largest_so_far = kNoScore;  // Of query row threadIdx.x, where there is one.
    float total_so_far = 0.0f;
    __syncthreads();  // Nobody reads the last size's limits any more.
    if (threadIdx.x < kTileRows) {
      const auto r = static_cast<std::int32_t>(threadIdx.x);
      const std::int64_t position = position_of(p, tile, kv_len, tile.first + r);
      row_limits[r] = r < tile.count && split_keys(position) == split ? static_cast<std::int32_t>(position) : -1;
    }
    __syncthreads();
    const std::int32_t limits[2] = {row_limits[lane / 4], row_limits[lane / 4 + 8]};
    const std::int64_t end = min(last_position + 1, split * kSplitsMax);
    const std::int64_t first_split = apart ? blockIdx.z : 0;
    const std::int64_t splits_end = apart ? first_split + 1 : (end + split - 1) / split;

    for (std::int64_t s = first_split; s < splits_end && s * split < end; ++s) {
      const std::int64_t split_end = min((s + 1) * split, end);
      WarpState<kDim> state;
      state.clear();
      reader.clear_padding();
      constexpr int kStep = kWarps * S::kKeys;
      std::int64_t begin = s * split + warp * S::kKeys;
      reader.look_up(begin, split_end);
      if (begin < split_end) reader.start(0);
      commit_copies();
      reader.look_up(begin + kStep, split_end);
      for (int stage = 0; begin < split_end; begin += kStep, stage ^= 1) {
        const float key_scale = reader.next_key_scale();
        const float value_scale = reader.next_value_scale();
        if (begin + kStep < split_end) {
          reader.start(stage ^ 1);
          reader.look_up(begin + 2 * kStep, split_end);
        }
        commit_copies();
        wait_for_copies<1>();
        __syncwarp();
        attend_tile<kDim, kFp8>(state, queries, reader.keys(stage), reader.values(stage), key_scale, value_scale,
                                p.softmax_scale, begin, limits);
        __syncwarp();
      }
      wait_for_copies<0>();
      __syncthreads();

      // The warps meet.
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = lane / 4 + i / 2 * 8;
          const int column = lane % 4 * 2 + i % 2;
          const int d = kFp8 ? n / 2 * 16 + column * 2 + n % 2 : n * 8 + column;
          warp_sums[(warp * kTileRows + r) * kDim + d] = state.sums[n][i];
        }
      }
      if (lane % 4 == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          warp_largest[warp][lane / 4 + i * 8] = state.largest[i];
          warp_total[warp][lane / 4 + i * 8] = state.total[i];
        }
      }
      __syncthreads();
      if (threadIdx.x < kTileRows) {
        const int r = threadIdx.x;
        float largest = warp_largest[0][r];
        float total = warp_total[0][r];
        for (int w = 1; w < kWarps; ++w) {
          // A warp that saw nothing changes nothing.
          old_factors[w][r] = kLeaveAlone;
          if (saw_nothing(warp_largest[w][r], warp_total[w][r])) continue;
          const Merge merge(largest, warp_largest[w][r]);
          total = merged(total, merge.old_factor, warp_total[w][r], merge.new_factor);
          largest = merge.largest;
          old_factors[w][r] = merge.old_factor;
          new_factors[w][r] = merge.new_factor;
        }
        split_largest[r] = largest;
        split_total[r] = total;
        old_factors[0][r] = kLeaveAlone;
        if (!saw_nothing(largest, total)) {
          const Merge merge(largest_so_far, largest);
          total_so_far = merged(total_so_far, merge.old_factor, total, merge.new_factor);
          largest_so_far = merge.largest;
          old_factors[0][r] = merge.old_factor;
          new_factors[0][r] = merge.new_factor;
        }
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const int e = static_cast<int>(threadIdx.x) + i * kThreads;
        const int r = e / kDim;
        const int d = e % kDim;
        float sum = warp_sums[e];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) {
          if (old_factors[w][r] == kLeaveAlone) continue;
          sum = merged(sum, old_factors[w][r], warp_sums[w * kTileRows * kDim + e], new_factors[w][r]);
        }
        if (!apart) {
          if (old_factors[0][r] != kLeaveAlone) sums[i] = merged(sums[i], old_factors[0][r], sum, new_factors[0][r]);
        } else if (row_limits[r] >= 0) {
          float* to = partial(p, tile, kv_head, tile.first + r, s);
          if (d < p.head_dim) to[d] = sum;
          if (d == 0) {
            to[p.head_dim] = split_largest[r];
            to[p.head_dim + 1] = split_total[r];
          }
        }
      }
      __syncthreads();
    }
    if (apart) continue;
    if (threadIdx.x < kTileRows) split_total[threadIdx.x] = total_so_far;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * kThreads;
      const int r = e / kDim;
      const int d = e % kDim;
      if (row_limits[r] < 0 || d >= p.head_dim) continue;
      output(p, tile, kv_head, tile.first + r)[d] = sums[i] / split_total[r];
    }
    __syncthreads();
  }
}

// Grid: tiles, KV heads. Adds up what the blocks of the splits left, in order; a warp a query row.
__global__ void __launch_bounds__(kThreads) merge_kernel(PagedAttentionKernel p) {
  const AttentionTile tile = p.tiles[blockIdx.x];
  const std::int32_t kv_head = blockIdx.y;
  const std::int64_t kv_len = kv_len_of(p.kv_lens, tile.row, p.max_pages_per_row, p.cache.page_size);
  if (kv_len < tile.q_len || kv_len <= 0) return;  // Zeros were written.
  const int lane = threadIdx.x % 32;
  for (std::int32_t r = threadIdx.x / 32; r < tile.count; r += kWarps) {
    const std::int32_t f = tile.first + r;
    const std::int64_t position = position_of(p, tile, kv_len, f);
    const std::int64_t splits = position / split_keys(position) + 1;
    float* out = output(p, tile, kv_head, f);
    constexpr int kElements = kHeadDimMax / 32;
    float sums[kElements] = {};
    float largest = kNoScore;
    float total = 0.0f;
    for (std::int64_t s = 0; s < splits; ++s) {
      const float* from = partial(p, tile, kv_head, f, s);
      if (saw_nothing(from[p.head_dim], from[p.head_dim + 1])) continue;
      const Merge merge(largest, from[p.head_dim]);
      total = merged(total, merge.old_factor, from[p.head_dim + 1], merge.new_factor);
      largest = merge.largest;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const int d = lane + 32 * i;
        if (d < p.head_dim) sums[i] = merged(sums[i], merge.old_factor, from[d], merge.new_factor);
      }
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int d = lane + 32 * i;
      if (d < p.head_dim) out[d] = sums[i] / total;
    }
  }
}

template <int kDim, bool kFp8>
void launch_shape(const PagedAttentionKernel& kernel, const Launch& launch) {
  constexpr int kBytes = Shape<kDim, kFp8>::kBytes;
  cudaFuncSetAttribute(paged_attention_kernel<kDim, kFp8>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(static_cast<unsigned>(kernel.num_tiles), static_cast<unsigned>(kernel.kv_heads),
                  static_cast<unsigned>(kernel.split_blocks));
  paged_attention_kernel<kDim, kFp8><<<grid, kThreads, kBytes, launch.stream>>>(kernel, launch.fault);
  if (kernel.partials != nullptr) {
    merge_kernel<<<dim3(grid.x, grid.y), kThreads, 0, launch.stream>>>(kernel);
  }
}

template <int kDim>
void launch_format(const PagedAttentionKernel& kernel, const Launch& launch) {
  if (kernel.cache.parts[0].element == KvElement::kF8E4M3) {
    launch_shape<kDim, true>(kernel, launch);
  } else {
    launch_shape<kDim, false>(kernel, launch);
  }
}

}  // namespace

void launch_paged_attention(const PagedAttentionKernel& kernel, const Launch& launch) {
  if (kernel.num_tiles == 0) return;
  if (kernel.head_dim <= 64) {
    launch_format<64>(kernel, launch);
  } else if (kernel.head_dim <= 128) {
    launch_format<128>(kernel, launch);
  } else {
    launch_format<kHeadDimMax>(kernel, launch);
  }
}

}  // namespace tessera::backends::cuda
