// What the kernels of latent attention have in common: reading latents and the up projection into F32 tiles, and the
// two products of such tiles. An element of a product takes its terms in the same order whatever is computed beside it.
#pragma once

#include "tessera/backends/cpu/simd/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::backends::cpu::simd {
namespace {  // NOLINT(google-build-namespaces)

// Clears the end of a row that holds `count` of `padded` floats.
HWY_INLINE void clear_padding(float* row, std::int64_t count, std::int64_t padded) {
  for (std::int64_t i = count; i < padded; ++i) row[i] = 0.0f;
}

// out[i] = code * scale (one F32 product), padded with zeros.
HWY_INLINE void widen_f8_scaled(const std::uint8_t* in, float scale, std::int64_t count, std::int64_t padded,
                                float* out) {
  const F32 d;
  // A power of two more in the scale rounds nothing.
  const V factor = hn::Set(d, scale * kF8Unscale);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::Mul(load_f8_unscaled(in + i), factor), d, out + i);
  if (i < count) {
    std::uint8_t last[kLanes] = {};
    std::memcpy(last, in + i, static_cast<std::size_t>(count - i));
    alignas(64) float lanes[kLanes];
    hn::Store(hn::Mul(load_f8_unscaled(last), factor), d, lanes);
    for (std::int64_t j = 0; i + j < count; ++j) out[i + j] = lanes[j];
  }
  clear_padding(out, count, padded);
}

// Element `index` of an array that may lie at any byte of a mapped file.
template <typename T>
HWY_INLINE T load_any(const void* from, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(from) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// kLanes INT4 codes, the lower of each byte first, times their scale.
HWY_INLINE V load_int4(const std::byte* in, V scale) {
  const U32 d;
  const I32 di;
  auto words = hn::Set(d, load_any<std::uint32_t>(in, 0));
  if constexpr (kLanes == 16) {
    words = hn::IfThenElse(hn::FirstN(d, 8), words, hn::Set(d, load_any<std::uint32_t>(in, 1)));
  }
  const auto shifts = hn::ShiftLeft<2>(hn::And(hn::Iota(d, 0), hn::Set(d, 7u)));
  const auto codes = hn::And(words >> shifts, hn::Set(d, 15u));
  return hn::Mul(hn::ConvertTo(F32(), hn::Sub(hn::BitCast(di, codes), hn::Set(di, 8))), scale);
}

// Row n of a row-major weight, padded with zeros: the numbers of reference/weight_rows.h.
void dequantize_row(const ops::Weight& weight, std::int64_t n, std::int64_t padded, float* out) {
  const std::int64_t cols = weight.cols;
  const auto* bytes = static_cast<const std::byte*>(weight.data);
  switch (weight.format) {
    case ops::WeightFormat::kF32:
      std::memcpy(out, bytes + n * cols * 4, static_cast<std::size_t>(cols) * 4);
      clear_padding(out, cols, padded);
      return;
    case ops::WeightFormat::kBF16:
      widen_bf16(reinterpret_cast<const std::uint16_t*>(bytes) + n * cols, cols, padded, out);
      return;
    case ops::WeightFormat::kF8Channel:
      widen_f8_scaled(reinterpret_cast<const std::uint8_t*>(bytes) + n * cols, load_any<float>(weight.scales, n), cols,
                      padded, out);
      return;
    case ops::WeightFormat::kF8Block128: {
      constexpr std::int64_t kBlock = 128;
      const std::int64_t first_scale = n / kBlock * ((cols + kBlock - 1) / kBlock);
      for (std::int64_t i = 0; i < cols; i += kBlock) {
        const std::int64_t count = cols - i < kBlock ? cols - i : kBlock;
        widen_f8_scaled(reinterpret_cast<const std::uint8_t*>(bytes) + n * cols + i,
                        load_any<float>(weight.scales, first_scale + i / kBlock), count, count, out + i);
      }
      clear_padding(out, cols, padded);
      return;
    }
    case ops::WeightFormat::kInt4Group: {
      const std::int64_t group = weight.group_size;  // A multiple of 32 and a divisor of cols.
      for (std::int64_t i = 0; i < cols; i += group) {
        const base::BF16 scale = load_any<base::BF16>(weight.scales, (n * cols + i) / group);
        const V factor = hn::Set(F32(), base::to_float(scale));
        for (std::int64_t j = i; j < i + group; j += kLanes) {
          hn::StoreU(load_int4(bytes + (n * cols + j) / 2, factor), F32(), out + j);
        }
      }
      clear_padding(out, cols, padded);
      return;
    }
  }
}

// Asks for row n of a row-major weight, to be read soon.
HWY_INLINE void prefetch_row(const ops::Weight& weight, std::int64_t n) {
  std::int64_t bytes = weight.cols;
  if (weight.format == ops::WeightFormat::kF32) bytes *= 4;
  if (weight.format == ops::WeightFormat::kBF16) bytes *= 2;
  if (weight.format == ops::WeightFormat::kInt4Group) bytes /= 2;
  const std::byte* row = static_cast<const std::byte*>(weight.data) + n * bytes;
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i);
}

// Rows [first, first + kMlaWeightRows) of the up projection; those at or behind `end` are zeros. The rows behind them
// are on their way when it returns.
HWY_INLINE void load_weight_rows(const ops::Weight& weight, std::int64_t first, std::int64_t end, std::int64_t padded,
                                 float* tile) {
  for (std::int64_t r = 0; r < kMlaWeightRows; ++r) {
    if (first + r < end) {
      if (first + r + kMlaWeightRows < end) prefetch_row(weight, first + r + kMlaWeightRows);
      dequantize_row(weight, first + r, padded, tile + r * padded);
    } else {
      clear_padding(tile + r * padded, 0, padded);
    }
  }
}

// The stored rows of `count` places from `first` on, as [latent | rope] rows of a tile.
HWY_INLINE void load_latents(const ops::MlaAttentionParams& p, std::int64_t row, const std::int32_t* positions,
                             std::int64_t first, std::int64_t count, float* tile) {
  const ops::MlaShape& shape = p.up->shape;
  const std::int64_t rank = shape.kv_lora_rank;
  const std::int64_t rope = shape.qk_rope_head_dim;
  const std::int64_t padded_rank = padded_floats(rank);
  const std::int64_t padded_rope = padded_floats(rope);
  const std::int64_t page_size = p.cache.layout.page_size;
  const std::int32_t* table = p.pages.table() + row * p.pages.max_pages_per_row();
  const bool scaled = p.cache.layout.part_has_scales(ops::kPartLatent);
  const std::byte* data = p.cache.page_data(p.layer, ops::kPartLatent, 0);
  const std::byte* scales = p.cache.page_scales(p.layer, ops::kPartLatent, 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t position = positions == nullptr ? first + i : positions[first + i];
    const std::int64_t slot = table[position / page_size] * page_size + position % page_size;
    float* to = tile + i * (padded_rank + padded_rope);
    if (scaled) {
      const auto* in = reinterpret_cast<const std::uint8_t*>(data) + slot * (rank + rope);
      const auto* scale = reinterpret_cast<const base::BF16*>(scales) + slot * 2;
      widen_f8_scaled(in, base::to_float(scale[0]), rank, padded_rank, to);
      widen_f8_scaled(in + rank, base::to_float(scale[1]), rope, padded_rope, to + padded_rank);
    } else {
      const auto* in = reinterpret_cast<const std::uint16_t*>(data) + slot * (rank + rope);
      widen_bf16(in, rank, padded_rank, to);
      widen_bf16(in + rank, rope, padded_rope, to + padded_rank);
    }
  }
}

// Rows of the first product's blocks: kDotRows times four accumulators fill the registers.
inline constexpr int kDotRows = kLanes == 8 ? 3 : 4;

// out[r][j] = a[r] . b[j] over `width` floats, a multiple of 16.
template <int kRows>
HWY_INLINE void dots(const float* a, std::int64_t a_stride, const float* const (&b)[4], std::int64_t width, float* out,
                     std::int64_t out_stride) {
  const F32 d;
  const hn::FixedTag<float, 4> d4;
  V acc[kRows][4];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) acc[r][j] = zero();
  }
  for (std::int64_t i = 0; i < width; i += kLanes) {
    V x[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) x[r] = hn::LoadU(d, a + r * a_stride + i);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const V y = hn::LoadU(d, b[j] + i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[r][j] = hn::MulAdd(x[r], y, acc[r][j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    hn::StoreU(sums_of_four(acc[r][0], acc[r][1], acc[r][2], acc[r][3]), d4, out + r * out_stride);
  }
}

template <int kRows = kDotRows>
HWY_INLINE void dots_of_rows(std::int64_t rows, const float* a, std::int64_t a_stride, const float* const (&b)[4],
                             std::int64_t width, float* out, std::int64_t out_stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return dots_of_rows<kRows - 1>(rows, a, a_stride, b, width, out, out_stride);
  }
  dots<kRows>(a, a_stride, b, width, out, out_stride);
}

// out[r][n] = a[r] . b[n] for the rows of a and `cols` rows of b, rounded up to 4: b and out have room for them. Rows
// of a come in blocks, so that those of b are read from the second cache half as often.
void products(const float* a, std::int64_t a_stride, std::int64_t rows, const float* b, std::int64_t b_stride,
              std::int64_t cols, std::int64_t width, float* out, std::int64_t out_stride) {
  constexpr std::int64_t kBlock = 2 * kDotRows;
  for (std::int64_t block = 0; block < rows; block += kBlock) {
    const std::int64_t end = rows - block < kBlock ? rows : block + kBlock;
    for (std::int64_t n = 0; n < cols; n += 4) {
      const float* const four[4] = {b + n * b_stride, b + (n + 1) * b_stride, b + (n + 2) * b_stride,
                                    b + (n + 3) * b_stride};
      for (std::int64_t r = block; r < end; r += kDotRows) {
        dots_of_rows(end - r, a + r * a_stride, a_stride, four, width, out + r * out_stride + n, out_stride);
      }
    }
  }
}

// Rows and vectors of the second product's blocks: accumulators, vectors of b and one weight fill the registers.
inline constexpr int kSumRows = 6;
constexpr int sum_vectors(int rows) {
  if (kLanes == 16) return 4;
  return rows == 1 ? 8 : rows < 4 ? 4 : 2;
}

// out[r][..] = out[r][..] * decay[r] + sum over t of a[r][t] * b[t][..], kVectors vectors.
template <int kRows, int kVectors>
HWY_INLINE void add_vectors(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                            std::int64_t count, const float* decay, float* out, std::int64_t out_stride) {
  const F32 d;
  V acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const V factor = hn::Set(d, decay[r]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      acc[r][j] = hn::Mul(factor, hn::LoadU(d, out + r * out_stride + j * kLanes));
    }
  }
  for (std::int64_t t = 0; t < count; ++t, b += b_stride) {
    V x[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) x[j] = hn::LoadU(d, b + j * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V w = hn::Set(d, a[r * a_stride + t]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) acc[r][j] = hn::MulAdd(w, x[j], acc[r][j]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) hn::StoreU(acc[r][j], d, out + r * out_stride + j * kLanes);
  }
}

template <int kRows = kSumRows>
HWY_INLINE void add_rows(std::int64_t rows, const float* a, std::int64_t a_stride, const float* b,
                         std::int64_t b_stride, std::int64_t count, std::int64_t width, const float* decay, float* out,
                         std::int64_t out_stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return add_rows<kRows - 1>(rows, a, a_stride, b, b_stride, count, width, decay, out, out_stride);
    }
  }
  constexpr int kMost = sum_vectors(kRows);
  std::int64_t i = 0;
  for (; i + kMost * kLanes <= width; i += kMost * kLanes) {
    add_vectors<kRows, kMost>(a, a_stride, b + i, b_stride, count, decay, out + i, out_stride);
  }
  for (; i < width; i += 16) {
    add_vectors<kRows, 16 / kLanes>(a, a_stride, b + i, b_stride, count, decay, out + i, out_stride);
  }
}

// out[r] = out[r] * decay[r] + sum over t < count of a[r][t] * b[t], over `width` floats, a multiple of 16. Columns
// come in blocks, so that those of b stay in the first cache for all rows.
void weighted_sums(const float* a, std::int64_t a_stride, std::int64_t rows, const float* b, std::int64_t b_stride,
                   std::int64_t count, std::int64_t width, const float* decay, float* out, std::int64_t out_stride) {
  constexpr std::int64_t kBlock = 64;
  for (std::int64_t i = 0; i < width; i += kBlock) {
    const std::int64_t cols = width - i < kBlock ? width - i : kBlock;
    for (std::int64_t r = 0; r < rows; r += kSumRows) {
      add_rows(rows - r, a + r * a_stride, a_stride, b + i, b_stride, count, cols, decay + r, out + r * out_stride + i,
               out_stride);
    }
  }
}

// Turns scores [0, count) of one run into softmax weights and updates maximum and sum of the state; returns what the
// state's values decay by. Up to kLanes - 1 scores behind the last become zeros.
HWY_INLINE float soften(float* scores, std::int64_t count, float scale, float* state) {
  const F32 d;
  const std::int64_t end = (count + kLanes - 1) / kLanes * kLanes;
  const V lowest = hn::Set(d, -__builtin_huge_valf());
  const V factor = hn::Set(d, scale);
  V largest = hn::Set(d, state[kStateMaximum]);
  for (std::int64_t t = 0; t < end; t += kLanes) {
    V x = hn::Mul(hn::LoadU(d, scores + t), factor);
    if (t + kLanes > count) x = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(count - t)), x, lowest);
    hn::StoreU(x, d, scores + t);
    largest = hn::Max(largest, x);
  }
  const float maximum = max_of(largest);
  const float decay = exp_scalar(state[kStateMaximum] - maximum);
  const V shift = hn::Set(d, maximum);
  V sum = zero();
  for (std::int64_t t = 0; t < end; t += kLanes) {
    const V p = exp_of(hn::Sub(hn::LoadU(d, scores + t), shift));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, scores + t);
  }
  state[kStateMaximum] = maximum;
  state[kStateSum] = __builtin_fmaf(state[kStateSum], decay, sum_of(sum));  // Contracted by hand, as merge_state.
  return decay;
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
