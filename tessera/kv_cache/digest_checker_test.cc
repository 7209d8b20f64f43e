#include "tessera/kv_cache/digest_checker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/kv_cache/page_table.h"
#include "tests/support/failing_backend.h"
#include "tests/support/fault_access.h"

namespace tessera::kv_cache {
namespace {

constexpr std::int32_t kPageSize = 4;
constexpr std::int64_t kPages = 12;
constexpr std::int64_t kWidth = 3;

// A pool whose pages are written by hand, as a step writes them: bytes into the slots, then the op that digests them.
class DigestCheckerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    pool_ = std::move(*PagePool::create(*backend_, *stream_, layout_, kPages));
    table_ = std::move(*PageTable::create(*backend_, 4, kWidth));
    verifier_ = std::move(*Verifier::create(*backend_, {4, kWidth, 64}));
    checker_ = std::move(*DigestChecker::create(*backend_));
  }

  struct Row {
    std::vector<Lease> leases;
    std::int32_t kv_len = 0;
    std::int32_t write_start = 0;
  };

  CheckedPages check(const std::vector<Row>& rows) {
    expectations_.clear();
    std::vector<std::int32_t> token_rows;
    std::vector<std::int32_t> positions;
    std::vector<std::int64_t> slots;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      table_->set_row(*stream_, static_cast<std::int64_t>(r), rows[r].leases);
      expectations_.push_back({rows[r].leases, rows[r].kv_len, rows[r].write_start});
      for (std::int32_t p = rows[r].write_start; p < rows[r].kv_len; ++p) {
        token_rows.push_back(static_cast<std::int32_t>(r));
        positions.push_back(p);
        slots.push_back(std::int64_t{rows[r].leases[static_cast<std::size_t>(p / kPageSize)].page} * kPageSize +
                        p % kPageSize);
      }
    }
    CheckInput input;
    input.records = pool_->records();
    input.page_size = kPageSize;
    input.page_table = table_->device();
    input.max_pages_per_row = kWidth;
    input.rows = expectations_;
    input.token_rows = token_rows;
    input.token_positions = positions;
    input.slot_mapping = slots;
    return verifier_->check_before(*stream_, input);
  }

  // Tokens from .. to - 1 of a sequence are written.
  void write(const std::vector<Lease>& leases, std::int32_t from, std::int32_t to) {
    const std::span<const Lease> written =
        std::span(leases).subspan(static_cast<std::size_t>(from / kPageSize),
                                  static_cast<std::size_t>((to - 1) / kPageSize - from / kPageSize + 1));
    for (const Lease& lease : written) pool_->begin_write(lease);
    const CheckedPages checked = check({{leases, to, from}});
    ASSERT_EQ(verifier_->read_verdicts(*stream_)[0].failed_checks, 0u);
    for (std::int32_t p = from; p < to; ++p) {
      for (int layer = 0; layer < layout_.num_layers; ++layer) {
        for (int part = 0; part < 2; ++part) {
          std::byte* row = row_bytes(layer, part, leases[static_cast<std::size_t>(p / kPageSize)].page, p % kPageSize);
          for (std::int64_t i = 0; i < layout_.row_bytes(part); ++i) row[i] = static_cast<std::byte>(++last_byte_);
        }
      }
    }
    backend_->digest_tokens(
        *stream_, {checked.slots, pool_->cache(), 0, layout_.num_layers, pool_->digest_key(), pool_->digests()});
    std::int32_t page = from / kPageSize;
    for (const Lease& lease : written) pool_->end_write(lease, std::min(to - kPageSize * page++, kPageSize));
  }

  Lease reserve() { return *pool_->allocate(*stream_, owner_of_sequence(1), 0); }

  std::vector<Lease> sequence(std::uint64_t id, std::int32_t tokens) {
    std::vector<Lease> leases;
    for (std::int32_t j = 0; j * kPageSize < tokens; ++j) {
      leases.push_back(*pool_->allocate(*stream_, owner_of_sequence(id), j));
    }
    write(leases, 0, tokens);
    return leases;
  }

  std::byte* row_bytes(int layer, int part, PageId page, std::int32_t slot) {
    return pool_->cache().page_data(layer, part, page) + slot * layout_.row_bytes(part);
  }

  std::vector<ops::RowVerdict> check_pages(const std::vector<Lease>& leases) {
    const auto verdicts = checker_->check_pages(*stream_, *pool_, leases);
    return {verdicts.begin(), verdicts.end()};
  }

  std::vector<ops::RowVerdict> check_rows(const std::vector<Row>& rows) {
    const CheckedPages checked = check(rows);
    verifier_->check_after(*stream_);
    const auto verified = verifier_->read_verdicts(*stream_);
    const auto verdicts = checker_->check_rows(*stream_, *pool_, checked.pages, expectations_, verified);
    return {verdicts.begin(), verdicts.end()};
  }

  const ops::KvLayout layout_ = ops::gqa_kv_layout(ops::KvFormat::kBF16, 2, kPageSize, 1, 8);
  std::unique_ptr<ops::Backend> backend_ = backends::cpu::make_reference_backend();
  std::unique_ptr<ops::Stream> stream_ = backend_->make_stream();
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PageTable> table_;
  std::unique_ptr<Verifier> verifier_;
  std::unique_ptr<DigestChecker> checker_;
  std::vector<RowExpectation> expectations_;
  std::uint8_t last_byte_ = 0;
};

TEST_F(DigestCheckerTest, PagesAloneAreJudgedEachForItself) {
  const std::vector<Lease> first = sequence(1, 10);
  const std::vector<Lease> second = sequence(2, 4);
  const std::vector<Lease> all = {second[0], first[2], first[0], first[1]};
  for (const ops::RowVerdict& verdict : check_pages(all)) EXPECT_EQ(verdict.failed_checks, 0u);

  *row_bytes(1, 1, first[1].page, 3) ^= std::byte{1};
  auto verdicts = check_pages(all);
  for (const std::size_t i : {0, 1, 2}) EXPECT_EQ(verdicts[i].failed_checks, 0u) << i;
  EXPECT_EQ(verdicts[3].failed_checks, ops::kCheckDigest);
  EXPECT_EQ(verdicts[3].logical_page, 1);
  EXPECT_EQ(verdicts[3].page_id, first[1].page);
  EXPECT_NE(verdicts[3].found, verdicts[3].expected);
  *row_bytes(1, 1, first[1].page, 3) ^= std::byte{1};

  // Whose page it is comes first, and is told of the same place.
  fault_injection::Access::tags(*pool_)[first[1].page] ^= 2;
  verdicts = check_pages(all);
  EXPECT_EQ(verdicts[3].failed_checks, ops::kCheckTag);
  EXPECT_EQ(verdicts[3].logical_page, 1);
  fault_injection::Access::tags(*pool_)[first[1].page] ^= 2;

  // Past the sequence's end anything may lie.
  *row_bytes(0, 0, first[2].page, 2) ^= std::byte{1};
  for (const ops::RowVerdict& verdict : check_pages(all)) EXPECT_EQ(verdict.failed_checks, 0u);

  // The record itself.
  pool_->digests()[first[2].page] ^= 1ull << 63;
  verdicts = check_pages(all);
  EXPECT_EQ(verdicts[1].failed_checks, ops::kCheckDigest);
  EXPECT_EQ(verdicts[1].found ^ verdicts[1].expected, 1ull << 63);
}

TEST_F(DigestCheckerTest, TokenByTokenIsAsGoodAsAtOnce) {
  std::vector<Lease> leases = sequence(1, 5);
  for (std::int32_t length = 6; length <= 12; ++length) {
    if (length > std::ssize(leases) * kPageSize) {
      leases.push_back(*pool_->allocate(*stream_, owner_of_sequence(1), static_cast<std::int32_t>(leases.size())));
    }
    write(leases, length - 1, length);
    for (const ops::RowVerdict& verdict : check_pages(leases)) ASSERT_EQ(verdict.failed_checks, 0u) << length;
  }
  EXPECT_EQ(pool_->filled(leases[2].page), 4);
  *row_bytes(0, 0, leases[2].page, 3) ^= std::byte{0x80};
  EXPECT_EQ(check_pages(leases)[2].failed_checks, ops::kCheckDigest);
}

TEST_F(DigestCheckerTest, ALeaseThatEndedFailsByItsTag) {
  const std::vector<Lease> first = sequence(1, 8);
  const std::vector<Lease> second = sequence(2, 4);
  ASSERT_TRUE(pool_->release(*stream_, first[0]).ok());
  pool_->quarantine(*stream_, first[1].page, "test");
  const auto verdicts = check_pages({first[0], second[0], first[1]});
  EXPECT_NE(verdicts[0].failed_checks & ops::kCheckTag, 0u);
  EXPECT_EQ(verdicts[1].failed_checks, 0u);
  EXPECT_NE(verdicts[2].failed_checks & ops::kCheckTag, 0u);
}

TEST_F(DigestCheckerTest, APageBeginsAndEndsWithoutADigest) {
  const std::vector<Lease> leases = sequence(1, 4);
  const PageId page = leases[0].page;
  EXPECT_NE(pool_->digests()[page], 0u);
  ASSERT_TRUE(pool_->release(*stream_, leases[0]).ok());
  EXPECT_EQ(pool_->digests()[page], 0u);
  const std::vector<Lease> again = sequence(2, 3);
  ASSERT_EQ(again[0].page, page);
  EXPECT_EQ(check_pages(again)[0].failed_checks, 0u);
  EXPECT_TRUE(pool_->check_conservation(*stream_).ok());
  // Nobody adds to the digest of a page that is not in use.
  const PageId unused = page == 1 ? 2 : 1;
  ASSERT_EQ(pool_->state(unused), PageState::kFree);
  pool_->digests()[unused] = 1;
  EXPECT_NE(pool_->check_conservation(*stream_).message().find("digest"), std::string::npos);
}

TEST_F(DigestCheckerTest, KnowsHowManySlotsAreFilled) {
  const std::int32_t page_size = pool_->layout().page_size;
  const Lease lease = reserve();
  EXPECT_EQ(pool_->filled(lease.page), 0);
  for (const std::int32_t filled : {1, 1, page_size}) {
    pool_->begin_write(lease);
    pool_->end_write(lease, filled);
    EXPECT_EQ(pool_->filled(lease.page), filled);
  }
  EXPECT_EQ(pool_->current_lease(lease.page), lease);
  ASSERT_TRUE(pool_->release(*stream_, lease).ok());
  EXPECT_EQ(pool_->filled(lease.page), 0);
  EXPECT_EQ(pool_->current_lease(lease.page).tag, 0u);
  const Lease received = reserve();
  pool_->begin_receive(received);
  pool_->end_receive(received, 1);
  EXPECT_EQ(pool_->filled(received.page), 1);
}

TEST_F(DigestCheckerTest, WhatAPeerBroughtLeavesNoDigestWhenItDoesNotCount) {
  const Lease lease = reserve();
  pool_->begin_receive(lease);
  pool_->digests()[lease.page] = 77;
  pool_->fence(*stream_, lease.page);
  EXPECT_EQ(pool_->digests()[lease.page], 0u);
  EXPECT_TRUE(pool_->check_conservation(*stream_).ok());
  pool_->digests()[lease.page] = 77;
  EXPECT_NE(pool_->check_conservation(*stream_).message().find("digest"), std::string::npos);
}

// Three rows of which the first two share two pages.
class DigestCheckerRows : public DigestCheckerTest {
 protected:
  void SetUp() override {
    DigestCheckerTest::SetUp();
    const std::vector<Lease> common = sequence(1, 8);
    for (const Lease& lease : common) {
      rows_[0].leases.push_back(lease);
      rows_[1].leases.push_back(pool_->share(*stream_, lease));
    }
    for (std::size_t r = 0; r < 2; ++r) {
      rows_[r].leases.push_back(*pool_->allocate(*stream_, owner_of_sequence(1 + r), 2));
      write(rows_[r].leases, 8, 10);
      rows_[r].kv_len = rows_[r].write_start = 10;
    }
    rows_[2] = {sequence(3, 6), 6, 6};
  }
  std::vector<Row> rows_ = std::vector<Row>(3);
};

TEST_F(DigestCheckerRows, AReaderOfASharedPageFailsAndNobodyElse) {
  for (const ops::RowVerdict& verdict : check_rows(rows_)) EXPECT_EQ(verdict.failed_checks, 0u);
  *row_bytes(0, 1, rows_[0].leases[1].page, 0) ^= std::byte{4};
  const auto verdicts = check_rows(rows_);
  for (const std::size_t r : {0, 1}) {
    EXPECT_EQ(verdicts[r].failed_checks, ops::kCheckDigest);
    EXPECT_EQ(verdicts[r].logical_page, 1);
    EXPECT_EQ(verdicts[r].page_id, rows_[0].leases[1].page);
  }
  EXPECT_EQ(verdicts[2].failed_checks, 0u);
}

TEST_F(DigestCheckerRows, ItsFirstBadPageIsARowsVerdict) {
  *row_bytes(0, 0, rows_[1].leases[2].page, 1) ^= std::byte{4};
  auto verdicts = check_rows(rows_);
  EXPECT_EQ(verdicts[0].failed_checks, 0u);
  EXPECT_EQ(verdicts[1].logical_page, 2);
  *row_bytes(0, 0, rows_[1].leases[0].page, 1) ^= std::byte{4};
  verdicts = check_rows(rows_);
  EXPECT_EQ(verdicts[0].logical_page, 0);
  EXPECT_EQ(verdicts[1].logical_page, 0);
}

// The row that would have named the shared pages failed for another reason: its neighbour's bytes are checked still.
TEST_F(DigestCheckerRows, ARowThatFailedHidesNothingFromItsNeighbours) {
  *row_bytes(0, 0, rows_[0].leases[1].page, 2) ^= std::byte{4};
  rows_[0].leases[2].tag ^= 1;
  const auto verdicts = check_rows(rows_);
  EXPECT_EQ(verdicts[0].failed_checks, 0u);  // Its tag's verdict is the caller's already.
  EXPECT_EQ(verdicts[1].failed_checks, ops::kCheckDigest);
  EXPECT_EQ(verdicts[1].logical_page, 1);
  EXPECT_EQ(verdicts[2].failed_checks, 0u);
}

TEST_F(DigestCheckerTest, MorePagesThanGoInOneCall) {
  constexpr std::int32_t kMany = static_cast<std::int32_t>(DigestChecker::kPortion) + 5;
  pool_ = std::move(*PagePool::create(*backend_, *stream_, layout_, kMany));
  std::vector<Lease> leases;
  for (std::int32_t i = 0; i < kMany; ++i) {
    leases.push_back(*pool_->allocate(*stream_, owner_of_sequence(static_cast<std::uint64_t>(i) + 1), 0));
    write({leases.back()}, 0, 4);
  }
  const std::vector<std::size_t> damaged = {0, DigestChecker::kPortion - 1, DigestChecker::kPortion, kMany - 1};
  for (const std::size_t i : damaged) *row_bytes(1, 0, leases[i].page, 3) ^= std::byte{2};
  const auto verdicts = check_pages(leases);
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    EXPECT_EQ(verdicts[i].failed_checks, std::ranges::find(damaged, i) != damaged.end() ? ops::kCheckDigest : 0u) << i;
  }
}

TEST_F(DigestCheckerTest, ABatchOfOnePageIsChecked) {
  const std::vector<Lease> leases = sequence(1, 3);
  EXPECT_EQ(check_rows({{leases, 3, 3}})[0].failed_checks, 0u);
  *row_bytes(0, 0, leases[0].page, 2) ^= std::byte{1};
  EXPECT_EQ(check_rows({{leases, 3, 3}})[0].failed_checks, ops::kCheckDigest);
}

TEST_F(DigestCheckerTest, NoPagesAndNoRowsAreSound) {
  EXPECT_TRUE(check_pages({}).empty());
  EXPECT_TRUE(check_rows({}).empty());
}

TEST_F(DigestCheckerTest, FailsCleanlyWithoutDeviceMemory) {
  for (std::int64_t n = 1; n <= 2; ++n) {
    tests::FailingBackend failing(*backend_);
    failing.fail_nth_allocation(n);
    const auto made = DigestChecker::create(failing);
    ASSERT_FALSE(made.has_value());
    EXPECT_TRUE(failing.failed());
    EXPECT_EQ(made.error().code(), base::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace tessera::kv_cache
