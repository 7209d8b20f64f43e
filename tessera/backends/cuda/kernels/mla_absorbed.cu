#include <algorithm>

#include "tessera/backends/cuda/kernels/attention_merge_device.h"
#include "tessera/backends/cuda/kernels/bulk_copy_device.h"
#include "tessera/backends/cuda/kernels/fault_device.h"
#include "tessera/backends/cuda/kernels/kv_rows_device.h"
#include "tessera/backends/cuda/kernels/mla_absorbed.h"
#include "tessera/backends/cuda/kernels/mma_device.h"
#include "tessera/backends/cuda/kernels/selection_device.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kWarps = 4;  // That compute; one more loads.
constexpr int kComputing = kWarps * 32;
constexpr int kThreads = kComputing + 32;
constexpr int kStages = 5;        // Half tiles of rows that are there or on their way.
constexpr int kLatentSteps = 8;   // Of sixteen elements of a score, for each warp: a quarter of kLatentRankMax.
constexpr int kRopeSteps = 4;     // All of kLatentRopeMax.
constexpr int kColumnBlocks = 4;  // Of 32 columns of the sum, for each warp.
constexpr int kBlockColumns = 32;
static_assert(kWarps * kLatentSteps * 16 == kLatentRankMax && kRopeSteps * 16 == kLatentRopeMax);
static_assert(kWarps * kColumnBlocks * kBlockColumns == kLatentRankMax);

// What one block computes: a tile, a unit or a group of a token's keys.
enum class Piece : int { kTile, kUnit, kGroup };

__host__ __device__ constexpr int padded(int elements) { return (elements + 15) / 16 * 16; }

// Shared memory. A row is [latent | rope], each padded with zeros to a multiple of 16 elements, and lies an odd number
// of 16 bytes after the one before it, so that eight rows lie in all banks.
template <bool kFp8>
struct Shared {
  static constexpr int kElement = kFp8 ? 1 : 2;  // Bytes.
  static constexpr int kTileKeys = latent_tile_keys(kFp8);
  static constexpr int kStageKeys = kTileKeys / 2;
  static constexpr int kKeyRow = kTileKeys + 8;  // Elements between rows of scores and weights, for the banks too.

  int rank16;
  int width16;  // Elements of a padded row.
  int row;      // Bytes.
  std::byte* rows;
  std::uint32_t* scales;   // [kStages][kStageKeys], two BF16 each; of FP8.
  std::int32_t* seen;      // [kStages][kStageKeys]: whether the key counts.
  float* latent_scores;    // [kWarps][heads][kKeyRow]
  float* rope_scores;      // [heads][kKeyRow]
  std::uint16_t* weights;  // [2 terms][heads][kKeyRow]
  float4* tile_stats;      // [heads]: largest score, sum of weights, what the sums are to be multiplied by.
  float* query_max;        // [kWarps][heads]
  float* factors;          // [heads]: what scores are to be multiplied by.
  std::uint64_t* full;     // [kStages]
  std::uint64_t* empty;    // [kStages]

  __host__ __device__ static int bytes(int rank, int rope) {
    const int row_bytes = ((padded(rank) + padded(rope)) * kElement / 16 | 1) * 16;
    return kStages * kStageKeys * (row_bytes + 8) + (kWarps + 1) * kLatentTileHeads * kKeyRow * 4 +
           2 * kLatentTileHeads * kKeyRow * 2 + kLatentTileHeads * 16 + (kWarps + 1) * kLatentTileHeads * 4 +
           2 * kStages * 8;
  }
  __device__ Shared(std::byte* at, int rank, int rope) : rank16(padded(rank)), width16(padded(rank) + padded(rope)) {
    row = (width16 * kElement / 16 | 1) * 16;
    const auto take = [&at](auto*& array, int count) {
      array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
      at += count * static_cast<int>(sizeof(*array));
    };
    take(rows, kStages * kStageKeys * row);
    take(scales, kStages * kStageKeys);
    take(seen, kStages * kStageKeys);
    take(latent_scores, kWarps * kLatentTileHeads * kKeyRow);
    take(rope_scores, kLatentTileHeads * kKeyRow);
    take(weights, 2 * kLatentTileHeads * kKeyRow);
    take(tile_stats, kLatentTileHeads);
    take(query_max, kWarps * kLatentTileHeads);
    take(factors, kLatentTileHeads);
    take(full, kStages);
    take(empty, kStages);
  }
};

__device__ __forceinline__ LatentToken token_of(const MlaAbsorbedKernel& p, int index) {
  if (p.tokens != nullptr) return p.tokens[index];
  return {p.first.row + index, 1, 0, p.first.token + index};
}

// How many keys a token sees; none in a row that failed. Never more than the table and the launch have room for,
// whatever stands in kv_lens.
__device__ __forceinline__ std::int32_t keys_of(const MlaAbsorbedKernel& p, const LatentToken& token,
                                                std::int64_t keys_max) {
  const std::int64_t kv_len = p.kv_lens[token.row];
  if (kv_len <= 0 || kv_len < token.q_len) return 0;
  const std::int64_t seen = keys_seen(p.selection, token.token, kv_len - token.q_len + token.query);
  return static_cast<std::int32_t>(min(seen, keys_max));
}

template <bool kFp8>
__device__ __forceinline__ std::int32_t piece_keys(Piece piece, std::int32_t seen) {
  return piece == Piece::kTile   ? latent_tile_keys(kFp8)
         : piece == Piece::kUnit ? latent_unit_keys(seen)
                                 : latent_group_keys(seen);
}

// Of head `head` of a head tile.
__device__ __forceinline__ float* latent_partial(const MlaAbsorbedKernel& p, std::int64_t token_tile, int pieces,
                                                 int piece, int head) {
  return p.partials + ((token_tile * pieces + piece) * kLatentTileHeads + head) * latent_partial_floats(p.rank);
}

// ---- the warp that loads ----

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
template <bool kFp8>
__device__ void copy_padded(const MlaAbsorbedKernel& p, const Shared<kFp8>& s, std::byte* to, const std::byte* from,
                            int lane) {
  constexpr int kBytes = Shared<kFp8>::kElement;
  for (int e = lane; e < s.width16; e += 32) {
    const bool exists = e < s.rank16 ? e < p.rank : e < s.rank16 + p.rope;
    const int element = e < s.rank16 ? e : p.rank + e - s.rank16;
#pragma unroll
    for (int b = 0; b < kBytes; ++b) to[e * kBytes + b] = exists ? from[element * kBytes + b] : std::byte{0};
  }
}

template <bool kFp8, bool kWhole>
__device__ __forceinline__ void load_rows(const MlaAbsorbedKernel& p, const Shared<kFp8>& s, const LatentToken& token,
                                          std::int32_t first, std::int32_t end, int stages) {
  constexpr int kKeys = Shared<kFp8>::kStageKeys;
  const int lane = threadIdx.x % 32;
  const int row_bytes = p.rows.row_bytes;
  const bool as_it_lies = kWhole || (p.rank == s.rank16 && p.rope % 16 == 0 && row_bytes % 16 == 0);
  // Where the next stage's rows lie is asked for before this stage is waited for.
  KeyRow next = key_row(p, token, first + lane % kKeys, end);
  for (int i = 0; i < stages; ++i) {
    const KeyRow mine = next;
    if (i + 1 < stages) next = key_row(p, token, first + (i + 1) * kKeys + lane % kKeys, end);
    const int stage = i % kStages;
    if (i >= kStages) wait_for_phase(s.empty + stage, (i / kStages - 1) % 2);
    std::byte* to = s.rows + stage * kKeys * s.row;
    if (lane < kKeys) {
      s.seen[stage * kKeys + lane] = mine.seen;
      if constexpr (kFp8) copy_word_async(s.scales + stage * kKeys + lane, mine.scales);
    }
    if (as_it_lies) {
      if (lane == 0) {
        arrive_expecting(s.full + stage, kKeys * row_bytes);
      } else {
        arrive(s.full + stage);
      }
      arrive_after_copies(s.full + stage);
      if (lane < kKeys) copy_bulk(to + lane * s.row, mine.data, row_bytes, s.full + stage);
    } else {
      for (int key = 0; key < kKeys; ++key) {
        const auto from = __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(mine.data), key);
        copy_padded<kFp8>(p, s, to + key * s.row, reinterpret_cast<const std::byte*>(from), lane);
      }
      arrive(s.full + stage);
      arrive_after_copies(s.full + stage);
    }
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
  std::uint32_t rope[kRopeSteps][4];
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
__device__ __forceinline__ void load_queries(const MlaAbsorbedKernel& p, const Shared<kFp8>& s,
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
      y[t][i] = exists && (kWhole || e < p.rope) ? rope[e] : 0.0f;
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
#pragma unroll
  for (int t = 0; t < kRopeSteps; ++t) split(y[t], queries.rope[t]);
}

// This warp's quarter of the latents' part of a stage's scores, for all of its keys.
template <bool kFp8, bool kWhole>
__device__ __forceinline__ void latent_scores(const Shared<kFp8>& s, const Queries& queries, int stage, int half) {
  constexpr int kKeys = Shared<kFp8>::kStageKeys;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  float sums[kKeys / 8][4] = {};
  // Four matrices: of FP8 sixteen elements of each eight keys, of BF16 twice eight elements of two times eight keys.
  const int key = kFp8 ? lane : lane / 16 * 8 + lane % 8;
  const std::byte* at = s.rows + (stage * kKeys + key) * s.row + (kFp8 ? 0 : lane / 8 % 2 * 16);
#pragma unroll
  for (int t = 0; t < kLatentSteps; ++t) {
    const int element = (t * kWarps + warp) * 16;
    if (!kWhole && element >= s.rank16) break;
    std::uint32_t r[4];
    load_matrices(r, at + element * Shared<kFp8>::kElement);
    if constexpr (kFp8) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        multiply<kFp8>(sums[n], queries.latent[t], widen_fp8_to_f16(r[n] & 0xffff), widen_fp8_to_f16(r[n] >> 16));
      }
    } else {
#pragma unroll
      for (int n = 0; n < 2; ++n) multiply<kFp8>(sums[n], queries.latent[t], r[2 * n], r[2 * n + 1]);
    }
  }
  float* to =
      s.latent_scores + (warp * kLatentTileHeads + lane / 4) * Shared<kFp8>::kKeyRow + half * kKeys + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
    *reinterpret_cast<float2*>(to + n * 8) = make_float2(sums[n][0] + sums[n][2], sums[n][1] + sums[n][3]);
  }
}

// The rope's part of a tile's scores, for this warp's quarter of the keys, which lie in one stage.
template <bool kFp8, bool kWhole>
__device__ __forceinline__ void rope_scores(const Shared<kFp8>& s, const Queries& queries, int stage) {
  constexpr int kKeys = Shared<kFp8>::kTileKeys / kWarps;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  float sums[kKeys / 8][4] = {};
  const int steps = kWhole ? kRopeSteps : (s.width16 - s.rank16) / 16;
  const std::byte* rows = s.rows + (stage * Shared<kFp8>::kStageKeys + warp % 2 * kKeys) * s.row;
#pragma unroll
  for (int t = 0; t < kRopeSteps; t += 2) {
    if (!kWhole && t >= steps) break;
    std::uint32_t r[4];  // Of two steps; what lies past the row's end is not used.
    if constexpr (kFp8) {
      load_matrices(r, rows + lane % 16 * s.row + s.rank16 + (t + lane / 16) * 16);
    } else {
      load_matrices(r, rows + lane % 8 * s.row + (s.rank16 + t * 16 + lane / 8 * 8) * 2);
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if (!kWhole && t + u >= steps) break;
      if constexpr (kFp8) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const std::uint32_t codes = r[2 * u + n];
          multiply<kFp8>(sums[n], queries.rope[t + u], widen_fp8_to_f16(codes & 0xffff), widen_fp8_to_f16(codes >> 16));
        }
      } else {
        multiply<kFp8>(sums[0], queries.rope[t + u], r[2 * u], r[2 * u + 1]);
      }
    }
  }
  float* to = s.rope_scores + lane / 4 * Shared<kFp8>::kKeyRow + warp * kKeys + lane % 4 * 2;
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

// Weights of a tile and what their sum needs: a half of a warp has a head, a lane a sixteenth of its keys. `stages` are
// those of the tile's halves.
template <bool kFp8>
__device__ __forceinline__ void weigh(const Shared<kFp8>& s, const int (&stages)[2]) {
  using S = Shared<kFp8>;
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
  float total = 0.0f;
  float scaled[kKeys];
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    // NaN scores give NaN weights even where no score is a number.
    const float weight = scores[i] == kNoScore ? 0.0f : expf(scores[i] - best);
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
__device__ __forceinline__ void add_tile(const Shared<kFp8>& s, const int (&stages)[2], Sums& sums) {
  using S = Shared<kFp8>;
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
  std::uint32_t a[kSteps][4];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    load_matrices(a[k], s.weights + lane % 16 * S::kKeyRow + k * 16 + lane / 16 * 8);
  }
#pragma unroll
  for (int b = 0; b < kColumnBlocks; ++b) {
    const int column = (b * kWarps + warp) * kBlockColumns;
    if (!kWhole && column >= s.rank16) break;
    float products[4][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int key = k % (kSteps / 2) * 16 + lane % 16;
      const std::byte* row = s.rows + (stages[k / (kSteps / 2)] * S::kStageKeys + key) * s.row;
      if constexpr (kFp8) {
        // Pairs of columns travel together: of a pair, the first one's keys, then the second's.
        std::uint32_t r[4];
        load_transposed(r, row + column + lane / 16 * 16);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const std::uint32_t low = __byte_perm(r[2 * h], 0, 0x3120);
          const std::uint32_t high = __byte_perm(r[2 * h + 1], 0, 0x3120);
          multiply<kFp8>(products[2 * h], a[k], widen_fp8_to_f16(low & 0xffff), widen_fp8_to_f16(high & 0xffff));
          multiply<kFp8>(products[2 * h + 1], a[k], widen_fp8_to_f16(low >> 16), widen_fp8_to_f16(high >> 16));
        }
      } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          std::uint32_t r[4];
          load_transposed(r, row + (column + h * 16 + lane / 16 * 8) * 2);
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

// Adds a unit to a group; the unit begins anew.
__device__ __forceinline__ void add_unit(Sums& group, Sums& unit) {
  if (!saw_nothing(unit.largest, unit.total)) {
    const Merge merge(group.largest, unit.largest);
    group.total = merged(group.total, merge.old_factor, unit.total, merge.new_factor);
    group.largest = merge.largest;
#pragma unroll
    for (int i = 0; i < kColumnBlocks * 8; ++i) {
      float& sum = group.values[i / 8][i / 2 % 4][i % 2];
      sum = merged(sum, merge.old_factor, unit.values[i / 8][i / 2 % 4][i % 2], merge.new_factor);
    }
  }
  unit = Sums();
}

template <bool kFp8, bool kWhole>
__device__ __forceinline__ void store_piece(const MlaAbsorbedKernel& p, float* to, const Sums& sums) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int c = lane % 4;
  if (warp == 0 && c == 0) {
    float* stats = to + (p.rank + 3) / 4 * 4;
    stats[0] = sums.largest;
    stats[1] = sums.total;
  }
#pragma unroll
  for (int b = 0; b < kColumnBlocks; ++b) {
    float* block = to + (b * kWarps + warp) * kBlockColumns;
    const auto& v = sums.values[b];
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
    mla_absorbed_kernel(const __grid_constant__ MlaAbsorbedKernel p, Piece piece, std::int64_t keys_max,
                        DeviceFault* fault) {
  using S = Shared<kFp8>;
  extern __shared__ uint4 memory[];
  const LatentToken token = token_of(p, blockIdx.y);
  const std::int64_t kv_len = p.kv_lens[token.row];
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
    make_barrier(s.full + threadIdx.x, 64);
    make_barrier(s.empty + threadIdx.x, kWarps);
    fence_barriers();
  }
  __syncthreads();
  if (warp == kWarps) {
    load_rows<kFp8, kWhole>(p, s, token, first, end, tiles * 2);
    return;
  }

  const int first_head = blockIdx.z * kLatentTileHeads;
  Queries queries;
  load_queries<kFp8, kWhole>(p, s, token, first_head, queries);
  const std::int32_t unit_tiles = latent_unit_keys(seen) / S::kTileKeys;
  Sums unit;
  Sums group;
  for (int tile = 0; tile < tiles; ++tile) {
    int stages[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = tile * 2 + half;
      stages[half] = i % kStages;
      wait_for_phase(s.full + stages[half], i / kStages % 2);
      latent_scores<kFp8, kWhole>(s, queries, stages[half], half);
    }
    rope_scores<kFp8, kWhole>(s, queries, warp < kWarps / 2 ? stages[0] : stages[1]);
    barrier_of<1, kComputing>();
    weigh<kFp8>(s, stages);
    barrier_of<1, kComputing>();
    add_tile<kFp8, kWhole>(s, stages, unit);
    __syncwarp();
    if (lane == 0) {
      arrive(s.empty + stages[0]);
      arrive(s.empty + stages[1]);
    }
    if ((tile + 1) % unit_tiles == 0 || tile + 1 == tiles) add_unit(group, unit);
  }
  if (first_head + lane / 4 < p.heads) {
    const std::int64_t token_tile = static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    store_piece<kFp8, kWhole>(p, latent_partial(p, token_tile, gridDim.x, blockIdx.x, lane / 4), group);
  }
}

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
// has ended when `griddepcontrol.wait` is over. Grid: tokens, heads, and of columns all where pieces are groups,
// else 128, and the block's warps deal the groups among themselves.
template <bool kFp8, bool kGroups>
__global__ void __launch_bounds__(kGroups ? 128 : 256)
    merge_kernel(const __grid_constant__ MlaAbsorbedKernel p, Piece piece, int pieces, std::int64_t keys_max) {
  constexpr int kAtOnce = 8;  // Pieces that are asked for together.
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const LatentToken token = token_of(p, blockIdx.x);
  const std::int32_t seen = keys_of(p, token, keys_max);
  const int column = (kGroups ? threadIdx.x : blockIdx.z * 32 + lane) * 4;
  float* to = p.sums + (static_cast<std::int64_t>(token.token - p.first_token) * p.heads + blockIdx.y) * p.rank;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (seen == 0) {
    for (int i = threadIdx.x; blockIdx.z == 0 && i < p.rank; i += blockDim.x) to[i] = 0.0f;
    return;
  }
  const std::int32_t keys = piece_keys<kFp8>(piece, seen);
  const std::int32_t pieces_seen = (seen + keys - 1) / keys;
  const std::int64_t token_tile = static_cast<std::int64_t>(blockIdx.y / kLatentTileHeads) * gridDim.x + blockIdx.x;
  const float* first = latent_partial(p, token_tile, pieces, 0, blockIdx.y % kLatentTileHeads);
  const std::int64_t stride = kLatentTileHeads * latent_partial_floats(p.rank);
  Quad all;
  if constexpr (kGroups) {
    for (std::int32_t begin = 0; begin < pieces_seen; begin += kAtOnce) {
      Quad groups[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i < pieces_seen) groups[i] = load_quad(first + (begin + i) * stride, p.rank, column);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) all.add(groups[i]);
    }
  } else {
    const std::int32_t pieces_a_group = latent_group_keys(seen) / keys;
    const std::int32_t pieces_a_unit = latent_unit_keys(seen) / keys;
    const std::int32_t groups = (pieces_seen + pieces_a_group - 1) / pieces_a_group;
    auto* group_values = reinterpret_cast<float4*>(memory);  // [groups][32]
    auto* group_stats = reinterpret_cast<float2*>(group_values + groups * 32);
    for (int g = warp; g < groups; g += blockDim.x / 32) {
      Quad group;
      Quad unit;
      const std::int32_t end = min((g + 1) * pieces_a_group, pieces_seen);
      for (std::int32_t begin = g * pieces_a_group; begin < end; begin += kAtOnce) {
        Quad parts[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (begin + i < end) parts[i] = load_quad(first + (begin + i) * stride, p.rank, column);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          unit.add(parts[i]);
          if ((begin + i + 1) % pieces_a_unit == 0) {
            group.add(unit);
            unit = Quad();
          }
        }
      }
      group.add(unit);
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
  const std::int64_t group_pieces = pieces_of(kLatentGroupKeysMin, kLatentGroupsMax);
  Piece piece = Piece::kGroup;
  std::int64_t pieces = group_pieces;
  if (tiles * tile_pieces <= std::min<std::int64_t>(room, kLatentUnitsMax)) {
    piece = Piece::kTile;
    pieces = tile_pieces;
  } else if (tiles * group_pieces * 10 < room * 9 && tiles * unit_pieces <= kLatentPiecesMax) {
    piece = Piece::kUnit;
    pieces = unit_pieces;
  }
  if (pieces == 0) pieces = 1;
  const int bytes = Shared<kFp8>::bytes(p.rank, p.rope);
  const auto kernel = mla_absorbed_kernel<kFp8, kWhole>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(p.num_tokens),
                  static_cast<unsigned>(latent_head_tiles(p.heads)));
  kernel<<<grid, kThreads, bytes, launch.stream>>>(p, piece, keys_max, launch.fault);

  // Set up while the kernel before still runs.
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.num_tokens), static_cast<unsigned>(p.heads));
  config.stream = launch.stream;
  config.attrs = &early;
  config.numAttrs = 1;
  if (piece == Piece::kGroup) {
    config.blockDim = dim3(128);
    static_assert(128 * 4 == kLatentRankMax);
    cudaLaunchKernelEx(&config, merge_kernel<kFp8, true>, p, piece, static_cast<int>(pieces), keys_max);
  } else {
    config.blockDim = dim3(256);
    config.gridDim.z = static_cast<unsigned>((p.rank + 127) / 128);
    config.dynamicSmemBytes = static_cast<std::size_t>(group_pieces) * (32 * sizeof(float4) + sizeof(float2));
    cudaLaunchKernelEx(&config, merge_kernel<kFp8, false>, p, piece, static_cast<int>(pieces), keys_max);
  }
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
