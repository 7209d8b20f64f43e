// Level digest: bytes of pages that change behind an engine's back are found within one sweep, at the next prefix hit,
// and before a handoff is committed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/corruption/injector.h"
#include "tests/corruption/integrity_settings.h"
#include "tests/corruption/log_capture.h"
#include "tests/support/fault_access.h"

namespace tessera::test_support {
namespace {

using kv_cache::IntegrityLevel;
using kv_cache::PageId;
using kv_cache::PageState;
using kv_transfer::wire::MessageType;
using testing::ElementsAreArray;

// Flips, and says what the log must have of it.
std::string flip_for_log(kv_cache::PagePool& pool, const ByteSite& site, PageId page, std::int32_t slot) {
  const std::uint64_t before = pool.digests()[page];
  EXPECT_TRUE(flip(pool, site, page, slot));
  const std::string found = site.kind == ByteSite::Kind::kRecordedDigest ? fmt::format("{:#x}", before) : "0x[0-9a-f]+";
  return fmt::format("page {}, expected {:#x}, found {}", page, pool.digests()[page], found);
}

// Whoever read the page is named once, with the page.
void expect_reader_in_log(const LogCapture& log, ServingHarness& harness, Where where, request::SequenceId id,
                          const kv_cache::Lease& page) {
  expect_one_line(
      log, "has read page",
      fmt::format("engine {}: request request-{} sequence {} has read page {} \\(tag {}\\), whose bytes are "
                  "damaged; {} tokens emitted",
                  engine_of(harness, where).info().id, id, id, page.page, page.tag, harness.heard(id).tokens.size()));
}

class Sweep : public testing::TestWithParam<Setting> {
 protected:
  static constexpr std::int64_t kRate = 10'000;  // A pool of 64 pages in 6.4 ms: 64 turns of the harness.

  HarnessOptions options() const {
    HarnessOptions options = harness_options(GetParam(), IntegrityLevel::kDigest);
    options.integrity.sweep_pages_per_second = kRate;
    return options;
  }
  engine::Engine& engine(ServingHarness& harness) const { return engine_of(harness, GetParam().where); }

  // What holds up the sequences of a prefill engine, which otherwise has one only for as long as its prompt takes:
  // their offers, or the answers. For other engines, nothing that is ever sent.
  static std::vector<MessageType> stalls() {
    if (GetParam().where == Where::kPrefill) return {MessageType::kOffer, MessageType::kAccept};
    return {MessageType::kReject};
  }
  // Turns until each has been read by so many steps of the engine that the sweep is about, and still is held.
  static void until_read(ServingHarness& harness, const std::vector<request::SequenceId>& ids) {
    const bool sent = GetParam().where == Where::kPrefill;
    ASSERT_TRUE(harness.run_until([&] {
      return std::ranges::all_of(ids, [&](auto id) { return harness.tokens_so_far(id).size() >= (sent ? 1 : 5); }) &&
             (!sent || harness.first().loop().stats().handing_over == std::ssize(ids));
    }));
  }
  // A page of which the position, and who has it, are right.
  template <typename Condition>
  static PageId find_page(const kv_cache::PagePool& pool, Condition condition) {
    PageId found = 0;
    for (PageId page = 1; page <= pool.counts().total; ++page) {
      if (condition(page)) found = page;
    }
    return found;
  }

  // Turns until the sweep has found it; fails when that takes longer than one sweep and the portion before it.
  void expect_found_within_a_sweep(ServingHarness& harness) {
    const base::Nanoseconds begin = harness.clock().now();
    const request::EngineStats before = engine(harness).loop().stats();
    ASSERT_TRUE(
        harness.run_until([&] { return engine(harness).loop().stats().digest_failures > before.digest_failures; }));
    const base::Nanoseconds sweep =
        base::Nanoseconds(std::chrono::seconds(engine(harness).loop().pool().counts().total)) / kRate;
    EXPECT_LE(harness.clock().now() - begin, 2 * sweep);
    EXPECT_GT(engine(harness).loop().stats().pages_swept, before.pages_swept);
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, Sweep, testing::ValuesIn(settings()), setting_name);

TEST_P(Sweep, FindsEveryFlipInALivePage) {
  const std::int32_t tokens = GetParam().where == Where::kPrefill ? 12 : 110;
  for (const MessageType stalled : stalls()) {
    for (const ByteSite& site : sites_of(options(), GetParam().where)) {
      SCOPED_TRACE(testing::Message() << site.name << ", without message " << static_cast<int>(stalled));
      const LogCapture log;
      ServingHarness harness(options());
      Stall stall(harness, stalled);
      const auto prompt = make_prompt(1, 13);
      const auto neighbour_prompt = make_prompt(2, 9);
      const auto victim = harness.submit(prompt, tokens);
      const auto neighbour = harness.submit(neighbour_prompt, tokens);
      until_read(harness, {victim, neighbour});
      // The last page that is not full: its first slot.
      auto& pool = engine(harness).loop().pool();
      const PageId page = find_page(pool, [&](PageId id) {
        return pool.state(id) == PageState::kLive &&
               pool.current_lease(id).owner == kv_cache::owner_of_sequence(victim);
      });
      ASSERT_NE(page, 0);
      const kv_cache::Lease lease = pool.current_lease(page);
      const std::int32_t position = pool.position(page);
      ASSERT_TRUE(flip(pool, site, page, 0));
      expect_found_within_a_sweep(harness);
      stall.end();
      harness.run_until_ended();
      expect_corrupted(harness.heard(victim));
      // Rows that were written before the sweep came are in both digests.
      expect_one_line(
          log, "in a sweep",
          fmt::format("engine {}: page check failed \\(digest\\) in a sweep: logical page {}, page {}, expected "
                      "0x[0-9a-f]+, found 0x[0-9a-f]+; 1 leases",
                      engine(harness).info().id, position, page));
      expect_reader_in_log(log, harness, GetParam().where, victim, lease);
      EXPECT_THAT(harness.heard(neighbour).ids(), ElementsAreArray(harness.expected(neighbour_prompt, tokens)));
      EXPECT_EQ(engine(harness).loop().stats().pages_quarantined, 1);
      expect_balance(harness);
    }
  }
}

TEST_P(Sweep, FindsEveryFlipInACachedPageOfAnIdleEngine) {
  for (const ByteSite& site : sites_of(options(), GetParam().where)) {
    SCOPED_TRACE(site.name);
    const LogCapture log;
    ServingHarness harness(options());
    const auto prompt = make_prompt(1, 22);
    harness.submit(prompt, 2);
    harness.run_until_ended();
    auto& pool = engine(harness).loop().pool();
    const std::int64_t cached = pool.counts().cached;
    ASSERT_EQ(cached, 5);
    const std::string damage = flip_for_log(pool, site, cached_page(pool, 2), 3);
    EXPECT_LE(engine(harness).loop().idle_time(), base::Nanoseconds(std::chrono::milliseconds(7)));
    expect_found_within_a_sweep(harness);
    expect_one_line(log, "page check failed",
                    fmt::format("engine {}: page check failed \\(digest\\) in a sweep: logical page 2, {}; 0 leases",
                                engine(harness).info().id, damage));
    // It and all below it are gone from the cache.
    EXPECT_EQ(pool.counts().cached, 2);
    EXPECT_EQ(pool.counts().quarantined, 1);
    const auto after = harness.submit(prompt, 6);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(after).ids(), ElementsAreArray(harness.expected(prompt, 6)));
    expect_balance(harness);
  }
}

// What is below a damaged page leaves the cache with it; if it is damaged itself, it does not come back to be used.
TEST_P(Sweep, FindsAllDamagedPagesOfAChain) {
  ServingHarness harness(options());
  harness.submit(make_prompt(1, 22), 2);
  harness.run_until_ended();
  auto& pool = engine(harness).loop().pool();
  const std::vector<PageId> damaged = {cached_page(pool, 1), cached_page(pool, 3), cached_page(pool, 4)};
  for (const PageId page : damaged) ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], page, 3));
  expect_found_within_a_sweep(harness);
  EXPECT_EQ(engine(harness).loop().stats().digest_failures, 3);
  for (const PageId page : damaged) EXPECT_EQ(pool.state(page), PageState::kQuarantined);
  EXPECT_EQ(pool.counts().cached, 1);
  expect_balance(harness);
}

TEST_P(Sweep, EveryHolderOfASharedPageEnds) {
  const std::int32_t tokens = GetParam().where == Where::kPrefill ? 12 : 90;
  for (const MessageType stalled : stalls()) {
    SCOPED_TRACE(static_cast<int>(stalled));
    ServingHarness harness(options());
    const auto common = make_prompt(1, 16);
    harness.submit(common, 2);
    harness.run_until_ended();
    Stall stall(harness, stalled);
    const auto stranger_prompt = make_prompt(7, 11);
    const auto first = harness.submit(make_prompt_after(common, 3, 1), tokens);
    const auto second = harness.submit(make_prompt_after(common, 4, 1), tokens);
    const auto stranger = harness.submit(stranger_prompt, 12);
    until_read(harness, {first, second, stranger});
    auto& pool = engine(harness).loop().pool();
    const PageId page = find_page(pool, [&](PageId id) { return pool.state(id) == PageState::kShared; });
    ASSERT_NE(page, 0);
    ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], page, 1));
    expect_found_within_a_sweep(harness);
    stall.end();
    harness.run_until_ended();
    expect_corrupted(harness.heard(first));
    expect_corrupted(harness.heard(second));
    EXPECT_THAT(harness.heard(stranger).ids(), ElementsAreArray(harness.expected(stranger_prompt, 12)));
    EXPECT_EQ(engine(harness).loop().stats().digest_failures, 1);
    EXPECT_EQ(engine(harness).loop().stats().pages_quarantined, 1);
    expect_balance(harness);
  }
}

TEST_P(Sweep, TheOnlyPageInUseIsLookedAt) {
  ServingHarness harness(options());
  harness.submit(make_prompt(1, 5), 2);
  harness.run_until_ended();
  auto& pool = engine(harness).loop().pool();
  ASSERT_EQ(pool.counts().cached, 1);
  ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], cached_page(pool, 0), 1));
  expect_found_within_a_sweep(harness);
  expect_balance(harness);
}

// What it emitted may be wrong: to compute on from there would not be exact.
TEST_P(Sweep, WhoMayHaveReadDamageEndsEvenWhereOthersAreComputedAgain) {
  const std::int32_t tokens = GetParam().where == Where::kPrefill ? 12 : 110;
  HarnessOptions recomputing = options();
  recomputing.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
  for (const MessageType stalled : stalls()) {
    SCOPED_TRACE(static_cast<int>(stalled));
    ServingHarness harness(recomputing);
    Stall stall(harness, stalled);
    const auto victim = harness.submit(make_prompt(1, 13), tokens);
    until_read(harness, {victim});
    auto& pool = engine(harness).loop().pool();
    const PageId page = find_page(pool, [&](PageId id) { return pool.lease_count(id) > 0 && pool.position(id) == 1; });
    ASSERT_NE(page, 0);
    ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], page, 1));
    expect_found_within_a_sweep(harness);
    stall.end();
    harness.run_until_ended();
    expect_corrupted(harness.heard(victim));
    EXPECT_EQ(engine(harness).loop().stats().integrity_recomputes, 0);
    expect_balance(harness);
  }
}

TEST_P(Sweep, FindsADamagedRecordOfAnIdlePage) {
  ServingHarness harness(options());
  const auto prompt = make_prompt(1, 22);
  harness.submit(prompt, 2);
  harness.run_until_ended();
  auto& pool = engine(harness).loop().pool();
  const PageId page = cached_page(pool, 1);
  // What tells the page from another: the check of bytes comes after that of tag, owner and position.
  const std::int64_t failures = engine(harness).loop().stats().check_failures;
  fault_injection::Access::tags(pool)[page] ^= 2;
  ASSERT_TRUE(harness.run_until([&] { return engine(harness).loop().stats().check_failures > failures; }));
  EXPECT_EQ(pool.state(page), PageState::kQuarantined);
  EXPECT_EQ(engine(harness).loop().stats().digest_failures, 0);
  expect_balance(harness);
}

class PrefixHit : public testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Engines, PrefixHit, testing::ValuesIn(settings()), setting_name);

TEST_P(PrefixHit, EndsBeforeTheFirstPageThatIsNotSound) {
  const Setting& setting = GetParam();
  const HarnessOptions options = harness_options(setting, IntegrityLevel::kDigest);
  for (const ByteSite& site : sites_of(options, setting.where)) {
    for (const std::int32_t bad : {0, 2, 4}) {
      SCOPED_TRACE(testing::Message() << site.name << ", page " << bad);
      const LogCapture log;
      ServingHarness harness(options);
      const auto prompt = make_prompt(1, 22);
      harness.submit(prompt, 2);
      harness.run_until_ended();
      engine::Engine& engine = engine_of(harness, setting.where);
      auto& pool = engine.loop().pool();
      const PageId page = cached_page(pool, bad);
      const std::int64_t hits = engine.loop().stats().prefix_hit_tokens;
      const std::string damage = flip_for_log(pool, site, page, 1);
      const auto hit = harness.submit(prompt, 6);
      harness.run_until_ended();
      EXPECT_THAT(harness.heard(hit).ids(), ElementsAreArray(harness.expected(prompt, 6)));
      const request::EngineStats stats = engine.loop().stats();
      EXPECT_EQ(stats.digest_failures, 1);
      EXPECT_EQ(stats.pages_quarantined, 1);
      EXPECT_EQ(pool.state(page), PageState::kQuarantined);
      EXPECT_EQ(stats.prefix_hit_tokens - hits, 4 * bad);
      // What was computed anew is cached, and sound.
      const auto next = harness.submit(prompt, 6);
      harness.run_until_ended();
      EXPECT_THAT(harness.heard(next).ids(), ElementsAreArray(harness.expected(prompt, 6)));
      EXPECT_EQ(engine.loop().stats().digest_failures, 1);
      expect_one_line(
          log, "page check failed",
          fmt::format("engine {}: page check failed \\(digest\\) in a prefix hit: logical page {}, {}; 1 leases",
                      engine.info().id, bad, damage));
      expect_balance(harness);
    }
  }
}

// Who reads the page already may have emitted what came of it.
TEST_P(PrefixHit, EndsThoseWhoReadThePageBefore) {
  const Setting& setting = GetParam();
  if (setting.where == Where::kPrefill) return;
  const LogCapture log;
  ServingHarness harness(harness_options(setting, IntegrityLevel::kDigest));
  const auto prompt = make_prompt(1, 22);
  const auto reader = harness.submit(prompt, 60);
  ASSERT_TRUE(harness.run_until([&] { return harness.tokens_so_far(reader).size() >= 5; }));
  engine::Engine& engine = engine_of(harness, setting.where);
  auto& pool = engine.loop().pool();
  PageId page = 0;
  for (PageId id = 1; id <= pool.counts().total; ++id) {
    if (pool.lease_count(id) > 0 && pool.position(id) == 3) page = id;
  }
  ASSERT_NE(page, 0);
  const kv_cache::Lease lease = pool.current_lease(page);
  ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], page, 1));
  const auto hit = harness.submit(prompt, 6);
  harness.run_until_ended();
  expect_corrupted(harness.heard(reader));
  expect_reader_in_log(log, harness, setting.where, reader, lease);
  EXPECT_THAT(harness.heard(hit).ids(), ElementsAreArray(harness.expected(prompt, 6)));
  EXPECT_EQ(engine.loop().stats().digest_failures, 1);
  expect_balance(harness);
}

class Handoff : public testing::TestWithParam<OracleKv> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Handoff, testing::Values(OracleKv::kKeysAndValues, OracleKv::kLatents),
                         [](const auto& param_info) {
                           return param_info.param == OracleKv::kLatents ? "Latents" : "KeysAndValues";
                         });

// Conversion would make valid pages of damaged ones, with digests of their own.
TEST_P(Handoff, SendsNoDamageOn) {
  const Setting setting{Where::kPrefill, GetParam(), ops::KvFormat::kBF16};
  const HarnessOptions options = harness_options(setting, IntegrityLevel::kDigest);
  for (const ByteSite& site : sites_of(options, Where::kPrefill)) {
    for (const std::int32_t position : {0, 3, 5}) {
      SCOPED_TRACE(testing::Message() << site.name << ", page " << position);
      const LogCapture log;
      ServingHarness harness(options);
      const auto prompt = make_prompt(1, 22);
      const auto id = harness.submit(prompt, 6);
      ASSERT_TRUE(harness.run_until([&] { return harness.first().loop().stats().handing_over == 1; }));
      auto& pool = harness.first().loop().pool();
      PageId page = 0;
      for (PageId p = 1; p <= pool.counts().total; ++p) {
        if (pool.lease_count(p) > 0 && pool.position(p) == position) page = p;
      }
      ASSERT_NE(page, 0);
      const kv_cache::Lease lease = pool.current_lease(page);
      const std::string damage = flip_for_log(pool, site, page, 1);
      harness.run_until_ended();
      expect_corrupted(harness.heard(id));
      expect_one_line(
          log, "in a handoff of request",
          fmt::format("engine 1: page check failed \\(digest\\) in a handoff of request request-{} sequence {}: "
                      "logical page {}, {}; 6 pages held",
                      id, id, position, damage));
      expect_reader_in_log(log, harness, Where::kPrefill, id, lease);
      EXPECT_EQ(harness.heard(id).tokens.size(), 1u);
      EXPECT_EQ(harness.first().loop().stats().digest_failures, 1);
      EXPECT_EQ(harness.decode().loop().stats().handoffs_done, 0);
      EXPECT_EQ(pool.state(page), PageState::kQuarantined);
      const auto again = harness.submit(prompt, 6);
      harness.run_until_ended();
      EXPECT_THAT(harness.heard(again).ids(), ElementsAreArray(harness.expected(prompt, 6)));
      expect_balance(harness);
    }
  }
}

// Between what the receiver stored, which was right, and its commit.
TEST_P(Handoff, DamageAfterTheReceiverStoredIsFoundByTheFirstStep) {
  const Setting setting{Where::kDecode, GetParam(), ops::KvFormat::kF8E4M3};
  const HarnessOptions options = harness_options(setting, IntegrityLevel::kDigestStep);
  for (const ByteSite& site : sites_of(options, Where::kDecode)) {
    SCOPED_TRACE(site.name);
    ServingHarness harness(options);
    const auto prompt = make_prompt(1, 22);
    auto& pool = harness.decode().loop().pool();
    // The Commit waits until the damage is done.
    std::vector<std::vector<std::byte>> held;
    bool holding = true;
    harness.transport().set_filter([&](auto from, auto to, std::vector<std::byte> message) {
      if (holding && type_of(message) == MessageType::kCommit) {
        held.push_back(std::move(message));
      } else {
        harness.transport().deliver(from, to, std::move(message));
      }
    });
    const auto id = harness.submit(prompt, 6);
    ASSERT_TRUE(harness.run_until([&] { return !held.empty(); }));
    PageId page = 0;
    for (PageId p = 1; p <= pool.counts().total; ++p) {
      if (pool.state(p) == PageState::kInTransfer && pool.position(p) == 4) page = p;
    }
    ASSERT_NE(page, 0);
    harness.run_until([&] { return pool.digests()[page] != 0; });
    harness.turn();
    ASSERT_TRUE(flip(pool, site, page, 1));
    holding = false;
    for (auto& message : held) harness.transport().deliver(1, 2, std::move(message));
    harness.run_until_ended();
    expect_corrupted(harness.heard(id));
    EXPECT_EQ(harness.heard(id).tokens.size(), 1u);  // Prefill's.
    expect_balance(harness);
  }
}

// ---- Before what was emitted is relied on again ----

class ComputedAgain : public testing::TestWithParam<Setting> {
 protected:
  static HarnessOptions options(Injector& injector) {
    HarnessOptions options = harness_options(GetParam(), IntegrityLevel::kDigest);
    options.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
    (GetParam().where == Where::kDecode ? options.decode_observer : options.first_observer) = &injector;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, ComputedAgain, testing::ValuesIn(settings()), setting_name);

// A tag fails, which alone would have the sequence computed again; but bytes that it has read before were damaged, so
// that what it emitted may be wrong.
TEST_P(ComputedAgain, NotFromTokensThatDamagedBytesGave) {
  if (GetParam().where == Where::kPrefill) return;  // It emits one token, and then computes no more.
  for (const bool damaged : {false, true}) {
    const LogCapture log;
    Injector injector;
    ServingHarness harness(options(injector));
    const std::vector<ByteSite> sites = byte_sites(engine_of(harness, GetParam().where).loop().pool().layout());
    const std::vector<std::vector<std::int32_t>> prompts = {make_prompt(1, 13), make_prompt(2, 9)};
    std::vector<request::SequenceId> ids;
    for (const auto& prompt : prompts) ids.push_back(harness.submit(prompt, 30));
    kv_cache::Lease lease;
    std::string damage;
    injector.arm(ids[0], 22, Moment::kBeforeCheck, [&](const Target& t) {
      lease = t.victim.leases[1];
      if (damaged) damage = flip_for_log(t.step.pool, sites.front(), lease.page, 1);
      t.tag(t.victim.leases[3].page) ^= 4;
    });
    harness.run_until_ended();
    ASSERT_TRUE(injector.reached());
    if (damaged) {
      expect_corrupted(harness.heard(ids[0]));
      EXPECT_EQ(engine_of(harness, GetParam().where).loop().stats().digest_failures, 1);
      expect_one_line(
          log, "in a sequence to be computed again",
          fmt::format("engine {}: page check failed \\(digest\\) in a sequence to be computed again: logical "
                      "page 1, {}; 1 leases",
                      engine_of(harness, GetParam().where).info().id, damage));
      expect_reader_in_log(log, harness, GetParam().where, ids[0], lease);
    } else {
      expect_one_line(log, "is computed again",
                      fmt::format("engine {}: request request-{} sequence {} is computed again: time 1 of at most 3",
                                  engine_of(harness, GetParam().where).info().id, ids[0], ids[0]));
      EXPECT_THAT(harness.heard(ids[0]).ids(), ElementsAreArray(harness.expected(prompts[0], 30)));
    }
    EXPECT_EQ(harness.heard(ids[0]).report.integrity_recomputes, damaged ? 0 : 1);
    EXPECT_THAT(harness.heard(ids[1]).ids(), ElementsAreArray(harness.expected(prompts[1], 30)));
    expect_balance(harness);
  }
}

// The same where no check failed: the sequence gives its pages to an older one.
TEST_P(ComputedAgain, NorAfterAPreemption) {
  if (GetParam().where == Where::kPrefill) return;  // Its sequences do not grow.
  const LogCapture log;
  Injector injector;
  HarnessOptions scene = options(injector);
  scene.pages = 12;
  ServingHarness harness(scene);
  const std::vector<ByteSite> sites = byte_sites(engine_of(harness, GetParam().where).loop().pool().layout());
  const std::vector<std::vector<std::int32_t>> prompts = {make_prompt(1, 13), make_prompt(2, 9)};
  const auto older = harness.submit(prompts[0], 24);
  const auto younger = harness.submit(prompts[1], 20);
  kv_cache::Lease lease;
  injector.arm(younger, 11, Moment::kBeforeCheck, [&](const Target& t) {
    lease = t.victim.leases[1];
    EXPECT_TRUE(flip(t.step.pool, sites.front(), lease.page, 1));
  });
  harness.run_until_ended();
  ASSERT_TRUE(injector.reached());
  expect_corrupted(harness.heard(younger));
  expect_reader_in_log(log, harness, GetParam().where, younger, lease);
  EXPECT_THAT(harness.heard(older).ids(), ElementsAreArray(harness.expected(prompts[0], 24)));
  expect_balance(harness);
}

}  // namespace
}  // namespace tessera::test_support
