// The page check (op verify_pages): may this step read the pages in its table, and write the slots in its mapping?
//
// Every row of the batch (a sequence) is checked against two records that share no copy: the device's own arrays, one
// element a page, and what the host wrote down in the sequence's leases when the pages were allocated. In this order,
// for each logical page j < ceil(kv_len / page_size) of row r, with id = page_table[r][j]:
//   range     1 <= id < num_pages (page 0 is the null page); nothing is dereferenced with an id outside.
//   tag       tags[id] == expected_tags[r][j]
//   owner     owners[id] == expected_owners[r][j]
//   position  positions[id] == first_logical_pages[r] + j
// and for each token t of the row with position p = token_positions[t], slot = slot_mapping[t]:
//   slot      write_starts[r] <= p < kv_lens[r], p lies in a page that passed the checks above, and
//             slot == page_table[r][p / page_size] * page_size + p % page_size
//   shared    lease_counts[page of the slot] == 1: nobody else holds the page.
// A row with any failure gets length 0, null pages and null slots; the other rows are unaffected. Also a row's kv_len
// must fit its table: 0 <= kv_len <= max_pages_per_row * page_size, else `range`.
//
// A row may be a window of its sequence: its table then begins with logical page first_logical_pages[r], and kv_len,
// write_start and token positions count from there. So any page can be checked alone, as a row of one page.
//
// Aliasing: outputs overlap nothing. Deterministic. One call is one small kernel on a GPU.
#pragma once

#include <cstdint>

namespace tessera::ops {

// The device's arrays: one element for each page of the pool (the null page included), written only by the page pool.
struct PageRecords {
  const std::uint64_t* tags = nullptr;  // 0: not allocated.
  const std::uint64_t* owners = nullptr;
  const std::int32_t* positions = nullptr;  // Logical index of the page in its sequence.
  const std::int32_t* lease_counts = nullptr;
  std::int64_t num_pages = 0;
  // What check_digests compares with (page_transfer.h); verify_pages does not read it.
  const std::uint64_t* digests = nullptr;
};

// Bits of RowVerdict::failed_checks.
enum PageCheck : std::uint32_t {
  kCheckRange = 1u << 0,
  kCheckTag = 1u << 1,
  kCheckOwner = 1u << 2,
  kCheckPosition = 1u << 3,
  kCheckSlot = 1u << 4,
  kCheckShared = 1u << 5,
  kCheckDigest = 1u << 6,  // Found by check_digests (page_transfer.h), not by verify_pages.
};

// What the check found in one row. The fields after failed_checks describe the first failure (lowest logical page, then
// lowest token), for the forensic log; they are 0 or -1 in a row that passed.
struct RowVerdict {
  std::uint32_t failed_checks = 0;
  std::int32_t logical_page = -1;  // Of the sequence, not of the row's window.
  std::int64_t page_id = -1;       // As the page table, or the slot mapping, had it.
  std::uint64_t found = 0;         // Tag, owner, position, slot, lease count or digest on the device.
  std::uint64_t expected = 0;
};

struct VerifyPagesParams {
  PageRecords records;
  std::int32_t page_size = 0;
  std::int64_t rows = 0;
  std::int64_t max_pages_per_row = 0;
  const std::int32_t* page_table = nullptr;           // [rows, max_pages_per_row]
  const std::int32_t* kv_lens = nullptr;              // [rows]: tokens read, those written by this step included.
  const std::uint64_t* expected_tags = nullptr;       // [rows, max_pages_per_row], from the leases.
  const std::uint64_t* expected_owners = nullptr;     // [rows, max_pages_per_row], from the leases.
  const std::int32_t* first_logical_pages = nullptr;  // [rows], each >= 0; null: 0 in every row.
  // Writes of this step; tokens may be 0.
  std::int64_t tokens = 0;
  const std::int32_t* token_rows = nullptr;       // [tokens]: 0 <= row < rows (a host invariant, checked).
  const std::int32_t* token_positions = nullptr;  // [tokens]
  const std::int64_t* slot_mapping = nullptr;     // [tokens]
  const std::int32_t* write_starts = nullptr;     // [rows]: tokens of KV that the sequence already has.
  // Outputs. The sanitized arrays may all be null: then only the verdicts are written (the check after a step).
  std::int32_t* sanitized_table = nullptr;    // [rows, max_pages_per_row]; entries past the row's pages are null pages.
  std::int32_t* sanitized_kv_lens = nullptr;  // [rows]
  std::int64_t* sanitized_slots = nullptr;    // [tokens]
  RowVerdict* verdicts = nullptr;             // [rows]
};

}  // namespace tessera::ops
