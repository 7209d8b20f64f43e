#include "tessera/kv_cache/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tests/support/failing_backend.h"
#include "tests/support/fault_access.h"
#include "tests/support/page_pool_fixture.h"

namespace tessera::kv_cache {
namespace {

using base::StatusCode;

class PagePoolTest : public PagePoolFixture {
 protected:
  PageCounts counts(std::int64_t free, std::int64_t leased, std::int64_t cached, std::int64_t quarantined) {
    return PageCounts{free + leased + cached + quarantined, free, leased, cached, quarantined};
  }
};

TEST_F(PagePoolTest, StartsClearedAndFree) {
  make(5);
  EXPECT_EQ(pool_->counts(), counts(5, 0, 0, 0));
  EXPECT_EQ(pool_->cache().num_pages, 6);
  EXPECT_EQ(pool_->records().num_pages, 6);
  for (PageId page = 0; page <= 5; ++page) {
    EXPECT_EQ(pool_->records().tags[page], 0u);
    EXPECT_EQ(pool_->records().owners[page], 0u);
    EXPECT_EQ(pool_->records().positions[page], -1);
    EXPECT_EQ(pool_->records().lease_counts[page], 0);
  }
  for (std::int64_t i = 0; i < pool_->layout().pool_bytes(6); ++i) ASSERT_EQ(pool_->cache().base[i], std::byte{0});
  expect_sound();
}

TEST_F(PagePoolTest, AllocationWritesTheRecords) {
  make(3);
  const Lease lease = take(7, 42);
  EXPECT_GE(lease.page, 1);
  EXPECT_LE(lease.page, 3);
  EXPECT_NE(lease.tag, 0u);
  EXPECT_EQ(pool_->records().tags[lease.page], lease.tag);
  EXPECT_EQ(pool_->records().owners[lease.page], owner_of_sequence(42));
  EXPECT_EQ(pool_->records().positions[lease.page], 7);
  EXPECT_EQ(pool_->records().lease_counts[lease.page], 1);
  EXPECT_EQ(pool_->state(lease.page), PageState::kReserved);
  expect_sound();
}

TEST_F(PagePoolTest, HandsOutEveryPageOnceThenIsExhausted) {
  make(4);
  std::set<PageId> pages;
  for (int i = 0; i < 4; ++i) pages.insert(take(i).page);
  EXPECT_EQ(pages, (std::set<PageId>{1, 2, 3, 4}));
  const auto more = pool_->allocate(*stream_, owner_of_sequence(1), 4);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool_->counts(), counts(0, 4, 0, 0));
  expect_sound();
}

TEST_F(PagePoolTest, TagEndsAtFreeAndIsNeverUsedAgain) {
  make(2);
  std::set<PageTag> tags;
  for (int i = 0; i < 2000; ++i) {
    const Lease lease = take();
    EXPECT_TRUE(tags.insert(lease.tag).second);
    ASSERT_TRUE(pool_->release(*stream_, lease).ok());
    // Before anybody else can have the page, its record has changed.
    EXPECT_EQ(pool_->records().tags[lease.page], 0u);
    EXPECT_EQ(pool_->records().positions[lease.page], -1);
  }
  EXPECT_EQ(tags.size(), 2000u);
}

// Whatever the device's records said of it: a page that begins anew has none of them.
TEST_F(PagePoolTest, EveryRecordEndsWithThePagesLife) {
  make(2);
  const auto spoil = [&](PageId page) {
    fault_injection::Access::tags(*pool_)[page] = 5;
    fault_injection::Access::owners(*pool_)[page] = 5;
    fault_injection::Access::positions(*pool_)[page] = 5;
    fault_injection::Access::lease_counts(*pool_)[page] = 5;
    pool_->digests()[page] = 5;
  };
  const auto expect_none = [&](PageId page) {
    EXPECT_EQ(pool_->records().tags[page], 0u);
    EXPECT_EQ(pool_->records().owners[page], 0u);
    EXPECT_EQ(pool_->records().positions[page], -1);
    EXPECT_EQ(pool_->records().lease_counts[page], 0);
    EXPECT_EQ(pool_->digests()[page], 0u);
  };
  const Lease lease = take_written();
  spoil(lease.page);
  ASSERT_TRUE(pool_->release(*stream_, lease).ok());
  expect_none(lease.page);
  const PageId damaged = take_written().page;
  spoil(damaged);
  pool_->quarantine(*stream_, damaged, "test");
  expect_none(damaged);
  // What a peer brought before its handoff ended counts for nothing: the page is reserved again.
  const Lease received = take();
  pool_->begin_receive(received);
  pool_->digests()[received.page] = 5;
  pool_->fence(*stream_, received.page);
  EXPECT_EQ(pool_->digests()[received.page], 0u);
  expect_sound();
}

TEST_F(PagePoolTest, TwoPoolsDoNotShareTags) {
  make(1);
  const PageTag first = take().tag;
  make(1);
  EXPECT_NE(take().tag, first);
}

TEST_F(PagePoolTest, DoubleFreeIsDetectedAndHasNoEffect) {
  make(2);
  const Lease lease = take();
  ASSERT_TRUE(pool_->release(*stream_, lease).ok());
  EXPECT_EQ(pool_->release(*stream_, lease).code(), StatusCode::kCorruption);
  EXPECT_EQ(pool_->double_frees(), 1);
  EXPECT_EQ(pool_->counts(), counts(2, 0, 0, 0));
  // Also when the page has a new holder by then.
  const Lease again = take();
  ASSERT_EQ(again.page, lease.page);
  EXPECT_EQ(pool_->release(*stream_, lease).code(), StatusCode::kCorruption);
  EXPECT_EQ(pool_->release(*stream_, Lease{99, 5, 5}).code(), StatusCode::kCorruption);
  EXPECT_EQ(pool_->release(*stream_, Lease{-1, 5, 5}).code(), StatusCode::kCorruption);
  EXPECT_EQ(pool_->release(*stream_, Lease{}).code(), StatusCode::kCorruption);
  EXPECT_EQ(pool_->double_frees(), 5);
  EXPECT_EQ(pool_->lease_count(again.page), 1);
  EXPECT_NE(take().page, again.page);
  expect_sound();
}

TEST_F(PagePoolTest, SharedPageIsFreedByItsLastLease) {
  make(1);
  const Lease first = take_written();
  const Lease second = pool_->share(*stream_, first);
  EXPECT_EQ(second, first);
  EXPECT_EQ(pool_->records().lease_counts[first.page], 2);
  EXPECT_EQ(pool_->state(first.page), PageState::kShared);
  ASSERT_TRUE(pool_->release(*stream_, first).ok());
  EXPECT_EQ(pool_->state(first.page), PageState::kLive);
  EXPECT_EQ(pool_->records().lease_counts[first.page], 1);
  ASSERT_TRUE(pool_->release(*stream_, second).ok());
  EXPECT_EQ(pool_->counts(), counts(1, 0, 0, 0));
  expect_sound();
}

TEST_F(PagePoolTest, CachedPageOutlivesItsLeases) {
  make(1);
  const Lease own = take_written();
  const Lease cached = pool_->set_cached(*stream_, own, owner_of_chain(1234));
  EXPECT_EQ(cached.tag, own.tag);
  EXPECT_EQ(cached.owner, owner_of_chain(1234));
  EXPECT_EQ(pool_->records().owners[own.page], owner_of_chain(1234));
  ASSERT_TRUE(pool_->release(*stream_, cached).ok());
  EXPECT_EQ(pool_->counts(), counts(0, 0, 1, 0));
  expect_sound();
  // Nobody holds it, so there is nothing to release.
  EXPECT_EQ(pool_->release(*stream_, cached).code(), StatusCode::kCorruption);
  const Lease again = pool_->share(*stream_, cached);
  EXPECT_EQ(pool_->counts(), counts(0, 1, 0, 0));
  EXPECT_EQ(pool_->drop_cached(*stream_, {cached.page, cached.tag ^ 1, cached.owner}).code(), StatusCode::kCorruption);
  ASSERT_TRUE(pool_->drop_cached(*stream_, cached).ok());
  EXPECT_EQ(pool_->counts(), counts(0, 1, 0, 0));
  EXPECT_EQ(pool_->drop_cached(*stream_, cached).code(), StatusCode::kCorruption);
  ASSERT_TRUE(pool_->release(*stream_, again).ok());
  EXPECT_EQ(pool_->counts(), counts(1, 0, 0, 0));
  expect_sound();
}

// Its holders know the owner already, so it may become the cache's again.
TEST_F(PagePoolTest, SharedPageIsCachedAgainUnderItsOwner) {
  make(1);
  const Lease lease = pool_->set_cached(*stream_, take_written(), owner_of_chain(1234));
  pool_->share(*stream_, lease);
  ASSERT_TRUE(pool_->drop_cached(*stream_, lease).ok());
  EXPECT_EQ(pool_->set_cached(*stream_, lease, owner_of_chain(1234)), lease);
  EXPECT_EQ(pool_->state(lease.page), PageState::kShared);
  expect_sound();
}

TEST_F(PagePoolTest, QuarantineEndsLeasesSilentlyAndForGood) {
  make(2);
  const Lease lease = take_written();
  pool_->share(*stream_, lease);
  pool_->quarantine(*stream_, lease.page, "test");
  EXPECT_EQ(pool_->counts(), counts(1, 0, 0, 1));
  EXPECT_NE(pool_->records().tags[lease.page], lease.tag);
  EXPECT_FALSE(pool_->is_current(lease));
  expect_sound();
  // Each of the two leases may be given back once.
  EXPECT_TRUE(pool_->release(*stream_, lease).ok());
  EXPECT_TRUE(pool_->release(*stream_, lease).ok());
  EXPECT_EQ(pool_->release(*stream_, lease).code(), StatusCode::kCorruption);
  EXPECT_EQ(pool_->double_frees(), 1);
  pool_->fence(*stream_, lease.page);
  EXPECT_EQ(pool_->state(lease.page), PageState::kQuarantined);
  EXPECT_NE(take().page, lease.page);
  EXPECT_FALSE(pool_->allocate(*stream_, owner_of_sequence(1), 0).has_value());
  expect_sound();
}

TEST_F(PagePoolTest, FenceFreesOnlyWhatWaitsForIt) {
  make(2);
  const Lease lease = take();
  pool_->fence(*stream_, lease.page);
  EXPECT_EQ(pool_->state(lease.page), PageState::kReserved);
  pool_->quarantine(*stream_, lease.page, "test", QuarantineCause::kWriteInFlight);
  EXPECT_EQ(pool_->state(lease.page), PageState::kQuarantined);
  pool_->fence(*stream_, lease.page);
  EXPECT_EQ(pool_->counts(), counts(2, 0, 0, 0));
  // The lease that the quarantine ended is still given back, although its page is someone else's by now.
  const Lease next = take();
  ASSERT_EQ(next.page, lease.page);
  EXPECT_TRUE(pool_->release(*stream_, lease).ok());
  EXPECT_EQ(pool_->lease_count(next.page), 1);
  EXPECT_EQ(pool_->double_frees(), 0);
  expect_sound();
}

TEST_F(PagePoolTest, FailedCheckOutlastsAFence) {
  make(1);
  const Lease lease = take();
  pool_->quarantine(*stream_, lease.page, "write in flight", QuarantineCause::kWriteInFlight);
  pool_->quarantine(*stream_, lease.page, "digest", QuarantineCause::kFailedCheck);
  pool_->quarantine(*stream_, lease.page, "write in flight", QuarantineCause::kWriteInFlight);
  expect_sound();
  pool_->fence(*stream_, lease.page);
  EXPECT_EQ(pool_->state(lease.page), PageState::kQuarantined);
  expect_sound();
}

TEST_F(PagePoolTest, WriteInFlightOutlastsAnAudit) {
  make(1);
  const PageId page = take().page;
  pool_->quarantine(*stream_, page, "digest", QuarantineCause::kFailedCheck);
  pool_->quarantine(*stream_, page, "write in flight", QuarantineCause::kWriteInFlight);
  EXPECT_EQ(pool_->audit_quarantined(*stream_).freed, 0);
  pool_->fence(*stream_, page);
  EXPECT_EQ(pool_->state(page), PageState::kQuarantined);
  EXPECT_EQ(pool_->audit_quarantined(*stream_).freed, 1);
  expect_sound();
}

TEST_F(PagePoolTest, FreePageCanBeQuarantined) {
  make(3);
  pool_->quarantine(*stream_, 2, "found damaged by a sweep");
  EXPECT_EQ(pool_->counts(), counts(2, 0, 0, 1));
  EXPECT_EQ(pool_->release(*stream_, Lease{2, 0, 0}).code(), StatusCode::kCorruption);  // There was no lease to end.
  expect_sound();
  EXPECT_NE(take().page, 2);
  EXPECT_NE(take().page, 2);
  EXPECT_FALSE(pool_->allocate(*stream_, owner_of_sequence(1), 0).has_value());
}

TEST_F(PagePoolTest, InjectedAllocationFailureHasNoEffect) {
  make(4);
  for (std::int64_t n = 1; n <= 4; ++n) {
    fault_injection::Access::fail_nth_allocation(*pool_, n);
    std::vector<Lease> taken;
    int failures = 0;
    for (int i = 0; i < 4; ++i) {
      auto lease = pool_->allocate(*stream_, owner_of_sequence(1), i);
      if (lease.has_value()) {
        taken.push_back(*lease);
      } else {
        EXPECT_EQ(lease.error().code(), StatusCode::kResourceExhausted);
        EXPECT_EQ(i + 1, n);
        ++failures;
      }
      expect_sound();
    }
    EXPECT_EQ(failures, 1);
    for (const Lease& lease : taken) EXPECT_TRUE(pool_->release(*stream_, lease).ok());
    EXPECT_EQ(pool_->counts(), counts(4, 0, 0, 0));
  }
}

TEST_F(PagePoolTest, FailsCleanlyWithoutDeviceMemory) {
  const ops::KvLayout layout = ops::gqa_kv_layout(ops::KvFormat::kBF16, 2, 4, 2, 8);
  for (std::int64_t n = 1; n <= 2; ++n) {
    tests::FailingBackend failing(*backend_);
    failing.fail_nth_allocation(n);
    const auto made = PagePool::create(failing, *stream_, layout, 8);
    ASSERT_FALSE(made.has_value());
    EXPECT_TRUE(failing.failed());
    EXPECT_EQ(made.error().code(), StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(PagePool::create(*backend_, *stream_, layout, 0).error().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(PagePool::create(*backend_, *stream_, layout, std::int64_t{1} << 40).error().code(),
            StatusCode::kOutOfRange);
}

TEST_F(PagePoolTest, WritingEndsLive) {
  make(1);
  const Lease lease = take();
  for (int step = 0; step < 2; ++step) {
    pool_->begin_write(lease);
    EXPECT_EQ(pool_->state(lease.page), PageState::kWriting);
    expect_sound();
    pool_->end_write(lease, 1);
    EXPECT_EQ(pool_->state(lease.page), PageState::kLive);
  }
  // A lease that ended while the step ran, and one that had ended before it.
  pool_->begin_write(lease);
  pool_->quarantine(*stream_, lease.page, "test");
  pool_->end_write(lease, 1);
  pool_->begin_write(lease);
  EXPECT_EQ(pool_->state(lease.page), PageState::kQuarantined);
  expect_sound();
}

TEST_F(PagePoolTest, PageInTransferIsLiveOrReservedAtItsEnd) {
  make(1);
  const Lease lease = take();
  pool_->begin_receive(lease);
  EXPECT_EQ(pool_->state(lease.page), PageState::kInTransfer);
  expect_sound();
  pool_->fence(*stream_, lease.page);
  EXPECT_EQ(pool_->state(lease.page), PageState::kReserved);
  pool_->begin_receive(lease);
  pool_->end_receive(lease, 1);
  EXPECT_EQ(pool_->state(lease.page), PageState::kLive);
  ASSERT_TRUE(pool_->release(*stream_, lease).ok());
  EXPECT_EQ(pool_->counts(), counts(1, 0, 0, 0));
  expect_sound();
}

// Whoever forgets that a peer may still write: the pool does not.
TEST_F(PagePoolTest, PageInTransferIsNotFreeBeforeItsFence) {
  make(1);
  const Lease lease = take();
  pool_->begin_receive(lease);
  ASSERT_TRUE(pool_->release(*stream_, lease).ok());
  EXPECT_EQ(pool_->counts(), counts(0, 0, 0, 1));
  EXPECT_NE(pool_->records().tags[lease.page], lease.tag);
  EXPECT_EQ(pool_->release(*stream_, lease).code(), StatusCode::kCorruption);
  EXPECT_EQ(pool_->audit_quarantined(*stream_).freed, 0);
  expect_sound();
  pool_->fence(*stream_, lease.page);
  EXPECT_EQ(pool_->counts(), counts(1, 0, 0, 0));
  expect_sound();
}

TEST_F(PagePoolTest, FailedCheckOfAPageInTransferWaitsForFenceAndAudit) {
  make(1);
  const Lease lease = take();
  pool_->begin_receive(lease);
  pool_->quarantine(*stream_, lease.page, "digest", QuarantineCause::kFailedCheck);
  pool_->end_receive(lease, 1);
  EXPECT_EQ(pool_->audit_quarantined(*stream_).kept, 1);
  EXPECT_EQ(pool_->state(lease.page), PageState::kQuarantined);
  pool_->fence(*stream_, lease.page);
  EXPECT_EQ(pool_->state(lease.page), PageState::kQuarantined);
  expect_sound();
  EXPECT_EQ(pool_->audit_quarantined(*stream_).freed, 1);
  EXPECT_EQ(pool_->counts(), counts(1, 0, 0, 0));
  EXPECT_TRUE(pool_->release(*stream_, lease).ok());
  EXPECT_EQ(pool_->double_frees(), 0);
  expect_sound();
}

using PagePoolDeathTest = PagePoolTest;

TEST_F(PagePoolDeathTest, TransitionsThatTheLifeDoesNotHaveAbort) {
  make(4);
  const Lease reserved = take();
  EXPECT_DEATH(pool_->share(*stream_, reserved), "share takes no page from reserved to shared");
  EXPECT_DEATH(pool_->set_cached(*stream_, reserved, owner_of_chain(1)), "set_cached takes no page from reserved");
  EXPECT_DEATH(pool_->end_write(reserved, 1), "end_write takes no page from reserved to live");
  EXPECT_DEATH(pool_->end_receive(reserved, 1), "end_receive takes no page from reserved");
  pool_->begin_write(reserved);
  for (const std::int32_t filled : {0, -1, pool_->layout().page_size + 1}) {
    EXPECT_DEATH(pool_->end_write(reserved, filled), "slots filled");
  }
  EXPECT_DEATH(pool_->begin_write(reserved), "begin_write takes no page from writing");
  EXPECT_DEATH((void)pool_->release(*stream_, reserved), "release takes no page from writing to free");
  EXPECT_DEATH(pool_->begin_receive(reserved), "begin_receive takes no page from writing");
  EXPECT_DEATH(pool_->end_receive(reserved, 1), "end_receive takes no page from writing to live");
  pool_->end_write(reserved, 3);
  pool_->begin_write(reserved);
  EXPECT_DEATH(pool_->end_write(reserved, 2), "2 slots filled, after 3");
  const Lease shared = take_written(1);
  pool_->share(*stream_, shared);
  EXPECT_DEATH(pool_->begin_write(shared), "begin_write takes no page from shared");
  // An account that is wrong.
  fault_injection::Access::page(*pool_, shared.page).leases = 1;
  EXPECT_DEATH((void)pool_->release(*stream_, shared), "release takes no page from shared to free");
  const Lease cached = pool_->set_cached(*stream_, take_written(2), owner_of_chain(1));
  EXPECT_DEATH(pool_->begin_write(cached), "is the prefix cache's");
  const Lease received = take(3);
  pool_->begin_receive(received);
  EXPECT_DEATH(pool_->begin_write(received), "begin_write takes no page from in_transfer");
  EXPECT_DEATH(pool_->end_write(received, 1), "end_write takes no page from in_transfer to live");
  EXPECT_DEATH(pool_->share(*stream_, received), "share takes no page from in_transfer");
}

TEST_F(PagePoolDeathTest, MisuseAborts) {
  make(2);
  const Lease lease = take();
  const Lease other = take_written(1);
  pool_->share(*stream_, other);
  ASSERT_TRUE(pool_->release(*stream_, lease).ok());
  EXPECT_DEATH(pool_->share(*stream_, lease), "is_current");
  EXPECT_DEATH(pool_->begin_receive(lease), "is_current");
  EXPECT_DEATH(pool_->set_cached(*stream_, lease, owner_of_chain(1)), "is_current");
  EXPECT_DEATH(pool_->set_cached(*stream_, other, owner_of_chain(1)), "old owner");
  EXPECT_DEATH(take(-1), "position >= 0");
  const Lease cached = pool_->set_cached(*stream_, take_written(2), owner_of_chain(1));
  EXPECT_DEATH(pool_->set_cached(*stream_, cached, owner_of_chain(1)), "held_by_cache");
  for (const PageId page : {PageId{ops::kNullPage}, PageId{3}}) {
    const std::string refused = "page >= 1.*page " + std::to_string(page);
    EXPECT_DEATH(pool_->quarantine(*stream_, page, "no such page"), refused);
    EXPECT_DEATH(pool_->fence(*stream_, page), refused);
    EXPECT_DEATH((void)pool_->state(page), refused);
  }
}

}  // namespace
}  // namespace tessera::kv_cache
