#include "tessera/engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::engine {

namespace {

// Tag, owner, position, lease count and digest of one page, as the pool keeps them on the device.
constexpr std::int64_t kRecordBytes = 8 + 8 + 4 + 4 + 8;
// Alignment of the five record arrays.
constexpr std::int64_t kRecordSlack = 5 * 256;

std::string mebibytes(std::int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576.0); }

}  // namespace

std::int64_t MemoryPlan::total() const {
  std::int64_t sum = 0;
  for (const MemoryLine& line : lines) sum += line.bytes;
  return sum;
}

std::string MemoryPlan::to_string() const {
  std::string table;
  for (const MemoryLine& line : lines) {
    table += fmt::format("  {:<22} {:>14}  {}\n", line.part, mebibytes(line.bytes), line.arithmetic);
  }
  table += fmt::format("  {:<22} {:>14}", "total", mebibytes(total()));
  if (budget_bytes > 0) table += fmt::format("  of a budget of {}", mebibytes(budget_bytes));
  return table;
}

std::int64_t page_pool_bytes(const ops::KvLayout& layout, std::int64_t pages) {
  return layout.pool_bytes(pages + 1) + (pages + 1) * kRecordBytes + kRecordSlack;
}

std::int64_t pages_that_fit(const ops::KvLayout& layout, std::int64_t bytes) {
  // The arrays' alignment costs a little more than the pages themselves, so start at the upper bound and step down.
  std::int64_t pages = std::max<std::int64_t>(0, bytes / (layout.page_bytes() + kRecordBytes));
  while (pages > 0 && page_pool_bytes(layout, pages) > bytes) --pages;
  return pages;
}

base::Result<std::int64_t> plan_page_pool(MemoryPlan& plan, const ops::KvLayout& layout, std::int64_t pages) {
  const std::int64_t others = plan.total();
  const bool chosen_here = pages == 0;
  if (chosen_here) pages = pages_that_fit(layout, plan.budget_bytes - others);
  plan.lines.push_back(
      {"KV pages", page_pool_bytes(layout, pages),
       fmt::format("{} pages of {} tokens and the null page, {} bytes a token ({} layers, {})", pages, layout.page_size,
                   layout.token_bytes(), layout.num_layers, ops::kv_format_name(layout.format))});
  if (pages < 1) {
    return base::failure(base::resource_exhausted(
        fmt::format("the memory budget leaves no room for one KV page of {} bytes beside {} bytes of other parts:\n{}",
                    layout.page_bytes(), others, plan.to_string())));
  }
  if (plan.budget_bytes > 0 && plan.total() > plan.budget_bytes) {
    return base::failure(
        base::resource_exhausted(fmt::format("{} KV pages do not fit the memory budget ({} would):\n{}", pages,
                                             pages_that_fit(layout, plan.budget_bytes - others), plan.to_string())));
  }
  return pages;
}

}  // namespace tessera::engine
