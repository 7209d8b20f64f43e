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

// How far ahead of themselves kernels ask for weights that are read once: about what a core reads in the time that
// memory takes to answer, with room for a busy machine (bench/quantized_linear_bench.cc).
inline constexpr std::int64_t kPrefetchBytes = 4096;

// Writes the outputs of row `row` and `panels` panels, from 16 sums for each.
HWY_NOINLINE void store_outputs(const LinearTask& task, std::int64_t row, std::int64_t panel, std::int64_t panels,
                                const float* sums) {
  const F32 d;
  const bool add = task.mode == ops::OutputMode::kAdd;
  const std::int64_t first = panel * kPanelOutputs;
  const std::int64_t count = task.n - first < panels * kPanelOutputs ? task.n - first : panels * kPanelOutputs;
  const float* bias = task.bias == nullptr ? nullptr : task.bias + first;
  const std::int64_t to = task.out_rows == nullptr ? row : task.out_rows[row];
  float* out = task.out + to * task.out_stride + first;
  const float factor = task.row_factors == nullptr ? 1.0f : task.row_factors[row];
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    V y = hn::Load(d, sums + i);
    if (bias != nullptr) y = hn::Add(y, hn::LoadU(d, bias + i));
    // One rounding where it is added, written out: left to the compiler, it would differ between copies of this loop.
    y = add ? hn::MulAdd(y, hn::Set(d, factor), hn::LoadU(d, out + i)) : hn::Mul(y, hn::Set(d, factor));
    hn::StoreU(y, d, out + i);
  }
  for (; i < count; ++i) {
    float y = sums[i];
    if (bias != nullptr) y += bias[i];
    out[i] = add ? __builtin_fmaf(y, factor, out[i]) : y * factor;
  }
}

// Where the rows of a task's input lie.
template <typename Input>
struct InputRows {
  const Input* row[kLinearRowsMax];
  InputRows(const LinearTask& task, const Input* in, std::int64_t stride) {
    for (std::int64_t r = task.row_begin; r < task.row_end; ++r) {
      row[r - task.row_begin] = in + (task.in_rows == nullptr ? r : task.in_rows[r]) * stride;
    }
  }
};

template <typename Product>
HWY_INLINE InputRows<typename Product::Input> input_rows(const LinearTask& task) {
  if constexpr (sizeof(typename Product::Input) == 2) {
    return {task, task.in_bf16, padded_k(task.format, task.k)};
  } else {
    return {task, task.in, task.in_stride};
  }
}

enum class Sums { kStart, kContinue };

// sums[row][kPanels * 16] of kRows rows, their elements from `first` on, and `pairs` pairs of k.
template <typename Product, int kRows, int kPanels>
void tile(const typename Product::Input* const* in, std::int64_t first, const std::byte* weights,
          std::int64_t panel_stride, std::int64_t pairs, Sums mode, float* sums) {
  const F32 d;
  constexpr int kVectors = kPanels * kPanelVectors;
  const typename Product::Input* rows[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) rows[r] = in[r] + first;
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
void tile_of_rows(std::int64_t row_count, const typename Product::Input* const* in, std::int64_t first,
                  const std::byte* weights, std::int64_t panel_stride, std::int64_t pairs, Sums mode, float* sums) {
  if constexpr (kRows > 1) {
    if (row_count < kRows) {
      return tile_of_rows<Product, kPanels, kRows - 1>(row_count, in, first, weights, panel_stride, pairs, mode, sums);
    }
  }
  tile<Product, kRows, kPanels>(in, first, weights, panel_stride, pairs, mode, sums);
}

// Few rows: all of k at once.
template <typename Product, int kRows, int kPanels>
void few_rows_panels(const LinearTask& task, std::int64_t panel) {
  alignas(64) float sums[kRows * kPanels * kPanelOutputs];
  const auto rows = input_rows<Product>(task);
  const std::int64_t panel_stride = panel_bytes(task.format, task.k, task.group_size);
  tile<Product, kRows, kPanels>(rows.row, 0, task.panels + panel * panel_stride, panel_stride, (task.k + 1) / 2,
                                Sums::kStart, sums);
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

// How many rows get a block's weights: as they are stored (`kWidens` false: Product reads them there), or as F32
// [2 * pairs][16], exactly the numbers that few rows make of them on the way.
struct StoredF32 {
  static constexpr bool kWidens = false;
  static constexpr std::int64_t kPairBytes = kPanelOutputs * 8;
  static void finish(const std::byte*, std::int64_t, float*) {}
};

struct StoredBf16Pairs {
  static constexpr bool kWidens = false;
  static constexpr std::int64_t kPairBytes = kPanelOutputs * 4;
  static void finish(const std::byte*, std::int64_t, float*) {}
};

struct StoredBf16 {
  static constexpr bool kWidens = true;
  static HWY_INLINE void widen(const std::byte* panel, std::int64_t, std::int64_t first, std::int64_t pairs,
                               std::byte* to) {
    const U32 d;
    const std::byte* from = panel + first * kPanelOutputs * 4;
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
  static void finish(const std::byte*, std::int64_t, float*) {}
};

// Many rows, at most kLinearRowsMax. Product computes, on weights as Stored gives them.
template <typename Product, typename Stored, int kPanels>
void many_rows_panels(const LinearTask& task, std::int64_t panel) {
  constexpr std::int64_t kBlockBytes = kBlockPairs * Product::kPairBytes;
  alignas(64) float sums[kLinearRowsMax * kPanels * kPanelOutputs];
  alignas(64) std::byte widened[Stored::kWidens ? kPanels * kBlockBytes : 64];
  const std::int64_t rows = task.row_end - task.row_begin;
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const auto in = input_rows<Product>(task);
  const std::int64_t stored_stride = panel_bytes(task.format, task.k, task.group_size);
  const std::byte* stored = task.panels + panel * stored_stride;
  const std::int64_t all_pairs = padded_k(task.format, task.k) / 2;
  for (std::int64_t first = 0; first < all_pairs; first += kBlockPairs) {
    const std::int64_t pairs = all_pairs - first < kBlockPairs ? all_pairs - first : kBlockPairs;
    const std::byte* weights = widened;
    std::int64_t panel_stride = kBlockBytes;
    if constexpr (Stored::kWidens) {
      for (int p = 0; p < kPanels; ++p) {
        Stored::widen(stored + p * stored_stride, task.k, first, pairs, widened + p * kBlockBytes);
      }
    } else {
      weights = stored + first * Stored::kPairBytes;
      panel_stride = stored_stride;
    }
    for (std::int64_t t = 0; t < tiles; ++t) {
      // Tiles of about equal height.
      const std::int64_t begin = rows * t / tiles;
      const std::int64_t end = rows * (t + 1) / tiles;
      tile_of_rows<Product, kPanels>(end - begin, in.row + begin, 2 * first, weights, panel_stride, pairs,
                                     first == 0 ? Sums::kStart : Sums::kContinue,
                                     sums + begin * kPanels * kPanelOutputs);
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    for (std::int64_t r = 0; r < rows; ++r) {
      Stored::finish(stored + p * stored_stride, task.k, sums + (r * kPanels + p) * kPanelOutputs);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    store_outputs(task, task.row_begin + r, panel, kPanels, sums + r * kPanels * kPanelOutputs);
  }
}

template <typename Product, typename Stored>
void many_rows(const LinearTask& task) {
  constexpr int kMost = tile_panels(kTileRows);
  std::int64_t panel = task.panel_begin;
  for (; panel + kMost <= task.panel_end; panel += kMost) many_rows_panels<Product, Stored, kMost>(task, panel);
  for (; panel < task.panel_end; ++panel) many_rows_panels<Product, Stored, 1>(task, panel);
}

HWY_INLINE bool has_few_rows(const LinearTask& task) { return task.row_end - task.row_begin <= kTileRows; }

void linear_f32(const LinearTask& task) {
  has_few_rows(task) ? few_rows<F32Product>(task) : many_rows<F32Product, StoredF32>(task);
}

void linear_bf16(const LinearTask& task) {
#if defined(TESSERA_SIMD_BF16_DOT)
  has_few_rows(task) ? few_rows<Bf16DotProduct>(task) : many_rows<Bf16DotProduct, StoredBf16Pairs>(task);
#else
  has_few_rows(task) ? few_rows<Bf16Product>(task) : many_rows<F32Product, StoredBf16>(task);
#endif
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
