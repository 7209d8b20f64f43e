// Brings linear and router weights into panels (kernels.h has their layouts).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/dtype.h"

namespace tessera::backends::cpu::simd {

namespace {

using ops::WeightFormat;

// Element `index` of an array that may lie at any byte of a mapped file.
template <typename T>
T load(const void* from, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(from) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Output features of one panel: `rows` from row `first` of the source on.
struct PanelRows {
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

// BF16 [pair][16][2], F32 [k][16].
template <typename Element>
void pack_plain(const ops::Weight& source, PanelRows of, std::byte* panel) {
  constexpr bool kPaired = sizeof(Element) == 2;
  auto* to = reinterpret_cast<Element*>(panel);
  const std::int64_t k = source.cols;
  std::fill_n(to, base::round_up(k, 2) * kPanelOutputs, Element{0});
  for (std::int64_t r = 0; r < of.rows; ++r) {
    for (std::int64_t i = 0; i < k; ++i) {
      to[kPaired ? (i / 2 * kPanelOutputs + r) * 2 + i % 2 : i * kPanelOutputs + r] =
          load<Element>(source.data, (of.first + r) * k + i);
    }
  }
}

void pack_f8(const ops::Weight& source, PanelRows of, std::byte* panel) {
  const std::int64_t k = source.cols;
  const std::int64_t blocks = base::ceil_div(k, kF8BlockK);
  std::memset(panel, 0, static_cast<std::size_t>(panel_bytes(source.format, k, 0)));
  auto* outputs = reinterpret_cast<float*>(panel);
  float* block_scales = outputs + kPanelOutputs;
  const bool by_block = source.format == WeightFormat::kF8Block128;
  float largest = 0.0f;
  for (std::int64_t b = 0; b < blocks; ++b) {
    block_scales[b] = by_block ? load<float>(source.scales, of.first / kF8BlockK * blocks + b) : 1.0f;
    if (std::isfinite(block_scales[b])) largest = std::max(largest, std::abs(block_scales[b]));
  }
  // 2^kF8BlockShift beside a block's scale must not overflow: large ones are held smaller, and the outputs' scale makes
  // it good. Both are powers of two, which change no bit while
  // scales of one panel lie within 2^200 of each other.
  const int excess = largest >= 128.0f ? std::ilogb(largest) - 6 : 0;
  for (std::int64_t b = 0; b < blocks; ++b) block_scales[b] = std::ldexp(block_scales[b], kF8BlockShift - excess);
  auto* codes = reinterpret_cast<std::uint8_t*>(panel + f8_header_bytes(k));
  for (std::int64_t r = 0; r < of.rows; ++r) {
    outputs[r] = by_block ? std::ldexp(1.0f, excess) : load<float>(source.scales, of.first + r);
    const auto* from = static_cast<const std::uint8_t*>(source.data) + (of.first + r) * k;
    for (std::int64_t i = 0; i < k; ++i) {
      if ((from[i] & 0x7f) == 0x7f) outputs[r] = std::nanf("");
      codes[(i / 4 * kPanelOutputs + r) * 4 + i % 4] = from[i];
    }
  }
}

void pack_int4(const ops::Weight& source, PanelRows of, std::byte* panel) {
  const std::int64_t words = source.cols / 8;
  const std::int64_t groups = source.cols / source.group_size;
  std::memset(panel, 0, static_cast<std::size_t>(panel_bytes(source.format, source.cols, source.group_size)));
  auto* to = reinterpret_cast<std::uint32_t*>(panel);
  auto* scales = reinterpret_cast<std::uint16_t*>(panel + words * kPanelOutputs * 4);
  for (std::int64_t r = 0; r < of.rows; ++r) {
    for (std::int64_t i = 0; i < words; ++i) {
      to[i * kPanelOutputs + r] = load<std::uint32_t>(source.data, (of.first + r) * words + i);
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      scales[g * kPanelOutputs + r] = load<std::uint16_t>(source.scales, (of.first + r) * groups + g);
    }
  }
}

void pack_panel(const ops::Weight& source, PanelRows of, std::byte* panel) {
  switch (source.format) {
    case WeightFormat::kF32:
      return pack_plain<std::uint32_t>(source, of, panel);
    case WeightFormat::kBF16:
      return pack_plain<std::uint16_t>(source, of, panel);
    case WeightFormat::kF8Block128:
    case WeightFormat::kF8Channel:
      return pack_f8(source, of, panel);
    case WeightFormat::kInt4Group:
      return pack_int4(source, of, panel);
  }
}

}  // namespace

base::Result<ops::Weight> SimdBackend::prepare_weight(const ops::WeightSource& source) {
  const bool multiplies = source.usage == ops::WeightUsage::kLinear || source.usage == ops::WeightUsage::kRouter;
  if (!multiplies) return prepare_row_major_weight(source);
  // The plain form, in place, serves as the check of format and shape. A router's is F32 already.
  ops::WeightSource in_place = source;
  in_place.outlives_backend = true;
  in_place.scales_outlive_backend = true;
  TESSERA_ASSIGN_OR_RETURN(ops::Weight plain, prepare_row_major_weight(in_place));
  ops::Weight weight;
  weight.format = plain.format;
  weight.usage = plain.usage;
  weight.rows = plain.rows;
  weight.cols = plain.cols;
  weight.group_size = plain.group_size;
  const std::int64_t panels = base::ceil_div(weight.rows, kPanelOutputs);
  const std::int64_t bytes_a_panel = panel_bytes(weight.format, weight.cols, weight.group_size);
  TESSERA_ASSIGN_OR_RETURN(weight.storage, allocate(panels * bytes_a_panel, "linear weight"));
  weight.data = weight.storage.data();
  threads_.parallel_for(panels, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t first = p * kPanelOutputs;
      pack_panel(plain, {first, std::min(kPanelOutputs, plain.rows - first)},
                 weight.storage.data() + p * bytes_a_panel);
    }
  });
  return weight;
}

}  // namespace tessera::backends::cpu::simd
