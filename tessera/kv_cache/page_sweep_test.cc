#include "tessera/kv_cache/page_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"

namespace tessera::kv_cache {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

class PageSweepTest : public ::testing::Test {
 protected:
  void SetUp() override { make_pool(10); }

  void make_pool(std::int64_t pages) {
    pool_ =
        std::move(*PagePool::create(*backend_, *stream_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, 4, 1, 8), pages));
  }
  Lease reserve() { return *pool_->allocate(*stream_, owner_of_sequence(1), 0); }
  Lease live() {
    const Lease lease = reserve();
    pool_->begin_write(lease);
    pool_->end_write(lease, 2);
    return lease;
  }
  static std::vector<PageId> pages(const std::vector<Lease>& leases) {
    std::vector<PageId> out;
    for (const Lease& lease : leases) out.push_back(lease.page);
    return out;
  }

  std::unique_ptr<ops::Backend> backend_ = backends::cpu::make_reference_backend();
  std::unique_ptr<ops::Stream> stream_ = backend_->make_stream();
  std::unique_ptr<PagePool> pool_;
};

TEST_F(PageSweepTest, GoesRoundWhatMayBeReadAndNothingElse) {
  live();                          // 1: live
  reserve();                       // 2: reserved
  pool_->share(*stream_, live());  // 3: shared
  const Lease cached = live();     // 4: cached
  ASSERT_TRUE(pool_->release(*stream_, pool_->set_cached(*stream_, cached, 7)).ok());
  pool_->begin_write(live());                        // 5: writing
  pool_->begin_receive(reserve());                   // 6: in transfer
  pool_->quarantine(*stream_, live().page, "test");  // 7: quarantined
  live();                                            // 8: live; 9 and 10 are free
  ASSERT_EQ(pool_->state(4), PageState::kCached);

  PageSweep sweep(*pool_, 4, seconds(0));
  std::vector<PageId> seen;
  for (int second = 1; second <= 2; ++second) {
    for (const int quarter : {1, 2, 3, 4}) {
      for (const Lease& lease : sweep.due(seconds(second - 1) + milliseconds(250 * quarter))) {
        EXPECT_TRUE(pool_->is_current(lease));
        seen.push_back(lease.page);
      }
    }
  }
  EXPECT_THAT(seen, ElementsAre(1, 3, 4, 8, 1, 3, 4, 8));
}

TEST_F(PageSweepTest, KeepsItsRateByTheClock) {
  make_pool(1000);
  for (int i = 0; i < 1000; ++i) live();
  for (const std::int64_t rate : {1, 3, 64, 100, 5000}) {
    PageSweep sweep(*pool_, rate, seconds(5));
    EXPECT_TRUE(sweep.due(seconds(5)).empty());
    std::int64_t looked_at = 0;
    for (std::int64_t ms = 1; ms <= 10'000; ++ms) {
      const base::Nanoseconds now = seconds(5) + milliseconds(ms);
      const auto due = sweep.due(now);
      EXPECT_LE(std::ssize(due), PageSweep::kPagesMax);
      EXPECT_GT(*sweep.next(), now);
      looked_at += std::ssize(due);
    }
    EXPECT_NEAR(static_cast<double>(looked_at), 10.0 * static_cast<double>(rate),
                static_cast<double>(PageSweep::kPagesMax))
        << rate;
  }
}

TEST_F(PageSweepTest, WhatWasMissedIsMadeUpOnlyInPart) {
  make_pool(1000);
  for (int i = 0; i < 1000; ++i) live();
  PageSweep sweep(*pool_, 40, seconds(0));
  EXPECT_EQ(sweep.due(seconds(1)).size(), 40u);
  EXPECT_EQ(sweep.due(seconds(100)).size(), 64u);
  EXPECT_TRUE(sweep.due(seconds(100)).empty());
  EXPECT_TRUE(sweep.due(*sweep.next() - base::Nanoseconds(1)).empty());
}

TEST_F(PageSweepTest, EachPageIsDueOnceARound) {
  make_pool(3);
  for (int i = 0; i < 3; ++i) live();
  PageSweep sweep(*pool_, 64, seconds(0));
  EXPECT_THAT(pages(sweep.due(seconds(1))), ElementsAre(1, 2, 3));
}

TEST_F(PageSweepTest, AtRateZeroNothingIsEverDue) {
  live();
  PageSweep sweep(*pool_, 0, seconds(0));
  EXPECT_FALSE(sweep.next().has_value());
  EXPECT_TRUE(sweep.due(seconds(1'000'000)).empty());
}

// A quarter of a second asks for 48 pages: two of them for 96, of which a call gives what it may.
TEST_F(PageSweepTest, AllThatACallMayGiveIsMadeUp) {
  make_pool(1000);
  for (int i = 0; i < 1000; ++i) live();
  PageSweep sweep(*pool_, 192, seconds(0));
  EXPECT_EQ(sweep.due(milliseconds(250)).size(), 48u);
  EXPECT_EQ(sweep.due(milliseconds(750)).size(), 64u);
  EXPECT_EQ(sweep.due(seconds(1'000'000)).size(), 64u);
}

// What is in use but is not to be read, as it is being written, does not make it go round again.
TEST_F(PageSweepTest, GoesRoundOnceAtMostWherePagesAreBeingWritten) {
  live();
  pool_->begin_write(live());
  PageSweep sweep(*pool_, 64, seconds(0));
  EXPECT_THAT(pages(sweep.due(seconds(1))), ElementsAre(1));
  EXPECT_THAT(pages(sweep.due(seconds(2))), ElementsAre(1));
}

TEST_F(PageSweepTest, AnEmptyPoolHasNothingToLookAt) {
  PageSweep sweep(*pool_, 64, seconds(0));
  EXPECT_TRUE(sweep.due(seconds(1)).empty());
  EXPECT_TRUE(sweep.next().has_value());
}

}  // namespace
}  // namespace tessera::kv_cache
