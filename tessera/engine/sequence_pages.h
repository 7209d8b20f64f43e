// The pages of sequences: which each holds, from admission to the end. The only place of the engine that takes pages
// from the pool or gives them back. Used from the engine's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/engine/sequence.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_cache/prefix_cache.h"
#include "tessera/scheduler/scheduler.h"

namespace tessera::engine {

class SequencePages {
 public:
  // `scope` is that of the prompts this pool holds; each sequence's tenant is put in.
  SequencePages(kv_cache::PagePool& pool, kv_cache::PrefixCache& cache, ops::Stream& stream,
                kv_cache::PrefixScope scope);

  scheduler::PoolView view() const;
  // Pages that would become available if the sequence gave its own back.
  std::int64_t returned_by(const Sequence& sequence) const;

  // Leases the cached prefix of a waiting sequence's prompt, at most max_pages. Either admit takes the leases over, or
  // give_back ends them.
  std::vector<kv_cache::Lease> lease_prefix(const Sequence& sequence, std::int64_t max_pages);
  std::int64_t idle_before(std::span<const kv_cache::Lease> prefix) const;
  void give_back(std::span<const kv_cache::Lease> leases);

  // Gives the sequence pages for `tokens` tokens, `prefix` first. Evicts cached pages where it must. On failure
  // (resource_exhausted) nothing is held, the prefix neither.
  base::Status admit(Sequence& sequence, std::vector<kv_cache::Lease> prefix, std::int64_t tokens);
  // `count` pages more; on failure the sequence holds what it held.
  base::Status grow(Sequence& sequence, std::int64_t count);
  // Ends all leases of the sequence.
  void release(Sequence& sequence);
  // A step computes `count` tokens of the sequence from `start` on, into its pages; begin before it, end after it.
  void begin_write(const Sequence& sequence, std::int64_t start, std::int64_t count);
  void end_write(const Sequence& sequence, std::int64_t start, std::int64_t count);
  // The sequence's pages first .. last - 1 are given to the peer of a handoff, which fills them. The handoff was
  // committed, or it ended and the peer writes nothing more; what the peer may still write to is quarantined before.
  void begin_receive(const Sequence& sequence, std::int64_t first, std::int64_t last);
  void end_receive(const Sequence& sequence);
  void fence_received(const Sequence& sequence);
  // Offers the whole pages of the prompt, whose KV is complete, to the prefix cache; once.
  void cache_prompt(Sequence& sequence);
  // The sequence's own pages in whose place the cache has others, where cache_prompt would give the cache later ones.
  std::vector<kv_cache::Lease> copies_of_cached(const Sequence& sequence) const;

  // A check failed on the sequence: puts in quarantine what can be to blame. That is, of all its pages, the verdict's,
  // where the device's record or the bytes of it (and not the page table) were wrong, and those whose records on the
  // device are wrong now; other holders of such a page then fail their own next check. And it is every page whose owner
  // the sequence is, unless the verdict blames one page alone. Then ends all leases. Waits for the device.
  void quarantine(Sequence& sequence, const ops::RowVerdict& verdict);
  // Passes over a lease that has ended: its page is in quarantine already, or somebody else's.
  void quarantine_page(const kv_cache::Lease& lease, kv_cache::QuarantineCause cause);

 private:
  base::Result<std::vector<kv_cache::Lease>> allocate(const Sequence& sequence, std::int64_t first_position,
                                                      std::int64_t count);
  // Slots that `tokens` tokens of a sequence fill in its page at `position`.
  std::int32_t filled(std::int64_t tokens, std::int64_t position) const;
  std::span<const kv_cache::Lease> pages_of(const Sequence& sequence, std::int64_t start, std::int64_t count) const;
  bool is_in_transfer(const kv_cache::Lease& lease) const;
  bool blames_one_page(const Sequence& sequence, const ops::RowVerdict& verdict) const;
  kv_cache::PrefixScope scope_of(const Sequence& sequence) const;
  void changed(Sequence& sequence) { sequence.leases_epoch = ++last_epoch_; }

  kv_cache::PagePool& pool_;
  kv_cache::PrefixCache& cache_;
  ops::Stream& stream_;
  const kv_cache::PrefixScope scope_;
  std::uint64_t last_epoch_ = 0;
};

}  // namespace tessera::engine
