// Products with INT4 weights (the panel layout and the activations' form are in kernels.h). The sum over 32 elements is
// one of integers, exact, by the processor's product of 16-bit pairs; it is then scaled and added in F32. Every output
// adds its groups in order in one accumulator, so its bits depend neither on the rows beside it nor on the target.
#pragma once

#include <bit>

#include "tessera/backends/cpu/simd/linear-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::backends::cpu::simd {
namespace {  // NOLINT(google-build-namespaces)

using I16 = hn::Repartition<std::int16_t, F32>;
using U16 = hn::Repartition<std::uint16_t, F32>;

// Rows of a tile at most: their integer sums, a word of weights, its codes and a mask fill the registers of AVX2.
inline constexpr int kInt4TileRows = kLanes == 8 ? 4 : 8;
inline constexpr std::int64_t kWordsAGroup = Int16Group::kElements / 8;
// Groups of k in a block: 8 KB of words a panel, which stay in the first cache while every tile of rows takes them.
inline constexpr std::int64_t kBlockGroups = 32;

// Adds two codes of a word times the two elements that lie at `pair` of each row's eight.
template <int kRows>
HWY_INLINE void int4_step(hn::Vec<I32> (&integers)[kRows][kPanelVectors], const hn::Vec<U16> (&codes)[kPanelVectors],
                          const Int16Group* const (&rows)[kRows], std::int64_t g, std::int64_t pair) {
  const I32 di;
  const I16 d16;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    std::int32_t both;
    std::memcpy(&both, rows[r][g].x + 2 * pair, sizeof both);
    const auto x = hn::BitCast(d16, hn::Set(di, both));
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      auto unused = hn::Zero(di);
      integers[r][v] = hn::ReorderWidenMulAccumulate(di, hn::BitCast(d16, codes[v]), x, integers[r][v], unused);
      // Emits nothing. GCC knows that integer sums may be reordered, and would hold all products of a group, in memory.
      asm("" : "+v"(integers[r][v].raw));
    }
  }
}

// sums[kRows][16] over groups [begin, end).
template <int kRows>
void int4_tile(const Int16Group* const* in, const std::byte* panel, std::int64_t k, int scale_shift, std::int64_t begin,
               std::int64_t end, Sums mode, float* sums) {
  const F32 d;
  const I32 di;
  const U16 du16;
  const Int16Group* rows[kRows];
  V acc[kRows][kPanelVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    rows[r] = in[r];
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      acc[r][v] = mode == Sums::kStart ? zero() : hn::Load(d, sums + (r * kPanelVectors + v) * kLanes);
    }
  }
  const auto* words = reinterpret_cast<const std::uint16_t*>(panel);
  const auto* scales = reinterpret_cast<const std::uint16_t*>(panel + k / 2 * kPanelOutputs);
  const auto low = hn::Set(du16, std::uint16_t{15});
  for (std::int64_t g = begin; g < end; ++g) {
    hn::Vec<I32> integers[kRows][kPanelVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVectors; ++v) integers[r][v] = hn::Set(di, rows[r][g].offset);
    }
    for (std::int64_t word = 0; word < kWordsAGroup; ++word) {
      __builtin_prefetch(words + (g * kWordsAGroup + word) * 2 * kPanelOutputs + kPrefetchBytes / 2);
      hn::Vec<U16> raw[kPanelVectors];
      hn::Vec<U16> codes[kPanelVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVectors; ++v) {
        raw[v] = hn::LoadU(du16, words + ((g * kWordsAGroup + word) * kPanelVectors + v) * 2 * kLanes);
        codes[v] = hn::And(raw[v], low);
      }
      int4_step<kRows>(integers, codes, rows, g, 4 * word + 0);
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVectors; ++v) codes[v] = hn::And(hn::ShiftRight<4>(raw[v]), low);
      int4_step<kRows>(integers, codes, rows, g, 4 * word + 1);
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVectors; ++v) codes[v] = hn::And(hn::ShiftRight<8>(raw[v]), low);
      int4_step<kRows>(integers, codes, rows, g, 4 * word + 2);
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVectors; ++v) codes[v] = hn::ShiftRight<12>(raw[v]);
      int4_step<kRows>(integers, codes, rows, g, 4 * word + 3);
    }
    const std::uint16_t* scale = scales + (g >> scale_shift) * kPanelOutputs;
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      const V w = load_bf16(scale + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V x = hn::Mul(hn::ConvertTo(d, integers[r][v]), hn::Set(d, rows[r][g].scale));
        acc[r][v] = hn::MulAdd(x, w, acc[r][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) hn::Store(acc[r][v], d, sums + (r * kPanelVectors + v) * kLanes);
  }
}

template <int kRows = kInt4TileRows>
void int4_tile_of_rows(std::int64_t row_count, const Int16Group* const* in, const std::byte* panel, std::int64_t k,
                       int scale_shift, std::int64_t begin, std::int64_t end, Sums mode, float* sums) {
  if constexpr (kRows > 1) {
    if (row_count < kRows) {
      return int4_tile_of_rows<kRows - 1>(row_count, in, panel, k, scale_shift, begin, end, mode, sums);
    }
  }
  int4_tile<kRows>(in, panel, k, scale_shift, begin, end, mode, sums);
}

void linear_int4(const LinearTask& task) {
  alignas(64) float sums[kLinearRowsMax * kPanelOutputs];
  const std::int64_t groups = task.k / Int16Group::kElements;
  // Groups of activations that share a scale: 1, 2 or 4.
  const int scale_shift = std::countr_zero(static_cast<std::uint32_t>(task.group_size / Int16Group::kElements));
  const std::int64_t stride = panel_bytes(task.format, task.k, task.group_size);
  const InputRows<Int16Group> in(task, task.in_int16, groups);
  const std::int64_t rows = task.row_end - task.row_begin;
  const std::int64_t tiles = (rows + kInt4TileRows - 1) / kInt4TileRows;
  // A single tile takes all of k at once.
  const std::int64_t block = tiles == 1 ? groups : kBlockGroups;
  for (std::int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    for (std::int64_t first = 0; first < groups; first += block) {
      const std::int64_t end = first + block < groups ? first + block : groups;
      for (std::int64_t t = 0; t < tiles; ++t) {
        const std::int64_t row = rows * t / tiles;
        int4_tile_of_rows(rows * (t + 1) / tiles - row, in.row + row, task.panels + panel * stride, task.k, scale_shift,
                          first, end, first == 0 ? Sums::kStart : Sums::kContinue, sums + row * kPanelOutputs);
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) store_outputs(task, task.row_begin + r, panel, 1, sums + r * kPanelOutputs);
  }
}

void int16_groups(const float* in, std::int64_t count, Int16Group* out) {
  const F32 d;
  const I32 di;
  const U32 du;
  constexpr std::int64_t kElements = Int16Group::kElements;
  for (std::int64_t i = 0; i < count; i += kElements, ++out) {
    // As integers, so that NaN and infinity, whose exponents are the largest, count as largest.
    auto best = hn::Zero(du);
    for (std::int64_t j = 0; j < kElements; j += kLanes) {
      best = hn::Max(best, hn::And(hn::BitCast(du, hn::LoadU(d, in + i + j)), hn::Set(du, 0x7fffffffu)));
    }
    const std::uint32_t exponent = hn::GetLane(hn::MaxOfLanes(du, best)) >> 23;
    if (exponent == 255) {
      *out = Int16Group{.scale = __builtin_nanf("")};
      continue;
    }
    // The largest becomes 2^14 to 2^15. Below 2^-112 the scale stays what it is there: its reciprocal must be finite.
    const std::uint32_t biased = exponent < 15 ? 15 : exponent;
    const std::uint32_t scale_bits = (biased - 14) << 23;
    const std::uint32_t inverse_bits = (268 - biased) << 23;
    float inverse;
    std::memcpy(&out->scale, &scale_bits, sizeof scale_bits);
    std::memcpy(&inverse, &inverse_bits, sizeof inverse_bits);
    alignas(64) std::int32_t x[kElements];
    auto sum = hn::Zero(di);
    for (std::int64_t j = 0; j < kElements; j += kLanes) {
      const auto rounded = hn::NearestInt(hn::Mul(hn::LoadU(d, in + i + j), hn::Set(d, inverse)));
      const auto kept = hn::Min(rounded, hn::Set(di, 32767));  // -2^15 fits.
      sum = hn::Add(sum, kept);
      hn::Store(kept, di, x + j);
    }
    out->offset = -8 * hn::GetLane(hn::SumOfLanes(di, sum));
    for (std::int64_t j = 0; j < kElements; j += 8) {
      for (std::int64_t e = 0; e < 4; ++e) {
        out->x[j + 2 * e] = static_cast<std::int16_t>(x[j + e]);
        out->x[j + 2 * e + 1] = static_cast<std::int16_t>(x[j + e + 4]);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
