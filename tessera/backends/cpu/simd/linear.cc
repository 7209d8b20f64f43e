// Linear weights and products: the panel layout, and how a product is cut for threads and caches.
#include <algorithm>
#include <cstring>

#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/arithmetic.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

namespace {

// Bytes of weights that a thread takes at a time, at least: 5 to 10 microseconds of reading.
constexpr std::int64_t kChunkBytes = 96 << 10;
// Panels of a chunk come in multiples of what a one-row tile takes on AVX2.
constexpr std::int64_t kPanelMultiple = 4;

// Copies one panel: `rows` output features from row `first` on.
template <typename Element>
void pack_panel(const std::byte* source, std::int64_t first, std::int64_t rows, std::int64_t k, std::byte* panel) {
  // BF16 [pair][16][2] and F32 [k][16], see kernels.h.
  constexpr bool kPaired = sizeof(Element) == 2;
  auto* to = reinterpret_cast<Element*>(panel);
  std::fill_n(to, base::round_up(k, 2) * kPanelOutputs, Element{0});
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::byte* from = source + (first + r) * k * static_cast<std::int64_t>(sizeof(Element));
    for (std::int64_t i = 0; i < k; ++i) {
      // The source may lie at any byte of a mapped file.
      Element value;
      std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(Element)), sizeof(Element));
      to[kPaired ? (i / 2 * kPanelOutputs + r) * 2 + i % 2 : i * kPanelOutputs + r] = value;
    }
  }
}

// Products with these have kernels here; the reference backend computes the others.
bool has_kernel(ops::WeightFormat format, ops::WeightUsage usage) {
  return usage == ops::WeightUsage::kLinear &&
         (format == ops::WeightFormat::kF32 || format == ops::WeightFormat::kBF16);
}

}  // namespace

base::Result<ops::Weight> SimdBackend::prepare_weight(const ops::WeightSource& source) {
  if (!has_kernel(source.format, source.usage)) return prepare_row_major_weight(source);
  // The plain form, in place, serves as the check of format and shape.
  ops::WeightSource in_place = source;
  in_place.outlives_backend = true;
  TESSERA_ASSIGN_OR_RETURN(ops::Weight plain, prepare_row_major_weight(in_place));
  ops::Weight weight;
  weight.format = source.format;
  weight.usage = source.usage;
  weight.rows = source.rows;
  weight.cols = source.cols;
  const std::int64_t panels = base::ceil_div(source.rows, kPanelOutputs);
  const std::int64_t bytes_a_panel = panel_bytes(source.format, source.cols);
  TESSERA_ASSIGN_OR_RETURN(weight.storage, allocate(panels * bytes_a_panel, "linear weight"));
  weight.data = weight.storage.data();
  const auto* from = static_cast<const std::byte*>(plain.data);
  threads_.parallel_for(panels, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t rows = std::min(kPanelOutputs, source.rows - p * kPanelOutputs);
      std::byte* to = weight.storage.data() + p * bytes_a_panel;
      if (source.format == ops::WeightFormat::kBF16) {
        pack_panel<std::uint16_t>(from, p * kPanelOutputs, rows, source.cols, to);
      } else {
        pack_panel<std::uint32_t>(from, p * kPanelOutputs, rows, source.cols, to);
      }
    }
  });
  return weight;
}

void SimdBackend::linear(ops::Stream& stream, const ops::LinearParams& params) {
  ops::check_params(params);
  if (!has_kernel(params.weight->format, params.weight->usage)) return reference_.linear(stream, params);
  const std::int64_t rows = params.in.rows;
  if (rows == 0) return;
  LinearTask task;
  task.format = params.weight->format;
  task.panels = static_cast<const std::byte*>(params.weight->data);
  task.k = params.weight->cols;
  task.n = params.weight->rows;
  task.in = params.in.f32();
  task.in_stride = params.in.row_stride;
  task.bias = params.bias == nullptr ? nullptr : static_cast<const float*>(params.bias->data);
  task.out = params.out.f32();
  task.out_stride = params.out.row_stride;
  task.mode = params.mode;

  const bool as_bf16 = kernels_.bf16_activations && task.format == ops::WeightFormat::kBF16;
  const std::int64_t padded_k = base::round_up(task.k, 2);
  const bool copied = as_bf16 || padded_k != task.k;
  const ScratchPool::Loan loan = scratch_.borrow(copied ? rows * padded_k * (as_bf16 ? 2 : 4) : 0);
  if (copied) {
    threads_.parallel_for(rows, std::max<std::int64_t>(1, (16 << 10) / task.k), [&](auto begin, auto end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float* from = params.in.f32() + r * params.in.row_stride;
        if (as_bf16) {
          std::uint16_t* to = loan.as<std::uint16_t>() + r * padded_k;
          kernels_.f32_to_bf16(from, task.k, to);
          if (padded_k != task.k) to[task.k] = 0;
        } else {
          float* to = loan.as<float>() + r * padded_k;
          std::copy_n(from, task.k, to);
          to[task.k] = 0.0f;
        }
      }
    });
    task.in = loan.as<float>();
    task.in_stride = padded_k;
    task.in_bf16 = as_bf16 ? loan.as<std::uint16_t>() : nullptr;
  }

  const std::int64_t panels = base::ceil_div(task.n, kPanelOutputs);
  const std::int64_t row_blocks = base::ceil_div(rows, kLinearRowsMax);
  const std::int64_t by_bytes = base::ceil_div(kChunkBytes, panel_bytes(task.format, task.k));
  const std::int64_t by_threads = base::ceil_div(panels, threads_.threads());
  const std::int64_t panels_a_chunk = base::round_up(std::min(by_bytes, by_threads), kPanelMultiple);
  const std::int64_t chunks = base::ceil_div(panels, panels_a_chunk);
  threads_.parallel_for(chunks * row_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      LinearTask part = task;
      const std::int64_t block = item % row_blocks;
      part.row_begin = rows * block / row_blocks;
      part.row_end = rows * (block + 1) / row_blocks;
      part.panel_begin = item / row_blocks * panels_a_chunk;
      part.panel_end = std::min(part.panel_begin + panels_a_chunk, panels);
      kernels_.linear(part);
    }
  });
}

}  // namespace tessera::backends::cpu::simd
