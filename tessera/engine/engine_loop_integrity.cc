// Where an engine looks at the bytes of pages outside of steps: at a prefix hit, and in the background.
#include <algorithm>

#include "tessera/engine/engine_loop.h"

namespace tessera::engine {

namespace {

bool failed(const ops::RowVerdict& verdict) { return verdict.failed_checks != 0; }

}  // namespace

// The pages of a prefix hit, before anything reads them: the first one that is not sound ends the hit.
void EngineLoop::check_prefix(std::vector<kv_cache::Lease>& prefix) {
  if (digests_ == nullptr || prefix.empty()) return;
  const base::Nanoseconds begin = parts_.clock.now();
  const std::span<const ops::RowVerdict> verdicts = digests_->check_pages(*stream_, *pool_, prefix);
  counters_.sweep_ns += (parts_.clock.now() - begin).count();
  const auto bad = std::ranges::find_if(verdicts, failed);
  if (bad == verdicts.end()) return;
  const auto first_bad = static_cast<std::size_t>(bad - verdicts.begin());
  // Another sequence's hit of the same turn may have found it before.
  if (pool_->is_current(prefix[first_bad])) condemn(prefix[first_bad].page, *bad, "prefix hit");
  pages_->give_back(std::span(prefix).subspan(first_bad));
  prefix.resize(first_bad);
}

// Between steps, so that no page is being written.
void EngineLoop::sweep() {
  if (!sweep_.has_value()) return;
  const base::Nanoseconds begin = parts_.clock.now();
  const std::vector<kv_cache::Lease> pages = sweep_->due(begin);
  if (pages.empty()) return;
  const std::span<const ops::RowVerdict> verdicts = digests_->check_pages(*stream_, *pool_, pages);
  counters_.pages_swept += std::ssize(pages);
  counters_.sweep_ns += (parts_.clock.now() - begin).count();
  for (std::size_t i = 0; i < pages.size(); ++i) {
    // A page below one that was condemned just now may be free by now.
    if (failed(verdicts[i]) && pool_->is_current(pages[i])) condemn(pages[i].page, verdicts[i], "sweep");
  }
}

}  // namespace tessera::engine
