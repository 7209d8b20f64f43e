#include <functional>
#include <limits>

#include "tests/conformance/verify_pages_scene.h"

namespace tessera::conformance {
namespace {

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
      {"slots in the null page, as a table entry that is out of range would have it",
       [](Step& s) {
         s.table[2] = 99;
         s.slots[0] = 0;
         s.slots[1] = 1;
       },
       0,
       kCheckRange | kCheckSlot,
       {kCheckRange, 2, 99, 99, 12}},
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

TEST_P(VerifyPagesTest, ANegativePositionDoesNotReachIntoTheRowBefore) {
  // Row 0's last entry is a page that row 1's window, one entry before its first, would be entitled to.
  Step s;
  s.kv_lens[0] = 16;
  s.table[3] = 8;
  s.tags[8] = s.expected_tags[3] = 1008;
  s.owners[8] = s.expected_owners[3] = 70;
  s.positions[8] = 3;
  s.lease_counts[8] = 1;
  s.positions[7] = 4;
  s.first_logical_pages = {0, 4, 0};
  s.write_starts[1] = std::numeric_limits<std::int32_t>::min();
  expect_verdict(run(s).verdicts[1], {});
  s.token_positions[2] = -1;
  s.slots[2] = 8 * 4 - 1;
  const Outcome out = run(s);
  expect_verdict(out.verdicts[1], {{ops::kCheckSlot, -1, 7, 31, as_found(ops::kNullSlot)}});
  EXPECT_EQ(out.slots[2], ops::kNullSlot);
  expect_by_the_rules(s);
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
    EXPECT_DEATH(
        {
          run(s);
          synchronize_or_die();
        },
        "check failed");
  }
}

}  // namespace
}  // namespace tessera::conformance
