// Where a token's keys and values lie inside the KV cache. The byte layout is written down for people in
// docs/kv_page.md; the two change together. C++20, so that device code may include it.
//
// A layer stores one or more parts for each token. GQA has two: K and V, each [kv_heads, head_dim] with one scale per
// head. MLA has one: latent and rope side by side ([512 | 64]) with a scale for each of the two; layers that select
// their own tokens (DSA's full indexer layers) have a second one after it, the index keys. A part is an array
// [num_pages, page_size, elements] and, where it is stored in FP8, beside it an array of scales
// [num_pages, page_size, scales]. Element x of a row is data * scale of its scale group; the groups divide the row in
// order.
#pragma once

#include <array>
#include <bit>
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

enum class KvPartKind : std::uint8_t {
  kValues,     // Stored in the layout's format, FP8 with BF16 scales; in every layer.
  kIndexKeys,  // Stored as e4m3 with F32 scales in BF16 and FP8 layouts (as F32 in F32 layouts); in some layers.
};

// One array of a layer. The scale groups divide its elements in order.
struct KvPart {
  std::int32_t elements = 0;      // Per token.
  std::int32_t scales = 0;        // Per token; used where the part is stored in FP8.
  std::int32_t first_group = 0;   // Elements of the first scale group.
  std::int32_t other_groups = 0;  // Elements of each further group (all equal); 0 when there is only one.
  KvPartKind kind = KvPartKind::kValues;
  friend bool operator==(const KvPart&, const KvPart&) = default;
};

// A set of layers of a model.
class LayerSet {
 public:
  static constexpr std::int32_t kLayersMax = 1024;
  constexpr void insert(std::int32_t layer) { words_[layer / 64] |= 1ull << (layer % 64); }
  constexpr bool contains(std::int32_t layer) const { return (words_[layer / 64] >> (layer % 64) & 1) != 0; }
  // How many members are below `layer` (<= kLayersMax).
  constexpr std::int32_t count_below(std::int32_t layer) const {
    std::int32_t count = 0;
    for (std::int32_t w = 0; w < layer / 64; ++w) count += std::popcount(words_[w]);
    if (layer % 64 != 0) count += std::popcount(words_[layer / 64] & ((1ull << (layer % 64)) - 1));
    return count;
  }
  // The bits, 64 layers a word, for the wire.
  constexpr const std::array<std::uint64_t, kLayersMax / 64>& words() const { return words_; }
  static constexpr LayerSet from_words(const std::array<std::uint64_t, kLayersMax / 64>& words) {
    LayerSet set;
    set.words_ = words;
    return set;
  }
  friend bool operator==(const LayerSet&, const LayerSet&) = default;

 private:
  std::array<std::uint64_t, kLayersMax / 64> words_{};
};

struct KvLayout {
  static constexpr int kPartsMax = 3;
  KvFormat format = KvFormat::kBF16;
  std::int32_t num_layers = 0;
  std::int32_t page_size = 64;  // Tokens a page.
  std::int32_t num_parts = 0;   // Of a layer that has them all; a part of index keys is the last.
  std::array<KvPart, kPartsMax> parts{};
  LayerSet index_layers;  // The layers that have the part of index keys; empty where there is no such part.

  friend bool operator==(const KvLayout&, const KvLayout&) = default;

  // Parts of one layer: 0 .. layer_parts(layer) - 1.
  int layer_parts(int layer) const {
    const bool last_is_index = num_parts > 0 && parts[num_parts - 1].kind == KvPartKind::kIndexKeys;
    return last_is_index && !index_layers.contains(layer) ? num_parts - 1 : num_parts;
  }

  // How a part's elements are stored, and whether scales lie beside them.
  base::DType part_dtype(int part) const {
    if (parts[part].kind == KvPartKind::kIndexKeys && format != KvFormat::kF32) return base::DType::kF8E4M3;
    return kv_dtype(format);
  }
  bool part_has_scales(int part) const { return part_dtype(part) == base::DType::kF8E4M3; }
  base::DType part_scale_dtype(int part) const {
    return parts[part].kind == KvPartKind::kIndexKeys ? base::DType::kF32 : base::DType::kBF16;
  }

  // Bytes of one token in one part of one layer: its data, and its scales.
  std::int64_t row_bytes(int part) const { return parts[part].elements * base::dtype_size(part_dtype(part)); }
  std::int64_t row_scale_bytes(int part) const {
    return part_has_scales(part) ? parts[part].scales * base::dtype_size(part_scale_dtype(part)) : 0;
  }
  // Bytes of one token in one layer, and in all layers (what "KV bytes a token" means).
  std::int64_t token_layer_bytes(int layer) const { return parts_bytes(layer_parts(layer)); }
  std::int64_t token_bytes() const {
    std::int64_t bytes = 0;
    for (int layer = 0; layer < num_layers; ++layer) bytes += token_layer_bytes(layer);
    return bytes;
  }
  // One layer of one page as it travels (a "page image"): for each part, data [page_size, elements], then scales
  // [page_size, scales], without padding. The largest of any layer sizes buffers.
  std::int64_t page_layer_bytes(int layer) const { return token_layer_bytes(layer) * page_size; }
  std::int64_t page_layer_bytes_max() const { return parts_bytes(num_parts) * page_size; }
  std::int64_t page_bytes() const { return token_bytes() * page_size; }

  // Offsets inside a page image.
  std::int64_t image_data_offset(int part) const { return parts_bytes(part) * page_size; }
  std::int64_t image_scale_offset(int part) const { return image_data_offset(part) + row_bytes(part) * page_size; }

  // Bytes of a pool of num_pages pages (the null page included), every array aligned to 256 bytes.
  std::int64_t pool_bytes(std::int64_t num_pages) const { return layer_offset(num_layers, num_pages); }
  std::int64_t layer_bytes(int layer, std::int64_t num_pages) const {
    return part_offset(layer_parts(layer), num_pages);
  }
  std::int64_t part_data_bytes(int part, std::int64_t num_pages) const {
    return base::round_up(row_bytes(part) * page_size * num_pages, 256);
  }
  std::int64_t part_scale_bytes(int part, std::int64_t num_pages) const {
    return base::round_up(row_scale_bytes(part) * page_size * num_pages, 256);
  }
  // Where a layer begins in the pool, and a part in its layer.
  std::int64_t layer_offset(int layer, std::int64_t num_pages) const {
    const std::int64_t all = part_offset(num_parts, num_pages);
    const bool last_is_index = num_parts > 0 && parts[num_parts - 1].kind == KvPartKind::kIndexKeys;
    if (!last_is_index) return all * layer;
    const std::int64_t with_index = index_layers.count_below(layer);
    return all * with_index + part_offset(num_parts - 1, num_pages) * (layer - with_index);
  }
  std::int64_t part_offset(int part, std::int64_t num_pages) const {
    std::int64_t offset = 0;
    for (int p = 0; p < part; ++p) offset += part_data_bytes(p, num_pages) + part_scale_bytes(p, num_pages);
    return offset;
  }

 private:
  // Bytes of a token in the first `count` parts.
  std::int64_t parts_bytes(int count) const {
    std::int64_t bytes = 0;
    for (int p = 0; p < count; ++p) bytes += row_bytes(p) + row_scale_bytes(p);
    return bytes;
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

// Multi-head latent attention: [latent | rope] with a scale for each, and in the layers of `index_layers` (none where
// index_head_dim is 0) index keys with one scale.
constexpr KvLayout mla_kv_layout(KvFormat format, std::int32_t num_layers, std::int32_t page_size,
                                 std::int32_t kv_lora_rank, std::int32_t qk_rope_head_dim,
                                 std::int32_t index_head_dim = 0, const LayerSet& index_layers = {}) {
  KvLayout layout;
  layout.format = format;
  layout.num_layers = num_layers;
  layout.page_size = page_size;
  layout.num_parts = index_head_dim > 0 ? 2 : 1;
  layout.parts[0] = KvPart{kv_lora_rank + qk_rope_head_dim, 2, kv_lora_rank, qk_rope_head_dim};
  if (index_head_dim > 0) {
    layout.parts[1] = KvPart{index_head_dim, 1, index_head_dim, 0, KvPartKind::kIndexKeys};
    layout.index_layers = index_layers;
  }
  return layout;
}

// Part indices of latent attention.
inline constexpr int kPartLatent = 0;
inline constexpr int kPartIndexKeys = 1;

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
    return layout.layer_offset(layer, num_pages) + layout.part_offset(part, num_pages);
  }
};

}  // namespace tessera::ops
