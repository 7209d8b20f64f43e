#include "tessera/engine/sequence_pages.h"

#include <algorithm>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/logging.h"
#include "tessera/kv_cache/digest_checker.h"

namespace tessera::engine {

using kv_cache::Lease;

namespace {

// Private pages are owned by their sequence, cached and shared ones by their chain (lease.h).
bool is_private(const Lease& lease, SequenceId id) { return lease.owner == kv_cache::owner_of_sequence(id); }

}  // namespace

SequencePages::SequencePages(kv_cache::PagePool& pool, kv_cache::PrefixCache& cache, ops::Stream& stream,
                             kv_cache::PrefixScope scope)
    : pool_(pool), cache_(cache), stream_(stream), scope_(std::move(scope)) {}

kv_cache::PrefixScope SequencePages::scope_of(const Sequence& sequence) const {
  kv_cache::PrefixScope scope = scope_;
  scope.tenant = sequence.spec.tenant;
  return scope;
}

scheduler::PoolView SequencePages::view() const {
  const kv_cache::PageCounts counts = pool_.counts();
  scheduler::PoolView view;
  view.page_size = pool_.layout().page_size;
  // What only waits for a peer's word comes back by itself: who needs it waits, and is not refused.
  view.usable = counts.total - counts.quarantined + pool_.awaiting_fence();
  view.available = counts.free + cache_.evictable();
  return view;
}

std::int64_t SequencePages::returned_by(const Sequence& sequence) const {
  return std::ranges::count_if(sequence.leases, [&](const Lease& lease) {
    return pool_.is_current(lease) && pool_.lease_count(lease.page) == 1;
  });
}

std::vector<Lease> SequencePages::lease_prefix(const Sequence& sequence, std::int64_t max_pages) {
  if (max_pages <= 0) return {};
  return cache_.match(scope_of(sequence), sequence.spec.prompt, max_pages);
}

std::int64_t SequencePages::idle_before(std::span<const Lease> prefix) const {
  return std::ranges::count_if(prefix, [&](const Lease& lease) { return pool_.lease_count(lease.page) == 1; });
}

void SequencePages::give_back(std::span<const Lease> leases) {
  for (const Lease& lease : leases) {
    if (base::Status status = pool_.release(stream_, lease); !status.ok()) {
      base::log().error("page accounts: {}", status.to_string());
    }
  }
}

base::Result<std::vector<Lease>> SequencePages::allocate(const Sequence& sequence, std::int64_t first_position,
                                                         std::int64_t count) {
  const std::int64_t missing = count - pool_.counts().free;
  if (missing > 0) cache_.evict(missing);
  std::vector<Lease> leases;
  for (std::int64_t i = 0; i < count; ++i) {
    base::Result<Lease> lease = pool_.allocate(stream_, kv_cache::owner_of_sequence(sequence.spec.id),
                                               static_cast<std::int32_t>(first_position + i));
    if (!lease.has_value()) {
      give_back(leases);
      return base::failure(lease.error());
    }
    leases.push_back(*lease);
  }
  return leases;
}

base::Status SequencePages::admit(Sequence& sequence, std::vector<Lease> prefix, std::int64_t tokens) {
  TESSERA_CHECK(sequence.leases.empty(), "admitted twice");
  const std::int64_t total = base::ceil_div(tokens, pool_.layout().page_size);
  const std::int64_t hits = std::ssize(prefix);
  TESSERA_CHECK(hits <= total);
  base::Result<std::vector<Lease>> fresh = allocate(sequence, hits, total - hits);
  if (!fresh.has_value()) {
    give_back(prefix);
    return fresh.error();
  }
  sequence.leases = std::move(prefix);
  sequence.leases.insert(sequence.leases.end(), fresh->begin(), fresh->end());
  changed(sequence);
  return {};
}

base::Status SequencePages::grow(Sequence& sequence, std::int64_t count) {
  if (count == 0) return {};
  base::Result<std::vector<Lease>> fresh = allocate(sequence, std::ssize(sequence.leases), count);
  if (!fresh.has_value()) return fresh.error();
  sequence.leases.insert(sequence.leases.end(), fresh->begin(), fresh->end());
  changed(sequence);
  return {};
}

void SequencePages::release(Sequence& sequence) {
  give_back(sequence.leases);
  sequence.leases.clear();
  sequence.computed = 0;
  sequence.prompt_cached = false;
  changed(sequence);
}

void SequencePages::begin_write(const Sequence& sequence, std::int64_t start, std::int64_t count) {
  for (const Lease& lease : pages_of(sequence, start, count)) pool_.begin_write(lease);
}

void SequencePages::end_write(const Sequence& sequence, std::int64_t start, std::int64_t count) {
  std::int64_t position = start / pool_.layout().page_size;
  for (const Lease& lease : pages_of(sequence, start, count)) pool_.end_write(lease, filled(start + count, position++));
}

std::int32_t SequencePages::filled(std::int64_t tokens, std::int64_t position) const {
  const std::int64_t page_size = pool_.layout().page_size;
  return static_cast<std::int32_t>(std::min(tokens - position * page_size, page_size));
}

std::span<const Lease> SequencePages::pages_of(const Sequence& sequence, std::int64_t start, std::int64_t count) const {
  const std::int64_t page_size = pool_.layout().page_size;
  const auto first = static_cast<std::size_t>(start / page_size);
  const auto last = static_cast<std::size_t>(base::ceil_div(start + count, page_size));
  return std::span(sequence.leases).subspan(first, last - first);
}

void SequencePages::begin_receive(const Sequence& sequence, std::int64_t first, std::int64_t last) {
  for (std::int64_t j = first; j < last; ++j) pool_.begin_receive(sequence.leases[static_cast<std::size_t>(j)]);
}

bool SequencePages::is_in_transfer(const Lease& lease) const {
  return pool_.is_current(lease) && pool_.state(lease.page) == kv_cache::PageState::kInTransfer;
}

void SequencePages::end_receive(const Sequence& sequence) {
  for (std::int64_t j = 0; j < std::ssize(sequence.leases); ++j) {
    const Lease& lease = sequence.leases[static_cast<std::size_t>(j)];
    if (is_in_transfer(lease)) pool_.end_receive(lease, filled(sequence.prompt_tokens(), j));
  }
}

void SequencePages::fence_received(const Sequence& sequence) {
  for (const Lease& lease : sequence.leases) {
    if (is_in_transfer(lease)) pool_.fence(stream_, lease.page);
  }
}

void SequencePages::cache_prompt(Sequence& sequence) {
  if (sequence.prompt_cached) return;
  sequence.prompt_cached = true;
  const std::int64_t whole = sequence.prompt_tokens() / pool_.layout().page_size;
  if (whole == 0) return;
  cache_.insert(scope_of(sequence), sequence.spec.prompt,
                std::span(sequence.leases).first(static_cast<std::size_t>(whole)));
  changed(sequence);
}

std::vector<Lease> SequencePages::copies_of_cached(const Sequence& sequence) const {
  const std::int64_t whole = sequence.prompt_tokens() / pool_.layout().page_size;
  const std::int64_t cached = cache_.match_length(scope_of(sequence), sequence.spec.prompt);
  std::vector<Lease> copies;
  for (std::int64_t j = 0; cached < whole && j < cached; ++j) {
    const Lease& lease = sequence.leases[static_cast<std::size_t>(j)];
    if (is_private(lease, sequence.spec.id)) copies.push_back(lease);
  }
  return copies;
}

void SequencePages::quarantine_page(const Lease& lease, kv_cache::QuarantineCause cause) {
  if (!pool_.is_current(lease)) return;
  cache_.drop(lease.page);
  pool_.quarantine(stream_, lease.page,
                   cause == kv_cache::QuarantineCause::kFailedCheck ? "failed check" : "write in flight", cause);
}

// Bytes that are not what was written, in a page whose tag, owner and position are right, are that page's fault alone.
// So is a lease that ended with a quarantine, where the device's record is the one that the host wrote then: another
// holder, or somebody who looked at idle pages, has found the page already, and nothing contradicts the host.
//
// To give back the other pages is exact. The step's tokens and rows are thrown away; a page of the sequence's own goes
// to the free list, from which nobody reads it before it is written anew, under a digest that begins anew; one that the
// cache keeps was put there after checks of its own, and is proved again at the next hit.
bool SequencePages::blames_one_page(const Sequence& sequence, const ops::RowVerdict& verdict) const {
  if (kv_cache::is_byte_damage(verdict)) return true;
  const std::int64_t j = verdict.logical_page;
  if (j < 0 || j >= std::ssize(sequence.leases)) return false;
  const Lease& lease = sequence.leases[static_cast<std::size_t>(j)];
  return verdict.page_id == lease.page && !pool_.is_current(lease) && verdict.expected == lease.tag &&
         verdict.found == pool_.current_lease(lease.page).tag;
}

void SequencePages::quarantine(Sequence& sequence, const ops::RowVerdict& verdict) {
  // The verdict is of the first page that failed. The others are looked at as well, so that no holder has to find them
  // one after another.
  const bool one_page = blames_one_page(sequence, verdict);
  const std::vector<kv_cache::PageId> contradicted = pool_.contradicted(stream_, sequence.leases);
  for (std::int64_t j = 0; j < std::ssize(sequence.leases); ++j) {
    const Lease& lease = sequence.leases[static_cast<std::size_t>(j)];
    const bool record_is_wrong = (j == verdict.logical_page && verdict.page_id == lease.page) ||
                                 std::ranges::find(contradicted, lease.page) != contradicted.end();
    if ((is_private(lease, sequence.spec.id) && !one_page) || record_is_wrong) {
      quarantine_page(lease, kv_cache::QuarantineCause::kFailedCheck);
    }
  }
  release(sequence);
}

}  // namespace tessera::engine
