#include "tessera/kv_cache/page_sweep.h"

#include <algorithm>
#include <chrono>

#include "tessera/base/check.h"

namespace tessera::kv_cache {

namespace {

base::Nanoseconds interval(std::int64_t pages, std::int64_t pages_per_second) {
  if (pages_per_second == 0) return base::Nanoseconds{0};
  return base::Nanoseconds(std::chrono::seconds(pages)) / pages_per_second;
}

bool may_be_read(PageState state) {
  return state == PageState::kLive || state == PageState::kShared || state == PageState::kCached;
}

bool is_in_use(PageState state) { return state != PageState::kFree && state != PageState::kQuarantined; }

}  // namespace

PageSweep::PageSweep(const PagePool& pool, std::int64_t pages_per_second, base::Nanoseconds now)
    : pool_(pool),
      portion_(std::clamp<std::int64_t>(pages_per_second / 4, 1, kPagesMax)),
      interval_(interval(portion_, pages_per_second)),
      next_(now + interval_) {
  TESSERA_CHECK(pages_per_second >= 0);
}

std::vector<Lease> PageSweep::due(base::Nanoseconds now) {
  std::vector<Lease> pages;
  if (interval_.count() == 0 || now < next_) return pages;
  // Portions that were missed are made up as far as one call goes, and forgotten beyond.
  const std::int64_t portions = (now - next_) / interval_ + 1;
  next_ += portions * interval_;
  const std::int64_t wanted = portions < kPagesMax ? std::min(portions * portion_, kPagesMax) : kPagesMax;
  const PageCounts counts = pool_.counts();
  // Once round; no further than there are pages in use.
  for (std::int64_t unseen = counts.leased + counts.cached; unseen > 0 && std::ssize(pages) < wanted;) {
    last_ = last_ >= counts.total ? 1 : last_ + 1;
    const PageState state = pool_.state(last_);
    if (is_in_use(state)) --unseen;
    if (may_be_read(state) && pool_.filled(last_) > 0) pages.push_back(pool_.current_lease(last_));
  }
  return pages;
}

std::optional<base::Nanoseconds> PageSweep::next() const {
  if (interval_.count() == 0) return std::nullopt;
  return next_;
}

}  // namespace tessera::kv_cache
