// Checks the bytes of pages against the digests that were recorded as they were written. One belongs to one engine and
// is used from its thread. It owns the device buffers of its checks, sized once; a check allocates no device memory.
//
// A page is read only through a check of its tag, owner and position: pages of a step through the step's own, pages
// alone through this class's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_cache/verifier.h"
#include "tessera/ops/backend.h"

namespace tessera::kv_cache {

// Whether the bytes of one page were found damaged, and nothing else. Verdicts of a device that failed may read as all
// ones, and name no page.
constexpr bool is_byte_damage(const ops::RowVerdict& verdict) { return verdict.failed_checks == ops::kCheckDigest; }

class DigestChecker {
 public:
  // Pages that go to the device in one call of the op; longer lists go in portions.
  static constexpr std::int64_t kPortion = 1024;

  static base::Result<std::unique_ptr<DigestChecker>> create(ops::Backend& backend);

  // Pages alone, whoever holds them. Verdict i is of leases[i]: first tag, owner and position, with the position that
  // the pool knows, then the bytes of all filled slots. A lease that ended fails by its tag; a page that a lease is
  // current on must have filled slots (checked). Waits for the stream. Valid until the next call of either function.
  std::span<const ops::RowVerdict> check_pages(ops::Stream& stream, const PagePool& pool,
                                               std::span<const Lease> leases);

  // The pages that a step read. `pages` is what the step's check let through of `rows`, `verdicts` what that check
  // said before and after; every page of a row that passed is digested once, however many rows have it. Verdict r is
  // of rows[r]: its first page whose bytes are not what was written, clean where there is none or the row had failed.
  // Waits for the stream. Valid until the next call of either function.
  std::span<const ops::RowVerdict> check_rows(ops::Stream& stream, const PagePool& pool,
                                              const ops::VerifiedPages& pages, std::span<const RowExpectation> rows,
                                              std::span<const ops::RowVerdict> verdicts);

  // Device memory it holds.
  std::int64_t device_bytes() const { return verifier_->device_bytes() + storage_.bytes(); }

 private:
  struct Arrays;  // Typed pointers into storage_.
  DigestChecker(ops::Backend& backend, std::unique_ptr<Verifier> verifier, ops::Buffer storage);
  // Enqueues the check of entries_[first .. first + count), at most a portion, into found_.
  void enqueue(ops::Stream& stream, const PagePool& pool, const ops::VerifiedPages& pages, std::size_t first,
               std::size_t count);

  ops::Backend& backend_;
  std::unique_ptr<Verifier> verifier_;  // Of rows of one page.
  ops::Buffer storage_;
  // Host side, reused.
  std::vector<std::int32_t> table_;
  std::vector<RowExpectation> rows_;
  std::vector<ops::PageTableEntry> entries_;
  std::vector<ops::RowVerdict> found_;  // Of entries_.
  std::vector<std::int32_t> entry_of_page_;
  std::vector<ops::RowVerdict> verdicts_;
};

}  // namespace tessera::kv_cache
