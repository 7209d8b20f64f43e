// The only maker of ops::VerifiedPages and ops::WritableSlots. One Verifier belongs to one engine and is used from its
// thread. It owns the device buffers of the check, sized once from the largest batch; a check allocates nothing.
//
// A step is: check_before (enqueues the check, gives the two views), forward, sample, check_after (enqueues the check
// again, verdicts only), read_verdicts (synchronizes). Tokens of a row are emitted only if both verdicts are clean.
//
// One class derives from it: tessera_bench's, which leaves the check out to measure what it costs. A rule of
// tests/style allows no other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/ops/backend.h"

namespace tessera::kv_cache {

struct VerifierLimits {
  std::int64_t rows_max = 0;
  std::int64_t pages_per_row_max = 0;
  std::int64_t tokens_max = 0;  // Of one step.
};

// One row of the batch, from the host's own records.
struct RowExpectation {
  std::span<const Lease> leases;        // Entry j of the row; at least ceil(kv_len / page_size) of them.
  std::int32_t kv_len = 0;              // Tokens that the step reads, those it writes included.
  std::int32_t write_start = 0;         // Tokens of KV that the sequence has before the step.
  std::int32_t first_logical_page = 0;  // Which page of its sequence leases[0] is; tokens count from its first one.
};

struct CheckInput {
  ops::PageRecords records;
  std::int32_t page_size = 0;
  const std::int32_t* page_table = nullptr;  // device, [rows, row stride of the page table], see PageTable.
  std::int64_t max_pages_per_row = 0;        // Row stride of page_table; <= pages_per_row_max.
  std::span<const RowExpectation> rows;
  // Tokens written by the step, in batch order; empty for a check that only reads (handoff).
  std::span<const std::int32_t> token_rows;
  std::span<const std::int32_t> token_positions;
  std::span<const std::int64_t> slot_mapping;
};

struct CheckedPages {
  ops::VerifiedPages pages;
  ops::WritableSlots slots;
};

class Verifier {
 public:
  static base::Result<std::unique_ptr<Verifier>> create(ops::Backend& backend, const VerifierLimits& limits);
  virtual ~Verifier() = default;
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  // Enqueues the check and returns the sanitized views, valid until the next check_before. Exceeding the limits is a
  // programmer's error.
  virtual CheckedPages check_before(ops::Stream& stream, const CheckInput& input);
  // The same comparison again over the same rows as the last check_before, against the records as they are now; changes
  // no view.
  virtual void check_after(ops::Stream& stream);

  // Waits for the stream; verdict r is the first failing one of the two checks (after where before was clean).
  virtual std::span<const ops::RowVerdict> read_verdicts(ops::Stream& stream);

  // Device memory it holds.
  std::int64_t device_bytes() const { return storage_.bytes(); }

 protected:
  // Device arrays that nobody has checked.
  struct UncheckedArrays {
    const std::int32_t* table = nullptr;    // [rows, max_pages_per_row]
    const std::int32_t* kv_lens = nullptr;  // [rows]
    std::int64_t rows = 0;
    std::int64_t max_pages_per_row = 0;
    const std::int64_t* slots = nullptr;  // [tokens]
    std::int64_t tokens = 0;
  };
  Verifier(ops::Backend& backend, const VerifierLimits& limits, ops::Buffer storage);
  // For the class that measures the check: the views without one.
  static CheckedPages unchecked(const UncheckedArrays& arrays);
  // Device memory that a verifier of these limits needs, for `storage`.
  static std::int64_t storage_bytes(const VerifierLimits& limits);

 private:
  struct Arrays;  // Typed pointers into storage_.
  ops::Backend& backend_;
  const VerifierLimits limits_;
  ops::Buffer storage_;
  ops::VerifyPagesParams last_;
  bool checked_after_ = false;
  // Host staging, reused.
  std::vector<std::uint64_t> tags_;
  std::vector<std::uint64_t> owners_;
  std::vector<std::int32_t> kv_lens_;
  std::vector<std::int32_t> write_starts_;
  std::vector<std::int32_t> first_logical_pages_;
  std::vector<ops::RowVerdict> verdicts_;
  std::vector<ops::RowVerdict> verdicts_after_;
};

// Makes an engine's verifier; empty: Verifier::create.
using VerifierFactory =
    std::function<base::Result<std::unique_ptr<Verifier>>(ops::Backend& backend, const VerifierLimits& limits)>;

}  // namespace tessera::kv_cache
