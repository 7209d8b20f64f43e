#include "tessera/kv_cache/page_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tests/support/failing_backend.h"

namespace tessera::kv_cache {
namespace {

TEST(PageTable, RowsHoldPagesThenNullPages) {
  auto backend = backends::cpu::make_reference_backend();
  auto stream = backend->make_stream();
  auto made = PageTable::create(*backend, 2, 3);
  ASSERT_TRUE(made.has_value());
  PageTable& table = **made;
  EXPECT_EQ(table.rows_max(), 2);
  EXPECT_EQ(table.pages_per_row_max(), 3);
  EXPECT_GE(table.device_bytes(), 24);
  const auto contents = [&] {
    stream->synchronize();
    std::vector<std::int32_t> ids(6);
    backend->copy_to_host(*stream, ids.data(), table.device(), 24);
    return ids;
  };
  EXPECT_EQ(contents(), (std::vector<std::int32_t>{0, 0, 0, 0, 0, 0}));
  table.set_row(*stream, 0, std::vector<Lease>{{7, 1, 1}, {8, 1, 1}, {9, 1, 1}});
  table.set_row(*stream, 1, std::vector<Lease>{{4, 1, 1}});
  EXPECT_EQ(contents(), (std::vector<std::int32_t>{7, 8, 9, 4, 0, 0}));
  table.set_row(*stream, 0, std::vector<Lease>{{5, 1, 1}});
  table.set_row(*stream, 1, {});
  EXPECT_EQ(contents(), (std::vector<std::int32_t>{5, 0, 0, 0, 0, 0}));
}

TEST(PageTable, FailsCleanlyWithoutDeviceMemory) {
  auto backend = backends::cpu::make_reference_backend();
  tests::FailingBackend failing(*backend);
  failing.fail_nth_allocation(1);
  const auto made = PageTable::create(failing, 2, 3);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), base::StatusCode::kResourceExhausted);
}

TEST(PageTableDeathTest, RowsAndWidthAreChecked) {
  auto backend = backends::cpu::make_reference_backend();
  auto stream = backend->make_stream();
  auto table = std::move(*PageTable::create(*backend, 2, 1));
  EXPECT_DEATH(table->set_row(*stream, 2, {}), "row 2");
  EXPECT_DEATH(table->set_row(*stream, 0, std::vector<Lease>(2)), "2 pages in a row");
}

}  // namespace
}  // namespace tessera::kv_cache
