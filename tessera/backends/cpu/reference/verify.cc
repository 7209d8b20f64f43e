// The page check (ops/verify.h has the rules).
#include <algorithm>

#include "tessera/backends/cpu/reference/cpu_backend_base.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

namespace {

using ops::RowVerdict;
using ops::VerifyPagesParams;

// The logical page of the sequence that entry j of row r is.
std::int64_t logical_page_of(const VerifyPagesParams& p, std::int64_t r, std::int64_t j) {
  return (p.first_logical_pages == nullptr ? 0 : p.first_logical_pages[r]) + j;
}

// Adds a failure; only the first one of a row is described.
void fail(RowVerdict& verdict, ops::PageCheck check, std::int64_t logical_page, std::int64_t page_id,
          std::uint64_t found, std::uint64_t expected) {
  if (verdict.failed_checks == 0) {
    verdict.logical_page = static_cast<std::int32_t>(logical_page);
    verdict.page_id = page_id;
    verdict.found = found;
    verdict.expected = expected;
  }
  verdict.failed_checks |= check;
}

// Checks entry j of row r's table and returns its id if it passed, else the null page.
std::int32_t checked_page(const VerifyPagesParams& p, std::int64_t r, std::int64_t j, RowVerdict& verdict) {
  const std::int64_t entry = r * p.max_pages_per_row + j;
  const std::int32_t id = p.page_table[entry];
  const std::int64_t logical_page = logical_page_of(p, r, j);
  if (id < 1 || id >= p.records.num_pages) {
    fail(verdict, ops::kCheckRange, logical_page, id, static_cast<std::uint64_t>(static_cast<std::int64_t>(id)),
         static_cast<std::uint64_t>(p.records.num_pages));
    return ops::kNullPage;
  }
  bool passed = true;
  const auto compare = [&](ops::PageCheck check, std::uint64_t found, std::uint64_t expected) {
    if (found == expected) return;
    passed = false;
    fail(verdict, check, logical_page, id, found, expected);
  };
  compare(ops::kCheckTag, p.records.tags[id], p.expected_tags[entry]);
  compare(ops::kCheckOwner, p.records.owners[id], p.expected_owners[entry]);
  compare(ops::kCheckPosition, static_cast<std::uint64_t>(static_cast<std::int64_t>(p.records.positions[id])),
          static_cast<std::uint64_t>(logical_page));
  return passed ? id : ops::kNullPage;
}

// Checks the write of token t and returns its slot if it passed, else the null slot.
std::int64_t checked_slot(const VerifyPagesParams& p, std::int64_t t, RowVerdict& verdict) {
  const std::int64_t r = p.token_rows[t];
  const std::int64_t position = p.token_positions[t];
  const std::int64_t slot = p.slot_mapping[t];
  const std::int64_t entry = position < 0 ? -1 : position / p.page_size;
  const std::int64_t logical_page = entry < 0 ? -1 : logical_page_of(p, r, entry);
  const std::int64_t page_of_slot = slot < 0 ? -1 : slot / p.page_size;
  const auto refuse = [&](std::int64_t expected) {
    fail(verdict, ops::kCheckSlot, logical_page, page_of_slot, static_cast<std::uint64_t>(slot),
         static_cast<std::uint64_t>(expected));
    return ops::kNullSlot;
  };
  if (position < p.write_starts[r] || position < 0 || position >= p.kv_lens[r]) return refuse(ops::kNullSlot);
  // The page's own failure is in the verdict already; here it only means that nothing may be written to it.
  RowVerdict page_verdict;
  const std::int32_t page = checked_page(p, r, entry, page_verdict);
  if (page == ops::kNullPage) return refuse(ops::kNullSlot);
  const std::int64_t expected = static_cast<std::int64_t>(page) * p.page_size + position % p.page_size;
  if (slot != expected) return refuse(expected);
  const std::int32_t leases = p.records.lease_counts[page];
  if (leases != 1) {
    fail(verdict, ops::kCheckShared, logical_page, page, static_cast<std::uint64_t>(static_cast<std::int64_t>(leases)),
         1);
    return ops::kNullSlot;
  }
  return slot;
}

bool length_fits(const VerifyPagesParams& p, std::int64_t r) {
  return p.kv_lens[r] >= 0 && p.kv_lens[r] <= p.max_pages_per_row * p.page_size;
}

}  // namespace

void CpuBackendBase::verify_pages(ops::Stream&, const ops::VerifyPagesParams& params) {
  ops::check_params(params);
  const VerifyPagesParams& p = params;
  const bool sanitize = p.sanitized_table != nullptr;

  for (std::int64_t r = 0; r < p.rows; ++r) {
    RowVerdict verdict;
    std::int64_t pages = 0;
    if (length_fits(p, r)) {
      pages = base::ceil_div(p.kv_lens[r], p.page_size);
    } else {
      fail(verdict, ops::kCheckRange, -1, -1, static_cast<std::uint64_t>(static_cast<std::int64_t>(p.kv_lens[r])),
           static_cast<std::uint64_t>(p.max_pages_per_row * p.page_size));
    }
    for (std::int64_t j = 0; j < p.max_pages_per_row; ++j) {
      const std::int32_t page = j < pages ? checked_page(p, r, j, verdict) : ops::kNullPage;
      if (sanitize) p.sanitized_table[r * p.max_pages_per_row + j] = page;
    }
    p.verdicts[r] = verdict;
  }

  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const std::int32_t r = p.token_rows[t];
    TESSERA_CHECK(r >= 0 && r < p.rows);
    // Without a length that fits, there is no page to look a position up in, and the row has failed already.
    const std::int64_t slot = length_fits(p, r) ? checked_slot(p, t, p.verdicts[r]) : ops::kNullSlot;
    if (sanitize) p.sanitized_slots[t] = slot;
  }

  if (!sanitize) return;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const bool passed = p.verdicts[r].failed_checks == 0;
    p.sanitized_kv_lens[r] = passed ? p.kv_lens[r] : 0;
    if (!passed) std::fill_n(p.sanitized_table + r * p.max_pages_per_row, p.max_pages_per_row, ops::kNullPage);
  }
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    if (p.verdicts[p.token_rows[t]].failed_checks != 0) p.sanitized_slots[t] = ops::kNullSlot;
  }
}

}  // namespace tessera::backends::cpu
