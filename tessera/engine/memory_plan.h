// What an engine's device memory is spent on, decided before the first request: serving allocates none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/ops/kv_layout.h"

namespace tessera::engine {

struct MemoryLine {
  std::string part;
  std::int64_t bytes = 0;
  std::string arithmetic;  // How the number came about, for people.
};

struct MemoryPlan {
  std::vector<MemoryLine> lines;
  std::int64_t budget_bytes = 0;  // 0: none.

  std::int64_t total() const;
  // A table: one line a part, then the total and the budget.
  std::string to_string() const;
};

// Device memory of a pool of `pages` usable pages: the null page and the page records included.
std::int64_t page_pool_bytes(const ops::KvLayout& layout, std::int64_t pages);
// The most usable pages whose pool fits into `bytes`; may be 0.
std::int64_t pages_that_fit(const ops::KvLayout& layout, std::int64_t bytes);

// Adds the line of the KV pool to a plan that has all others. `pages` 0 means as many as the budget leaves room for.
// Returns the number of pages; resource_exhausted, with the plan's table in the message, when they do not fit, or not
// one does.
base::Result<std::int64_t> plan_page_pool(MemoryPlan& plan, const ops::KvLayout& layout, std::int64_t pages);

}  // namespace tessera::engine
