#include "tessera/kv_cache/page_table.h"

#include <string>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::kv_cache {

base::Result<std::unique_ptr<PageTable>> PageTable::create(ops::Backend& backend, std::int64_t rows_max,
                                                           std::int64_t pages_per_row_max) {
  TESSERA_CHECK(rows_max > 0 && pages_per_row_max > 0);
  const std::int64_t bytes = rows_max * pages_per_row_max * static_cast<std::int64_t>(sizeof(std::int32_t));
  TESSERA_ASSIGN_OR_RETURN(ops::Buffer storage, backend.allocate(bytes, "page table"));
  auto stream = backend.make_stream();
  static_assert(ops::kNullPage == 0);
  backend.fill_zero(*stream, storage.data(), bytes);
  stream->synchronize();
  return std::unique_ptr<PageTable>(new PageTable(backend, std::move(storage), rows_max, pages_per_row_max));
}

PageTable::PageTable(ops::Backend& backend, ops::Buffer storage, std::int64_t rows_max, std::int64_t pages_per_row_max)
    : backend_(backend),
      storage_(std::move(storage)),
      rows_max_(rows_max),
      pages_per_row_max_(pages_per_row_max),
      staging_(static_cast<std::size_t>(rows_max * pages_per_row_max), ops::kNullPage) {}

void PageTable::set_row(ops::Stream& stream, std::int64_t row, std::span<const Lease> leases) {
  TESSERA_CHECK(row >= 0 && row < rows_max_, "row " + std::to_string(row));
  TESSERA_CHECK(std::ssize(leases) <= pages_per_row_max_, std::to_string(leases.size()) + " pages in a row");
  // Each row has staging of its own, so that rows set one after another do not wait for each other's copies.
  std::int32_t* staged = staging_.data() + row * pages_per_row_max_;
  for (std::int64_t j = 0; j < pages_per_row_max_; ++j) {
    staged[j] = j < std::ssize(leases) ? leases[static_cast<std::size_t>(j)].page : ops::kNullPage;
  }
  backend_.copy_to_device(stream, storage_.as<std::int32_t>() + row * pages_per_row_max_, staged,
                          pages_per_row_max_ * static_cast<std::int64_t>(sizeof(std::int32_t)));
}

}  // namespace tessera::kv_cache
