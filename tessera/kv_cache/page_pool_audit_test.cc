// What the pool finds when it looks again at what it knows: at the device's records and pages, and at its own account.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/ops/forwarding_backend.h"
#include "tests/support/fault_access.h"
#include "tests/support/page_pool_fixture.h"

namespace tessera::kv_cache {
namespace {

using base::StatusCode;
using fault_injection::Access;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The smallest and the largest page ids that no pool has, and those next to its own.
std::array<PageId, 5> pages_outside(PageId total) {
  return {std::numeric_limits<PageId>::min(), -1, 0, total + 1, std::numeric_limits<PageId>::max()};
}

class PagePoolAuditTest : public PagePoolFixture {
 protected:
  void expect_found(const std::string& text) {
    const base::Status status = pool_->check_conservation(*stream_);
    EXPECT_EQ(status.code(), StatusCode::kCorruption) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
  // Takes `value` away for as long as `look` looks.
  template <typename T>
  static void with(T& at, T value, const std::function<void()>& look) {
    const T was = std::exchange(at, value);
    look();
    at = was;
  }
  // Changes each of the page's records on the device alone, in its lowest and in its highest bit, and looks at that.
  void with_each_record_damaged(PageId page, const std::function<void(const std::string& record)>& look) {
    const auto damage = [&](auto* records, const std::string& name) {
      using Record = std::remove_pointer_t<decltype(records)>;
      for (const int bit : {0, static_cast<int>(sizeof(Record)) * 8 - 1}) {
        with(records[page], static_cast<Record>(records[page] ^ (Record{1} << bit)), [&] { look(name); });
      }
    };
    damage(Access::tags(*pool_), "tag");
    damage(Access::owners(*pool_), "owner");
    damage(Access::positions(*pool_), "position");
    damage(Access::lease_counts(*pool_), "lease count");
    damage(pool_->digests(), "digest");
  }
};

TEST_F(PagePoolAuditTest, OnlyTheWholeTagOfAPageInThePoolIsCurrent) {
  make(3);
  const Lease lease = take();
  const Lease other = take();
  EXPECT_TRUE(pool_->is_current(lease));
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_FALSE(pool_->is_current({lease.page, lease.tag ^ (PageTag{1} << bit), lease.owner})) << bit;
  }
  EXPECT_FALSE(pool_->is_current({lease.page, other.tag, lease.owner}));
  for (const PageId page : pages_outside(3)) {
    EXPECT_FALSE(pool_->is_current({page, lease.tag, lease.owner})) << page;
    EXPECT_FALSE(pool_->is_current({page, 0, 0})) << page;
  }
  // A free page and one in quarantine have the tag 0, which is nobody's.
  EXPECT_FALSE(pool_->is_current({3, 0, 0}));
  pool_->quarantine(*stream_, 3, "test");
  EXPECT_FALSE(pool_->is_current({3, 0, 0}));
}

// Also what the device should never have changed by itself: the count of leases, and any bit of a record.
TEST_F(PagePoolAuditTest, EachRecordAloneContradictsItsPageAndNoOther) {
  make(5);
  const std::vector<Lease> held = {take_written(0), take_written(1), take_written(2)};
  const Lease ended = take(3);
  ASSERT_TRUE(pool_->release(*stream_, ended).ok());
  std::vector<Lease> asked = held;
  asked.push_back(ended);
  for (const PageId page : pages_outside(5)) asked.push_back({page, held[0].tag, held[0].owner});
  EXPECT_THAT(pool_->contradicted(*stream_, asked), IsEmpty());
  for (const Lease& lease : held) {
    with_each_record_damaged(lease.page, [&](const std::string& record) {
      if (record == "digest") return;  // Which the host does not know.
      EXPECT_THAT(pool_->contradicted(*stream_, asked), ElementsAre(lease.page)) << record;
    });
  }
  // Whose lease ended has no say in what becomes of the page.
  with_each_record_damaged(ended.page, [&](const std::string& record) {
    EXPECT_THAT(pool_->contradicted(*stream_, asked), IsEmpty()) << record;
  });
  with(Access::tags(*pool_)[held[0].page], PageTag{1}, [&] {
    with(Access::lease_counts(*pool_)[held[2].page], 2,
         [&] { EXPECT_THAT(pool_->contradicted(*stream_, asked), ElementsAre(held[0].page, held[2].page)); });
  });
}

TEST_F(PagePoolAuditTest, ConservationFindsEachRecordThatIsDamaged) {
  make(4);
  const Lease reserved = take();
  const Lease live = take_written(1);
  const PageId quarantined = take().page;
  pool_->quarantine(*stream_, quarantined, "test");
  for (const PageId page : {ops::kNullPage, reserved.page, live.page, PageId{4}}) {
    with_each_record_damaged(page, [&](const std::string& record) {
      if (page == live.page && record == "digest") {
        expect_sound();  // The host does not know it; the check of digests does.
      } else {
        expect_found("page " + std::to_string(page) + ": " + record + " is ");
      }
    });
  }
  with_each_record_damaged(quarantined, [&](const std::string&) { expect_sound(); });
  expect_sound();
}

TEST_F(PagePoolAuditTest, ConservationFindsAFreeListThatIsWrong) {
  make(4);
  const Lease lease = take();
  std::vector<PageId>& free = Access::free_list(*pool_);
  const std::vector<PageId> right = free;
  ASSERT_THAT(right, ElementsAre(4, 3, 2));
  const auto expect_wrong = [&](std::vector<PageId> pages, const std::string& text) {
    with(free, std::move(pages), [&] { expect_found(text); });
  };
  expect_wrong({4, 3, 2, 3}, "page 3 is on the free list twice");
  expect_wrong({4, 3, 2, 0}, "page 0 is on the free list twice, or is no page");
  expect_wrong({4, 3, 2, 5}, "page 5 is on the free list twice, or is no page");
  expect_wrong({4, 2}, "page 3: its leases, tag or list do not fit");
  expect_wrong({4, 3, 2, lease.page}, "page 1: its leases, tag or list do not fit");
  expect_sound();
}

TEST_F(PagePoolAuditTest, ConservationFindsWhatDoesNotFitAState) {
  make(8);
  const PageId reserved = take().page;
  const Lease writing = take();
  pool_->begin_write(writing);
  const PageId live = take_written().page;
  const Lease shared = take_written();
  pool_->share(*stream_, shared);
  const Lease cached = pool_->set_cached(*stream_, take_written(), owner_of_chain(1));
  ASSERT_TRUE(pool_->release(*stream_, cached).ok());
  const Lease received = take();
  pool_->begin_receive(received);
  const PageId quarantined = take().page;
  pool_->quarantine(*stream_, quarantined, "test");
  const PageId free = 8;
  expect_sound();

  const auto expect_wrong = [&](PageId page, auto&& change) {
    auto& account = Access::page(*pool_, page);
    const auto was = account;
    change(account);
    expect_found("page " + std::to_string(page) + ": its leases, tag or list do not fit its state");
    account = was;
  };
  for (const PageId page : {reserved, writing.page, live, shared.page, cached.page, received.page}) {
    expect_wrong(page, [](auto& account) { account.tag = 0; });
  }
  for (const PageId page : {free, quarantined}) {
    expect_wrong(page, [](auto& account) { account.tag = 7; });
  }
  for (const PageId page : {reserved, writing.page, live, received.page}) {
    expect_wrong(page, [](auto& account) { account.leases = 0; });
    expect_wrong(page, [](auto& account) { account.leases = 2; });
  }
  for (const PageId page : {free, shared.page, cached.page, quarantined}) {
    expect_wrong(page, [](auto& account) { account.leases = 1; });
  }
  for (const PageId page : {free, reserved, writing.page, received.page, quarantined}) {
    expect_wrong(page, [](auto& account) { account.held_by_cache = true; });
  }
  expect_wrong(cached.page, [](auto& account) { account.held_by_cache = false; });
  expect_wrong(quarantined, [](auto& account) { account.check_failed = false; });  // It was in quarantine for nothing.
  expect_sound();
}

TEST_F(PagePoolAuditTest, ConservationFindsCountsThatAreWrong) {
  make(3);
  const Lease lease = take();
  pool_->quarantine(*stream_, lease.page, "test", QuarantineCause::kWriteInFlight);
  EXPECT_EQ(pool_->awaiting_fence(), 1);
  PageCounts& counts = Access::counts(*pool_);
  for (std::int64_t* count : {&counts.total, &counts.free, &counts.leased, &counts.cached, &counts.quarantined,
                              &Access::awaiting_fence(*pool_)}) {
    for (const std::int64_t change : {-1, 1}) {
      with(*count, *count + change, [&] { expect_found("page counts do not add up"); });
    }
  }
  pool_->quarantine(*stream_, lease.page, "another cause", QuarantineCause::kFailedCheck);
  EXPECT_EQ(pool_->awaiting_fence(), 0);
  expect_sound();
}

TEST_F(PagePoolAuditTest, AuditFindsALostFree) {
  make(3);
  const Lease kept = take(0);
  const Lease lost = take(1);
  EXPECT_TRUE(pool_->audit(*stream_, std::vector<Lease>{kept, lost}).ok());
  EXPECT_EQ(pool_->audit(*stream_, std::vector<Lease>{kept}).code(), StatusCode::kCorruption);
  EXPECT_EQ(pool_->audit(*stream_, std::vector<Lease>{kept, lost, lost}).code(), StatusCode::kCorruption);
  ASSERT_TRUE(pool_->release(*stream_, lost).ok());
  EXPECT_EQ(pool_->audit(*stream_, std::vector<Lease>{kept, lost}).code(), StatusCode::kCorruption);
  EXPECT_TRUE(pool_->audit(*stream_, std::vector<Lease>{kept}).ok());
  // Leases that a quarantine ended are not lost: their holders give them back.
  pool_->quarantine(*stream_, kept.page, "test");
  EXPECT_TRUE(pool_->audit(*stream_, std::vector<Lease>{kept}).ok());
  ASSERT_TRUE(pool_->release(*stream_, kept).ok());
  EXPECT_EQ(pool_->audit(*stream_, std::vector<Lease>{kept}).code(), StatusCode::kCorruption);
  // What conservation finds, an audit finds too.
  with(Access::tags(*pool_)[lost.page], PageTag{1},
       [&] { EXPECT_EQ(pool_->audit(*stream_, {}).code(), StatusCode::kCorruption); });
  EXPECT_TRUE(pool_->audit(*stream_, {}).ok());
}

TEST_F(PagePoolAuditTest, AuditRewritesPagesAndRecords) {
  for (const bool latent : {false, true}) {
    ops::LayerSet index_layers;
    index_layers.insert(1);
    const ops::KvLayout layout = latent ? ops::mla_kv_layout(ops::KvFormat::kF8E4M3, 3, 4, 20, 6, 12, index_layers)
                                        : ops::gqa_kv_layout(ops::KvFormat::kBF16, 2, 4, 2, 8);
    pool_ = std::move(*PagePool::create(*backend_, *stream_, layout, 3));
    const Lease kept = take(0);
    const Lease lease = take(1);
    const auto bytes = static_cast<std::size_t>(layout.pool_bytes(4));
    std::vector<std::byte> expected(bytes, std::byte{0x5a});
    std::copy(expected.begin(), expected.end(), pool_->cache().base);
    pool_->quarantine(*stream_, lease.page, "test");
    Access::tags(*pool_)[lease.page] = 77;
    const QuarantineAudit audit = pool_->audit_quarantined(*stream_);
    EXPECT_EQ(audit.freed, 1);
    EXPECT_EQ(audit.kept, 0);
    // Exactly that page's bytes are zero.
    std::int64_t zeros = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      zeros += pool_->cache().base[i] == std::byte{0} ? 1 : 0;
      EXPECT_TRUE(pool_->cache().base[i] == std::byte{0} || pool_->cache().base[i] == std::byte{0x5a});
    }
    EXPECT_EQ(zeros, layout.page_bytes());
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      EXPECT_EQ(*pool_->cache().page_data(layer, 0, lease.page), std::byte{0});
      EXPECT_EQ(*pool_->cache().page_data(layer, 0, kept.page), std::byte{0x5a});
    }
    expect_sound();
    const Lease again = take(5);
    EXPECT_EQ(again.page, lease.page);
    EXPECT_NE(again.tag, lease.tag);
    EXPECT_TRUE(pool_->is_current(kept));
  }
}

// Memory of which one bit cannot be changed.
class StuckBit final : public ops::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void stick(std::byte* at, bool value) {
    at_ = at;
    value_ = value;
  }
  void copy_to_host(ops::Stream& stream, void* host, const void* device, std::int64_t bytes) override {
    if (at_ != nullptr) *at_ = value_ ? *at_ | std::byte{4} : *at_ & ~std::byte{4};
    ForwardingBackend::copy_to_host(stream, host, device, bytes);
  }

 private:
  std::byte* at_ = nullptr;
  bool value_ = false;
};

TEST_F(PagePoolAuditTest, MemoryThatDoesNotReadBackStaysInQuarantine) {
  StuckBit broken(*backend_);
  ops::LayerSet index_layers;
  index_layers.insert(1);
  const ops::KvLayout layout = ops::mla_kv_layout(ops::KvFormat::kF8E4M3, 2, 4, 20, 6, 12, index_layers);
  pool_ = std::move(*PagePool::create(broken, *stream_, layout, 2));
  const PageId page = take().page;
  pool_->quarantine(*stream_, page, "test");
  const auto expect_kept = [&](std::byte* at, bool value, const char* what) {
    broken.stick(at, value);
    EXPECT_EQ(pool_->audit_quarantined(*stream_).kept, 1) << what;
    EXPECT_EQ(pool_->state(page), PageState::kQuarantined) << what;
  };
  const auto expect_all_kept = [&](std::byte* first, std::int64_t bytes, const char* what) {
    for (std::byte* const at : {first, first + bytes - 1}) {
      for (const bool value : {true, false}) expect_kept(at, value, what);
    }
  };
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int part = 0; part < layout.layer_parts(layer); ++part) {
      expect_all_kept(pool_->cache().page_data(layer, part, page), layout.row_bytes(part) * layout.page_size, "data");
      if (!layout.part_has_scales(part)) continue;
      expect_all_kept(pool_->cache().page_scales(layer, part, page), layout.row_scale_bytes(part) * layout.page_size,
                      "scales");
    }
  }
  // A record has to be that of a free page: -1 is its position, all else is 0.
  const auto expect_record_kept = [&](auto* record, bool value, const char* what) {
    auto* const first = reinterpret_cast<std::byte*>(record + page);
    expect_kept(first, value, what);
    expect_kept(first + sizeof(*record) - 1, value, what);
  };
  expect_record_kept(Access::tags(*pool_), true, "tag");
  expect_record_kept(Access::owners(*pool_), true, "owner");
  expect_record_kept(Access::positions(*pool_), false, "position");
  expect_record_kept(Access::lease_counts(*pool_), true, "lease count");
  expect_record_kept(pool_->digests(), true, "digest");
  broken.stick(nullptr, false);
  EXPECT_EQ(pool_->audit_quarantined(*stream_).freed, 1);
  expect_sound();
  pool_.reset();
}

}  // namespace
}  // namespace tessera::kv_cache
