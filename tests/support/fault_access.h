// The only way in for tests that change, behind an engine's back, what the page check must not trust. PagePool and
// PageTable are friends of this struct; no product includes it.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_cache/page_table.h"

namespace tessera::fault_injection {

struct Access {
  // The device's records, by page id.
  static std::uint64_t* tags(kv_cache::PagePool& pool) { return pool.tags_; }
  static std::uint64_t* owners(kv_cache::PagePool& pool) { return pool.owners_; }
  static std::int32_t* positions(kv_cache::PagePool& pool) { return pool.positions_; }
  static std::int32_t* lease_counts(kv_cache::PagePool& pool) { return pool.lease_counts_; }
  // The host's account of the same pages: of one page, of those that are free, and how many are in which state.
  static auto& page(kv_cache::PagePool& pool, kv_cache::PageId page) { return pool.pages_[page]; }
  static std::vector<kv_cache::PageId>& free_list(kv_cache::PagePool& pool) { return pool.free_; }
  static kv_cache::PageCounts& counts(kv_cache::PagePool& pool) { return pool.counts_; }
  static std::int64_t& awaiting_fence(kv_cache::PagePool& pool) { return pool.awaiting_fence_; }
  // The n-th allocate from now (1: the next) fails as if the pool were empty; 0: none does.
  static void fail_nth_allocation(kv_cache::PagePool& pool, std::int64_t n) { pool.allocations_until_failure_ = n; }
  // How many allocations are left until that one; 0 once it failed.
  static std::int64_t allocations_until_failure(const kv_cache::PagePool& pool) {
    return pool.allocations_until_failure_;
  }

  // The device's page table, [rows_max, pages_per_row_max].
  static std::int32_t* entries(kv_cache::PageTable& table) { return table.storage_.as<std::int32_t>(); }
};

}  // namespace tessera::fault_injection
