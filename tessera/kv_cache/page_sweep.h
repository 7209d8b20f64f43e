// Which pages a background sweep looks at, and when: all that anybody may come to read (live, shared or cached, with
// filled slots), in a cycle by page id, at a rate. So a page is looked at once in pages / rate seconds. Decides only;
// used from the engine's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/kv_cache/page_pool.h"

namespace tessera::kv_cache {

class PageSweep {
 public:
  // What one call of due() gives at most. A caller that comes back too seldom for the rate sweeps more slowly.
  static constexpr std::int64_t kPagesMax = 64;

  // 0 pages a second: nothing is ever due. The first pages are due a portion's time after `now`.
  PageSweep(const PagePool& pool, std::int64_t pages_per_second, base::Nanoseconds now);

  // Current leases of the pages that are to be looked at now, and counts them as looked at.
  std::vector<Lease> due(base::Nanoseconds now);
  // When due() gives pages again, if there are any; empty when it never does.
  std::optional<base::Nanoseconds> next() const;

 private:
  const PagePool& pool_;
  const std::int64_t portion_;        // Pages that are due together: what a quarter of a second asks for.
  const base::Nanoseconds interval_;  // The time of a portion; 0: never.
  base::Nanoseconds next_;
  PageId last_ = 0;  // Looked at last.
};

}  // namespace tessera::kv_cache
