#include "tessera/kv_cache/verifier.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_cache/page_table.h"
#include "tests/support/failing_backend.h"
#include "tests/support/fault_access.h"

namespace tessera::kv_cache {
namespace {

constexpr std::int32_t kPageSize = 4;
constexpr std::int64_t kWidth = 3;

// Three sequences in a batch; each test damages something of the middle one, and the outer two must not notice.
class VerifierTest : public ::testing::Test {
 protected:
  struct Sequence {
    std::vector<Lease> leases;
    std::int32_t kv_len = 0;  // Before the step.
    std::int32_t new_tokens = 1;
  };

  void SetUp() override {
    pool_ = std::move(
        *PagePool::create(*backend_, *stream_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, kPageSize, 1, 8), 16));
    table_ = std::move(*PageTable::create(*backend_, 3, kWidth));
    verifier_ = std::move(*Verifier::create(*backend_, {3, kWidth, 8}));
    for (std::uint64_t id = 1; id <= 3; ++id) {
      Sequence s;
      s.kv_len = 6;
      for (std::int32_t j = 0; j < 2; ++j) {
        s.leases.push_back(*pool_->allocate(*stream_, owner_of_sequence(id), j));
        pool_->begin_write(s.leases.back());
        pool_->end_write(s.leases.back(), 1);
      }
      sequences_.push_back(s);
    }
    prepare();
  }

  // Table and mappings as an engine would build them.
  void prepare() {
    rows_.clear();
    token_positions_.clear();
    slots_.clear();
    for (std::size_t r = 0; r < sequences_.size(); ++r) {
      const Sequence& s = sequences_[r];
      table_->set_row(*stream_, static_cast<std::int64_t>(r), s.leases);
      for (std::int32_t p = s.kv_len; p < s.kv_len + s.new_tokens; ++p) {
        rows_.push_back(static_cast<std::int32_t>(r));
        token_positions_.push_back(p);
        slots_.push_back(std::int64_t{s.leases[static_cast<std::size_t>(p / kPageSize)].page} * kPageSize +
                         p % kPageSize);
      }
    }
  }

  CheckedPages check() {
    expectations_.clear();
    for (const Sequence& s : sequences_) {
      expectations_.push_back({s.leases, s.kv_len + s.new_tokens, s.kv_len, first_logical_page_});
    }
    CheckInput input;
    input.records = pool_->records();
    input.page_size = kPageSize;
    input.page_table = table_->device();
    input.max_pages_per_row = kWidth;
    input.rows = expectations_;
    input.token_rows = rows_;
    input.token_positions = token_positions_;
    input.slot_mapping = slots_;
    return verifier_->check_before(*stream_, input);
  }

  // Checks, and expects that exactly the middle row failed, with this check among its failures.
  ops::RowVerdict expect_middle_fails(ops::PageCheck expected) {
    const CheckedPages checked = check();
    const auto verdicts = verifier_->read_verdicts(*stream_);
    EXPECT_EQ(verdicts[0].failed_checks, 0u);
    EXPECT_NE(verdicts[1].failed_checks & expected, 0u) << verdicts[1].failed_checks;
    EXPECT_EQ(verdicts[2].failed_checks, 0u);
    EXPECT_EQ(checked.pages.kv_lens()[0], 7);
    EXPECT_EQ(checked.pages.kv_lens()[1], 0);
    EXPECT_EQ(checked.pages.kv_lens()[2], 7);
    for (std::int64_t j = 0; j < kWidth; ++j) EXPECT_EQ(checked.pages.table()[kWidth + j], ops::kNullPage);
    for (std::size_t t = 0; t < slots_.size(); ++t) {
      EXPECT_EQ(checked.slots.slots()[t], rows_[t] == 1 ? ops::kNullSlot : slots_[t]);
    }
    return verdicts[1];
  }

  std::int32_t* table_entry(std::int64_t row, std::int64_t j) {
    return fault_injection::Access::entries(*table_) + row * kWidth + j;
  }

  std::unique_ptr<ops::Backend> backend_ = backends::cpu::make_reference_backend();
  std::unique_ptr<ops::Stream> stream_ = backend_->make_stream();
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PageTable> table_;
  std::unique_ptr<Verifier> verifier_;
  std::vector<Sequence> sequences_;
  std::int32_t first_logical_page_ = 0;
  std::vector<RowExpectation> expectations_;
  std::vector<std::int32_t> rows_;
  std::vector<std::int32_t> token_positions_;
  std::vector<std::int64_t> slots_;
};

TEST_F(VerifierTest, SoundBatchPasses) {
  const CheckedPages checked = check();
  EXPECT_EQ(checked.pages.rows(), 3);
  EXPECT_EQ(checked.slots.tokens(), 3);
  for (std::int64_t r = 0; r < 3; ++r) {
    EXPECT_EQ(checked.pages.kv_lens()[r], 7);
    EXPECT_EQ(checked.pages.table()[r * kWidth], sequences_[static_cast<std::size_t>(r)].leases[0].page);
    EXPECT_EQ(checked.pages.table()[r * kWidth + 2], ops::kNullPage);
  }
  for (std::int64_t t = 0; t < 3; ++t) EXPECT_EQ(checked.slots.slots()[t], slots_[static_cast<std::size_t>(t)]);
  verifier_->check_after(*stream_);
  for (const ops::RowVerdict& verdict : verifier_->read_verdicts(*stream_)) EXPECT_EQ(verdict.failed_checks, 0u);
}

TEST_F(VerifierTest, DamagedTag) {
  const Lease& lease = sequences_[1].leases[1];
  fault_injection::Access::tags(*pool_)[lease.page] ^= 0x10;
  const ops::RowVerdict verdict = expect_middle_fails(ops::kCheckTag);
  EXPECT_EQ(verdict.logical_page, 1);
  EXPECT_EQ(verdict.page_id, lease.page);
  EXPECT_EQ(verdict.expected, lease.tag);
  EXPECT_EQ(verdict.found, lease.tag ^ 0x10);
}

TEST_F(VerifierTest, SwappedTableEntries) {
  std::swap(*table_entry(1, 0), *table_entry(1, 1));
  const ops::RowVerdict verdict = expect_middle_fails(ops::kCheckPosition);
  EXPECT_NE(verdict.failed_checks & ops::kCheckTag, 0u);
}

// A host that confuses its own pages has leases, table and slots that agree: of the records only the position objects.
TEST_F(VerifierTest, SwappedPages) {
  std::swap(sequences_[1].leases[0], sequences_[1].leases[1]);
  prepare();
  const ops::RowVerdict verdict = expect_middle_fails(ops::kCheckPosition);
  // The write into such a page is refused with it, although its slot is where the table says.
  EXPECT_EQ(verdict.failed_checks, ops::kCheckPosition | ops::kCheckSlot);
  EXPECT_EQ(verdict.logical_page, 0);
  EXPECT_EQ(verdict.page_id, sequences_[1].leases[0].page);
  EXPECT_EQ(verdict.expected, 0u);
  EXPECT_EQ(verdict.found, 1u);
}

TEST_F(VerifierTest, OnePageTwice) {
  sequences_[1].leases[0] = sequences_[1].leases[1];
  prepare();
  const ops::RowVerdict verdict = expect_middle_fails(ops::kCheckPosition);
  EXPECT_EQ(verdict.failed_checks, ops::kCheckPosition);
  EXPECT_EQ(verdict.logical_page, 0);
  EXPECT_EQ(verdict.found, 1u);
}

TEST_F(VerifierTest, AnothersPage) {
  *table_entry(1, 0) = sequences_[2].leases[0].page;
  expect_middle_fails(ops::kCheckOwner);
}

TEST_F(VerifierTest, AnothersPageWithALeaseForgedToItsTag) {
  sequences_[1].leases[0].page = sequences_[2].leases[0].page;
  sequences_[1].leases[0].tag = sequences_[2].leases[0].tag;
  prepare();
  const ops::RowVerdict verdict = expect_middle_fails(ops::kCheckOwner);
  EXPECT_EQ(verdict.failed_checks & ops::kCheckTag, 0u);
}

TEST_F(VerifierTest, StaleLease) {
  // Freed and handed out again: the same page, a new tag.
  const Lease old = sequences_[1].leases[0];
  ASSERT_TRUE(pool_->release(*stream_, old).ok());
  ASSERT_EQ(pool_->allocate(*stream_, old.owner, 0)->page, old.page);
  const ops::RowVerdict verdict = expect_middle_fails(ops::kCheckTag);
  EXPECT_EQ(verdict.failed_checks & (ops::kCheckOwner | ops::kCheckPosition), 0u);
}

TEST_F(VerifierTest, QuarantinedPage) {
  pool_->quarantine(*stream_, sequences_[1].leases[0].page, "test");
  expect_middle_fails(ops::kCheckTag);
}

TEST_F(VerifierTest, FreePageIsNotTakenForAMissingLease) {
  // A lease too few, and a table entry that points at a page that nobody has: tag and owner are 0 on both sides.
  sequences_[1].leases.resize(1);
  *table_entry(1, 1) = 15;
  ASSERT_EQ(pool_->state(15), PageState::kFree);
  const ops::RowVerdict verdict = expect_middle_fails(ops::kCheckPosition);
  EXPECT_EQ(verdict.failed_checks & (ops::kCheckTag | ops::kCheckOwner), 0u);
}

TEST_F(VerifierTest, PageIdsOutOfRange) {
  const std::int32_t id = *table_entry(1, 0);
  for (const std::int32_t bad :
       {0, -1, 17, 1 << 30, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()}) {
    *table_entry(1, 0) = bad;
    const ops::RowVerdict verdict = expect_middle_fails(ops::kCheckRange);
    EXPECT_EQ(verdict.page_id, bad);
  }
  *table_entry(1, 0) = id;
  check();
  EXPECT_EQ(verifier_->read_verdicts(*stream_)[1].failed_checks, 0u);
}

TEST_F(VerifierTest, LengthBeyondTheTable) {
  sequences_[1].kv_len = static_cast<std::int32_t>(kWidth) * kPageSize;
  expect_middle_fails(ops::kCheckRange);
}

TEST_F(VerifierTest, WriteAimedElsewhere) {
  const std::int64_t right = slots_[1];
  for (const std::int64_t wrong :
       {slots_[2], right + 1, right - 1, std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 40}) {
    slots_[1] = wrong;
    const CheckedPages checked = check();
    EXPECT_EQ(checked.slots.slots()[1], ops::kNullSlot) << wrong;
    EXPECT_EQ(checked.slots.slots()[0], slots_[0]);
    EXPECT_EQ(checked.slots.slots()[2], slots_[2]);
    EXPECT_NE(verifier_->read_verdicts(*stream_)[1].failed_checks & ops::kCheckSlot, 0u) << wrong;
  }
}

TEST_F(VerifierTest, WritePastTheSequenceOrOverWhatItHas) {
  for (const std::int32_t position : {0, 5, 7, -1, 1 << 30}) {
    token_positions_[1] = position;
    check();
    EXPECT_NE(verifier_->read_verdicts(*stream_)[1].failed_checks & ops::kCheckSlot, 0u) << position;
  }
}

TEST_F(VerifierTest, WriteOverWhatItHasIsRefusedEvenInItsOwnPlace) {
  const std::int64_t page = sequences_[1].leases[1].page;
  for (const std::int32_t position : {4, 5}) {  // The sequence has 6 tokens.
    token_positions_[1] = position;
    slots_[1] = page * kPageSize + position % kPageSize;
    const ops::RowVerdict verdict = expect_middle_fails(ops::kCheckSlot);
    EXPECT_EQ(verdict.found, static_cast<std::uint64_t>(slots_[1]));
  }
}

TEST_F(VerifierTest, WriteIntoASharedPage) {
  pool_->share(*stream_, sequences_[1].leases[1]);
  const ops::RowVerdict verdict = expect_middle_fails(ops::kCheckShared);
  EXPECT_EQ(verdict.found, 2u);
}

// The page that it writes to is sound; another one of the row is not.
TEST_F(VerifierTest, NoRowWritesThatHasFailedWhereverItIsInTheBatch) {
  for (std::size_t row = 0; row < sequences_.size(); ++row) {
    std::uint64_t& tag = fault_injection::Access::tags(*pool_)[sequences_[row].leases[0].page];
    tag ^= 1;
    const CheckedPages checked = check();
    for (std::size_t t = 0; t < slots_.size(); ++t) {
      EXPECT_EQ(checked.slots.slots()[t], t == row ? ops::kNullSlot : slots_[t]);
    }
    tag ^= 1;
  }
}

TEST_F(VerifierTest, ChangeDuringTheStepIsFoundAfterIt) {
  const CheckedPages checked = check();
  EXPECT_EQ(checked.pages.kv_lens()[1], 7);
  fault_injection::Access::owners(*pool_)[sequences_[1].leases[0].page] ^= 1;
  verifier_->check_after(*stream_);
  const auto verdicts = verifier_->read_verdicts(*stream_);
  EXPECT_EQ(verdicts[0].failed_checks, 0u);
  EXPECT_EQ(verdicts[1].failed_checks, ops::kCheckOwner);
  EXPECT_EQ(verdicts[2].failed_checks, 0u);
  // What the step read did not change between check and use.
  EXPECT_EQ(checked.pages.kv_lens()[1], 7);
}

TEST_F(VerifierTest, WhatHealsDuringTheStepHasFailedAllTheSame) {
  const PageId page = sequences_[1].leases[0].page;
  fault_injection::Access::owners(*pool_)[page] ^= 1;
  check();
  fault_injection::Access::owners(*pool_)[page] ^= 1;
  verifier_->check_after(*stream_);
  const auto verdicts = verifier_->read_verdicts(*stream_);
  EXPECT_EQ(verdicts[0].failed_checks, 0u);
  EXPECT_EQ(verdicts[1].failed_checks, ops::kCheckOwner);
  EXPECT_EQ(verdicts[2].failed_checks, 0u);
}

TEST_F(VerifierTest, EmptyBatch) {
  sequences_.clear();
  prepare();
  const CheckedPages checked = check();
  EXPECT_EQ(checked.pages.rows(), 0);
  verifier_->check_after(*stream_);
  EXPECT_TRUE(verifier_->read_verdicts(*stream_).empty());
}

TEST_F(VerifierTest, FailsCleanlyWithoutDeviceMemory) {
  tests::FailingBackend failing(*backend_);
  failing.fail_nth_allocation(1);
  const auto made = Verifier::create(failing, {3, kWidth, 8});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), base::StatusCode::kResourceExhausted);
}

using VerifierDeathTest = VerifierTest;

TEST_F(VerifierDeathTest, TokensOfNoRowAndPagesBeforeTheFirstAbort) {
  for (const std::int32_t row : {-1, 3}) {
    rows_[2] = row;
    EXPECT_DEATH(check(), "row >= 0.*row < rows");
  }
  rows_[2] = 2;
  first_logical_page_ = -1;
  EXPECT_DEATH(check(), "row.first_logical_page >= 0");
}

}  // namespace
}  // namespace tessera::kv_cache
