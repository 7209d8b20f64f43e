#include "tests/corruption/page_bytes.h"

#include <cstring>

#include "tessera/base/check.h"

namespace tessera::test_support {

using kv_cache::PageId;
using kv_cache::PageState;

std::vector<ByteSite> byte_sites(const ops::KvLayout& layout) {
  std::vector<ByteSite> sites;
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int part = 0; part < layout.layer_parts(layer); ++part) {
      const std::string place = "layer " + std::to_string(layer) + ", part " + std::to_string(part);
      sites.push_back({place + ", data", layer, part, ByteSite::Kind::kData});
      if (layout.part_has_scales(part)) sites.push_back({place + ", scales", layer, part, ByteSite::Kind::kScales});
    }
  }
  sites.push_back({"recorded digest", 0, 0, ByteSite::Kind::kRecordedDigest});
  return sites;
}

bool flip(kv_cache::PagePool& pool, const ByteSite& site, PageId page, std::int32_t slot) {
  const PageState state = pool.state(page);
  const bool in_use = state == PageState::kWriting || state == PageState::kInTransfer || slot < pool.filled(page);
  const ops::KvLayout& layout = pool.layout();
  if (site.kind == ByteSite::Kind::kRecordedDigest) {
    pool.digests()[page] ^= 1ull << (slot % 64);
    return in_use;
  }
  const bool scales = site.kind == ByteSite::Kind::kScales;
  const std::int64_t row = scales ? layout.row_scale_bytes(site.part) : layout.row_bytes(site.part);
  std::byte* begin = scales ? pool.cache().page_scales(site.layer, site.part, page)
                            : pool.cache().page_data(site.layer, site.part, page);
  // The last byte of the row: what a digest that stops short would miss.
  std::byte& target = begin[(slot + 1) * row - 1];
  const std::byte before = target;
  target ^= std::byte{0x04};
  return in_use && row > 0 && target != before;
}

PageId cached_page(const kv_cache::PagePool& pool, std::int32_t position) {
  PageId found = 0;
  for (PageId page = 1; page <= pool.counts().total; ++page) {
    if (pool.state(page) != PageState::kCached || pool.position(page) != position) continue;
    TESSERA_CHECK(found == 0, "two cached pages at the position");
    found = page;
  }
  TESSERA_CHECK(found != 0, "no cached page at the position");
  return found;
}

void copy_page(kv_cache::PagePool& pool, PageId from, PageId to) {
  const ops::KvLayout& layout = pool.layout();
  const ops::KvCacheView& cache = pool.cache();
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int part = 0; part < layout.layer_parts(layer); ++part) {
      std::memcpy(cache.page_data(layer, part, to), cache.page_data(layer, part, from),
                  static_cast<std::size_t>(layout.row_bytes(part) * layout.page_size));
      std::memcpy(cache.page_scales(layer, part, to), cache.page_scales(layer, part, from),
                  static_cast<std::size_t>(layout.row_scale_bytes(part) * layout.page_size));
    }
  }
}

}  // namespace tessera::test_support
