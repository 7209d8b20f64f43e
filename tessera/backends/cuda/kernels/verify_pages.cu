#include "tessera/backends/cuda/kernels/fault_device.h"
#include "tessera/backends/cuda/kernels/verify_pages.h"
#include "tessera/ops/kv_layout.h"

namespace tessera::backends::cuda {

namespace {

using ops::RowVerdict;
using ops::VerifyPagesParams;

constexpr int kThreads = 256;

// A verdict that a thread keeps of its own first failure.
struct Found {
  std::uint32_t failed = 0;
  std::int32_t logical_page = -1;
  std::int64_t page_id = -1;
  std::uint64_t found = 0;
  std::uint64_t expected = 0;
};

__device__ __forceinline__ void fail(Found& verdict, ops::PageCheck check, std::int64_t logical_page,
                                     std::int64_t page_id, std::uint64_t found, std::uint64_t expected) {
  if (verdict.failed == 0) {
    verdict.logical_page = static_cast<std::int32_t>(logical_page);
    verdict.page_id = page_id;
    verdict.found = found;
    verdict.expected = expected;
  }
  verdict.failed |= check;
}

__device__ __forceinline__ std::uint64_t as_found(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// The logical page of the sequence that entry j of row r is.
__device__ __forceinline__ std::int64_t logical_page_of(const VerifyPagesParams& p, std::int64_t r, std::int64_t j) {
  return (p.first_logical_pages == nullptr ? 0 : p.first_logical_pages[r]) + j;
}

// Checks entry j of row r's table and returns its id if it passed, else the null page.
__device__ std::int32_t checked_page(const VerifyPagesParams& p, std::int64_t r, std::int64_t j, Found& verdict) {
  const std::int64_t entry = r * p.max_pages_per_row + j;
  const std::int32_t id = p.page_table[entry];
  const std::int64_t logical_page = logical_page_of(p, r, j);
  if (id < 1 || id >= p.records.num_pages) {
    fail(verdict, ops::kCheckRange, logical_page, id, as_found(id), as_found(p.records.num_pages));
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
  compare(ops::kCheckPosition, as_found(p.records.positions[id]), as_found(logical_page));
  return passed ? id : ops::kNullPage;
}

// Checks the write of token t of row r and returns its slot if it passed, else the null slot.
__device__ std::int64_t checked_slot(const VerifyPagesParams& p, std::int64_t r, std::int64_t kv_len, std::int64_t t,
                                     Found& verdict) {
  const std::int64_t position = p.token_positions[t];
  const std::int64_t slot = p.slot_mapping[t];
  const std::int64_t entry = position < 0 ? -1 : position / p.page_size;
  const std::int64_t logical_page = entry < 0 ? -1 : logical_page_of(p, r, entry);
  const std::int64_t page_of_slot = slot < 0 ? -1 : slot / p.page_size;
  const auto refuse = [&](std::int64_t expected) {
    fail(verdict, ops::kCheckSlot, logical_page, page_of_slot, as_found(slot), as_found(expected));
    return ops::kNullSlot;
  };
  if (position < p.write_starts[r] || position < 0 || position >= kv_len) return refuse(ops::kNullSlot);
  // The page's own failure is in the verdict already; here it only means that nothing may be written to it.
  Found page_verdict;
  const std::int32_t page = checked_page(p, r, entry, page_verdict);
  if (page == ops::kNullPage) return refuse(ops::kNullSlot);
  const std::int64_t expected = static_cast<std::int64_t>(page) * p.page_size + position % p.page_size;
  if (slot != expected) return refuse(expected);
  const std::int32_t leases = p.records.lease_counts[page];
  if (leases != 1) {
    fail(verdict, ops::kCheckShared, logical_page, page, as_found(leases), 1);
    return ops::kNullSlot;
  }
  return slot;
}

// Pages first, a thread a page; then the tokens of the row, which are found by looking at all tokens of the step. What
// passed is written at once, so that the ids that were checked are the ids that are used; what a failed row wrote is
// taken back after the row's threads have met.
__global__ void __launch_bounds__(kThreads) verify_pages_kernel(VerifyPagesParams p, DeviceFault* fault) {
  __shared__ unsigned failed_bits;
  __shared__ unsigned long long first_failure;  // Its place in the order of checks.
  constexpr unsigned long long kNone = ~0ull;
  const std::int64_t r = blockIdx.x;
  const bool sanitize = p.sanitized_table != nullptr;
  __shared__ std::int32_t shared_kv_len;
  if (threadIdx.x == 0) {
    failed_bits = 0;
    first_failure = kNone;
    shared_kv_len = p.kv_lens[r];  // Read once: it is copied by the host for each step, but nothing here relies on it.
  }
  __syncthreads();
  const std::int64_t kv_len = shared_kv_len;
  const std::int64_t capacity = p.max_pages_per_row * p.page_size;
  const bool fits = kv_len >= 0 && kv_len <= capacity;

  Found mine;
  unsigned long long my_first = kNone;
  const auto keep = [&](unsigned long long place) {
    if (mine.failed != 0 && my_first == kNone) my_first = place;
  };
  if (!fits && threadIdx.x == 0) {
    fail(mine, ops::kCheckRange, -1, -1, as_found(kv_len), as_found(capacity));
    keep(0);
  }
  const std::int64_t pages = fits ? (kv_len + p.page_size - 1) / p.page_size : 0;
  for (std::int64_t j = threadIdx.x; j < p.max_pages_per_row; j += kThreads) {
    const std::int32_t page = j < pages ? checked_page(p, r, j, mine) : ops::kNullPage;
    keep(1 + static_cast<unsigned long long>(j));
    if (sanitize) p.sanitized_table[r * p.max_pages_per_row + j] = page;
  }
  for (std::int64_t t = threadIdx.x; t < p.tokens; t += kThreads) {
    const std::int32_t row = p.token_rows[t];
    if (row < 0 || row >= p.rows) {
      if (r == 0) {
        report_fault(fault, FaultKind::kTokenRow, t, row, p.rows);
        if (sanitize) p.sanitized_slots[t] = ops::kNullSlot;
      }
      continue;
    }
    if (row != r) continue;
    // Without a length that fits, there is no page to look a position up in, and the row has failed already.
    const std::int64_t slot = fits ? checked_slot(p, r, kv_len, t, mine) : ops::kNullSlot;
    keep(1 + static_cast<unsigned long long>(p.max_pages_per_row + t));
    if (sanitize) p.sanitized_slots[t] = slot;
  }
  if (mine.failed != 0) {
    atomicOr(&failed_bits, mine.failed);
    atomicMin(&first_failure, my_first);
  }
  __syncthreads();

  if (failed_bits == 0) {
    if (threadIdx.x == 0) {
      p.verdicts[r] = RowVerdict{};
      if (sanitize) p.sanitized_kv_lens[r] = static_cast<std::int32_t>(kv_len);
    }
    return;
  }
  // Places are unique, so exactly one thread describes.
  if (mine.failed != 0 && my_first == first_failure) {
    RowVerdict verdict;
    verdict.failed_checks = failed_bits;
    verdict.logical_page = mine.logical_page;
    verdict.page_id = mine.page_id;
    verdict.found = mine.found;
    verdict.expected = mine.expected;
    p.verdicts[r] = verdict;
  }
  if (!sanitize) return;
  if (threadIdx.x == 0) p.sanitized_kv_lens[r] = 0;
  // Each thread takes back what it wrote itself.
  for (std::int64_t j = threadIdx.x; j < p.max_pages_per_row; j += kThreads) {
    p.sanitized_table[r * p.max_pages_per_row + j] = ops::kNullPage;
  }
  for (std::int64_t t = threadIdx.x; t < p.tokens; t += kThreads) {
    if (p.token_rows[t] == r) p.sanitized_slots[t] = ops::kNullSlot;
  }
}

}  // namespace

void launch_verify_pages(const ops::VerifyPagesParams& params, const Launch& launch) {
  if (params.rows == 0) return;
  verify_pages_kernel<<<static_cast<unsigned>(params.rows), kThreads, 0, launch.stream>>>(params, launch.fault);
}

}  // namespace tessera::backends::cuda
