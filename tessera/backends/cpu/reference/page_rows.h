// Where the rows of one page lie, whether in the cache or in a page image, and the digest over them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/ops/kv_layout.h"
#include "tessera/ops/verified_pages.h"

namespace tessera::backends::cpu {

// One layer of one page: for each part that the layer has, its data [page_size, elements] and scales [page_size,
// scales].
template <typename Byte>
struct PageRows {
  std::array<Byte*, ops::KvLayout::kPartsMax> data{};
  std::array<Byte*, ops::KvLayout::kPartsMax> scales{};
};

inline PageRows<std::byte> rows_in_cache(const ops::KvCacheView& cache, int layer, std::int64_t page) {
  PageRows<std::byte> rows;
  for (int p = 0; p < cache.layout.layer_parts(layer); ++p) {
    rows.data[p] = cache.page_data(layer, p, page);
    rows.scales[p] = cache.page_scales(layer, p, page);
  }
  return rows;
}

// The same for any page of one layer. Where its parts begin is computed once: that takes all layers before it.
class LayerRows {
 public:
  LayerRows(const ops::KvCacheView& cache, int layer)
      : parts_(cache.layout.layer_parts(layer)), page_0_(rows_in_cache(cache, layer, 0)) {
    for (int p = 0; p < parts_; ++p) {
      data_bytes_[p] = cache.layout.row_bytes(p) * cache.layout.page_size;
      scale_bytes_[p] = cache.layout.row_scale_bytes(p) * cache.layout.page_size;
    }
  }
  PageRows<std::byte> in_page(std::int64_t page) const {
    PageRows<std::byte> rows;
    for (int p = 0; p < parts_; ++p) {
      rows.data[p] = page_0_.data[p] + page * data_bytes_[p];
      rows.scales[p] = page_0_.scales[p] + page * scale_bytes_[p];
    }
    return rows;
  }

 private:
  int parts_;
  PageRows<std::byte> page_0_;
  std::array<std::int64_t, ops::KvLayout::kPartsMax> data_bytes_{};
  std::array<std::int64_t, ops::KvLayout::kPartsMax> scale_bytes_{};
};

template <typename Byte>
PageRows<Byte> rows_in_image(const ops::KvLayout& layout, int layer, Byte* image) {
  PageRows<Byte> rows;
  for (int p = 0; p < layout.layer_parts(layer); ++p) {
    rows.data[p] = image + layout.image_data_offset(p);
    rows.scales[p] = image + layout.image_scale_offset(p);
  }
  return rows;
}

// Elements first .. first + count - 1 of one part of row `row`'s tokens, in one layer, positions 0 .. kv_len - 1, as
// dense floats [kv_len, count].
void read_tokens(const ops::KvCacheView& cache, std::int32_t layer, int part, const ops::VerifiedPages& pages,
                 std::int64_t row, std::int64_t first, std::int64_t count, std::vector<float>& out);

// The digest of one layer of a page whose first `slots` rows are in use (ops/page_transfer.h). `scratch` is resized to
// one row and reused.
std::uint64_t digest_rows(const ops::KvLayout& layout, const PageRows<std::byte>& rows, std::int32_t slots,
                          std::uint64_t key, std::int32_t layer, std::vector<std::byte>& scratch);

}  // namespace tessera::backends::cpu
