// KV write, and gather with the conversion from BF16 to FP8.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "tessera/backends/cpu/reference/kv_row.h"
#include "tessera/backends/cpu/reference/page_rows.h"
#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

namespace {

// Tokens of KV writes that are worth another thread.
constexpr std::int64_t kTokensAChunk = 16;

}  // namespace

void SimdBackend::encode_row(const ops::KvLayout& layout, int part, const float* x, std::byte* data,
                             std::byte* scales) {
  const ops::KvPart& shape = layout.parts[part];
  if (!layout.part_has_scales(part)) {
    kernels_.f32_to_bf16(x, shape.elements, reinterpret_cast<std::uint16_t*>(data));
    return;
  }
  const bool f32_scales = layout.part_scale_dtype(part) == base::DType::kF32;
  for (std::int64_t group = 0, first = 0; group < shape.scales; ++group) {
    const std::int64_t n = group == 0 ? shape.first_group : shape.other_groups;
    const float amax = kernels_.largest_magnitude(x + first, n);
    const base::BF16 rounded = kv_f8_scale(amax);
    const float scale = f32_scales ? index_key_scale(amax) : base::to_float(rounded);
    kernels_.f32_to_f8(x + first, scale, n, reinterpret_cast<std::uint8_t*>(data) + first);
    if (f32_scales) {
      std::memcpy(scales + group * 4, &scale, sizeof scale);
    } else {
      std::memcpy(scales + group * 2, &rounded, sizeof rounded);
    }
    first += n;
  }
}

void SimdBackend::kv_write(ops::Stream&, const ops::KvWriteParams& params) {
  ops::check_params(params);
  const ops::KvLayout& layout = params.cache.layout;
  TESSERA_CHECK(supports(layout.format));
  const std::int64_t page_size = layout.page_size;
  const int num_parts = layout.layer_parts(params.layer);
  const LayerRows layer_rows(params.cache, params.layer);
  const auto storable = [&](int part, const float* x) {
    const float largest = kernels_.largest_magnitude(x, layout.parts[part].elements);
    const bool rounds = layout.part_dtype(part) == base::DType::kBF16;
    return std::isfinite(rounds ? base::to_float(base::to_bf16(largest)) : largest);
  };
  threads_.parallel_for(params.slots.tokens(), kTokensAChunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t slot = params.slots.slots()[t];
      if (slot == ops::kNullSlot) continue;
      TESSERA_CHECK(slot >= page_size && slot < params.cache.num_pages * page_size, fmt::format("slot {}", slot));
      std::array<const float*, ops::KvLayout::kPartsMax> rows{};
      std::int64_t widest = 0;
      bool all_storable = true;
      for (int p = 0; p < num_parts; ++p) {
        rows[p] = params.parts[p].f32() + t * params.parts[p].row_stride;
        widest = std::max(widest, params.parts[p].cols);
        all_storable = all_storable && storable(p, rows[p]);
      }
      std::vector<float> zeros;
      if (!all_storable) {
        params.nonfinite_rows[t] = 1;
        zeros.resize(static_cast<std::size_t>(widest));
        rows.fill(zeros.data());
      }
      const PageRows<std::byte> page = layer_rows.in_page(slot / page_size);
      for (int p = 0; p < num_parts; ++p) {
        encode_row(layout, p, rows[p], page.data[p] + slot % page_size * layout.row_bytes(p),
                   page.scales[p] + slot % page_size * layout.row_scale_bytes(p));
      }
    }
  });
}

void SimdBackend::gather_pages(ops::Stream& stream, const ops::GatherPagesParams& params) {
  const ops::KvLayout& from = params.source.layout;
  const ops::KvLayout& to = params.target;
  if (from.format == to.format) return CpuBackendBase::gather_pages(stream, params);
  ops::check_params(params);
  TESSERA_CHECK(supports(from.format) && supports(to.format));
  const std::int32_t* table = params.pages.table() + params.row * params.pages.max_pages_per_row();
  const std::int32_t kv_len = params.pages.kv_lens()[params.row];
  threads_.parallel_for(params.num_pages, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row;
    std::vector<std::byte> hashed;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t logical_page = params.first_page + i;
      const auto slots = static_cast<std::int32_t>(
          std::clamp<std::int64_t>(kv_len - logical_page * from.page_size, 0, from.page_size));
      std::byte* image = params.images + i * to.page_layer_bytes(params.layer);
      std::memset(image, 0, static_cast<std::size_t>(to.page_layer_bytes(params.layer)));
      const PageRows<std::byte> source = rows_in_cache(params.source, params.layer, table[logical_page]);
      const PageRows<std::byte> target = rows_in_image(to, params.layer, image);
      for (int p = 0; p < from.layer_parts(params.layer); ++p) {
        if (from.part_dtype(p) == to.part_dtype(p)) {  // Index keys.
          std::memcpy(target.data[p], source.data[p], static_cast<std::size_t>(from.row_bytes(p) * slots));
          std::memcpy(target.scales[p], source.scales[p], static_cast<std::size_t>(from.row_scale_bytes(p) * slots));
          continue;
        }
        const std::int64_t elements = from.parts[p].elements;
        row.resize(static_cast<std::size_t>(elements));
        for (std::int32_t slot = 0; slot < slots; ++slot) {
          kernels_.bf16_to_f32(reinterpret_cast<const std::uint16_t*>(source.data[p] + slot * from.row_bytes(p)),
                               elements, row.data());
          std::byte* data = target.data[p] + slot * to.row_bytes(p);
          std::byte* scales = target.scales[p] + slot * to.row_scale_bytes(p);
          if (std::isfinite(kernels_.largest_magnitude(row.data(), elements))) {
            encode_row(to, p, row.data(), data, scales);
          } else {
            // No page that was written by kv_write: what the bytes then mean is defined in one place.
            encode_kv_row(to, p, row.data(), data, scales);
          }
        }
      }
      params.digests[i] = digest_rows(to, target, slots, params.digest_key, params.layer, hashed);
    }
  });
}

}  // namespace tessera::backends::cpu::simd
