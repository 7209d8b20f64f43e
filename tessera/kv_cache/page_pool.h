// The pages of one engine: who holds which, under which tag. Used from the engine's thread only.
//
// Host state and the device's records (tags, owners, positions, lease counts) are kept apart on purpose: the check of a
// step compares the device's arrays with the tags that sequences were given (their leases), never a copy with itself.
// Tags change at every allocation and again at every free, before the page can be handed to anybody else.
//
// States of a page (docs/kv_page.md draws the transitions):
//   free         nobody's; its tag on the device is 0
//   leased       one or more leases
//   cached       no lease; kept by the prefix cache, evictable
//   quarantined  may not be handed out: a check failed on it, or a write to it may still be in flight
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/ops/backend.h"

namespace tessera::kv_cache {

enum class PageState : std::uint8_t { kFree, kLeased, kCached, kQuarantined };

struct PageCounts {
  std::int64_t total = 0;  // The null page not counted.
  std::int64_t free = 0;
  std::int64_t leased = 0;
  std::int64_t cached = 0;
  std::int64_t quarantined = 0;
};

class PagePool {
 public:
  // Allocates the cache and the records for num_pages usable pages (plus the null page), and clears both.
  static base::Result<std::unique_ptr<PagePool>> create(ops::Backend& backend, ops::Stream& stream,
                                                        const ops::KvLayout& layout, std::int64_t num_pages);

  // A free page, with a new tag, written to the device's records on the stream. resource_exhausted when none is free.
  base::Result<Lease> allocate(ops::Stream& stream, PageOwner owner, std::int32_t position);
  // One more lease on a leased or cached page. `lease` must carry the page's current tag (checked).
  Lease share(ops::Stream& stream, const Lease& lease);
  // Ends a lease. The last one frees the page (its tag changes at once), or leaves it cached if the prefix cache holds
  // it. Releasing a lease whose tag is not the page's current one is a double free: counted, logged, and without effect
  // (corruption status).
  base::Status release(ops::Stream& stream, const Lease& lease);
  // Hands a page over to the prefix cache or takes it back: a page that the cache holds becomes `cached`, not free,
  // when its last lease ends. set_cached also rewrites the owner (from its sequence to its chain) and returns the lease
  // as it is from now on; every holder must use that one.
  Lease set_cached(ops::Stream& stream, const Lease& lease, PageOwner chain_owner);
  // The cache lets go. Frees the page if nobody leases it.
  base::Status drop_cached(ops::Stream& stream, const Lease& lease);
  // The page is never handed out again until audit(). Its tag changes, so every other holder's next check fails. Leases
  // on it end silently: releasing them later is not a double free.
  void quarantine(ops::Stream& stream, PageId page, std::string_view reason);

  PageState state(PageId page) const;
  std::int32_t lease_count(PageId page) const;
  PageCounts counts() const;
  std::int64_t double_frees() const { return double_frees_; }
  // free + leased + cached + quarantined == total, every page exactly once on its list, device records equal to the
  // host's for pages that are not quarantined. Reads device memory back; run it when idle and in tests.
  base::Status check_conservation(ops::Stream& stream);

  const ops::KvCacheView& cache() const { return cache_; }
  const ops::PageRecords& records() const { return records_; }
  const ops::KvLayout& layout() const { return cache_.layout; }
  std::int64_t device_bytes() const { return storage_.bytes() + record_storage_.bytes(); }

 private:
  PagePool(ops::Backend& backend, ops::KvCacheView cache, ops::Buffer storage, ops::Buffer record_storage,
           std::int64_t num_pages);
  struct Page {
    PageState state = PageState::kFree;
    PageTag tag = 0;
    PageOwner owner = 0;
    std::int32_t position = -1;
    std::int32_t leases = 0;
    bool held_by_cache = false;
  };
  void write_record(ops::Stream& stream, PageId page);

  ops::Backend& backend_;
  ops::KvCacheView cache_;
  ops::PageRecords records_;
  ops::Buffer storage_;
  ops::Buffer record_storage_;
  std::vector<Page> pages_;
  std::vector<PageId> free_;
  PageTag next_tag_;
  std::int64_t double_frees_ = 0;
};

}  // namespace tessera::kv_cache
