#include <functional>
#include <limits>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {
namespace {

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

std::uint64_t as_found(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// The rules of ops/verify.h read as a list: every failure of a row, pages first.
std::vector<Failure> page_failures(const Step& s, std::int64_t r, std::int32_t j) {
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

std::vector<Failure> row_failures(const Step& s, std::int64_t r) {
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
INSTANTIATE_TEST_SUITE_P(Backends, VerifyPagesTest, all_backends(), backend_case_name);

TEST_P(VerifyPagesTest, ASoundStepPassesUnchanged) {
  const Step s;
  const Outcome out = run(s);
  for (const ops::RowVerdict& verdict : out.verdicts) expect_verdict(verdict, {});
  EXPECT_EQ(out.table, s.table);
  EXPECT_EQ(out.kv_lens, s.kv_lens);
  EXPECT_EQ(out.slots, s.slots);
}

TEST_P(VerifyPagesTest, EveryKindOfFaultIsFoundAndStaysInItsRow) {
  constexpr std::int32_t kIntMin = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kIntMax = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t kLongMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kLongMax = std::numeric_limits<std::int64_t>::max();
  struct Fault {
    const char* name;
    std::function<void(Step&)> damage;
    std::int64_t row;
    std::uint32_t failed_checks;
    Failure first;
  };
  using ops::kCheckOwner, ops::kCheckPosition, ops::kCheckRange, ops::kCheckShared, ops::kCheckSlot, ops::kCheckTag;
  const std::vector<Fault> faults = {
      // Page ids. Row 0's pages 0 and 1 are only read; page 2 is also written to, which then fails as well.
      {"id past the pool", [](Step& s) { s.table[1] = 12; }, 0, kCheckRange, {kCheckRange, 1, 12, 12, 12}},
      {"largest id", [](Step& s) { s.table[0] = kIntMax; }, 0, kCheckRange, {kCheckRange, 0, kIntMax, kIntMax, 12}},
      {"negative id", [](Step& s) { s.table[0] = -1; }, 0, kCheckRange, {kCheckRange, 0, -1, as_found(-1), 12}},
      {"smallest id",
       [](Step& s) { s.table[1] = kIntMin; },
       0,
       kCheckRange,
       {kCheckRange, 1, kIntMin, as_found(kIntMin), 12}},
      {"the null page", [](Step& s) { s.table[1] = 0; }, 0, kCheckRange, {kCheckRange, 1, 0, 0, 12}},
      {"id past the pool where it writes",
       [](Step& s) { s.table[2] = 99; },
       0,
       kCheckRange | kCheckSlot,
       {kCheckRange, 2, 99, 99, 12}},
      {"two entries swapped",
       [](Step& s) { std::swap(s.table[0], s.table[1]); },
       0,
       kCheckTag | kCheckPosition,
       {kCheckTag, 0, 2, 1002, 1005}},
      {"a neighbour's page",
       [](Step& s) { s.table[8] = 7; },
       2,
       kCheckTag | kCheckOwner,
       {kCheckTag, 0, 7, 1007, 1003}},
      {"a free page",
       [](Step& s) { s.table[9] = 11; },
       2,
       kCheckTag | kCheckOwner | kCheckPosition,
       {kCheckTag, 1, 11, 0, 1004}},
      // Records.
      {"tag flipped by a bit",
       [](Step& s) { s.tags[3] ^= 1ull << 63; },
       2,
       kCheckTag,
       {kCheckTag, 0, 3, 1003 ^ (1ull << 63), 1003}},
      {"page freed under it", [](Step& s) { s.tags[5] = 0; }, 0, kCheckTag, {kCheckTag, 0, 5, 0, 1005}},
      {"stale lease", [](Step& s) { s.expected_tags[9] = 4; }, 2, kCheckTag, {kCheckTag, 1, 4, 1004, 4}},
      {"tag of a written page", [](Step& s) { s.tags[7] = 1; }, 1, kCheckTag | kCheckSlot, {kCheckTag, 0, 7, 1, 1007}},
      {"another's owner", [](Step& s) { s.owners[2] = 71; }, 0, kCheckOwner, {kCheckOwner, 1, 2, 71, 70}},
      {"another's position", [](Step& s) { s.positions[4] = 0; }, 2, kCheckPosition, {kCheckPosition, 1, 4, 0, 1}},
      {"negative position",
       [](Step& s) { s.positions[3] = -1; },
       2,
       kCheckPosition,
       {kCheckPosition, 0, 3, as_found(-1), 0}},
      // Lengths.
      {"length past the table", [](Step& s) { s.kv_lens[2] = 17; }, 2, kCheckRange, {kCheckRange, -1, -1, 17, 16}},
      {"largest length", [](Step& s) { s.kv_lens[0] = kIntMax; }, 0, kCheckRange, {kCheckRange, -1, -1, kIntMax, 16}},
      {"negative length", [](Step& s) { s.kv_lens[1] = -1; }, 1, kCheckRange, {kCheckRange, -1, -1, as_found(-1), 16}},
      {"smallest length",
       [](Step& s) { s.kv_lens[1] = kIntMin; },
       1,
       kCheckRange,
       {kCheckRange, -1, -1, as_found(kIntMin), 16}},
      {"length longer than its pages", [](Step& s) { s.kv_lens[2] = 9; }, 2, kCheckRange, {kCheckRange, 2, 0, 0, 12}},
      {"length shorter than its writes",
       [](Step& s) { s.kv_lens[1] = 3; },
       1,
       kCheckSlot,
       {kCheckSlot, 0, 7, 31, as_found(-1)}},
      // Slots.
      {"slot in a neighbour's page",
       [](Step& s) { s.slots[2] = 5 * 4 + 3; },
       1,
       kCheckSlot,
       {kCheckSlot, 0, 5, 23, 31}},
      {"slot one off", [](Step& s) { s.slots[0] = 37; }, 0, kCheckSlot, {kCheckSlot, 2, 9, 37, 36}},
      {"slot in its own earlier page",
       [](Step& s) { s.slots[1] = 2 * 4 + 1; },
       0,
       kCheckSlot,
       {kCheckSlot, 2, 2, 9, 37}},
      {"slot in the null page", [](Step& s) { s.slots[2] = 3; }, 1, kCheckSlot, {kCheckSlot, 0, 0, 3, 31}},
      {"slot past the pool", [](Step& s) { s.slots[2] = 48; }, 1, kCheckSlot, {kCheckSlot, 0, 12, 48, 31}},
      {"largest slot",
       [](Step& s) { s.slots[2] = kLongMax; },
       1,
       kCheckSlot,
       {kCheckSlot, 0, kLongMax / 4, as_found(kLongMax), 31}},
      {"negative slot", [](Step& s) { s.slots[0] = -1; }, 0, kCheckSlot, {kCheckSlot, 2, -1, as_found(-1), 36}},
      {"smallest slot",
       [](Step& s) { s.slots[0] = kLongMin; },
       0,
       kCheckSlot,
       {kCheckSlot, 2, -1, as_found(kLongMin), 36}},
      {"write before the sequence's end",
       [](Step& s) {
         s.token_positions[0] = 7;
         s.slots[0] = 2 * 4 + 3;
       },
       0,
       kCheckSlot,
       {kCheckSlot, 1, 2, 11, as_found(-1)}},
      {"write past the sequence's length",
       [](Step& s) {
         s.token_positions[1] = 10;
         s.slots[1] = 38;
       },
       0,
       kCheckSlot,
       {kCheckSlot, 2, 9, 38, as_found(-1)}},
      {"negative write position",
       [](Step& s) { s.token_positions[2] = -1; },
       1,
       kCheckSlot,
       {kCheckSlot, -1, 7, 31, as_found(-1)}},
      {"negative write position and start",
       [](Step& s) {
         s.token_positions[2] = kIntMin;
         s.write_starts[1] = kIntMin;
       },
       1,
       kCheckSlot,
       {kCheckSlot, -1, 7, 31, as_found(-1)}},
      {"largest write position",
       [](Step& s) { s.token_positions[2] = kIntMax; },
       1,
       kCheckSlot,
       {kCheckSlot, kIntMax / 4, 7, 31, as_found(-1)}},
      {"write to a page that others lease",
       [](Step& s) { s.lease_counts[9] = 2; },
       0,
       kCheckShared,
       {kCheckShared, 2, 9, 2, 1}},
      {"write to a page that nobody leases",
       [](Step& s) { s.lease_counts[7] = 0; },
       1,
       kCheckShared,
       {kCheckShared, 0, 7, 0, 1}},
      // Several at once: the first is the lowest page's, then the lowest token's.
      {"owner on page 0, tag on page 1",
       [](Step& s) {
         s.owners[5] = 1;
         s.tags[2] = 1;
       },
       0,
       kCheckOwner | kCheckTag,
       {kCheckOwner, 0, 5, 1, 70}},
      {"slot of token 0, shared at token 1",
       [](Step& s) {
         s.slots[0] = 8;
         s.lease_counts[9] = 3;
       },
       0,
       kCheckSlot | kCheckShared,
       {kCheckSlot, 2, 2, 8, 36}},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.name);
    Step s;
    fault.damage(s);
    const Outcome out = run(s);
    for (std::int64_t r = 0; r < Step::kRows; ++r) {
      const ops::RowVerdict& verdict = out.verdicts[static_cast<std::size_t>(r)];
      if (r == fault.row) {
        EXPECT_EQ(verdict.failed_checks, fault.failed_checks);
        EXPECT_EQ(verdict.logical_page, fault.first.logical_page);
        EXPECT_EQ(verdict.page_id, fault.first.page_id);
        EXPECT_EQ(verdict.found, fault.first.found);
        EXPECT_EQ(verdict.expected, fault.first.expected);
      } else {
        EXPECT_EQ(verdict.failed_checks, 0u) << "row " << r;
      }
    }
    expect_by_the_rules(s);
  }
}

TEST_P(VerifyPagesTest, RandomDamageIsJudgedByTheRules) {
  constexpr std::uint64_t kSeed = 901;
  Random random(kSeed);
  const auto hard_value = [&]() -> std::int64_t {
    switch (random.below(6)) {
      case 0:
        return random.below(14) - 1;
      case 1:
        return random.below(60);
      case 2:
        return std::numeric_limits<std::int32_t>::min();
      case 3:
        return std::numeric_limits<std::int32_t>::max();
      case 4:
        return 1000 + random.below(12);
      default:
        return static_cast<std::int64_t>(random.bits());
    }
  };
  const auto damage = [&](auto& array) {
    using T = typename std::remove_reference_t<decltype(array)>::value_type;
    array[static_cast<std::size_t>(random.below(std::ssize(array)))] = static_cast<T>(hard_value());
  };
  for (int round = 0; round < 3000 && !HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", round " << round);
    Step s;
    if (round % 2 == 1) {
      s.begin_at({static_cast<std::int32_t>(random.below(3)), static_cast<std::int32_t>(random.below(1 << 30)), 0});
    }
    for (std::int64_t i = random.below(4); i >= 0; --i) {
      switch (random.below(11)) {
        case 0:
          damage(s.tags);
          break;
        case 1:
          damage(s.owners);
          break;
        case 2:
          damage(s.positions);
          break;
        case 3:
          damage(s.lease_counts);
          break;
        case 4:
          damage(s.table);
          break;
        case 5:
          damage(s.kv_lens);
          break;
        case 6:
          damage(s.expected_tags);
          break;
        case 7:
          damage(s.expected_owners);
          break;
        case 8:
          damage(s.token_positions);
          break;
        case 9:
          damage(s.slots);
          break;
        default:
          damage(s.write_starts);
          break;
      }
    }
    expect_by_the_rules(s);
  }
}

TEST_P(VerifyPagesTest, AWindowIsCheckedWhereItLiesInItsSequence) {
  constexpr std::int32_t kIntMax = std::numeric_limits<std::int32_t>::max();
  Step sound;
  sound.begin_at({5, 0, kIntMax - 3});
  for (const ops::RowVerdict& verdict : run(sound).verdicts) expect_verdict(verdict, {});
  expect_by_the_rules(sound);

  // The pages of rows 0 and 2 where they would lie without a window.
  for (const std::size_t row : {std::size_t{0}, std::size_t{2}}) {
    Step s = sound;
    s.first_logical_pages[row] = 0;
    const Outcome out = run(s);
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(out.verdicts[r].failed_checks & ops::kCheckPosition, r == row ? ops::kCheckPosition : 0u) << r;
    }
    expect_by_the_rules(s);
  }

  // A window of one page, and the same page one place too late.
  Step page;
  page.kv_lens[0] = 3;
  page.table[0] = 9;
  page.expected_tags[0] = page.tags[9];
  page.expected_owners[0] = page.owners[9];
  page.token_rows = {1};
  page.token_positions = {3};
  page.slots = {7 * 4 + 3};
  page.first_logical_pages = {2, 0, 0};
  expect_verdict(run(page).verdicts[0], {});
  expect_by_the_rules(page);
  page.first_logical_pages[0] = 3;
  expect_verdict(run(page).verdicts[0], {{ops::kCheckPosition, 3, 9, 2, 3}});
  expect_by_the_rules(page);
}

TEST_P(VerifyPagesTest, ARowWithoutTokensPasses) {
  Step s;
  s.kv_lens[1] = 0;
  s.table[4] = -77;  // Nothing of the row is looked at.
  s.token_rows.pop_back();
  s.token_positions.pop_back();
  s.slots.pop_back();
  const Outcome out = run(s);
  EXPECT_EQ(out.verdicts[1].failed_checks, 0u);
  EXPECT_EQ(out.kv_lens[1], 0);
  EXPECT_EQ(out.table[4], ops::kNullPage);
  expect_by_the_rules(s);
}

TEST_P(VerifyPagesTest, TakesReadsWithoutWritesAndEmptyBatches) {
  Step s;
  s.token_rows.clear();
  s.token_positions.clear();
  s.slots.clear();
  expect_by_the_rules(s);
  s.tags[5] = 0;
  expect_by_the_rules(s);
  s.kv_lens.clear();
  s.table.clear();
  s.expected_tags.clear();
  s.expected_owners.clear();
  s.write_starts.clear();
  EXPECT_TRUE(run(s).verdicts.empty());
}

using VerifyPagesDeathTest = VerifyPagesTest;
INSTANTIATE_TEST_SUITE_P(Backends, VerifyPagesDeathTest, all_backends(), backend_case_name);

TEST_P(VerifyPagesDeathTest, RefusesATokenOfNoRow) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const std::int32_t row : {-1, 3}) {
    Step s;
    s.token_rows[1] = row;
    EXPECT_DEATH(run(s), "check failed");
  }
}

}  // namespace
}  // namespace tessera::conformance
