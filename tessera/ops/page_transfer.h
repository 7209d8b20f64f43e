// Moving pages between pools: gather (with conversion and digest), scatter, digest of what is stored. And the digests
// that a pool records of its own pages: added to as rows are written, compared when they are to be trusted.
//
// Digest of one layer of a page: the sum modulo 2^64, over its rows (slots) in use, of row_hash: XXH3-64 with seed
// digest_seed(key, layer, slot) over the row's bytes, part after part, in each part data then scales. A sum, so that
// adding a token costs one row. The digest of a page is the sum of those of its layers.
#pragma once

#include <cstdint>

#include "tessera/base/arithmetic.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/ops/verified_pages.h"
#include "tessera/ops/verify.h"

namespace tessera::ops {

// The seed of a row's hash: the key with layer and slot mixed in.
constexpr std::uint64_t digest_seed(std::uint64_t key, std::int32_t layer, std::int32_t slot) {
  return base::mix64((key ^ ((static_cast<std::uint64_t>(static_cast<std::uint32_t>(layer)) << 32) |
                             static_cast<std::uint32_t>(slot))) +
                     base::kMix64Step);
}

// Reads logical pages first_page .. first_page + num_pages of row `row` in one layer, converts them to target.format
// and writes them as page images (KvLayout::page_layer_bytes(layer) each, one after another) to `images`, with the
// digest of each. Slots at or past the row's kv_len are written as zero bytes and are not digested. Each part is
// converted from its dtype in the source to that in the target: BF16 to FP8, and index keys from F32, quantize as
// KvWriteParams says, but a scale group that holds NaN or infinity (only damaged memory does) becomes zeros under a NaN
// scale (0x7fc0, of index keys 0x7fc00000): attention over it gives NaN, and its sequence fails. NaN index keys make
// nothing fail, they are selected last (DsaSelectParams). Equal dtypes copy bytes, whatever they hold; F32 to BF16
// rounds. The formats may be equal, BF16 to FP8 or F32 to BF16; anything else is a programmer's error. A row that
// failed its check reads nothing: images are zero and digests 0.
struct GatherPagesParams {
  VerifiedPages pages;
  KvCacheView source;
  KvLayout target;  // Same parts, layers and page size as the source's; only the format may differ.
  std::int32_t layer = 0;
  std::int64_t row = 0;
  std::int32_t first_page = 0;
  std::int32_t num_pages = 0;
  std::uint64_t digest_key = 0;
  std::byte* images = nullptr;       // [num_pages, target.page_layer_bytes(layer)]
  std::uint64_t* digests = nullptr;  // [num_pages]
};

// Writes page images into the cache: token i of the slots array takes row i % page_size of image i / page_size. So the
// slots cover whole pages from the first image on, the last one possibly in part. Null slots are skipped.
struct ScatterPagesParams {
  WritableSlots slots;  // [tokens]
  KvCacheView target;   // The images are in its layout.
  std::int32_t layer = 0;
  const std::byte* images = nullptr;  // [ceil(tokens / page_size), page_layer_bytes(layer)]
};

// Digests what is stored: one number for each of num_pages logical pages of a row in one layer.
struct DigestPagesParams {
  VerifiedPages pages;
  KvCacheView cache;
  std::int32_t layer = 0;
  std::int64_t row = 0;
  std::int32_t first_page = 0;
  std::int32_t num_pages = 0;
  std::uint64_t digest_key = 0;
  std::uint64_t* digests = nullptr;  // [num_pages]
};

// Adds what was just written to the digests of its pages: for every slot that is not null, the row_hash of its row, as
// it is stored now, in each of num_layers layers from first_layer on, is added modulo 2^64 to digests[page of the
// slot]. Slots are distinct: a row that is added twice makes every later check of its page fail.
struct DigestTokensParams {
  WritableSlots slots;
  KvCacheView cache;
  std::int32_t first_layer = 0;
  std::int32_t num_layers = 0;
  std::uint64_t digest_key = 0;
  std::uint64_t* digests = nullptr;  // [cache.num_pages], added to.
};

// Entry `index` of row `row` of a page table.
struct PageTableEntry {
  std::int32_t row = 0;
  std::int32_t index = 0;
  friend bool operator==(const PageTableEntry&, const PageTableEntry&) = default;
};

// Digests whole pages, all layers, as they are stored now, and compares with what was recorded. Entry i stands for
// page = pages.table()[row][index], of which the slots below kv_lens[row] - index * page_size are in use (at least 0,
// at most page_size). Where the digests are equal, verdict i is RowVerdict{}; else it has kCheckDigest, logical_page
// `index` (entries know no window), page_id, the digest found and the one recorded. A null page passes unread: its row
// failed another check. So the host names each page once, however many rows have it. Entries lie in device memory, so
// that they are inside the table is the host's promise.
struct CheckDigestsParams {
  VerifiedPages pages;
  KvCacheView cache;
  std::uint64_t digest_key = 0;
  const std::uint64_t* recorded = nullptr;  // [cache.num_pages]
  std::int64_t count = 0;
  const PageTableEntry* entries = nullptr;  // [count]
  RowVerdict* verdicts = nullptr;           // [count]
};

}  // namespace tessera::ops
