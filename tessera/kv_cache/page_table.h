// The page table of one engine: a device array [rows_max, pages_per_row_max] of page ids, from which the step's check
// reads (and attention reads the check's sanitized copy, never this). Row = running slot of a sequence. Used from the
// engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/ops/backend.h"

namespace tessera::fault_injection {
struct Access;  // Tests' way to break what is checked; tests/support/fault_access.h.
}

namespace tessera::kv_cache {

class PageTable {
 public:
  static base::Result<std::unique_ptr<PageTable>> create(ops::Backend& backend, std::int64_t rows_max,
                                                         std::int64_t pages_per_row_max);
  // Writes row r: the page ids of the leases, null pages after them. Enqueued on the stream. A row may be set again
  // only when the stream has run the last setting of it (the engine synchronizes every step).
  void set_row(ops::Stream& stream, std::int64_t row, std::span<const Lease> leases);
  const std::int32_t* device() const { return storage_.as<std::int32_t>(); }
  std::int64_t rows_max() const { return rows_max_; }
  std::int64_t pages_per_row_max() const { return pages_per_row_max_; }
  std::int64_t device_bytes() const { return storage_.bytes(); }

 private:
  friend struct fault_injection::Access;
  PageTable(ops::Backend& backend, ops::Buffer storage, std::int64_t rows_max, std::int64_t pages_per_row_max);
  ops::Backend& backend_;
  ops::Buffer storage_;
  std::int64_t rows_max_;
  std::int64_t pages_per_row_max_;
  std::vector<std::int32_t> staging_;  // Of the whole table.
};

}  // namespace tessera::kv_cache
