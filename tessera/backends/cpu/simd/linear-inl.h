// The product of activations and panels (see kernels.h). Each output is one accumulator that takes its k in order, two
// by two, whatever the number of rows and panels computed beside it.
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
HWY_INLINE const typename Product::Input* input_row(const LinearTask& task, std::int64_t row) {
  if constexpr (sizeof(typename Product::Input) == 2) {
    return task.in_bf16 + row * ((task.k + 1) / 2 * 2);
  } else {
    return task.in + row * task.in_stride;
  }
}

template <typename Product, int kRows, int kPanels>
void tile(const LinearTask& task, std::int64_t row, std::int64_t panel) {
  using Input = typename Product::Input;
  const std::int64_t panel_stride = panel_bytes(task.format, task.k);
  const std::byte* weights = task.panels + panel * panel_stride;
  const Input* rows[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) rows[r] = input_row<Product>(task, row + r);
  V acc[kRows][kPanels * kPanelVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kPanels * kPanelVectors; ++i) acc[r][i] = zero();
  }
  const std::int64_t pairs = (task.k + 1) / 2;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    Product::template step<kRows, kPanels>(acc, weights, panel_stride, rows, pair);
    weights += Product::kPairBytes;
  }
  alignas(64) float sums[kRows][kPanels * kPanelOutputs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kPanels * kPanelVectors; ++i) hn::Store(acc[r][i], F32(), &sums[r][i * kLanes]);
  }
  for (int r = 0; r < kRows; ++r) store_outputs(task, row + r, panel, kPanels, sums[r]);
}

template <typename Product, int kRows>
void tile_of_rows(const LinearTask& task, std::int64_t row, std::int64_t panel, std::int64_t panels) {
  constexpr int kMost = tile_panels(kRows);
  while (panels >= kMost) {
    tile<Product, kRows, kMost>(task, row, panel);
    panel += kMost;
    panels -= kMost;
  }
  if constexpr (kMost > 3) {
    while (panels >= kMost / 2) {
      tile<Product, kRows, kMost / 2>(task, row, panel);
      panel += kMost / 2;
      panels -= kMost / 2;
    }
  }
  for (; panels > 0; ++panel, --panels) tile<Product, kRows, 1>(task, row, panel);
}

template <typename Product, int kRows = kTileRows>
void dispatch_rows(const LinearTask& task, std::int64_t rows, std::int64_t row, std::int64_t panel,
                   std::int64_t panels) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return dispatch_rows<Product, kRows - 1>(task, rows, row, panel, panels);
  }
  tile_of_rows<Product, kRows>(task, row, panel, panels);
}

template <typename Product>
void linear_with(const LinearTask& task) {
  const std::int64_t rows = task.row_end - task.row_begin;
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  // Panels that all row tiles take before the next ones: their bytes stay in the first caches.
  const std::int64_t panels_at_once = tiles > 1 ? tile_panels(kTileRows) : task.panel_end - task.panel_begin;
  for (std::int64_t panel = task.panel_begin; panel < task.panel_end; panel += panels_at_once) {
    const std::int64_t panels = task.panel_end - panel < panels_at_once ? task.panel_end - panel : panels_at_once;
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t begin = task.row_begin + rows * t / tiles;
      const std::int64_t end = task.row_begin + rows * (t + 1) / tiles;
      dispatch_rows<Product>(task, end - begin, begin, panel, panels);
    }
  }
}

void linear(const LinearTask& task) {
  if (task.format == ops::WeightFormat::kF32) return linear_with<F32Product>(task);
#if defined(TESSERA_SIMD_BF16_DOT)
  linear_with<Bf16DotProduct>(task);
#else
  linear_with<Bf16Product>(task);
#endif
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
