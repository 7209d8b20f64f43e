// Where an engine looks at the bytes of pages outside of steps: at a prefix hit, before a prompt is cached, before it
// is computed again, and in the background.
#include <algorithm>
#include <functional>
#include <vector>

#include "tessera/base/arithmetic.h"
#include "tessera/engine/engine_loop.h"

namespace tessera::engine {

namespace {

bool failed(const ops::RowVerdict& verdict) { return verdict.failed_checks != 0; }

}  // namespace

// Verdict i is of pages[i]; valid until the next check.
std::span<const ops::RowVerdict> EngineLoop::check_bytes(std::span<const kv_cache::Lease> pages) {
  const base::Nanoseconds begin = parts_.clock.now();
  const std::span<const ops::RowVerdict> verdicts = digests_->check_pages(*stream_, *pool_, pages);
  counters_.sweep_ns += (parts_.clock.now() - begin).count();
  return verdicts;
}

// Whether the verdict says that the bytes of a page are damaged that the sequence holds, where it says, and that nobody
// has condemned yet.
bool EngineLoop::names_damaged_page(const Sequence& sequence, const ops::RowVerdict& verdict) const {
  const std::int32_t logical = verdict.logical_page;
  if (!kv_cache::is_byte_damage(verdict) || logical < 0 || logical >= std::ssize(sequence.leases)) return false;
  const kv_cache::Lease& lease = sequence.leases[static_cast<std::size_t>(logical)];
  return lease.page == verdict.page_id && pool_->is_current(lease);
}

// Condemns those of the pages that are not sound, and returns how many are before the first of them. What a device that
// failed says of pages means nothing: then none is condemned, and none is proved.
std::size_t EngineLoop::prove(std::span<const kv_cache::Lease> pages, const char* where) {
  const std::span<const ops::RowVerdict> verdicts = check_bytes(pages);
  if (!parts_.backend.health().ok()) return 0;
  std::vector<std::size_t> bad;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (failed(verdicts[i]) && pool_->is_current(pages[i])) bad.push_back(i);
  }
  // Those below first: what is below a condemned page leaves the cache with it, and may be free then.
  std::ranges::sort(bad, std::greater{}, [&](std::size_t i) { return pool_->position(pages[i].page); });
  for (const std::size_t i : bad) condemn(pages[i].page, verdicts[i], where);
  return static_cast<std::size_t>(std::ranges::find_if(verdicts, failed) - verdicts.begin());
}

// The pages of a prefix hit, before anything reads them: the first one that is not sound ends the hit. Sequences that
// are admitted together often begin alike: what was found sound for one of them is not read again for the next, as
// nothing writes to pages in between.
void EngineLoop::check_prefix(std::vector<kv_cache::Lease>& prefix) {
  if (digests_ == nullptr) return;
  std::size_t begin = 0;
  std::size_t end = 0;
  // What has ended by now, others' checks have condemned.
  while (end < prefix.size() && pool_->is_current(prefix[end])) ++end;
  while (begin < end && proved_.contains(prefix[begin].tag)) ++begin;
  if (begin < end) end = begin + prove(std::span(prefix).subspan(begin, end - begin), "prefix hit");
  for (std::size_t j = begin; j < end; ++j) proved_.insert(prefix[j].tag);
  pages_->give_back(std::span(prefix).subspan(end));
  prefix.resize(end);
}

// Whoever hits the cache proves the cache's pages, and all that the cache has below a damaged one goes with it. But
// where somebody else was first to cache a page, this sequence has read a copy of its own, and what it computed from
// that will hang under the other's: so the copy is proved before. At digest-step, the steps that read it did so.
bool EngineLoop::may_cache_prompt(const Sequence& sequence) {
  if (config_.integrity.level != kv_cache::IntegrityLevel::kDigest) return true;
  const std::vector<kv_cache::Lease> copies = pages_->copies_of_cached(sequence);
  return copies.empty() || prove(copies, "prompt to be cached") == copies.size();
}

// Of a sequence that is to be computed again from what it has emitted: the bytes that gave its tokens (or the prompt's
// log-probabilities), which nobody can
// look at any more once its pages are given back. At digest-step that was done before each token. A page whose lease
// has ended, or that fails by its tag, says nothing of the bytes that it had; nor does one that a step which failed was
// to write to.
void EngineLoop::check_what_was_read(const Sequence& sequence) {
  if (config_.integrity.level != kv_cache::IntegrityLevel::kDigest || !sequence.has_emitted()) return;
  std::vector<kv_cache::Lease> pages;
  const std::int64_t page_size = config_.page_size;
  for (std::int64_t j = 0; j < base::ceil_div(sequence.computed, page_size); ++j) {
    const kv_cache::Lease& lease = sequence.leases[static_cast<std::size_t>(j)];
    const std::int64_t computed = std::min(sequence.computed - j * page_size, page_size);
    if (pool_->is_current(lease) && pool_->filled(lease.page) == computed) pages.push_back(lease);
  }
  if (pages.empty()) return;
  const std::span<const ops::RowVerdict> verdicts = check_bytes(pages);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const bool bytes = kv_cache::is_byte_damage(verdicts[i]);
    if (bytes && pool_->is_current(pages[i])) condemn(pages[i].page, verdicts[i], "sequence to be computed again");
  }
}

// Between steps, so that no page is being written.
void EngineLoop::sweep() {
  if (!sweep_.has_value()) return;
  const std::vector<kv_cache::Lease> pages = sweep_->due(parts_.clock.now());
  if (pages.empty()) return;
  counters_.pages_swept += std::ssize(pages);
  prove(pages, "sweep");
}

}  // namespace tessera::engine
