// Pages that the accounts lose: the audit reports them, what can still be served is served, and nobody waits for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "tessera/engine/sequence_pages.h"
#include "tessera/ops/forwarding_backend.h"
#include "tests/corruption/log_capture.h"
#include "tests/serving/serving_harness.h"
#include "tests/support/fault_access.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

// Frees of so many pages that never came: leases that nobody holds.
void lose(engine::Engine& engine, std::int64_t pages) {
  const std::unique_ptr<ops::Backend> backend = backends::cpu::make_reference_backend();
  const std::unique_ptr<ops::Stream> stream = backend->make_stream();
  for (std::int64_t i = 0; i < pages; ++i) {
    ASSERT_TRUE(engine.loop().pool().allocate(*stream, kv_cache::owner_of_sequence(9999), 0).has_value());
  }
}

TEST(LostPages, TheAuditReportsThemAndServiceDegrades) {
  for (const bool lost_at_decode : {false, true}) {
    for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
      if (lost_at_decode && pools == Pools::kUnified) continue;
      SCOPED_TRACE(fmt::format("{} pool(s), lost at {}", pools == Pools::kUnified ? 1 : 2, lost_at_decode ? 2 : 1));
      HarnessOptions options;
      options.pools = pools;
      options.pages = 12;
      options.prefill_pages = 12;
      ServingHarness harness(options);
      engine::Engine& damaged = lost_at_decode ? harness.decode() : harness.first();
      lose(damaged, 7);
      EXPECT_EQ(damaged.loop().audit().code(), base::StatusCode::kCorruption);

      // When idle, by itself.
      const LogCapture log;
      harness.clock().advance(std::chrono::seconds(61));
      for (int i = 0; i < 3; ++i) harness.turn();
      EXPECT_EQ(log.lines_with("the page accounts do not balance").size(), 1u);
      EXPECT_EQ(damaged.loop().stats().audit_failures, 1);

      // What fits the rest is served; what does not is told so, also when it stands before others in the queue or
      // outgrows what is left.
      const auto small = make_prompt(1, 9);
      const auto big = make_prompt(2, 25);
      const auto first = harness.submit(small, 6);
      const auto too_big = harness.submit(big, 6);
      const auto outgrows = harness.submit(small, 30);
      const auto last = harness.submit(small, 6);
      harness.run_until_ended();
      for (const auto id : {first, last}) {
        EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(small, 6)));
      }
      ASSERT_TRUE(harness.heard(too_big).failed.has_value());
      EXPECT_EQ(harness.heard(too_big).failed->code(), base::StatusCode::kResourceExhausted);
      // A prefill pool does not hold what is generated.
      const auto right = harness.expected(small, 30);
      if (pools == Pools::kSplit && !lost_at_decode) {
        EXPECT_THAT(harness.heard(outgrows).ids(), ElementsAreArray(right));
      } else {
        const Heard heard = harness.heard(outgrows);
        ASSERT_TRUE(heard.failed.has_value());
        EXPECT_EQ(heard.failed->code(), base::StatusCode::kResourceExhausted);
        EXPECT_EQ(heard.terminals, 1);
        // All that five pages have room for, and the token after it.
        EXPECT_THAT(heard.ids(), ElementsAreArray(right.begin(), right.begin() + 5 * 4 - 9 + 1));
      }
      EXPECT_GT(damaged.loop().stats().audit_failures, 1);
      EXPECT_EQ(damaged.loop().stats().pages_leased, 7);
      EXPECT_EQ(damaged.loop().live(), 0);
    }
  }
}

// A lease of a page that two sequences share ends twice, while the other still reads the page. The audit of the leases
// sees it; the other one reads what it should as long as the prefix cache has the page, and fails its check once the
// page is free or a third one's, who has it alone.
TEST(TwiceFreed, ALeaseOfASharedPage) {
  enum class Then : std::uint8_t { kNothing, kFlush, kPressure };
  for (const Then then : {Then::kNothing, Then::kFlush, Then::kPressure}) {
    SCOPED_TRACE(static_cast<int>(then));
    const LogCapture log;
    HarnessOptions options;
    options.pools = Pools::kUnified;
    options.pages = 20;
    options.chunk = 64;
    ServingHarness harness(options);
    engine::EngineLoop& loop = harness.first().loop();
    kv_cache::PagePool& pool = loop.pool();
    const std::unique_ptr<ops::Backend> backend = backends::cpu::make_reference_backend();
    const std::unique_ptr<ops::Stream> stream = backend->make_stream();
    const auto common = make_prompt(1, 16);
    harness.submit(common, 2);
    harness.run_until_ended();
    const auto reader_prompt = make_prompt_after(common, 2, 3);
    const auto leaver_prompt = make_prompt_after(common, 3, 3);
    const auto reader = harness.submit(reader_prompt, 30);
    const auto leaver = harness.submit(leaver_prompt, 8);
    ASSERT_TRUE(harness.run_until([&] { return harness.tokens_so_far(leaver).size() > 2; }));
    kv_cache::PageId page = 1;
    while (pool.state(page) != kv_cache::PageState::kShared || pool.position(page) != 3) ++page;
    const kv_cache::Lease lease = pool.current_lease(page);
    ASSERT_TRUE(pool.release(*stream, lease).ok());
    EXPECT_EQ(loop.audit().code(), base::StatusCode::kCorruption);
    ASSERT_TRUE(harness.run_until([&] { return harness.heard(leaver).ended(); }));
    EXPECT_THAT(harness.heard(leaver).ids(), ElementsAreArray(harness.expected(leaver_prompt, 8)));
    EXPECT_EQ(pool.state(page), kv_cache::PageState::kCached);
    EXPECT_THAT(loop.audit().message(),
                testing::HasSubstr(fmt::format("page {} has 0 leases, of which its holders know 1", page)));

    if (then == Then::kFlush) harness.router().flush_prefix_cache();
    if (then == Then::kPressure) {
      // All free pages, when the reader has just got one, and then the page that looks as if nobody needed it.
      ASSERT_TRUE(harness.run_until([&] { return harness.tokens_so_far(reader).size() % 4 == 3; }));
      ASSERT_EQ(pool.counts().cached, 1);
      const auto other_prompt = make_prompt(9, 4 * pool.counts().free);
      const auto other = harness.submit(other_prompt, 5);
      ASSERT_TRUE(harness.run_until([&] { return harness.heard(reader).ended(); }));
      EXPECT_EQ(pool.current_lease(page).owner, kv_cache::owner_of_sequence(other));
      ASSERT_TRUE(harness.run_until([&] { return harness.heard(other).ended(); }));
      EXPECT_THAT(harness.heard(other).ids(), ElementsAreArray(harness.expected(other_prompt, 5)));
    }
    harness.run_until_ended();
    const Heard heard = harness.heard(reader);
    const auto right = harness.expected(reader_prompt, 30);
    EXPECT_EQ(heard.terminals, 1);
    EXPECT_THAT(heard.ids(), ElementsAreArray(right.begin(), right.begin() + std::ssize(heard.tokens)));
    ASSERT_EQ(heard.failed.has_value(), then != Then::kNothing);
    if (heard.failed.has_value()) {
      EXPECT_EQ(heard.failed->code(), base::StatusCode::kCorruption);
      expect_one_line(
          log, "page check failed",
          fmt::format("engine 1: page check failed \\(tag\\+owner\\+position\\) in a step of request request-{} "
                      "sequence {}: logical page 3, page {}, expected {:#x}, found 0x[0-9a-f]+; [0-9]+ pages "
                      "held",
                      reader, reader, page, lease.tag));
    }
    // The reader gave back what was not its own any more.
    EXPECT_EQ(loop.stats().double_frees, 1);
    expect_one_line(
        log, "is not leased under that tag",
        fmt::format("page pool: page {}, tag {} was released and is not leased under that tag", page, lease.tag));
    EXPECT_EQ(loop.stats().pages_leased, 0);
    EXPECT_TRUE(loop.audit().ok()) << loop.audit().to_string();
  }
}

// ---- Audits of pages in quarantine ----

// Device memory of which a byte of one page cannot be changed.
class StuckByte final : public ops::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void stick(std::byte* at) { at_ = at; }
  void copy_to_host(ops::Stream& stream, void* host, const void* device, std::int64_t bytes) override {
    if (at_ != nullptr) *at_ = std::byte{0x55};
    ForwardingBackend::copy_to_host(stream, host, device, bytes);
  }

 private:
  std::byte* at_ = nullptr;
};

// An audit takes a portion of each turn: sequences and handoffs go on in between, and a page that does not read back
// stays where it is.
TEST(QuarantineAudit, GoesOnBetweenStepsOfOthers) {
  constexpr std::int64_t kPages = 20;
  for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
    const std::unique_ptr<ops::Backend> reference = backends::cpu::make_reference_backend();
    const std::unique_ptr<ops::Stream> stream = reference->make_stream();
    StuckByte backend(*reference);
    HarnessOptions options;
    options.pools = pools;
    options.backend = &backend;
    options.integrity.audit_bytes_per_turn = 1;  // A page.
    ServingHarness harness(options);
    engine::Engine& engine = harness.decode();
    kv_cache::PagePool& pool = engine.loop().pool();
    for (kv_cache::PageId page = 64; page > 64 - kPages; --page) pool.quarantine(*stream, page, "test");
    backend.stick(pool.cache().page_data(0, 0, 60));
    const auto prompt = make_prompt(1, 22);
    const auto id = harness.submit(prompt, 40);
    ASSERT_TRUE(harness.run_until([&] { return harness.tokens_so_far(id).size() > 2; }));
    const auto later = harness.submit(make_prompt(2, 14), 4);  // Handed over meanwhile.
    harness.router().audit_quarantined_pages();
    int turns = 0;
    int advanced = 0;
    std::int64_t seen = 0;
    while (seen < kPages) {
      ASSERT_LT(++turns, 200);
      const std::size_t before = harness.tokens_so_far(id).size();
      harness.turn();
      const request::EngineStats stats = engine.loop().stats();
      const std::int64_t now = stats.audited_pages_freed + stats.audited_pages_kept;
      EXPECT_LE(now, seen + 1);
      if (now > seen && harness.tokens_so_far(id).size() > before) ++advanced;
      seen = now;
    }
    EXPECT_GE(advanced, kPages - 2);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 40)));
    EXPECT_TRUE(harness.heard(later).finished.has_value());
    EXPECT_EQ(engine.loop().stats().audited_pages_freed, kPages - 1);
    EXPECT_EQ(engine.loop().stats().audited_pages_kept, 1);
    EXPECT_EQ(pool.state(60), kv_cache::PageState::kQuarantined);
    harness.expect_pages_balance(pools == Pools::kUnified ? 1 : 0, pools == Pools::kUnified ? 0 : 1);
  }
}

// Several cached pages of one prompt are damaged: who is given them finds all at once, and is computed again once. The
// first page is sound: what comes below a damaged one leaves the cache, but only what is damaged itself, or the
// sequence's own, goes to quarantine.
TEST(DamagedPages, OfOneRowAreFoundTogether) {
  using fault_injection::Access;
  for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
    HarnessOptions options;
    options.pools = pools;
    options.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
    ServingHarness harness(options);
    const auto prompt = make_prompt(1, 26);
    harness.submit(prompt, 2);
    harness.run_until_ended();
    kv_cache::PagePool& pool = harness.first().loop().pool();
    std::map<std::int32_t, kv_cache::PageId> cached;  // By position.
    for (kv_cache::PageId page = 1; page <= 64; ++page) {
      if (pool.state(page) == kv_cache::PageState::kCached) cached[pool.position(page)] = page;
    }
    ASSERT_EQ(cached.size(), 6u);
    Access::owners(pool)[cached[2]] ^= 2;
    Access::positions(pool)[cached[3]] ^= 2;
    Access::tags(pool)[cached[5]] ^= 2;
    const auto id = harness.submit(prompt, 6);
    const auto shares = harness.submit(prompt, 6);
    harness.run_until_ended();
    for (const auto sequence : {id, shares}) {
      EXPECT_THAT(harness.heard(sequence).ids(), ElementsAreArray(harness.expected(prompt, 6)));
      EXPECT_EQ(harness.heard(sequence).report.integrity_recomputes, 1);
    }
    for (const auto& [position, page] : cached) {
      const bool damaged = position == 2 || position == 3 || position == 5;
      EXPECT_EQ(pool.state(page) == kv_cache::PageState::kQuarantined, damaged) << position;
    }
    // And of each of the two the page that it had begun itself.
    EXPECT_EQ(harness.first().loop().stats().pages_quarantined, 3 + 2);
    harness.expect_pages_balance(3 + 2);
  }
}

// Of a sequence that holds two pages of its own, the first of which somebody else has put in quarantine. Its other page
// is given back only where the verdict says that and nothing more.
TEST(DamagedPages, OnlyALeaseThatEndedInQuarantineLeavesTheRestAlone) {
  const std::unique_ptr<ops::Backend> backend = backends::cpu::make_reference_backend();
  const std::unique_ptr<ops::Stream> stream = backend->make_stream();
  const auto quarantined = [&](const std::function<void(ops::RowVerdict&)>& change) {
    const auto pool = std::move(
        *kv_cache::PagePool::create(*backend, *stream, ops::gqa_kv_layout(ops::KvFormat::kF32, 1, 4, 1, 4), 4));
    kv_cache::PrefixCache cache(*pool, *stream);
    engine::SequencePages pages(*pool, cache, *stream, {});
    engine::Sequence sequence;
    sequence.spec.id = 7;
    EXPECT_TRUE(pages.admit(sequence, {}, 8).ok());
    const kv_cache::Lease lost = sequence.leases[0];
    pool->quarantine(*stream, lost.page, "test");
    ops::RowVerdict verdict{ops::kCheckTag, 0, lost.page, 0, lost.tag};
    change(verdict);
    pages.quarantine(sequence, verdict);
    return pool->counts().quarantined;
  };
  EXPECT_EQ(quarantined([](ops::RowVerdict&) {}), 1);
  // The table named another page; another check failed; the device says something else than the host.
  EXPECT_EQ(quarantined([](ops::RowVerdict& v) { v.page_id = 4; }), 2);
  EXPECT_EQ(quarantined([](ops::RowVerdict& v) { v.expected ^= 1; }), 2);
  EXPECT_EQ(quarantined([](ops::RowVerdict& v) { v.found = 5; }), 2);
  EXPECT_EQ(quarantined([](ops::RowVerdict& v) { v.logical_page = -1; }), 2);
  EXPECT_EQ(quarantined([](ops::RowVerdict& v) { v.logical_page = 2; }), 2);
}

}  // namespace
}  // namespace tessera::test_support
