// Where a token's keys and values lie inside the KV cache. The byte layout is written down for people in
// docs/kv_page.md; the two change together. C++20, so that device code may include it.
//
// A layer stores one or more parts for each token. GQA has two: K and V, each [kv_heads, head_dim] with one scale per
// head. MLA has one: latent and rope side by side ([512 | 64]) with a scale for each of the two. A part is an array
// [num_pages, page_size, elements] and, in FP8, beside it an array of BF16 scales [num_pages, page_size, scales].
// Element x of a row is data * scale of its scale group; the groups divide the row in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/base/arithmetic.h"
#include "tessera/base/dtype.h"

namespace tessera::ops {

enum class KvFormat : std::uint8_t { kF32, kBF16, kF8E4M3 };

constexpr base::DType kv_dtype(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return base::DType::kF32;
    case KvFormat::kBF16:
      return base::DType::kBF16;
    case KvFormat::kF8E4M3:
      return base::DType::kF8E4M3;
  }
  return base::DType::kF32;
}

// "f32", "bf16", "fp8_e4m3": flags, metrics and /v1/models say it so.
constexpr const char* kv_format_name(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "f32";
    case KvFormat::kBF16:
      return "bf16";
    case KvFormat::kF8E4M3:
      return "fp8_e4m3";
  }
  return "?";
}

// Page 0 of every pool is the null page: never handed out; a sanitized row points at it.
inline constexpr std::int32_t kNullPage = 0;
// A slot that nothing may be written to.
inline constexpr std::int64_t kNullSlot = -1;

// One array of a layer. The scale groups divide its elements in order.
struct KvPart {
  std::int32_t elements = 0;      // Per token.
  std::int32_t scales = 0;        // Per token; used in FP8 only.
  std::int32_t first_group = 0;   // Elements of the first scale group.
  std::int32_t other_groups = 0;  // Elements of each further group (all equal); 0 when there is only one.
};

struct KvLayout {
  static constexpr int kPartsMax = 3;
  KvFormat format = KvFormat::kBF16;
  std::int32_t num_layers = 0;
  std::int32_t page_size = 64;  // Tokens a page.
  std::int32_t num_parts = 0;
  std::array<KvPart, kPartsMax> parts{};

  friend bool operator==(const KvLayout& a, const KvLayout& b) {
    if (a.format != b.format || a.num_layers != b.num_layers || a.page_size != b.page_size) return false;
    if (a.num_parts != b.num_parts) return false;
    for (int p = 0; p < a.num_parts; ++p) {
      if (a.parts[p].elements != b.parts[p].elements || a.parts[p].scales != b.parts[p].scales) return false;
    }
    return true;
  }

  bool has_scales() const { return format == KvFormat::kF8E4M3; }
  std::int64_t element_bytes() const { return base::dtype_size(kv_dtype(format)); }

  // Bytes of one token in one part of one layer: its data, and its scales.
  std::int64_t row_bytes(int part) const { return parts[part].elements * element_bytes(); }
  std::int64_t row_scale_bytes(int part) const { return has_scales() ? parts[part].scales * 2 : 0; }
  // Bytes of one token in one layer, and in all layers (what "KV bytes a token" means).
  std::int64_t token_layer_bytes() const {
    std::int64_t bytes = 0;
    for (int p = 0; p < num_parts; ++p) bytes += row_bytes(p) + row_scale_bytes(p);
    return bytes;
  }
  std::int64_t token_bytes() const { return token_layer_bytes() * num_layers; }
  // One layer of one page as it travels (a "page image"): for each part, data [page_size, elements], then scales
  // [page_size, scales], without padding.
  std::int64_t page_layer_bytes() const { return token_layer_bytes() * page_size; }
  std::int64_t page_bytes() const { return page_layer_bytes() * num_layers; }

  // Offsets inside a page image.
  std::int64_t image_data_offset(int part) const {
    std::int64_t offset = 0;
    for (int p = 0; p < part; ++p) offset += (row_bytes(p) + row_scale_bytes(p)) * page_size;
    return offset;
  }
  std::int64_t image_scale_offset(int part) const { return image_data_offset(part) + row_bytes(part) * page_size; }

  // Bytes of a pool of num_pages pages (the null page included), every array aligned to 256 bytes.
  std::int64_t pool_bytes(std::int64_t num_pages) const { return layer_bytes(num_pages) * num_layers; }
  std::int64_t layer_bytes(std::int64_t num_pages) const {
    std::int64_t bytes = 0;
    for (int p = 0; p < num_parts; ++p) bytes += part_data_bytes(p, num_pages) + part_scale_bytes(p, num_pages);
    return bytes;
  }
  std::int64_t part_data_bytes(int part, std::int64_t num_pages) const {
    return base::round_up(row_bytes(part) * page_size * num_pages, 256);
  }
  std::int64_t part_scale_bytes(int part, std::int64_t num_pages) const {
    return base::round_up(row_scale_bytes(part) * page_size * num_pages, 256);
  }
};

// K and V of grouped-query attention.
constexpr KvLayout gqa_kv_layout(KvFormat format, std::int32_t num_layers, std::int32_t page_size,
                                 std::int32_t kv_heads, std::int32_t head_dim) {
  KvLayout layout;
  layout.format = format;
  layout.num_layers = num_layers;
  layout.page_size = page_size;
  layout.num_parts = 2;
  const KvPart part{kv_heads * head_dim, kv_heads, head_dim, kv_heads > 1 ? head_dim : 0};
  layout.parts = {part, part, KvPart{}};
  return layout;
}

// Part indices of grouped-query attention.
inline constexpr int kPartK = 0;
inline constexpr int kPartV = 1;

// A KV cache in device memory: `base` holds layout.pool_bytes(num_pages) bytes, layer after layer, in each layer part
// after part, data before scales.
struct KvCacheView {
  KvLayout layout;
  std::byte* base = nullptr;
  std::int64_t num_pages = 0;  // The null page included.

  // First byte of a part's data, and of its scales, in one page of one layer: [page_size, elements], [page_size,
  // scales].
  std::byte* page_data(int layer, int part, std::int64_t page) const {
    return base + part_offset(layer, part) + page * layout.row_bytes(part) * layout.page_size;
  }
  std::byte* page_scales(int layer, int part, std::int64_t page) const {
    return base + part_offset(layer, part) + layout.part_data_bytes(part, num_pages) +
           page * layout.row_scale_bytes(part) * layout.page_size;
  }

 private:
  std::int64_t part_offset(int layer, int part) const {
    std::int64_t offset = layout.layer_bytes(num_pages) * layer;
    for (int p = 0; p < part; ++p)
      offset += layout.part_data_bytes(p, num_pages) + layout.part_scale_bytes(p, num_pages);
    return offset;
  }
};

}  // namespace tessera::ops
