// The bytes of pages as tests damage them: every kind of byte that a layer stores, and the recorded digest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/kv_cache/page_pool.h"

namespace tessera::test_support {

// One kind of byte of a page.
struct ByteSite {
  std::string name;
  int layer = 0;
  int part = 0;
  enum class Kind : std::uint8_t { kData, kScales, kRecordedDigest } kind = Kind::kData;
};

// Data and scales of every part of every layer, and the record.
std::vector<ByteSite> byte_sites(const ops::KvLayout& layout);

// Flips a bit of it in a slot of the page. True when the byte changed, and belongs to a slot that is in use: one that
// is filled, or is in a page that is being written or received.
bool flip(kv_cache::PagePool& pool, const ByteSite& site, kv_cache::PageId page, std::int32_t slot);

// The page that only the cache holds, at a position of its chain; the test has one such chain (checked).
kv_cache::PageId cached_page(const kv_cache::PagePool& pool, std::int32_t position);

// All bytes of a page in all layers.
void copy_page(kv_cache::PagePool& pool, kv_cache::PageId from, kv_cache::PageId to);

}  // namespace tessera::test_support
