// The pages of one engine: who holds which, under which tag. Used from the engine's thread only.
//
// Host state and the device's records (tags, owners, positions, lease counts) are kept apart on purpose: the check of a
// step compares the device's arrays with the tags that sequences were given (their leases), never a copy with itself.
// Tags change at every allocation and again at every free, before the page can be handed to anybody else.
//
// A page's states, and what may follow what, are page_life.h's; docs/kv_page.md says who does it. Every function here
// that changes a page makes one transition of that table, and aborts on any other: to share a page that was never
// written, to write to a shared one or to give one back in the middle of a step are programmer's errors.
//
// Records are copied to the device on the caller's stream. Host memory behind such a copy may change before the copy
// runs; then it carries a newer value, and the copy of that newer value follows it: the records only ever become
// stricter early (a tag that ended), never later.
//
// The digest of a page is a record of the device alone: what its rows hashed to when they were written, with a key that
// only this pool has. Steps and handoffs add to it (ops::DigestTokensParams); the pool clears it where a life begins
// and ends, and remembers how many slots it covers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/kv_cache/page_life.h"
#include "tessera/ops/backend.h"

namespace tessera::fault_injection {
struct Access;  // Tests' way to break what is checked; tests/support/fault_access.h.
}

namespace tessera::kv_cache {

// Why a page is in quarantine; both may hold.
enum class QuarantineCause : std::uint8_t {
  kFailedCheck,    // Its content or records cannot be trusted: it stays until audit_quarantined() rewrote it.
  kWriteInFlight,  // Somebody may still write to it: it stays until fence().
};

// Who is told what becomes of pages that the cache holds: the prefix cache, which keeps count of what it could evict
// and forgets a page that goes to quarantine.
class CachedPageObserver {
 public:
  virtual ~CachedPageObserver() = default;
  // The first lease on the page begins; the last one ended. Must not call back into the pool.
  virtual void lease_began(PageId page) = 0;
  virtual void leases_ended(PageId page) = 0;
  // The page went to quarantine. May call drop_cached.
  virtual void quarantined(PageId page) = 0;
};

struct PageCounts {
  std::int64_t total = 0;  // The null page not counted.
  std::int64_t free = 0;
  std::int64_t leased = 0;  // Reserved, writing, live, shared or in transfer.
  std::int64_t cached = 0;
  std::int64_t quarantined = 0;
  friend bool operator==(const PageCounts&, const PageCounts&) = default;
};

// An audit of the pages in quarantine, which goes from page to page in as many portions as one likes.
struct QuarantineAudit {
  PageId next = 1;  // Not looked at yet.
  std::int64_t freed = 0;
  std::int64_t kept = 0;  // They did not read back what was written, or a write to them may still be in flight.
};
enum class AuditProgress : std::uint8_t { kGoesOn, kDone };

class PagePool {
 public:
  // Allocates the cache and the records for num_pages usable pages (plus the null page), and clears both.
  static base::Result<std::unique_ptr<PagePool>> create(ops::Backend& backend, ops::Stream& stream,
                                                        const ops::KvLayout& layout, std::int64_t num_pages);

  // A free page, with a new tag, written to the device's records on the stream. resource_exhausted when none is free.
  base::Result<Lease> allocate(ops::Stream& stream, PageOwner owner, std::int32_t position);
  // A step of the page's holder, who has the only lease, writes to it; until end_write nobody may do anything else with
  // it. Not for a page that the prefix cache holds. A lease that ended is passed over: the step's own check refuses it.
  // `filled` slots from the first one on hold tokens from now on (1 .. page_size and not fewer than before, checked).
  void begin_write(const Lease& lease);
  void end_write(const Lease& lease, std::int32_t filled);
  // A reserved page is given to the peer of a handoff, which may write to it until end_receive (all is there, and it
  // writes no more) or fence (it writes no more). end_receive passes over a lease that ended.
  void begin_receive(const Lease& lease);
  void end_receive(const Lease& lease, std::int32_t filled);
  // One more lease on a live, shared or cached page. `lease` must carry the page's current tag (checked).
  Lease share(ops::Stream& stream, const Lease& lease);
  // Ends a lease. The last one frees the page (its tag changes at once), or leaves it cached if the prefix cache holds
  // it; a page in transfer goes to quarantine, as its peer may still write to it. Releasing a lease whose tag is not
  // the page's current one is a double free: counted, logged, and without effect (corruption status), except that
  // leases which a quarantine ended may be released, once each.
  base::Status release(ops::Stream& stream, const Lease& lease);
  // Hands a page over to the prefix cache or takes it back: a page that the cache holds becomes `cached`, not free,
  // when its last lease ends. set_cached also rewrites the owner (from its sequence to its chain) and returns the lease
  // as it is from now on; every holder must use that one. So the page must be leased, and leased once unless it has
  // that owner already (checked).
  Lease set_cached(ops::Stream& stream, const Lease& lease, PageOwner chain_owner);
  // The cache lets go. Frees the page if nobody leases it. Corruption status, and no effect, if the cache does not hold
  // the page under this tag.
  base::Status drop_cached(ops::Stream& stream, const Lease& lease);
  // The page (1 .. total, checked) is not handed out again until every cause that was given has ended. Its tag changes,
  // so every other holder's next check fails. Leases on it end silently: releasing them later is not a double free, nor
  // is drop_cached. Whatever state it was in; a page in transfer has a write in flight, whatever the cause.
  void quarantine(ops::Stream& stream, PageId page, std::string_view reason,
                  QuarantineCause cause = QuarantineCause::kFailedCheck);
  // No write of a peer to the page can arrive any more. A page in transfer is reserved again; one that is in quarantine
  // for nothing else becomes free. No effect on any other page.
  void fence(ops::Stream& stream, PageId page);
  // Rewrites every page that a check failed on and that nobody may write to: all its bytes are set, read back, cleared
  // and read back, as its records are. What reads back right becomes free; its next tag is a new one. The way back to
  // service that an operator chooses; waits for the device. A portion ends after the page with which `bytes_max` bytes
  // of pages were rewritten; between portions the pool may be used. Allocates nothing.
  AuditProgress audit_quarantined(ops::Stream& stream, QuarantineAudit& audit, std::int64_t bytes_max);
  // The same in one go.
  QuarantineAudit audit_quarantined(ops::Stream& stream);
  // Of the pages whose leases are given and current, those whose records on the device are not the host's. Waits for
  // the device.
  std::vector<PageId> contradicted(ops::Stream& stream, std::span<const Lease> leases);

  PageState state(PageId page) const { return at(page).state; }
  std::int32_t lease_count(PageId page) const { return at(page).leases; }
  // Its logical index in the sequence it was allocated for; -1 for a free page.
  std::int32_t position(PageId page) const { return at(page).position; }
  // Slots, from the first on, that hold tokens and that the page's digest covers.
  std::int32_t filled(PageId page) const { return at(page).filled; }
  // What a lease on the page says now; tag 0 for a page that is free or in quarantine.
  Lease current_lease(PageId page) const { return {page, at(page).tag, at(page).owner}; }
  // Whether the lease carries its page's current tag, so that share, release and set_cached may be called with it.
  bool is_current(const Lease& lease) const;
  PageCounts counts() const { return counts_; }
  // Of the pages in quarantine those that are there only until fence() says that no write to them can come any more.
  std::int64_t awaiting_fence() const { return awaiting_fence_; }
  std::int64_t double_frees() const { return double_frees_; }
  // free + leased + cached + quarantined == total, every page exactly once on its list, device records equal to the
  // host's for pages that are not quarantined. Reads device memory back; run it when idle and in tests. Corruption
  // status, naming the page, otherwise.
  base::Status check_conservation(ops::Stream& stream);
  // check_conservation, and every lease of the pool is one of `held` (all leases that the engine's sequences and
  // handoffs hold): finds frees that were lost.
  base::Status audit(ops::Stream& stream, std::span<const Lease> held);

  // At most one observer; null to end it.
  void set_cached_page_observer(CachedPageObserver* observer) { observer_ = observer; }

  const ops::KvCacheView& cache() const { return cache_; }
  const ops::PageRecords& records() const { return records_; }
  // Of the pages' digests; random.
  std::uint64_t digest_key() const { return digest_key_; }
  // records().digests, for whoever has written rows to add them: device memory, [cache().num_pages].
  std::uint64_t* digests() const { return digests_; }
  const ops::KvLayout& layout() const { return cache_.layout; }
  std::int64_t device_bytes() const { return storage_.bytes() + record_storage_.bytes(); }

 private:
  friend struct fault_injection::Access;
  PagePool(ops::Backend& backend, ops::KvCacheView cache, ops::Buffer storage, ops::Buffer record_storage,
           std::int64_t num_pages);
  struct Page {
    PageState state = PageState::kFree;
    PageTag tag = 0;
    PageOwner owner = 0;
    std::int32_t position = -1;
    std::int32_t leases = 0;
    std::int32_t filled = 0;
    bool held_by_cache = false;
    // Of a page in quarantine: at least one.
    bool check_failed = false;
    bool write_in_flight = false;
    bool awaits_fence() const { return write_in_flight && !check_failed; }
  };
  const Page& at(PageId page) const;  // 1 .. total, checked.
  // All five records: only where the page begins or ends a life. What changes in between is written alone, so that a
  // record that was damaged on the device is never repaired, and the next check finds it.
  void write_record(ops::Stream& stream, PageId page);
  void write_lease_count(ops::Stream& stream, PageId page);
  // The only place that changes a page's state. Aborts where page_life.h has no such transition.
  void enter(PageId page, PageEvent event, PageState state);
  void set_filled(PageId page, std::int32_t filled);
  void make_free(ops::Stream& stream, PageId page, PageEvent event);
  void put_in_quarantine(ops::Stream& stream, PageId page, PageEvent event, QuarantineCause cause);
  std::span<const std::byte> read_back(ops::Stream& stream, const void* device, std::int64_t bytes);
  bool reads_back(ops::Stream& stream, const void* device, std::int64_t bytes, const void* expected);
  bool rewrites_cleanly(ops::Stream& stream, std::byte* device, std::int64_t bytes);
  bool rewrites_cleanly(ops::Stream& stream, PageId page);
  bool end_silently(PageTag tag);
  std::int64_t total() const { return cache_.num_pages - 1; }

  ops::Backend& backend_;
  ops::KvCacheView cache_;
  ops::PageRecords records_;
  ops::Buffer storage_;
  ops::Buffer record_storage_;
  // The device's arrays that records_ shows to the check.
  std::uint64_t* tags_ = nullptr;
  std::uint64_t* owners_ = nullptr;
  std::int32_t* positions_ = nullptr;
  std::int32_t* lease_counts_ = nullptr;
  std::uint64_t* digests_ = nullptr;
  const std::uint64_t digest_key_;
  std::vector<Page> pages_;   // By page id; element 0, the null page, stays unused.
  std::vector<PageId> free_;  // The next page to hand out is the last.
  PageCounts counts_;
  // Host memory of audits: ones, and what was read back. The largest part of a page.
  std::vector<std::byte> audit_pattern_;
  std::vector<std::byte> audit_found_;
  std::int64_t awaiting_fence_ = 0;
  // Leases (and the cache's hold) that a quarantine ended and that were not given back yet, by tag.
  std::unordered_map<PageTag, std::int32_t> ended_;
  PageTag next_tag_;
  std::int64_t double_frees_ = 0;
  std::int64_t allocations_until_failure_ = 0;  // Of an injected one; 0: none. Nothing but a test sets it.
  CachedPageObserver* observer_ = nullptr;
};

}  // namespace tessera::kv_cache
