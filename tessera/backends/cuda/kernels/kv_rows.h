// Where the rows of one layer of KV lie, in a cache or in page images, flattened for kernels: row `slot` of page `page`
// of part p begins at data + page * page_stride + slot * row_bytes. Offsets are 64-bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/ops/kv_layout.h"

namespace tessera::backends::cuda {

enum class KvElement : std::int32_t { kBF16, kF8E4M3 };

enum class KvScale : std::int32_t { kBF16, kF32 };  // Of index keys the latter.

struct KvRowsPart {
  KvElement element = KvElement::kBF16;
  KvScale scale = KvScale::kBF16;
  std::byte* data = nullptr;
  std::byte* scales = nullptr;
  std::int64_t page_stride = 0;        // Bytes.
  std::int64_t scale_page_stride = 0;  // Bytes.
  std::int32_t row_bytes = 0;
  std::int32_t row_scale_bytes = 0;
  std::int32_t elements = 0;
  std::int32_t groups = 0;  // Scale groups; of FP8 only.
  std::int32_t first_group = 0;
  std::int32_t other_groups = 0;
};

struct KvRows {
  std::int32_t page_size = 0;
  std::int32_t num_parts = 0;  // Those that the layer has.
  std::int32_t row_bytes = 0;  // Of these parts, scales included: one row as digests take it.
  KvRowsPart parts[ops::KvLayout::kPartsMax];
};

// The format is BF16 or FP8 (checked by the caller).
KvRows rows_of_cache(const ops::KvCacheView& cache, int layer);

// All layers of a cache: of each, `first` is what it would be were layer 0 one that has every part, and layer L begins
// some bytes further (kernels/row_hash_device.h adds them up). C++20, trivially copyable: a kernel's parameter.
struct KvLayers {
  KvRows first;
  std::int64_t layer_stride = 0;  // Bytes of a layer without index keys.
  std::int64_t index_bytes = 0;   // What those with index keys have more; 0 where all layers are alike.
  ops::LayerSet index_layers;
};

KvLayers layers_of_cache(const ops::KvCacheView& cache);

// Page i is image i. `images` may be null where they are only measured.
KvRows rows_of_images(const ops::KvLayout& layout, int layer, std::byte* images);

}  // namespace tessera::backends::cuda
