#include <algorithm>

#include "tessera/backends/cuda/kernels/attention_merge_device.h"
#include "tessera/backends/cuda/kernels/bulk_copy_device.h"
#include "tessera/backends/cuda/kernels/fault_device.h"
#include "tessera/backends/cuda/kernels/kv_rows_device.h"
#include "tessera/backends/cuda/kernels/mla_absorbed.h"
#include "tessera/backends/cuda/kernels/mla_pieces_device.h"
#include "tessera/backends/cuda/kernels/mma_device.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kWarps = 4;    // That compute.
constexpr int kLoaders = 2;  // Warps that load, half tiles in turn: as many as leave the others their registers.
constexpr int kComputing = kWarps * 32;
constexpr int kThreads = kComputing + kLoaders * 32;
constexpr int kStages = 4;        // Half tiles of rows that are there or on their way: one tile is computed, one comes.
constexpr int kLatentSteps = 8;   // Of sixteen elements of a score, for each warp: a quarter of kLatentRankMax.
constexpr int kRopeSteps = 4;     // All of kLatentRopeMax.
constexpr int kColumnBlocks = 4;  // Of 32 columns of the sum, for each warp.
constexpr int kBlockColumns = 32;
constexpr int kLaneColumns = kColumnBlocks * 8;  // Of one head.
static_assert(kWarps * kLatentSteps * 16 == kLatentRankMax && kRopeSteps * 16 == kLatentRopeMax);
static_assert(kWarps * kColumnBlocks * kBlockColumns == kLatentRankMax);

__host__ __device__ constexpr int padded(int elements) { return (elements + 15) / 16 * 16; }

// Shared memory. A row is [latent | rope], each padded with zeros to a multiple of 16 elements. Eight rows lie in all
// banks: a row is an odd number of 16 bytes after the one before it, or, where rows are 64 bytes more than some 128 (of
// whole FP8 rows), pairs of rows lie as in a page, the next pair 16 bytes further than that.
template <bool kFp8, bool kWhole>
struct Shared {
  static constexpr int kElement = kFp8 ? 1 : 2;  // Bytes.
  static constexpr int kTileKeys = latent_tile_keys(kFp8);
  static constexpr int kStageKeys = kTileKeys / 2;
  static constexpr int kKeyRow = kTileKeys + 8;  // Elements between rows of scores and weights, for the banks too.
  static constexpr int kRopeRow = kLatentRopeMax + 8;  // Likewise.
  static constexpr bool kPairs = kFp8 && kWhole;

  int rank16;
  int width16;  // Elements of a padded row.
  int stage;    // Bytes of rows.
  std::byte* rows;
  std::uint32_t* scales;        // [kStages][kStageKeys], two BF16 each; of FP8.
  std::int32_t* seen;           // [kStages][kStageKeys]: whether the key counts.
  float* latent_scores;         // [kWarps][heads][kKeyRow]
  float* rope_scores;           // [heads][kKeyRow]
  std::uint16_t* weights;       // [2 terms][heads][kKeyRow]
  float* group_sums;            // [columns of a lane][kComputing]: what a lane's group has so far.
  float4* tile_stats;           // [heads]: largest score, sum of weights, what the sums are to be multiplied by.
  std::uint16_t* rope_queries;  // [2 terms][heads][kRopeRow]
  float* query_max;             // [kWarps][heads]
  float* factors;               // [heads]: what scores are to be multiplied by.
  std::uint64_t* full;          // [kStages]
  std::uint64_t* empty;         // [kStages]

  // Of two rows that begin at an even one, and from one to the next where they are not pairs.
  __host__ __device__ static int pair_bytes(int width16) {
    return kPairs ? 2 * width16 * kElement + 16 : 2 * row_bytes(width16);
  }
  __host__ __device__ static int row_bytes(int width16) { return (width16 * kElement / 16 | 1) * 16; }
  // Where a row of a stage begins.
  __device__ __forceinline__ int row_at(int key) const {
    if constexpr (kPairs) return key / 2 * pair_bytes(width16) + key % 2 * width16 * kElement;
    return key * row_bytes(width16);
  }

  __host__ __device__ static int bytes(int rank, int rope) {
    return kStages * kStageKeys * (pair_bytes(padded(rank) + padded(rope)) / 2 + 8) +
           (kWarps + 1) * kLatentTileHeads * kKeyRow * 4 + 2 * kLatentTileHeads * (kKeyRow + kRopeRow) * 2 +
           kLaneColumns * kComputing * 4 + kLatentTileHeads * 16 + (kWarps + 1) * kLatentTileHeads * 4 +
           2 * kStages * 8;
  }
  __device__ Shared(std::byte* at, int rank, int rope) : rank16(padded(rank)), width16(padded(rank) + padded(rope)) {
    stage = kStageKeys / 2 * pair_bytes(width16);
    const auto take = [&at](auto*& array, int count) {
      array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
      at += count * static_cast<int>(sizeof(*array));
    };
    take(rows, kStages * stage);
    take(scales, kStages * kStageKeys);
    take(seen, kStages * kStageKeys);
    take(latent_scores, kWarps * kLatentTileHeads * kKeyRow);
    take(rope_scores, kLatentTileHeads * kKeyRow);
    take(weights, 2 * kLatentTileHeads * kKeyRow);
    take(group_sums, kLaneColumns * kComputing);
    take(tile_stats, kLatentTileHeads);
    take(rope_queries, 2 * kLatentTileHeads * kRopeRow);
    take(query_max, kWarps * kLatentTileHeads);
    take(factors, kLatentTileHeads);
    take(full, kStages);
    take(empty, kStages);
  }
};

// ---- the warps that load ----

struct KeyRow {
  const std::byte* data;
  const std::byte* scales;
  bool seen;
};

// Key `index` of what the token sees. One that does not exist, or that the selection puts where no key is, is not seen,
// and its row is another's: then the product with its weight, which is zero, is zero unless a seen key is damaged.
__device__ __forceinline__ KeyRow key_row(const MlaAbsorbedKernel& p, const LatentToken& token, std::int32_t index,
                                          std::int32_t end) {
  const bool exists = index < end;
  std::int64_t position = position_of_key(p.selection, token.token, exists ? index : end - 1);
  const bool inside = position >= 0 && position < p.max_pages_per_row * p.page_size;
  if (!inside) position = 0;
  const auto at = static_cast<std::uint32_t>(position);
  const std::uint32_t page_index = at / static_cast<std::uint32_t>(p.page_size);
  const std::int64_t page = p.table[token.row * p.max_pages_per_row + page_index];
  const std::int64_t slot = at - page_index * static_cast<std::uint32_t>(p.page_size);
  return {row_data(p.rows, page, slot), row_scales(p.rows, page, slot), exists && inside};
}

// The row with its padding, where it cannot be copied as it lies.
template <bool kFp8, bool kWhole>
__device__ void copy_padded(const MlaAbsorbedKernel& p, const Shared<kFp8, kWhole>& s, std::byte* to,
                            const std::byte* from, int lane) {
  constexpr int kBytes = Shared<kFp8, kWhole>::kElement;
  for (int e = lane; e < s.width16; e += 32) {
    const bool exists = e < s.rank16 ? e < p.rank : e < s.rank16 + p.rope;
    const int element = e < s.rank16 ? e : p.rank + e - s.rank16;
#pragma unroll
    for (int b = 0; b < kBytes; ++b) to[e * kBytes + b] = exists ? from[element * kBytes + b] : std::byte{0};
  }
}

// Every kLoaders-th stage, from the warp's own.
template <bool kFp8, bool kWhole>
__device__ __forceinline__ void load_rows(const MlaAbsorbedKernel& p, const Shared<kFp8, kWhole>& s,
                                          const LatentToken& token, std::int32_t first, std::int32_t end, int stages) {
  using S = Shared<kFp8, kWhole>;
  constexpr int kKeys = S::kStageKeys;
  const int lane = threadIdx.x % 32;
  const int row_bytes = p.rows.row_bytes;
  const auto wait_for_room = [&s](int i) {
    if (i >= kStages) wait_for_phase(s.empty + i % kStages, (i / kStages - 1) % 2);
  };
  int i = threadIdx.x / 32 - kWarps;

  // Stages whose rows lie side by side in a page.
  const int page_size = p.page_size;
  if (kWhole && p.selection.positions == nullptr && page_size % kKeys == 0) {
    constexpr int kRows = S::kPairs ? 2 : 1;  // Of a copy: of FP8 pairs, so that these too are of whole lines.
    const int whole = (end - first) / kKeys;
    const std::int32_t* table = p.table + token.row * p.max_pages_per_row;
    int index = (first + i * kKeys) / page_size;
    int slot = (first + i * kKeys) % page_size;
    // Each page is asked for a stage before it is needed.
    std::int64_t next_page = i < whole ? table[index] : 0;
    for (; i < whole; i += kLoaders) {
      const std::byte* data = row_data(p.rows, next_page, slot + lane * kRows);
      const std::byte* scales = row_scales(p.rows, next_page, slot + lane);
      slot += kLoaders * kKeys;
      for (; slot >= page_size; slot -= page_size) ++index;
      if (i + kLoaders < whole) next_page = table[index];
      const int stage = i % kStages;
      std::uint64_t* full = s.full + stage;
      wait_for_room(i);
      if (lane < kKeys) {
        s.seen[stage * kKeys + lane] = 1;
        if constexpr (kFp8) copy_word_async(s.scales + stage * kKeys + lane, scales);
      }
      if (lane == 0) {
        arrive_expecting(full, kKeys * row_bytes);
      } else {
        arrive(full);
      }
      if (lane < kKeys / kRows) {
        copy_bulk(s.rows + stage * s.stage + s.row_at(lane * kRows), data, kRows * row_bytes, full);
      }
      arrive_after_copies(full);
    }
  }

  // Others: of selected positions, and the last of a context.
  if (i >= stages) return;
  const bool as_it_lies = kWhole || (p.rank == s.rank16 && p.rope % 16 == 0 && row_bytes % 16 == 0);
  KeyRow next = key_row(p, token, first + i * kKeys + lane % kKeys, end);
  for (; i < stages; i += kLoaders) {
    const KeyRow mine = next;
    if (i + kLoaders < stages) next = key_row(p, token, first + (i + kLoaders) * kKeys + lane % kKeys, end);
    const int stage = i % kStages;
    std::uint64_t* full = s.full + stage;
    wait_for_room(i);
    std::byte* to = s.rows + stage * s.stage;
    if (lane < kKeys) {
      s.seen[stage * kKeys + lane] = mine.seen;
      if constexpr (kFp8) copy_word_async(s.scales + stage * kKeys + lane, mine.scales);
    }
    if (as_it_lies) {
      if (lane == 0) {
        arrive_expecting(full, kKeys * row_bytes);
      } else {
        arrive(full);
      }
      if (lane < kKeys) copy_bulk(to + s.row_at(lane), mine.data, row_bytes, full);
    } else {
      for (int key = 0; key < kKeys; ++key) {
        const auto from = __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(mine.data), key);
        copy_padded<kFp8, kWhole>(p, s, to + s.row_at(key), reinterpret_cast<const std::byte*>(from), lane);
      }
      arrive(full);
    }
    arrive_after_copies(full);
  }
}

// ---- the warps that compute ----

template <bool kFp8>
__device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  if constexpr (kFp8) {
    mma_f16(d, a[0], a[1], a[2], a[3], b0, b1);
  } else {
    mma(d, a[0], a[1], a[2], a[3], b0, b1);
  }
}

template <bool kFp8>
__device__ __forceinline__ std::uint32_t take_pair(float& low, float& high) {
  if constexpr (kFp8) {
    return take_f16_pair(low, high);
  } else {
    return take_bf16_pair(low, high);
  }
}

// The queries' terms as the products take them: registers 0 and 2 are the first term of head g, 1 and 3 the second. In
// step t of FP8 rows a lane has elements 4c .. 4c + 3, as a register of four codes does; of BF16 rows 2c, 2c + 1, and
// those eight further.
struct Queries {
  std::uint32_t latent[kLatentSteps][4];
};

template <bool kFp8>
__device__ __forceinline__ int element_of(int c, int i) {
  return kFp8 ? 4 * c + i : 2 * c + i % 2 + i / 2 * 8;
}

// A power of two that takes the largest of some numbers to 2^14 .. 2^15, and the one that takes it back.
struct PowerOfTwo {
  float up;
  float down;
  __device__ explicit PowerOfTwo(float largest) {
    // The exponent's bits, kept where both powers are normal numbers.
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23), 15);
    up = __uint_as_float(static_cast<unsigned>(268 - exponent) << 23);
    down = __uint_as_float(static_cast<unsigned>(exponent - 14) << 23);
  }
};

template <bool kFp8, bool kWhole>
__device__ __forceinline__ void load_queries(const MlaAbsorbedKernel& p, const Shared<kFp8, kWhole>& s,
                                             const LatentToken& token, int first_head, Queries& queries) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const int head = first_head + g;
  const bool exists = head < p.heads;
  const float* latent =
      p.latent_queries + (static_cast<std::int64_t>(token.token - p.first_token) * p.heads + head) * p.rank;
  const float* rope = p.q + token.token * p.q_stride + static_cast<std::int64_t>(head) * (p.nope + p.rope) + p.nope;
  float x[kLatentSteps][4];
  float y[kRopeSteps][4];
#pragma unroll
  for (int t = 0; t < kLatentSteps; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = (t * kWarps + warp) * 16 + element_of<kFp8>(c, i);
      x[t][i] = exists && (kWhole || e < p.rank) ? latent[e] : 0.0f;
    }
  }
#pragma unroll
  for (int t = 0; t < kRopeSteps; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = t * 16 + element_of<kFp8>(c, i);
      y[t][i] = warp == 0 && exists && (kWhole || e < p.rope) ? rope[e] : 0.0f;
    }
  }
  float factor = p.softmax_scale;
  if constexpr (kFp8) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kLatentSteps * 4; ++i) largest = fmaxf(largest, fabsf(x[i / 4][i % 4]));
#pragma unroll
    for (int i = 0; i < kRopeSteps * 4; ++i) largest = fmaxf(largest, fabsf(y[i / 4][i % 4]));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
    if (c == 0) s.query_max[warp * kLatentTileHeads + g] = largest;
    barrier_of<1, kComputing>();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, s.query_max[w * kLatentTileHeads + g]);
    const PowerOfTwo power(largest);
    factor *= power.down;
#pragma unroll
    for (int i = 0; i < kLatentSteps * 4; ++i) x[i / 4][i % 4] *= power.up;
#pragma unroll
    for (int i = 0; i < kRopeSteps * 4; ++i) y[i / 4][i % 4] *= power.up;
  }
  if (warp == 0 && c == 0) s.factors[g] = factor;
  const auto split = [](float(&from)[4], std::uint32_t(&to)[4]) {
    to[0] = take_pair<kFp8>(from[0], from[1]);
    to[2] = take_pair<kFp8>(from[2], from[3]);
    to[1] = take_pair<kFp8>(from[0], from[1]);
    to[3] = take_pair<kFp8>(from[2], from[3]);
  };
#pragma unroll
  for (int t = 0; t < kLatentSteps; ++t) split(x[t], queries.latent[t]);
  if (warp != 0) return;
#pragma unroll
  for (int t = 0; t < kRopeSteps; ++t) {
    std::uint32_t terms[4];
    split(y[t], terms);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint16_t* to = s.rope_queries + (i % 2 * kLatentTileHeads + g) * Shared<kFp8, kWhole>::kRopeRow;
      *reinterpret_cast<std::uint32_t*>(to + t * 16 + i / 2 * 8 + c * 2) = terms[i];
    }
  }
}

// This warp's quarter of the latents' part of a tile's scores, for all of its keys.
template <bool kFp8, bool kWhole>
__device__ __forceinline__ void latent_scores(const Shared<kFp8, kWhole>& s, const Queries& queries,
                                              const int (&stages)[2]) {
  using S = Shared<kFp8, kWhole>;
  constexpr int kBlocks = S::kStageKeys / 8;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  float sums[2][kBlocks][4] = {};
  // Four matrices: of FP8 sixteen elements of each eight keys, of BF16 twice eight elements of two times eight keys.
  const int key = kFp8 ? lane : lane / 16 * 8 + lane % 8;
  const std::uint32_t at =
      shared_address(s.rows) + s.row_at(key) + (kFp8 ? 0 : lane / 8 % 2 * 16) + warp * 16 * S::kElement;
#pragma unroll
  for (int t = 0; t < kLatentSteps; ++t) {
    if (!kWhole && (t * kWarps + warp) * 16 >= s.rank16) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t r[4];
      load_matrices(r, at + stages[half] * s.stage + t * kWarps * 16 * S::kElement);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
        if constexpr (kFp8) {
          std::uint32_t b[2];
          widen_fp8_to_f16(r[n], b[0], b[1]);
          multiply<kFp8>(sums[half][n], queries.latent[t], b[0], b[1]);
        } else {
          multiply<kFp8>(sums[half][n], queries.latent[t], r[2 * n], r[2 * n + 1]);
        }
      }
    }
  }
  float* to = s.latent_scores + (warp * kLatentTileHeads + lane / 4) * S::kKeyRow + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 2 * kBlocks; ++n) {
    const auto& sum = sums[n / kBlocks][n % kBlocks];
    *reinterpret_cast<float2*>(to + n * 8) = make_float2(sum[0] + sum[2], sum[1] + sum[3]);
  }
}

// The rope's part of a tile's scores, for this warp's quarter of the keys, which lie in one stage.
template <bool kFp8, bool kWhole>
__device__ __forceinline__ void rope_scores(const Shared<kFp8, kWhole>& s, int stage) {
  constexpr int kKeys = Shared<kFp8, kWhole>::kTileKeys / kWarps;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  float sums[kKeys / 8][4] = {};
  const int steps = kWhole ? kRopeSteps : (s.width16 - s.rank16) / 16;
  const std::uint32_t rows = shared_address(s.rows) + stage * s.stage + s.row_at(warp % 2 * kKeys + lane % kKeys);
#pragma unroll
  for (int t = 0; t < kRopeSteps; t += 2) {
    if (!kWhole && t >= steps) break;
    std::uint32_t r[4];  // Of two steps; what lies past the row's end is not used.
    if constexpr (kFp8) {
      load_matrices(r, rows + s.rank16 + (t + lane / 16) * 16);
    } else {
      load_matrices(r, rows + (s.rank16 + t * 16 + lane / 8 * 8) * 2);
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if (!kWhole && t + u >= steps) break;
      std::uint32_t a[4];
      load_matrices(a, s.rope_queries + lane % 16 * Shared<kFp8, kWhole>::kRopeRow + (t + u) * 16 + lane / 16 * 8);
      if constexpr (kFp8) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          std::uint32_t b[2];
          widen_fp8_to_f16(r[2 * u + n], b[0], b[1]);
          multiply<kFp8>(sums[n], a, b[0], b[1]);
        }
      } else {
        multiply<kFp8>(sums[0], a, r[2 * u], r[2 * u + 1]);
      }
    }
  }
  float* to = s.rope_scores + lane / 4 * Shared<kFp8, kWhole>::kKeyRow + warp * kKeys + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
    *reinterpret_cast<float2*>(to + n * 8) = make_float2(sums[n][0] + sums[n][2], sums[n][1] + sums[n][3]);
  }
}

template <int kCount, typename T>
__device__ __forceinline__ void load_vector(T (&to)[kCount], const T* from) {
  if constexpr (kCount * sizeof(T) == 16) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  } else {
    static_assert(kCount * sizeof(T) == 8);
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(from);
  }
}

// e^x to 2^-22, of which scores and weights have no more right digits; 0 of minus infinity, NaN of NaN.
__device__ __forceinline__ float exponential(float x) {
  constexpr float kLog2E = 1.44269504f;
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * kLog2E));
  return power;
}

// Weights of a tile and what their sum needs: a half of a warp has a head, a lane a sixteenth of its keys. `stages` are
// those of the tile's halves.
template <bool kFp8, bool kWhole>
__device__ __forceinline__ void weigh(const Shared<kFp8, kWhole>& s, const int (&stages)[2]) {
  using S = Shared<kFp8, kWhole>;
  constexpr int kKeys = S::kTileKeys / 16;
  const int lane = threadIdx.x % 32;
  const int head = threadIdx.x / 16;
  const int first = lane % 16 * kKeys;
  const int at = (first < S::kStageKeys ? stages[0] : stages[1]) * S::kStageKeys + first % S::kStageKeys;
  const float factor = s.factors[head];
  float parts[kWarps][kKeys];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    load_vector(parts[w], s.latent_scores + (w * kLatentTileHeads + head) * S::kKeyRow + first);
  }
  float rope[kKeys];
  load_vector(rope, s.rope_scores + head * S::kKeyRow + first);
  std::int32_t seen[kKeys];
  load_vector(seen, s.seen + at);
  float latent_scale[kKeys];
  float rope_scale[kKeys];
  float largest_scale = 0.0f;
  if constexpr (kFp8) {
    std::uint32_t both[kKeys];
    load_vector(both, s.scales + at);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      latent_scale[i] = __uint_as_float(both[i] << 16);
      rope_scale[i] = __uint_as_float(both[i] & 0xffff0000u);
      largest_scale = fmaxf(largest_scale, fabsf(latent_scale[i]));
    }
  }
  float scores[kKeys];
  float best = kNoScore;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const float latent = (parts[0][i] + parts[1][i]) + (parts[2][i] + parts[3][i]);
    const float score = kFp8 ? fmaf(rope[i], rope_scale[i], __fmul_rn(latent, latent_scale[i])) : latent + rope[i];
    // Scales in damaged memory are NaN; then so is the score, and so is the result.
    scores[i] = seen[i] != 0 ? __fmul_rn(score, factor) : kNoScore;
    best = fmaxf(best, scores[i]);
  }
#pragma unroll
  for (int offset = 8; offset > 0; offset >>= 1) {
    best = fmaxf(best, __shfl_xor_sync(kFullWarp, best, offset));
    if constexpr (kFp8) largest_scale = fmaxf(largest_scale, __shfl_xor_sync(kFullWarp, largest_scale, offset));
  }
  const PowerOfTwo power(largest_scale);
  const float shift = best == kNoScore ? 0.0f : best;
  float total = 0.0f;
  float scaled[kKeys];
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    // Of no score 0; of NaN NaN, even where no score is a number.
    const float weight = exponential(scores[i] - shift);
    total += weight;
    scaled[i] = kFp8 && seen[i] != 0 ? __fmul_rn(weight, __fmul_rn(latent_scale[i], power.up)) : weight;
  }
#pragma unroll
  for (int offset = 8; offset > 0; offset >>= 1) total += __shfl_xor_sync(kFullWarp, total, offset);
  if (lane % 16 == 0) s.tile_stats[head] = make_float4(best, total, kFp8 ? power.down : 1.0f, 0.0f);
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    std::uint16_t* to = s.weights + (t * kLatentTileHeads + head) * S::kKeyRow + first;
#pragma unroll
    for (int i = 0; i < kKeys; i += 2) {
      *reinterpret_cast<std::uint32_t*>(to + i) = take_pair<kFp8>(scaled[i], scaled[i + 1]);
    }
  }
}

// What this lane has of a sum over keys, of head g: of each of its warp's blocks of columns, four pairs.
struct Sums {
  float largest = kNoScore;
  float total = 0.0f;
  float values[kColumnBlocks][4][2] = {};
};

// Columns of pair n's numbers in a block.
template <bool kFp8>
__device__ __forceinline__ int column_of(int c, int n, int i) {
  return kFp8 ? n / 2 * 16 + 4 * c + n % 2 + 2 * i : n * 8 + 2 * c + i;
}

// Adds a tile: its weighted rows, by its own largest score.
template <bool kFp8, bool kWhole>
__device__ __forceinline__ void add_tile(const Shared<kFp8, kWhole>& s, const int (&stages)[2], Sums& sums) {
  using S = Shared<kFp8, kWhole>;
  constexpr int kSteps = S::kTileKeys / 16;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const float4 tile = s.tile_stats[lane / 4];
  const bool counts = !saw_nothing(tile.x, tile.y);
  const Merge merge(sums.largest, tile.x);
  const float new_factor = __fmul_rn(merge.new_factor, tile.z);
  if (counts) {
    sums.total = merged(sums.total, merge.old_factor, tile.y, merge.new_factor);
    sums.largest = merge.largest;
  }
  // Where this lane's row of the first block begins in each half: sixteen keys, twice sixteen bytes of columns.
  const std::uint32_t first =
      shared_address(s.rows) + s.row_at(lane % 16) + warp * kBlockColumns * S::kElement + lane / 16 * 16;
  const std::uint32_t rows[2] = {first + stages[0] * s.stage, first + stages[1] * s.stage};
  std::uint32_t a[kSteps][4];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    load_matrices(a[k], s.weights + lane % 16 * S::kKeyRow + k * 16 + lane / 16 * 8);
  }
#pragma unroll
  for (int b = 0; b < kColumnBlocks; ++b) {
    if (!kWhole && (b * kWarps + warp) * kBlockColumns >= s.rank16) break;
    float products[4][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const std::uint32_t row =
          rows[k / (kSteps / 2)] + s.row_at(k % (kSteps / 2) * 16) + b * kWarps * kBlockColumns * S::kElement;
      if constexpr (kFp8) {
        // Pairs of columns travel together: of a pair, the first one's keys, then the second's.
        std::uint32_t r[4];
        load_transposed(r, row);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          std::uint32_t even[2];  // Of the even columns, the keys of both registers.
          std::uint32_t odd[2];
          widen_fp8_to_f16(__byte_perm(r[2 * h], 0, 0x3120), even[0], odd[0]);
          widen_fp8_to_f16(__byte_perm(r[2 * h + 1], 0, 0x3120), even[1], odd[1]);
          multiply<kFp8>(products[2 * h], a[k], even[0], even[1]);
          multiply<kFp8>(products[2 * h + 1], a[k], odd[0], odd[1]);
        }
      } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          std::uint32_t r[4];
          load_transposed(r, row + h * 32);
          multiply<kFp8>(products[2 * h], a[k], r[0], r[1]);
          multiply<kFp8>(products[2 * h + 1], a[k], r[2], r[3]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& sum = sums.values[b][n][i];
        const float product = products[n][i] + products[n][i + 2];
        sum = counts ? merged(sum, merge.old_factor, product, new_factor) : sum;
      }
    }
  }
}

// A group of units that are added so far; the sums lie in shared memory, where each lane has its own.
struct Group {
  float largest = kNoScore;
  float total = 0.0f;
  bool begun = false;
};

// Adds a unit to a group; the unit begins anew.
__device__ __forceinline__ void add_unit(Group& group, float* group_sums, Sums& unit) {
  const bool counts = !saw_nothing(unit.largest, unit.total);
  const Merge merge(group.largest, unit.largest);
  if (counts) {
    group.total = merged(group.total, merge.old_factor, unit.total, merge.new_factor);
    group.largest = merge.largest;
  }
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    float& sum = group_sums[i * kComputing + threadIdx.x];
    const float old = group.begun ? sum : 0.0f;
    sum = counts ? merged(old, merge.old_factor, unit.values[i / 8][i / 2 % 4][i % 2], merge.new_factor) : old;
  }
  group.begun = true;
  unit = Sums();
}

template <bool kFp8, bool kWhole>
__device__ __forceinline__ void store_piece(const MlaAbsorbedKernel& p, float* to, const Group& group,
                                            const float* group_sums) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int c = lane % 4;
  if (warp == 0 && c == 0) {
    float* stats = to + (p.rank + 3) / 4 * 4;
    stats[0] = group.largest;
    stats[1] = group.total;
  }
#pragma unroll
  for (int b = 0; b < kColumnBlocks; ++b) {
    float* block = to + (b * kWarps + warp) * kBlockColumns;
    float v[4][2];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i / 2][i % 2] = group_sums[(b * 8 + i) * kComputing + threadIdx.x];
    if constexpr (kWhole && kFp8) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<float4*>(block + column_of<kFp8>(c, 2 * h, 0)) =
            make_float4(v[2 * h][0], v[2 * h + 1][0], v[2 * h][1], v[2 * h + 1][1]);
      }
    } else if constexpr (kWhole) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        *reinterpret_cast<float2*>(block + column_of<kFp8>(c, n, 0)) = make_float2(v[n][0], v[n][1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int column = column_of<kFp8>(c, i / 2, i % 2);
        if ((b * kWarps + warp) * kBlockColumns + column < p.rank) block[column] = v[i / 2][i % 2];
      }
    }
  }
}

// Grid: pieces, tokens, head tiles. kWhole: rank 512 and rope 64.
template <bool kFp8, bool kWhole>
__global__ void __launch_bounds__(kThreads, 2)
    mla_absorbed_kernel(const __grid_constant__ MlaAbsorbedKernel p, LatentPiece piece, std::int64_t keys_max,
                        DeviceFault* fault) {
  using S = Shared<kFp8, kWhole>;
  extern __shared__ uint4 memory[];
  const LatentToken token = token_of(p, blockIdx.y);
  const std::int64_t kv_len = kv_len_of(p.kv_lens, token.row, p.max_pages_per_row, p.page_size);
  if (kv_len > 0 && kv_len < token.q_len && threadIdx.x == 0 && blockIdx.x == 0) {
    report_fault(fault, FaultKind::kQueriesOverKeys, token.row, token.q_len, kv_len);
  }
  const std::int32_t seen = keys_of(p, token, keys_max);
  if (seen == 0) return;
  const std::int32_t keys = piece_keys<kFp8>(piece, seen);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * keys;
  if (begin >= seen) return;
  const auto first = static_cast<std::int32_t>(begin);
  const auto end = static_cast<std::int32_t>(min(begin + keys, static_cast<std::int64_t>(seen)));
  const int tiles = (end - first + S::kTileKeys - 1) / S::kTileKeys;

  const S s(reinterpret_cast<std::byte*>(memory), kWhole ? kLatentRankMax : p.rank, kWhole ? kLatentRopeMax : p.rope);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x < kStages) {
    // Of each lane that loads two arrivals: its own, and that of its copies of words.
    make_barrier(s.full + threadIdx.x, 64);
    make_barrier(s.empty + threadIdx.x, kComputing);
    fence_barriers();
  }
  __syncthreads();
  if (warp >= kWarps) {
    load_rows<kFp8, kWhole>(p, s, token, first, end, tiles * 2);
    return;
  }

  const int first_head = blockIdx.z * kLatentTileHeads;
  Queries queries;
  load_queries<kFp8, kWhole>(p, s, token, first_head, queries);
  barrier_of<1, kComputing>();                                            // The first warp wrote the rope's for all.
  const std::int32_t unit_tiles = latent_unit_keys(seen) / S::kTileKeys;  // A power of two.
  Sums unit;
  Group group;
  for (int tile = 0; tile < tiles; ++tile) {
    int stages[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned i = static_cast<unsigned>(tile) * 2 + half;
      stages[half] = static_cast<int>(i % kStages);
      wait_for_phase(s.full + stages[half], i / kStages % 2);
    }
    latent_scores<kFp8, kWhole>(s, queries, stages);
    rope_scores<kFp8, kWhole>(s, warp < kWarps / 2 ? stages[0] : stages[1]);
    barrier_of<1, kComputing>();
    weigh<kFp8, kWhole>(s, stages);
    barrier_of<1, kComputing>();
    add_tile<kFp8, kWhole>(s, stages, unit);
    // Every lane for itself: then racecheck can follow who has read what.
    arrive(s.empty + stages[0]);
    arrive(s.empty + stages[1]);
    if (((tile + 1) & (unit_tiles - 1)) == 0 || tile + 1 == tiles) add_unit(group, s.group_sums, unit);
  }
  if (first_head + lane / 4 < p.heads) {
    const std::int64_t token_tile = static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    store_piece<kFp8, kWhole>(p, latent_partial(p, token_tile, gridDim.x, blockIdx.x, lane / 4), group, s.group_sums);
  }
}

template <bool kFp8, bool kWhole>
void launch(const MlaAbsorbedKernel& p, const Launch& launch) {
  std::int64_t keys_max = p.max_pages_per_row * p.page_size;
  if (p.selection.positions != nullptr) keys_max = std::min<std::int64_t>(keys_max, p.selection.width);
  const std::int64_t tiles = p.num_tokens * latent_head_tiles(p.heads);
  const auto pieces_of = [&](std::int64_t keys, std::int64_t most) {
    return std::min((keys_max + keys - 1) / keys, most);
  };
  // How many keys a token has only the device knows; how many it may have, the host. Small pieces while larger ones
  // leave room for blocks: two on a multiprocessor.
  const std::int64_t room = 2 * launch.multiprocessors;
  const std::int64_t tile_pieces = pieces_of(latent_tile_keys(kFp8), keys_max);
  const std::int64_t unit_pieces = pieces_of(kLatentUnitKeysMin, kLatentUnitsMax);
  const std::int64_t group_pieces = std::max<std::int64_t>(pieces_of(kLatentGroupKeysMin, kLatentGroupsMax), 1);
  LatentPiece piece = LatentPiece::kGroup;
  std::int64_t pieces = group_pieces;
  if (tiles * tile_pieces <= std::min<std::int64_t>(room, kLatentUnitsMax)) {
    piece = LatentPiece::kTile;
    pieces = tile_pieces;
  } else if (tiles * group_pieces * 10 < room * 9 && tiles * unit_pieces <= kLatentPiecesMax) {
    piece = LatentPiece::kUnit;
    pieces = unit_pieces;
  }
  if (pieces == 0) pieces = 1;
  const int bytes = Shared<kFp8, kWhole>::bytes(p.rank, p.rope);
  const auto kernel = mla_absorbed_kernel<kFp8, kWhole>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(p.num_tokens),
                  static_cast<unsigned>(latent_head_tiles(p.heads)));
  kernel<<<grid, kThreads, bytes, launch.stream>>>(p, piece, keys_max, launch.fault);

  launch_mla_merge(p, {piece, pieces, group_pieces, keys_max}, launch);
}

template <bool kFp8>
void launch_rows(const MlaAbsorbedKernel& kernel, const Launch& with) {
  if (kernel.rank == kLatentRankMax && kernel.rope == kLatentRopeMax) {
    launch<kFp8, true>(kernel, with);
  } else {
    launch<kFp8, false>(kernel, with);
  }
}

}  // namespace

void launch_mla_absorbed(const MlaAbsorbedKernel& kernel, const Launch& launch) {
  if (kernel.num_tokens == 0) return;
  if (kernel.rows.element == KvElement::kF8E4M3) {
    launch_rows<true>(kernel, launch);
  } else {
    launch_rows<false>(kernel, launch);
  }
}

}  // namespace tessera::backends::cuda
