// Products with FP8 weights (the panel layout is in kernels.h). A code becomes the F32 product of its value and its
// block's scale in a register: shifted into an F32's places it is the value times 2^-120, subnormals included, and one
// multiplication makes both good, rounded once. Few rows do so on the way, many rows once for a block of k.
#pragma once

#include "tessera/backends/cpu/simd/linear-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::backends::cpu::simd {
namespace {  // NOLINT(google-build-namespaces)

// Bytes of four k of a panel's outputs.
inline constexpr std::int64_t kF8QuadBytes = kPanelOutputs * 4;

// Codes of one k, the kByte-th of the four of a quad: [outputs of a vector] times 2^-120. Read from so many bytes
// before the quad that the code is the uppermost byte of its lane, since loads are cheaper than shifts (the panel's
// header lies before its first quad). The sign spreads over the exponent's upper bits, where the mask keeps it once.
template <int kByte>
HWY_INLINE V f8_codes(const std::byte* quad, int vector) {
  const U32 du;
  const auto* at = reinterpret_cast<const std::int32_t*>(quad + vector * kLanes * 4 - (3 - kByte));
  return hn::BitCast(F32(),
                     hn::And(hn::BitCast(du, hn::ShiftRight<4>(hn::LoadU(I32(), at))), hn::Set(du, 0x87f00000u)));
}

template <int kByte, int kRows, int kPanels>
HWY_INLINE void f8_step(V (&acc)[kRows][kPanels * kPanelVectors], const std::byte* quad, std::int64_t panel_stride,
                        const V (&scales)[kPanels], const float* const (&rows)[kRows], std::int64_t k) {
  const F32 d;
  V w[kPanels * kPanelVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kPanels * kPanelVectors; ++i) {
    const V codes = f8_codes<kByte>(quad + i / kPanelVectors * panel_stride, i % kPanelVectors);
    w[i] = hn::Mul(codes, scales[i / kPanelVectors]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const V x = hn::Set(d, rows[r][k + kByte]);
#pragma GCC unroll 16
    for (int i = 0; i < kPanels * kPanelVectors; ++i) acc[r][i] = hn::MulAdd(x, w[i], acc[r][i]);
  }
}

// A panel's sums times its outputs' scales.
HWY_INLINE void scale_f8_outputs(const std::byte* panel, float* sums) {
  const F32 d;
  for (int v = 0; v < kPanelVectors; ++v) {
    const V scale = hn::LoadU(d, reinterpret_cast<const float*>(panel) + v * kLanes);
    hn::Store(hn::Mul(hn::Load(d, sums + v * kLanes), scale), d, sums + v * kLanes);
  }
}

struct StoredF8 {
  static constexpr bool kWidens = true;
  static HWY_INLINE void widen(const std::byte* panel, std::int64_t k, std::int64_t first, std::int64_t pairs,
                               std::byte* to) {
    const F32 d;
    const auto* scales = reinterpret_cast<const float*>(panel) + kPanelOutputs;
    const std::byte* codes = panel + f8_header_bytes(k);
    auto* out = reinterpret_cast<float*>(to);
    for (std::int64_t quad = first / 2; quad < (first + pairs) / 2; ++quad) {
      const V scale = hn::Set(d, scales[quad * 4 / kF8BlockK]);
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVectors; ++v) {
        const std::byte* at = codes + quad * kF8QuadBytes;
        hn::Store(hn::Mul(f8_codes<0>(at, v), scale), d, out + v * kLanes);
        hn::Store(hn::Mul(f8_codes<1>(at, v), scale), d, out + kPanelOutputs + v * kLanes);
        hn::Store(hn::Mul(f8_codes<2>(at, v), scale), d, out + 2 * kPanelOutputs + v * kLanes);
        hn::Store(hn::Mul(f8_codes<3>(at, v), scale), d, out + 3 * kPanelOutputs + v * kLanes);
      }
      out += 4 * kPanelOutputs;
    }
  }
  static void finish(const std::byte* panel, std::int64_t, float* sums) { scale_f8_outputs(panel, sums); }
};

// Few rows: all of k at once.
template <int kRows, int kPanels>
void few_f8_rows_panels(const LinearTask& task, const InputRows<float>& in, std::int64_t panel) {
  const F32 d;
  constexpr int kVectors = kPanels * kPanelVectors;
  const std::int64_t stride = panel_bytes(task.format, task.k, task.group_size);
  const std::byte* first = task.panels + panel * stride;
  const std::byte* codes = first + f8_header_bytes(task.k);
  const float* rows[kRows];
  V acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    rows[r] = in.row[r];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) acc[r][i] = zero();
  }
  constexpr std::int64_t kQuadsABlock = kF8BlockK / 4;
  const std::int64_t quads = padded_k(task.format, task.k) / 4;
  for (std::int64_t block = 0; block * kQuadsABlock < quads; ++block) {
    V scales[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      scales[p] = hn::Set(d, reinterpret_cast<const float*>(first + p * stride)[kPanelOutputs + block]);
    }
    const std::int64_t end = (block + 1) * kQuadsABlock < quads ? (block + 1) * kQuadsABlock : quads;
    for (std::int64_t quad = block * kQuadsABlock; quad < end; ++quad) {
      const std::byte* at = codes + quad * kF8QuadBytes;
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) __builtin_prefetch(at + p * stride + kPrefetchBytes);
      f8_step<0, kRows, kPanels>(acc, at, stride, scales, rows, 4 * quad);
      f8_step<1, kRows, kPanels>(acc, at, stride, scales, rows, 4 * quad);
      f8_step<2, kRows, kPanels>(acc, at, stride, scales, rows, 4 * quad);
      f8_step<3, kRows, kPanels>(acc, at, stride, scales, rows, 4 * quad);
    }
  }
  alignas(64) float sums[kPanels * kPanelOutputs];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i) hn::Store(acc[r][i], d, sums + i * kLanes);
    for (int p = 0; p < kPanels; ++p) scale_f8_outputs(first + p * stride, sums + p * kPanelOutputs);
    store_outputs(task, task.row_begin + r, panel, kPanels, sums);
  }
}

template <int kRows = kTileRows>
void few_f8_rows(const LinearTask& task) {
  if constexpr (kRows > 1) {
    if (task.row_end - task.row_begin < kRows) return few_f8_rows<kRows - 1>(task);
  }
  // Two panels where registers are left for their codes: one row then has enough independent sums.
  constexpr int kMost = kRows * 2 * kPanelVectors <= (kLanes == 8 ? 8 : 24) ? 2 : 1;
  const InputRows<float> in(task, task.in, task.in_stride);
  std::int64_t panel = task.panel_begin;
  for (; panel + kMost <= task.panel_end; panel += kMost) few_f8_rows_panels<kRows, kMost>(task, in, panel);
  for (; panel < task.panel_end; ++panel) few_f8_rows_panels<kRows, 1>(task, in, panel);
}

void linear_f8(const LinearTask& task) {
  has_few_rows(task) ? few_f8_rows(task) : many_rows<F32Product, StoredF8>(task);
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
