// A step of three sequences for verify_pages, and the rules of ops/verify.h that judge what the op says of it.
#pragma once

#include <vector>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {

// One call of the op, in host arrays that a case may damage. Three sequences in a pool of 12 pages of 4 tokens:
//   row 0: 10 tokens in pages 5, 2, 9; this step writes tokens 8 and 9
//   row 1: 4 tokens in page 7; this step writes token 3
//   row 2: 6 tokens in pages 3 and 4, both leased twice; this step writes nothing
struct Step {
  static constexpr std::int32_t kPageSize = 4;
  static constexpr std::int64_t kRows = 3;
  static constexpr std::int64_t kWidth = 4;
  std::vector<std::uint64_t> tags = std::vector<std::uint64_t>(12, 0);
  std::vector<std::uint64_t> owners = std::vector<std::uint64_t>(12, 0);
  std::vector<std::int32_t> positions = std::vector<std::int32_t>(12, -1);
  std::vector<std::int32_t> lease_counts = std::vector<std::int32_t>(12, 0);
  std::vector<std::int32_t> table = {5, 2, 9, 0, 7, 0, 0, 0, 3, 4, 0, 0};
  std::vector<std::int32_t> kv_lens = {10, 4, 6};
  std::vector<std::uint64_t> expected_tags = std::vector<std::uint64_t>(12, 0);
  std::vector<std::uint64_t> expected_owners = std::vector<std::uint64_t>(12, 0);
  std::vector<std::int32_t> token_rows = {0, 0, 1};
  std::vector<std::int32_t> token_positions = {8, 9, 3};
  std::vector<std::int64_t> slots = {9 * 4 + 0, 9 * 4 + 1, 7 * 4 + 3};
  std::vector<std::int32_t> write_starts = {8, 3, 6};
  std::vector<std::int32_t> first_logical_pages;  // Empty: none are passed.

  Step() {
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t j = 0; j * kPageSize < kv_lens[r]; ++j) {
        const std::int32_t page = table[r * kWidth + j];
        tags[page] = expected_tags[r * kWidth + j] = 1000 + static_cast<std::uint64_t>(page);
        owners[page] = expected_owners[r * kWidth + j] = 70 + static_cast<std::uint64_t>(r);
        positions[page] = static_cast<std::int32_t>(j);
        lease_counts[page] = r == 2 ? 2 : 1;
      }
    }
  }

  // Makes the rows windows of longer sequences.
  void begin_at(const std::vector<std::int32_t>& logical_pages) {
    first_logical_pages = logical_pages;
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t j = 0; j * kPageSize < kv_lens[r]; ++j) positions[table[r * kWidth + j]] += logical_pages[r];
    }
  }
  std::int64_t first_logical_page(std::int64_t r) const {
    return first_logical_pages.empty() ? 0 : first_logical_pages[static_cast<std::size_t>(r)];
  }
};

struct Outcome {
  std::vector<std::int32_t> table;
  std::vector<std::int32_t> kv_lens;
  std::vector<std::int64_t> slots;
  std::vector<ops::RowVerdict> verdicts;
};

struct Failure {
  ops::PageCheck check;
  std::int64_t logical_page;
  std::int64_t page_id;
  std::uint64_t found;
  std::uint64_t expected;
};

inline std::uint64_t as_found(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// The rules of ops/verify.h read as a list: every failure of a row, pages first.
inline std::vector<Failure> page_failures(const Step& s, std::int64_t r, std::int32_t j) {
  const auto entry = static_cast<std::size_t>(r * Step::kWidth + j);
  const std::int64_t id = s.table[entry];
  const std::int64_t logical_page = s.first_logical_page(r) + j;
  const auto pages = std::ssize(s.tags);
  if (id <= 0 || id >= pages) return {{ops::kCheckRange, logical_page, id, as_found(id), as_found(pages)}};
  const auto page = static_cast<std::size_t>(id);
  std::vector<Failure> out;
  if (s.tags[page] != s.expected_tags[entry]) {
    out.push_back({ops::kCheckTag, logical_page, id, s.tags[page], s.expected_tags[entry]});
  }
  if (s.owners[page] != s.expected_owners[entry]) {
    out.push_back({ops::kCheckOwner, logical_page, id, s.owners[page], s.expected_owners[entry]});
  }
  if (s.positions[page] != logical_page) {
    out.push_back({ops::kCheckPosition, logical_page, id, as_found(s.positions[page]), as_found(logical_page)});
  }
  return out;
}

inline std::vector<Failure> row_failures(const Step& s, std::int64_t r) {
  const std::int64_t kv_len = s.kv_lens[static_cast<std::size_t>(r)];
  if (kv_len < 0 || kv_len > Step::kWidth * Step::kPageSize) {
    return {{ops::kCheckRange, -1, -1, as_found(kv_len), as_found(Step::kWidth * Step::kPageSize)}};
  }
  std::vector<Failure> out;
  for (std::int32_t j = 0; j * Step::kPageSize < kv_len; ++j) {
    for (const Failure& failure : page_failures(s, r, j)) out.push_back(failure);
  }
  for (std::size_t t = 0; t < s.slots.size(); ++t) {
    if (s.token_rows[t] != r) continue;
    const std::int32_t position = s.token_positions[t];
    const std::int64_t slot = s.slots[t];
    const std::int64_t slot_page = slot < 0 ? -1 : slot / Step::kPageSize;
    const std::int32_t j = position < 0 ? -1 : position / Step::kPageSize;
    const std::int64_t logical_page = j < 0 ? -1 : s.first_logical_page(r) + j;
    std::int64_t right_slot = ops::kNullSlot;
    if (position >= 0 && position >= s.write_starts[static_cast<std::size_t>(r)] && position < kv_len &&
        page_failures(s, r, j).empty()) {
      right_slot =
          static_cast<std::int64_t>(s.table[static_cast<std::size_t>(r * Step::kWidth + j)]) * Step::kPageSize +
          position % Step::kPageSize;
    }
    if (right_slot == ops::kNullSlot || slot != right_slot) {
      out.push_back({ops::kCheckSlot, logical_page, slot_page, as_found(slot), as_found(right_slot)});
    } else if (s.lease_counts[static_cast<std::size_t>(slot_page)] != 1) {
      out.push_back({ops::kCheckShared, logical_page, slot_page,
                     as_found(s.lease_counts[static_cast<std::size_t>(slot_page)]), 1});
    }
  }
  return out;
}

class VerifyPagesTest : public BackendTest {
 protected:
  enum class Outputs { kAll, kVerdictsOnly };

  Outcome run(const Step& s, Outputs outputs = Outputs::kAll) {
    const auto tags = device_.upload(s.tags);
    const auto owners = device_.upload(s.owners);
    const auto positions = device_.upload(s.positions);
    const auto lease_counts = device_.upload(s.lease_counts);
    const auto table = device_.upload(s.table);
    const auto kv_lens = device_.upload(s.kv_lens);
    const auto expected_tags = device_.upload(s.expected_tags);
    const auto expected_owners = device_.upload(s.expected_owners);
    const auto token_rows = device_.upload(s.token_rows);
    const auto token_positions = device_.upload(s.token_positions);
    const auto slots = device_.upload(s.slots);
    const auto write_starts = device_.upload(s.write_starts);
    const auto first_logical_pages = device_.upload(s.first_logical_pages);
    const auto out_table = device_.upload(std::vector<std::int32_t>(s.table.size(), 12345));
    const auto out_kv_lens = device_.upload(std::vector<std::int32_t>(s.kv_lens.size(), 12345));
    const auto out_slots = device_.upload(std::vector<std::int64_t>(s.slots.size(), 12345));
    const auto verdicts = device_.upload(std::vector<ops::RowVerdict>(s.kv_lens.size(), {12345, 1, 1, 1, 1}));

    ops::VerifyPagesParams p;
    p.records = {tags.data(), owners.data(), positions.data(), lease_counts.data(), std::ssize(s.tags)};
    p.page_size = Step::kPageSize;
    p.rows = std::ssize(s.kv_lens);
    p.max_pages_per_row = Step::kWidth;
    p.page_table = table.data();
    p.kv_lens = kv_lens.data();
    p.expected_tags = expected_tags.data();
    p.expected_owners = expected_owners.data();
    p.tokens = std::ssize(s.slots);
    p.token_rows = token_rows.data();
    p.token_positions = token_positions.data();
    p.slot_mapping = slots.data();
    p.write_starts = write_starts.data();
    if (!s.first_logical_pages.empty()) p.first_logical_pages = first_logical_pages.data();
    if (outputs == Outputs::kAll) {
      p.sanitized_table = out_table.data();
      p.sanitized_kv_lens = out_kv_lens.data();
      p.sanitized_slots = out_slots.data();
    }
    p.verdicts = verdicts.data();
    backend().verify_pages(stream(), p);
    return {device_.download(out_table), device_.download(out_kv_lens), device_.download(out_slots),
            device_.download(verdicts)};
  }

  static void expect_verdict(const ops::RowVerdict& verdict, const std::vector<Failure>& failures) {
    std::uint32_t bits = 0;
    for (const Failure& failure : failures) bits |= failure.check;
    const Failure first = failures.empty() ? Failure{ops::kCheckRange, -1, -1, 0, 0} : failures.front();
    EXPECT_EQ(verdict.failed_checks, bits);
    EXPECT_EQ(verdict.logical_page, first.logical_page);
    EXPECT_EQ(verdict.page_id, first.page_id);
    EXPECT_EQ(verdict.found, first.found);
    EXPECT_EQ(verdict.expected, first.expected);
  }

  // Runs the step both ways and compares everything with the rules.
  void expect_by_the_rules(const Step& s) {
    const Outcome out = run(s);
    const Outcome verdicts_only = run(s, Outputs::kVerdictsOnly);
    for (std::int64_t r = 0; r < std::ssize(s.kv_lens); ++r) {
      SCOPED_TRACE(testing::Message() << "row " << r);
      const std::vector<Failure> failures = row_failures(s, r);
      expect_verdict(out.verdicts[static_cast<std::size_t>(r)], failures);
      expect_verdict(verdicts_only.verdicts[static_cast<std::size_t>(r)], failures);
      const std::int32_t kv_len = failures.empty() ? s.kv_lens[static_cast<std::size_t>(r)] : 0;
      EXPECT_EQ(out.kv_lens[static_cast<std::size_t>(r)], kv_len);
      for (std::int64_t j = 0; j < Step::kWidth; ++j) {
        const auto entry = static_cast<std::size_t>(r * Step::kWidth + j);
        EXPECT_EQ(out.table[entry], j * Step::kPageSize < kv_len ? s.table[entry] : ops::kNullPage) << "page " << j;
      }
      for (std::size_t t = 0; t < s.slots.size(); ++t) {
        if (s.token_rows[t] == r) {
          EXPECT_EQ(out.slots[t], failures.empty() ? s.slots[t] : ops::kNullSlot) << t;
        }
      }
    }
  }
};

}  // namespace tessera::conformance
