// A page that several sequences share, and a page that nobody holds now.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "tests/corruption/injector.h"
#include "tests/corruption/log_capture.h"
#include "tests/serving/serving_harness.h"
#include "tests/support/fault_access.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

enum class Where : std::uint8_t { kUnified, kPrefill, kDecode };

engine::Engine& engine_of(ServingHarness& harness, Where where) {
  return where == Where::kDecode ? harness.decode() : harness.first();
}

// Both holders of a shared page fail, each at its own check, or are computed again; who does not hold it goes on; and
// nobody gets the page from the cache afterwards.
void damage_a_shared_page(Where where, OracleKv kv, kv_cache::OnIntegrityError on_error) {
  Injector injector;
  HarnessOptions options;
  options.pools = where == Where::kUnified ? Pools::kUnified : Pools::kSplit;
  options.kv = kv;
  options.integrity.on_error = on_error;
  (where == Where::kDecode ? options.decode_observer : options.first_observer) = &injector;
  ServingHarness harness(options);
  const auto common = make_prompt(1, 16);
  harness.submit(common, 2);
  harness.run_until_ended();  // Now the pages are cached.
  const auto with = [&](std::uint64_t seed) { return make_prompt_after(common, seed, 5); };
  const auto stranger_prompt = make_prompt(5, 6);
  const std::vector<std::vector<std::int32_t>> prompts = {with(2), with(3)};
  std::vector<request::SequenceId> holders;
  for (const auto& prompt : prompts) holders.push_back(harness.submit(prompt, 20));
  const auto stranger = harness.submit(stranger_prompt, 20);
  injector.arm(holders[0], where == Where::kPrefill ? 0 : 25, Moment::kBeforeCheck,
               [](const Target& t) { t.tag(t.victim.leases[1].page) ^= 4; });
  harness.run_until_ended();
  ASSERT_TRUE(injector.reached());
  for (std::size_t i = 0; i < holders.size(); ++i) {
    const Heard heard = harness.heard(holders[i]);
    EXPECT_EQ(heard.terminals, 1);
    if (on_error == kv_cache::OnIntegrityError::kRecompute) {
      EXPECT_THAT(heard.ids(), ElementsAreArray(harness.expected(prompts[i], 20)));
      EXPECT_EQ(heard.report.integrity_recomputes, 1);
    } else {
      ASSERT_TRUE(heard.failed.has_value());
      EXPECT_EQ(heard.failed->code(), base::StatusCode::kCorruption);
    }
  }
  EXPECT_THAT(harness.heard(stranger).ids(), ElementsAreArray(harness.expected(stranger_prompt, 20)));
  EXPECT_EQ(harness.heard(stranger).report.integrity_recomputes, 0);
  engine::Engine& engine = engine_of(harness, where);
  EXPECT_EQ(engine.loop().stats().check_failures, 2);
  const auto quarantined = engine.loop().stats().pages_quarantined;
  const auto again = harness.submit(prompts[0], 20);
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(again).ids(), ElementsAreArray(harness.expected(prompts[0], 20)));
  EXPECT_EQ(engine.loop().stats().pages_quarantined, quarantined);
  harness.expect_pages_balance(where == Where::kDecode ? 0 : quarantined, where == Where::kDecode ? quarantined : 0);
}

TEST(SharedPage, EveryHolderFailsAndNobodyElse) {
  for (const Where where : {Where::kUnified, Where::kPrefill, Where::kDecode}) {
    for (const OracleKv kv : {OracleKv::kKeysAndValues, OracleKv::kLatents}) {
      damage_a_shared_page(where, kv, kv_cache::OnIntegrityError::kAbort);
    }
  }
}

TEST(SharedPage, EveryHolderIsComputedAgainAndNobodyElse) {
  for (const Where where : {Where::kUnified, Where::kPrefill, Where::kDecode}) {
    for (const OracleKv kv : {OracleKv::kKeysAndValues, OracleKv::kLatents}) {
      damage_a_shared_page(where, kv, kv_cache::OnIntegrityError::kRecompute);
    }
  }
}

// A wrong page table entry says nothing about the shared page that should have been there: the other holders go on.
TEST(SharedPage, AWrongTableEntryHarmsNoOtherHolder) {
  Injector injector;
  HarnessOptions options;
  options.pools = Pools::kUnified;
  options.first_observer = &injector;
  ServingHarness harness(options);
  const auto common = make_prompt(1, 16);
  harness.submit(common, 2);
  harness.run_until_ended();
  auto other_prompt = common;
  other_prompt.push_back(3);
  auto victim_prompt = common;
  victim_prompt.push_back(4);
  const auto victim = harness.submit(victim_prompt, 20);
  const auto other = harness.submit(other_prompt, 20);
  injector.arm(victim, 20, Moment::kBeforeCheck, [](const Target& t) { t.table_entry(1) = 0x7fffffff; });
  harness.run_until_ended();
  ASSERT_TRUE(injector.reached());
  ASSERT_TRUE(harness.heard(victim).failed.has_value());
  EXPECT_EQ(harness.heard(victim).failed->code(), base::StatusCode::kCorruption);
  EXPECT_THAT(harness.heard(other).ids(), ElementsAreArray(harness.expected(other_prompt, 20)));
  harness.expect_pages_balance(harness.first().loop().stats().pages_quarantined);
}

// Has the pool give the page that a sequence is to write to in a step to a second holder, until the forward pass is
// over; or aims the write at a page of the sequence's prefix, which it shares with another. Looks whether the page is
// written.
class TwoHolders final : public engine::StepObserver {
 public:
  enum class Fault : std::uint8_t { kSharedWhileWritten, kAimedAtAShared };
  explicit TwoHolders(Fault fault) : fault_(fault) {}
  void wait_for(request::SequenceId id, std::int64_t start) {
    id_ = id;
    start_ = start;
  }
  bool reached() const { return before_.has_value(); }
  bool written() const { return written_; }
  kv_cache::PageId page() const { return page_.page; }

  void before_check(const engine::StepView& step) override {
    if (reached()) return;
    for (const engine::StepRowView& row : step.rows) {
      if (row.id != id_ || row.start < start_) continue;
      const std::int64_t page_size = step.pool.layout().page_size;
      if (fault_ == Fault::kAimedAtAShared) {
        page_ = row.leases[1];
        ASSERT_EQ(step.pool.state(page_.page), kv_cache::PageState::kShared);
        step.slot_mapping[static_cast<std::size_t>(row.first_token)] = std::int64_t{page_.page} * page_size + 2;
      } else {
        page_ = row.leases[static_cast<std::size_t>(row.start / page_size)];
        ASSERT_EQ(step.pool.lease_count(page_.page), 1);
        step.pool.end_write(page_, step.pool.filled(page_.page));
        step.pool.share(*stream_, page_);
        ASSERT_EQ(step.pool.state(page_.page), kv_cache::PageState::kShared);
      }
      before_ = bytes_of(step.pool);
    }
  }
  void before_second_check(const engine::StepView& step) override {
    if (!reached() || looked_) return;
    looked_ = true;
    written_ = bytes_of(step.pool) != before_;
    if (fault_ == Fault::kAimedAtAShared) return;
    ASSERT_TRUE(step.pool.release(*stream_, page_).ok());
    step.pool.begin_write(page_);
  }

 private:
  std::vector<std::byte> bytes_of(kv_cache::PagePool& pool) const {
    std::vector<std::byte> bytes;
    const ops::KvLayout& layout = pool.layout();
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      for (int part = 0; part < layout.layer_parts(layer); ++part) {
        const std::byte* data = pool.cache().page_data(layer, part, page_.page);
        bytes.insert(bytes.end(), data, data + layout.row_bytes(part) * layout.page_size);
      }
    }
    return bytes;
  }

  const Fault fault_;
  std::unique_ptr<ops::Backend> backend_ = backends::cpu::make_reference_backend();
  std::unique_ptr<ops::Stream> stream_ = backend_->make_stream();
  request::SequenceId id_ = 0;
  std::int64_t start_ = 0;
  kv_cache::Lease page_;
  std::optional<std::vector<std::byte>> before_;
  bool looked_ = false;
  bool written_ = false;
};

TEST(SharedPage, NobodyWritesToAPageThatTwoHold) {
  using Fault = TwoHolders::Fault;
  for (const Fault fault : {Fault::kSharedWhileWritten, Fault::kAimedAtAShared}) {
    for (const Where where : {Where::kUnified, Where::kDecode}) {
      SCOPED_TRACE(testing::Message() << "fault " << static_cast<int>(fault) << ", where " << static_cast<int>(where));
      const LogCapture log;
      TwoHolders observer(fault);
      HarnessOptions options;
      options.pools = where == Where::kUnified ? Pools::kUnified : Pools::kSplit;
      (where == Where::kDecode ? options.decode_observer : options.first_observer) = &observer;
      ServingHarness harness(options);
      const auto common = make_prompt(1, 16);
      harness.submit(common, 2);
      harness.run_until_ended();
      const auto other_prompt = make_prompt_after(common, 2, 1);
      const auto victim_prompt = make_prompt_after(common, 3, 1);
      const auto victim = harness.submit(victim_prompt, 20);
      const auto other = harness.submit(other_prompt, 20);
      // In the middle of a page, so that it has rows already.
      observer.wait_for(victim, 22);
      harness.run_until_ended();
      ASSERT_TRUE(observer.reached());
      EXPECT_FALSE(observer.written());
      ASSERT_TRUE(harness.heard(victim).failed.has_value());
      EXPECT_EQ(harness.heard(victim).failed->code(), base::StatusCode::kCorruption);
      EXPECT_THAT(harness.heard(other).ids(), ElementsAreArray(harness.expected(other_prompt, 20)));
      EXPECT_EQ(
          log.lines_with(fault == Fault::kAimedAtAShared ? "check failed (slot)" : "check failed (shared)").size(), 1u);
      // The page of the prefix is sound, and stays.
      const kv_cache::PagePool& pool = engine_of(harness, where).loop().pool();
      EXPECT_EQ(pool.state(observer.page()),
                fault == Fault::kAimedAtAShared ? kv_cache::PageState::kCached : kv_cache::PageState::kQuarantined);
      const std::int64_t quarantined = engine_of(harness, where).loop().stats().pages_quarantined;
      harness.expect_pages_balance(where == Where::kDecode ? 0 : quarantined,
                                   where == Where::kDecode ? quarantined : 0);
    }
  }
}

// The record of a page that only the cache holds is damaged: the next sequence that is given it fails at its first
// check, and the one after that computes it anew.
TEST(SharedPage, AnIdleCachedPageThatWasDamagedIsUsedByNobody) {
  for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
    HarnessOptions options;
    options.pools = pools;
    ServingHarness harness(options);
    const auto prompt = make_prompt(1, 22);
    harness.submit(prompt, 2);
    harness.run_until_ended();
    auto& pool = harness.first().loop().pool();
    int damaged = 0;
    for (kv_cache::PageId page = 1; page <= 64; ++page) {
      if (pool.state(page) == kv_cache::PageState::kCached && pool.position(page) == 2) {
        fault_injection::Access::tags(pool)[page] ^= 2;
        ++damaged;
      }
    }
    ASSERT_EQ(damaged, 1);
    const auto hit = harness.submit(prompt, 6);
    harness.run_until_ended();
    ASSERT_TRUE(harness.heard(hit).failed.has_value());
    EXPECT_EQ(harness.heard(hit).failed->code(), base::StatusCode::kCorruption);
    const auto after = harness.submit(prompt, 6);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(after).ids(), ElementsAreArray(harness.expected(prompt, 6)));
    harness.expect_pages_balance(harness.first().loop().stats().pages_quarantined);
  }
}

}  // namespace
}  // namespace tessera::test_support
