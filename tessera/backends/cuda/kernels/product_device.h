// Products of one slice of K on the tensor cores, for weights of any format but F32 (product_weight.h has layouts and
// order). In the comments a lane is (g, c) = (lane / 4, lane % 4).
#pragma once

#include <cuda_bf16.h>

#include "tessera/backends/cuda/kernels/mma_device.h"
#include "tessera/backends/cuda/kernels/product_weight.h"

namespace tessera::backends::cuda {

inline constexpr int kProductSlices = 8;  // Warps of a block, and parts of K.
inline constexpr int kProductThreads = kProductSlices * 32;

// Codes 4i and 4i + 16 (bits) of a word of INT4, as two BF16 of -8 .. 7: 128 + code is made of bits alone.
__device__ __forceinline__ std::uint32_t widen_int4(std::uint32_t word, int i) {
  const std::uint32_t bits = (word >> (4 * i) & 0x000f000fu) | 0x43004300u;
  const __nv_bfloat162 x = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&bits), __float2bfloat162_rn(136.0f));
  return *reinterpret_cast<const std::uint32_t*>(&x);
}

// In a chunk, a lane holds four times eight elements of a row ("quarters" of 32 elements, of which lane column c has
// eight), as four registers for two mma. kOrder: which of its eight elements share a register.
enum class PairOrder { kNeighbours, kFourApart };

template <ops::WeightFormat kFormat>
struct Codec;

template <>
struct Codec<ops::WeightFormat::kBF16> {
  static constexpr int kLoads = 4;   // Of 16 bytes, for a chunk.
  static constexpr int kScales = 0;  // Of a chunk.
  static constexpr PairOrder kOrder = PairOrder::kNeighbours;
  static __device__ __forceinline__ uint4 registers(const uint4 (&loads)[kLoads], int quarter) {
    return loads[quarter];
  }
  static __device__ __forceinline__ int element(int quarter, int c) { return 32 * quarter + 8 * c; }
};

struct Fp8Codec {
  static constexpr int kLoads = 2;
  static constexpr int kScales = 1;
  static constexpr PairOrder kOrder = PairOrder::kNeighbours;
  static __device__ __forceinline__ uint4 registers(const uint4 (&loads)[kLoads], int quarter) {
    const uint4& load = loads[quarter / 2];
    const std::uint32_t low = quarter % 2 == 0 ? load.x : load.z;
    const std::uint32_t high = quarter % 2 == 0 ? load.y : load.w;
    return {widen_fp8(low & 0xffff), widen_fp8(low >> 16), widen_fp8(high & 0xffff), widen_fp8(high >> 16)};
  }
  static __device__ __forceinline__ int element(int quarter, int c) {
    return 64 * (quarter / 2) + 16 * c + 8 * (quarter % 2);
  }
};
template <>
struct Codec<ops::WeightFormat::kF8Block128> : Fp8Codec {};
template <>
struct Codec<ops::WeightFormat::kF8Channel> : Fp8Codec {};

template <>
struct Codec<ops::WeightFormat::kInt4Group> {
  static constexpr int kLoads = 1;
  static constexpr int kScales = 4;
  static constexpr PairOrder kOrder = PairOrder::kFourApart;
  static __device__ __forceinline__ uint4 registers(const uint4 (&loads)[kLoads], int quarter) {
    const std::uint32_t words[4] = {loads[0].x, loads[0].y, loads[0].z, loads[0].w};
    const std::uint32_t word = words[quarter];
    return {widen_int4(word, 0), widen_int4(word, 1), widen_int4(word, 2), widen_int4(word, 3)};
  }
  static __device__ __forceinline__ int element(int quarter, int c) { return 32 * quarter + 8 * c; }
};

// What a lane needs of one row: its first 16 bytes, and the row's scales.
struct LaneRow {
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
};

template <ops::WeightFormat kFormat>
__device__ __forceinline__ LaneRow lane_row(const ProductWeight& w, std::int64_t row) {
  LaneRow lane;
  lane.data = w.data + row * product_row_bytes(kFormat, w.pitch) + threadIdx.x % 4 * 16;
  if constexpr (kFormat == ops::WeightFormat::kF8Block128) {
    lane.scales = w.scales + row / 128 * (w.pitch / 128) * 4;
  } else if constexpr (kFormat == ops::WeightFormat::kF8Channel) {
    lane.scales = w.scales + row * 4;
  } else if constexpr (kFormat == ops::WeightFormat::kInt4Group) {
    lane.scales = w.scales + row * (w.pitch / kScaleGroup) * 2;
  }
  return lane;
}

// What a lane needs of one row for one chunk: codes, and scales as they are stored.
template <ops::WeightFormat kFormat>
struct RowChunk {
  using C = Codec<kFormat>;
  uint4 codes[C::kLoads];
  uint2 stored_scales;  // FP8: x, an F32. INT4: four BF16.
  __device__ __forceinline__ void load(const LaneRow& row, std::int64_t chunk) {
#pragma unroll
    for (int l = 0; l < C::kLoads; ++l) {
      codes[l] = __ldg(reinterpret_cast<const uint4*>(row.data + chunk * (C::kLoads * 64) + l * 64));
    }
    if constexpr (kFormat == ops::WeightFormat::kF8Block128) {
      stored_scales.x = __ldg(reinterpret_cast<const std::uint32_t*>(row.scales) + chunk);
    } else if constexpr (kFormat == ops::WeightFormat::kF8Channel) {
      stored_scales.x = __ldg(reinterpret_cast<const std::uint32_t*>(row.scales));
    } else if constexpr (kFormat == ops::WeightFormat::kInt4Group) {
      stored_scales = __ldg(reinterpret_cast<const uint2*>(row.scales) + chunk);
    }
  }
  __device__ __forceinline__ float scale(int quarter) const {
    if constexpr (C::kScales == 1) return __uint_as_float(stored_scales.x);
    const std::uint32_t both = quarter < 2 ? stored_scales.x : stored_scales.y;
    return __uint_as_float(quarter % 2 == 0 ? both << 16 : both & 0xffff0000u);
  }
};

// Elements k .. k + 7 of a token as four registers of two BF16 each; zeros past K and for no token.
template <PairOrder kOrder>
__device__ __forceinline__ uint4 load_activations(const float* row, std::int64_t k, std::int64_t k_end, bool vector) {
  if (row == nullptr) return {0, 0, 0, 0};
  alignas(16) float x[8];
  if (vector && k + 8 <= k_end) {
    *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(row + k);
    *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(row + k + 4);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = k + i < k_end ? row[k + i] : 0.0f;
  }
  if constexpr (kOrder == PairOrder::kNeighbours) {
    return {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])};
  } else {
    return {pack(x[0], x[4]), pack(x[1], x[5]), pack(x[2], x[6]), pack(x[3], x[7])};
  }
}

// Adds a chunk of 16 kRowTiles features of 8 kTokenTiles tokens to a slice's totals. tokens(quarter, t): what
// load_activations gives of the chunk.
template <ops::WeightFormat kFormat, int kRowTiles, int kTokenTiles, typename Tokens>
__device__ __forceinline__ void multiply_chunk(const RowChunk<kFormat> (&rows)[kRowTiles][2], const Tokens& tokens,
                                               float (&totals)[kRowTiles][kTokenTiles][4]) {
  using C = Codec<kFormat>;
  float sums[kRowTiles][kTokenTiles][4] = {};
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) {
    uint4 b[kTokenTiles];
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) b[t] = tokens(quarter, t);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const uint4 low = C::registers(rows[r][0].codes, quarter);
      const uint4 high = C::registers(rows[r][1].codes, quarter);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        float(&d)[4] = C::kScales == 0 ? totals[r][t] : sums[r][t];
        mma(d, low.x, high.x, low.y, high.y, b[t].x, b[t].y);
        mma(d, low.z, high.z, low.w, high.w, b[t].z, b[t].w);
      }
      if constexpr (C::kScales > 0) {
        if (C::kScales == 1 && quarter < 3) continue;
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            totals[r][t][i] = fmaf(sums[r][t][i], rows[r][i / 2].scale(quarter), totals[r][t][i]);
            sums[r][t][i] = 0.0f;
          }
        }
      }
    }
  }
}

// Slice `slice` of 16 kRowTiles features of 8 kTokenTiles tokens, by a warp. rows[r][i]: row 16r + 8i + g; tokens[t]:
// token 8t + g, or null. totals: as mma's D. A chunk's codes and scales are asked for before the chunk before it is
// multiplied.
template <ops::WeightFormat kFormat, int kRowTiles, int kTokenTiles>
__device__ __forceinline__ void accumulate_slice(const LaneRow (&rows)[kRowTiles][2],
                                                 const float* const (&tokens)[kTokenTiles], int slice, std::int64_t k,
                                                 std::int64_t pitch, bool vector,
                                                 float (&totals)[kRowTiles][kTokenTiles][4]) {
  using C = Codec<kFormat>;
  const int column = threadIdx.x % 4;
  const std::int64_t chunks = pitch / kProductChunk;
  struct Chunk {
    RowChunk<kFormat> rows[kRowTiles][2];
  };
  const auto load = [&](Chunk& to, std::int64_t chunk) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) to.rows[r][i].load(rows[r][i], chunk);
    }
  };
  if (slice >= chunks) return;
  Chunk next;
  load(next, slice);
  for (std::int64_t chunk = slice; chunk < chunks; chunk += kProductSlices) {
    const Chunk now = next;
    if (chunk + kProductSlices < chunks) load(next, chunk + kProductSlices);
    multiply_chunk<kFormat, kRowTiles, kTokenTiles>(
        now.rows,
        [&](int quarter, int t) {
          return load_activations<C::kOrder>(tokens[t], chunk * kProductChunk + C::element(quarter, column), k, vector);
        },
        totals);
  }
}

// The slices' totals, [slice][token][feature], and their sum in order for element e = token * features + feature.
template <int kRowTiles, int kTokenTiles>
constexpr int product_shared_bytes() {
  return kProductSlices * kTokenTiles * 8 * kRowTiles * 16 * static_cast<int>(sizeof(float));
}

template <int kRowTiles, int kTokenTiles>
__device__ __forceinline__ void share_totals(float* shared, const float (&totals)[kRowTiles][kTokenTiles][4]) {
  const int slice = threadIdx.x / 32;
  const int group = threadIdx.x % 32 / 4;
  const int column = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = t * 8 + column * 2 + i % 2;
        const int row = r * 16 + group + i / 2 * 8;
        shared[(slice * kTokenTiles * 8 + token) * kRowTiles * 16 + row] = totals[r][t][i];
      }
    }
  }
  __syncthreads();
}

template <int kRowTiles, int kTokenTiles>
__device__ __forceinline__ float sum_of_slices(const float* shared, int e) {
  float sum = shared[e];
#pragma unroll
  for (int s = 1; s < kProductSlices; ++s) sum += shared[s * kTokenTiles * 8 * kRowTiles * 16 + e];
  return sum;
}

}  // namespace tessera::backends::cuda
