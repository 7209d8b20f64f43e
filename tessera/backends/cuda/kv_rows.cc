#include "tessera/backends/cuda/kernels/kv_rows.h"

namespace tessera::backends::cuda {

namespace {

// A part without its addresses and strides.
KvRowsPart part_of(const ops::KvLayout& layout, int p) {
  KvRowsPart part;
  const bool fp8 = layout.part_has_scales(p);
  part.element = fp8 ? KvElement::kF8E4M3 : KvElement::kBF16;
  part.scale = layout.part_scale_dtype(p) == base::DType::kF32 ? KvScale::kF32 : KvScale::kBF16;
  part.row_bytes = static_cast<std::int32_t>(layout.row_bytes(p));
  part.row_scale_bytes = static_cast<std::int32_t>(layout.row_scale_bytes(p));
  part.elements = layout.parts[p].elements;
  part.groups = fp8 ? layout.parts[p].scales : 0;
  part.first_group = layout.parts[p].first_group;
  part.other_groups = layout.parts[p].other_groups;
  return part;
}

KvRows rows_of(const ops::KvLayout& layout, int layer) {
  KvRows rows;
  rows.page_size = layout.page_size;
  rows.num_parts = layout.layer_parts(layer);
  rows.row_bytes = static_cast<std::int32_t>(layout.token_layer_bytes(layer));
  for (int p = 0; p < rows.num_parts; ++p) rows.parts[p] = part_of(layout, p);
  return rows;
}

}  // namespace

KvRows rows_of_cache(const ops::KvCacheView& cache, int layer) {
  KvRows rows = rows_of(cache.layout, layer);
  for (int p = 0; p < rows.num_parts; ++p) {
    KvRowsPart& part = rows.parts[p];
    part.data = cache.page_data(layer, p, 0);
    part.scales = cache.page_scales(layer, p, 0);
    part.page_stride = cache.layout.row_bytes(p) * cache.layout.page_size;
    part.scale_page_stride = cache.layout.row_scale_bytes(p) * cache.layout.page_size;
  }
  return rows;
}

KvLayers layers_of_cache(const ops::KvCacheView& cache) {
  const ops::KvLayout& layout = cache.layout;
  const auto bytes_before = [&](int part) { return layout.part_offset(part, cache.num_pages); };
  KvLayers layers;
  layers.first.page_size = layout.page_size;
  layers.first.num_parts = layout.num_parts;
  layers.first.row_bytes = static_cast<std::int32_t>(layout.page_layer_bytes_max() / layout.page_size);
  for (int p = 0; p < layout.num_parts; ++p) {
    KvRowsPart& part = layers.first.parts[p];
    part = part_of(layout, p);
    part.data = cache.base + bytes_before(p);
    part.scales = part.data + layout.part_data_bytes(p, cache.num_pages);
    part.page_stride = layout.row_bytes(p) * layout.page_size;
    part.scale_page_stride = layout.row_scale_bytes(p) * layout.page_size;
  }
  layers.layer_stride = bytes_before(layout.num_parts);
  if (layout.num_parts > 0 && layout.parts[layout.num_parts - 1].kind == ops::KvPartKind::kIndexKeys) {
    layers.layer_stride = bytes_before(layout.num_parts - 1);
    layers.index_bytes = bytes_before(layout.num_parts) - layers.layer_stride;
    layers.index_layers = layout.index_layers;
  }
  return layers;
}

KvRows rows_of_images(const ops::KvLayout& layout, int layer, std::byte* images) {
  KvRows rows = rows_of(layout, layer);
  for (int p = 0; p < rows.num_parts; ++p) {
    KvRowsPart& part = rows.parts[p];
    part.data = images + layout.image_data_offset(p);
    part.scales = images + layout.image_scale_offset(p);
    part.page_stride = layout.page_layer_bytes(layer);
    part.scale_page_stride = layout.page_layer_bytes(layer);
  }
  return rows;
}

}  // namespace tessera::backends::cuda
