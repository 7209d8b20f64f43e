// The product of activations and panels (see kernels.h). Each output is one accumulator that takes its k in order, two
// by two, whatever the number of rows and panels computed beside it. Few rows read the weights once, several panels at
// a time; many rows go over one block of k after the other, whose weights then stay in the first cache, and keep their
// sums in F32 in between, which changes no bit of them.
#pragma once

#include "tessera/backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::backends::cpu::simd {
namespace {  // NOLINT(google-build-namespaces)

// Vectors of one panel, and registers for accumulators: with those of the weights and one for the activation they fill
// the 16 registers of AVX2 and most of the 32 of AVX-512.
inline constexpr int kPanelVectors = static_cast<int>(kPanelOutputs / kLanes);
inline constexpr int kAccumulators = kLanes == 8 ? 12 : 24;
// Rows of a tile at most: with one panel on AVX2, with two on AVX-512.
inline constexpr int kTileRows = kLanes == 8 ? 6 : 12;
// A single row needs enough independent accumulators to hide the latency of a multiplication.
constexpr int tile_panels(int rows) {
  const int panels = kAccumulators / (rows * kPanelVectors);
  const int most = kLanes == 8 ? 4 : 8;
  return panels < 1 ? 1 : panels > most ? most : panels;
}

// A step adds pair `pair` of every row to the accumulators.
struct F32Product {
  using Input = float;
  static constexpr std::int64_t kPairBytes = kPanelOutputs * 8;
  template <int kRows, int kPanels>
  static HWY_INLINE void step(V (&acc)[kRows][kPanels * kPanelVectors], const std::byte* weights,
                              std::int64_t panel_stride, const float* const (&rows)[kRows], std::int64_t pair) {
    const F32 d;
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      V w[kPanels * kPanelVectors];
#pragma GCC unroll 16
      for (int i = 0; i < kPanels * kPanelVectors; ++i) {
        const std::byte* at =
            weights + i / kPanelVectors * panel_stride + odd * kPanelOutputs * 4 + i % kPanelVectors * kLanes * 4;
        w[i] = hn::LoadU(d, reinterpret_cast<const float*>(at));
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V x = hn::Set(d, rows[r][2 * pair + odd]);
#pragma GCC unroll 16
        for (int i = 0; i < kPanels * kPanelVectors; ++i) acc[r][i] = hn::MulAdd(x, w[i], acc[r][i]);
      }
    }
  }
};

struct Bf16Product {
  using Input = float;
  static constexpr std::int64_t kPairBytes = kPanelOutputs * 4;
  template <int kRows, int kPanels>
  static HWY_INLINE void step(V (&acc)[kRows][kPanels * kPanelVectors], const std::byte* weights,
                              std::int64_t panel_stride, const float* const (&rows)[kRows], std::int64_t pair) {
    const F32 d;
    const U32 du;
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      V w[kPanels * kPanelVectors];
#pragma GCC unroll 16
      for (int i = 0; i < kPanels * kPanelVectors; ++i) {
        const std::byte* at = weights + i / kPanelVectors * panel_stride + i % kPanelVectors * kLanes * 4;
        const auto both = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(at));
        w[i] = hn::BitCast(d, odd == 0 ? hn::ShiftLeft<16>(both) : hn::And(both, hn::Set(du, 0xffff0000u)));
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V x = hn::Set(d, rows[r][2 * pair + odd]);
#pragma GCC unroll 16
        for (int i = 0; i < kPanels * kPanelVectors; ++i) acc[r][i] = hn::MulAdd(x, w[i], acc[r][i]);
      }
    }
  }
};

#if defined(TESSERA_SIMD_BF16_DOT)
// The processor's own product of pairs: activations are BF16 pairs too.
struct Bf16DotProduct {
  using Input = std::uint16_t;
  static constexpr std::int64_t kPairBytes = kPanelOutputs * 4;
  template <int kRows, int kPanels>
  static HWY_INLINE void step(V (&acc)[kRows][kPanels * kPanelVectors], const std::byte* weights,
                              std::int64_t panel_stride, const std::uint16_t* const (&rows)[kRows], std::int64_t pair) {
    __m512bh w[kPanels];
#pragma GCC unroll 16
    for (int i = 0; i < kPanels; ++i) w[i] = (__m512bh)_mm512_loadu_si512(weights + i * panel_stride);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      std::int32_t both;
      std::memcpy(&both, rows[r] + 2 * pair, sizeof both);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 16
      for (int i = 0; i < kPanels; ++i) acc[r][i].raw = _mm512_dpbf16_ps(acc[r][i].raw, x, w[i]);
    }
  }
};
#endif

// Writes the outputs of one row and `panels` panels, from 16 sums for each.
HWY_NOINLINE void store_outputs(const LinearTask& task, std::int64_t row, std::int64_t panel, std::int64_t panels,
                                const float* sums) {
  const F32 d;
  const bool add = task.mode == ops::OutputMode::kAdd;
  const std::int64_t first = panel * kPanelOutputs;
  const std::int64_t count = task.n - first < panels * kPanelOutputs ? task.n - first : panels * kPanelOutputs;
  const float* bias = task.bias == nullptr ? nullptr : task.bias + first;
  float* out = task.out + row * task.out_stride + first;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    V y = hn::Load(d, sums + i);
    if (bias != nullptr) y = hn::Add(y, hn::LoadU(d, bias + i));
    if (add) y = hn::Add(y, hn::LoadU(d, out + i));
    hn::StoreU(y, d, out + i);
  }
  for (; i < count; ++i) {
    float y = sums[i];
    if (bias != nullptr) y += bias[i];
    if (add) y += out[i];
    out[i] = y;
  }
}

template <typename Product>
HWY_INLINE const typename Product::Input* input_of(const LinearTask& task) {
  if constexpr (sizeof(typename Product::Input) == 2) {
    return task.in_bf16;
  } else {
    return task.in;
  }
}
template <typename Product>
HWY_INLINE std::int64_t input_stride_of(const LinearTask& task) {
  return sizeof(typename Product::Input) == 2 ? (task.k + 1) / 2 * 2 : task.in_stride;
}

enum class Sums { kStart, kContinue };

// sums[row][kPanels * 16] of kRows rows of `in` and `pairs` pairs of k.
template <typename Product, int kRows, int kPanels>
void tile(const typename Product::Input* in, std::int64_t in_stride, const std::byte* weights,
          std::int64_t panel_stride, std::int64_t pairs, Sums mode, float* sums) {
  const F32 d;
  constexpr int kVectors = kPanels * kPanelVectors;
  const typename Product::Input* rows[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) rows[r] = in + r * in_stride;
  V acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      acc[r][i] = mode == Sums::kStart ? zero() : hn::Load(d, sums + (r * kVectors + i) * kLanes);
    }
  }
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    Product::template step<kRows, kPanels>(acc, weights, panel_stride, rows, pair);
    weights += Product::kPairBytes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) hn::Store(acc[r][i], d, sums + (r * kVectors + i) * kLanes);
  }
}

template <typename Product, int kPanels, int kRows = kTileRows>
void tile_of_rows(std::int64_t row_count, const typename Product::Input* in, std::int64_t in_stride,
                  const std::byte* weights, std::int64_t panel_stride, std::int64_t pairs, Sums mode, float* sums) {
  if constexpr (kRows > 1) {
    if (row_count < kRows) {
      return tile_of_rows<Product, kPanels, kRows - 1>(row_count, in, in_stride, weights, panel_stride, pairs, mode,
                                                       sums);
    }
  }
  tile<Product, kRows, kPanels>(in, in_stride, weights, panel_stride, pairs, mode, sums);
}

// Few rows: all of k at once.
template <typename Product, int kRows, int kPanels>
void few_rows_panels(const LinearTask& task, std::int64_t panel) {
  alignas(64) float sums[kRows * kPanels * kPanelOutputs];
  const std::int64_t stride = input_stride_of<Product>(task);
  const std::int64_t panel_stride = panel_bytes(task.format, task.k);
  tile<Product, kRows, kPanels>(input_of<Product>(task) + task.row_begin * stride, stride,
                                task.panels + panel * panel_stride, panel_stride, (task.k + 1) / 2, Sums::kStart, sums);
  for (int r = 0; r < kRows; ++r) {
    store_outputs(task, task.row_begin + r, panel, kPanels, sums + r * kPanels * kPanelOutputs);
  }
}

template <typename Product, int kRows = kTileRows>
void few_rows(const LinearTask& task) {
  if constexpr (kRows > 1) {
    if (task.row_end - task.row_begin < kRows) return few_rows<Product, kRows - 1>(task);
  }
  constexpr int kMost = tile_panels(kRows);
  std::int64_t panel = task.panel_begin;
  for (; panel + kMost <= task.panel_end; panel += kMost) few_rows_panels<Product, kRows, kMost>(task, panel);
  if constexpr (kMost > 3) {
    for (; panel + kMost / 2 <= task.panel_end; panel += kMost / 2) {
      few_rows_panels<Product, kRows, kMost / 2>(task, panel);
    }
  }
  for (; panel < task.panel_end; ++panel) few_rows_panels<Product, kRows, 1>(task, panel);
}

// Pairs of k in a block: widened to F32 its weights take 16 KB a panel.
inline constexpr std::int64_t kBlockPairs = 128;

// A block's weights as F32 [2 * pairs][16]: exactly the numbers that Bf16Product makes of them on the way.
HWY_INLINE void widen_block(const std::byte* from, std::int64_t pairs, std::byte* to) {
  const U32 d;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      const auto both =
          hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(from + (pair * kPanelVectors + v) * kLanes * 4));
      auto* out = reinterpret_cast<std::uint32_t*>(to + (2 * pair * kPanelVectors + v) * kLanes * 4);
      hn::Store(hn::ShiftLeft<16>(both), d, out);
      hn::Store(hn::And(both, hn::Set(d, 0xffff0000u)), d, out + kPanelOutputs);
    }
  }
}

enum class Widening { kNone, kToF32 };

// Many rows, at most kLinearRowsMax. Product computes; where kWidening is set the weights are BF16 and Product is
// F32's.
template <typename Product, Widening kWidening, int kPanels>
void many_rows_panels(const LinearTask& task, std::int64_t panel) {
  constexpr std::int64_t kBlockBytes = kBlockPairs * Product::kPairBytes;
  alignas(64) float sums[kLinearRowsMax * kPanels * kPanelOutputs];
  alignas(64) std::byte widened[kWidening == Widening::kToF32 ? kPanels * kBlockBytes : 64];
  const std::int64_t rows = task.row_end - task.row_begin;
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const std::int64_t stride = input_stride_of<Product>(task);
  const typename Product::Input* in = input_of<Product>(task) + task.row_begin * stride;
  const std::int64_t stored_stride = panel_bytes(task.format, task.k);
  const std::int64_t stored_pair = kPanelOutputs * (task.format == ops::WeightFormat::kBF16 ? 4 : 8);
  const std::int64_t all_pairs = (task.k + 1) / 2;
  for (std::int64_t first = 0; first < all_pairs; first += kBlockPairs) {
    const std::int64_t pairs = all_pairs - first < kBlockPairs ? all_pairs - first : kBlockPairs;
    const std::byte* weights = task.panels + panel * stored_stride + first * stored_pair;
    std::int64_t panel_stride = stored_stride;
    if constexpr (kWidening == Widening::kToF32) {
      for (int p = 0; p < kPanels; ++p) widen_block(weights + p * stored_stride, pairs, widened + p * kBlockBytes);
      weights = widened;
      panel_stride = kBlockBytes;
    }
    for (std::int64_t t = 0; t < tiles; ++t) {
      // Tiles of about equal height.
      const std::int64_t begin = rows * t / tiles;
      const std::int64_t end = rows * (t + 1) / tiles;
      tile_of_rows<Product, kPanels>(end - begin, in + begin * stride + 2 * first, stride, weights, panel_stride, pairs,
                                     first == 0 ? Sums::kStart : Sums::kContinue,
                                     sums + begin * kPanels * kPanelOutputs);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    store_outputs(task, task.row_begin + r, panel, kPanels, sums + r * kPanels * kPanelOutputs);
  }
}

template <typename Product, Widening kWidening>
void many_rows(const LinearTask& task) {
  constexpr int kMost = tile_panels(kTileRows);
  std::int64_t panel = task.panel_begin;
  for (; panel + kMost <= task.panel_end; panel += kMost) many_rows_panels<Product, kWidening, kMost>(task, panel);
  for (; panel < task.panel_end; ++panel) many_rows_panels<Product, kWidening, 1>(task, panel);
}

void linear(const LinearTask& task) {
  const bool few = task.row_end - task.row_begin <= kTileRows;
  if (task.format == ops::WeightFormat::kF32) {
    return few ? few_rows<F32Product>(task) : many_rows<F32Product, Widening::kNone>(task);
  }
#if defined(TESSERA_SIMD_BF16_DOT)
  few ? few_rows<Bf16DotProduct>(task) : many_rows<Bf16DotProduct, Widening::kNone>(task);
#else
  few ? few_rows<Bf16Product>(task) : many_rows<F32Product, Widening::kToF32>(task);
#endif
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
