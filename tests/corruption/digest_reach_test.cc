// Levels with digests: how far the damage of one page reaches. Everything that may have been computed from it ends or
// is dropped; nothing else is.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tessera/ops/forwarding_backend.h"
#include "tests/corruption/injector.h"
#include "tests/corruption/integrity_settings.h"
#include "tests/corruption/log_capture.h"

namespace tessera::test_support {
namespace {

using kv_cache::IntegrityLevel;
using kv_cache::PageId;
using kv_cache::PageState;
using kv_transfer::wire::MessageType;
using testing::ElementsAreArray;
using testing::IsEmpty;

// The page at a position of a sequence's own (its owner), or of the prefix cache's (a chain); 0 while there is none.
template <typename Owned>
PageId full_page(const kv_cache::PagePool& pool, std::int32_t position, Owned owned) {
  for (PageId page = 1; page <= pool.counts().total; ++page) {
    const kv_cache::Lease lease = pool.current_lease(page);
    if (lease.tag == 0 || !owned(lease.owner) || pool.position(page) != position) continue;
    if (pool.filled(page) == pool.layout().page_size) return page;
  }
  return 0;
}
PageId private_page(const kv_cache::PagePool& pool, request::SequenceId id, std::int32_t position) {
  return full_page(pool, position, [&](auto owner) { return owner == kv_cache::owner_of_sequence(id); });
}
PageId chain_page(const kv_cache::PagePool& pool, std::int32_t position) {
  return full_page(pool, position, [](auto owner) { return owner >> 63 == 0; });
}

class DigestReach : public testing::TestWithParam<OracleKv> {};
INSTANTIATE_TEST_SUITE_P(Layouts, DigestReach, testing::Values(OracleKv::kKeysAndValues, OracleKv::kLatents),
                         [](const auto& param_info) {
                           return param_info.param == OracleKv::kLatents ? "Latents" : "KeysAndValues";
                         });

// The victim's first page is a copy of its own, as somebody else was first to cache that page. What it computes from
// the copy would hang in the cache under the other's, which is sound.
TEST_P(DigestReach, WhatCameOfADamagedPrivateCopyIsNotCached) {
  for (const Where where : {Where::kUnified, Where::kPrefill}) {
    HarnessOptions options = harness_options({where, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
    options.chunk = 4;
    ServingHarness harness(options);
    auto& pool = harness.first().loop().pool();
    const auto common = make_prompt(1, 4);
    const auto victim_prompt = make_prompt_after(common, 2, 20);
    harness.submit(make_prompt_after(common, 3, 2), 2);
    const auto victim = harness.submit(victim_prompt, 20);
    ASSERT_TRUE(harness.run_until([&] { return private_page(pool, victim, 0) != 0 && chain_page(pool, 0) != 0; }));
    ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], private_page(pool, victim, 0), 1));
    harness.run_until_ended();
    expect_corrupted(harness.heard(victim));
    EXPECT_THAT(harness.heard(victim).tokens, IsEmpty());
    EXPECT_EQ(harness.first().loop().stats().digest_failures, 1);
    const auto reader_prompt = make_prompt_after(victim_prompt, 4, 3);
    const auto reader = harness.submit(reader_prompt, 6);
    harness.run_until_ended();
    EXPECT_EQ(harness.heard(reader).report.cached_tokens, 4);
    EXPECT_THAT(harness.heard(reader).ids(), ElementsAreArray(harness.expected(reader_prompt, 6)));
    expect_balance(harness);
  }
}

// All its pages were proved, after prefill had read them for the last time: what becomes of them while the decode
// engine has not said that it is done, or even has not committed, is in nothing that anybody reads.
TEST_P(DigestReach, WhatBecomesOfPagesThatWereProvedBeforeCommitHarmsNobody) {
  for (const MessageType stalled : {MessageType::kCommit, MessageType::kDone}) {
    SCOPED_TRACE(static_cast<int>(stalled));
    HarnessOptions options =
        harness_options({Where::kPrefill, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
    options.integrity.sweep_pages_per_second = 10'000;
    ServingHarness harness(options);
    Stall stall(harness, stalled);
    const auto prompt = make_prompt(1, 22);
    const auto id = harness.submit(prompt, 30);
    ASSERT_TRUE(harness.run_until([&] { return stall.dropped() > 0; }));
    auto& pool = harness.first().loop().pool();
    const PageId page = chain_page(pool, 2);
    ASSERT_EQ(pool.state(page), PageState::kLive);
    ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], page, 1));
    ASSERT_TRUE(harness.run_until([&] { return harness.first().loop().stats().digest_failures == 1; }));
    stall.end();
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 30)));
    EXPECT_EQ(harness.first().loop().stats().handoffs_done, 1);
    expect_balance(harness);
  }
}

// Who has read none of the damage is computed again where that is wanted: at digest-step all, as what was read was
// proved right; at digest, who waits for the rest of its pages.
TEST_P(DigestReach, WhoHasReadNoneOfTheDamageIsComputedAgain) {
  for (const Where where : {Where::kPrefill, Where::kDecode}) {
    SCOPED_TRACE(static_cast<int>(where));
    const bool sends = where == Where::kPrefill;
    HarnessOptions options = harness_options({where, GetParam(), ops::KvFormat::kBF16},
                                             sends ? IntegrityLevel::kDigestStep : IntegrityLevel::kDigest);
    options.integrity.sweep_pages_per_second = 10'000;
    options.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
    ServingHarness harness(options);
    engine::Engine& engine = engine_of(harness, where);
    auto& pool = engine.loop().pool();
    const auto common = make_prompt(1, 16);
    harness.submit(common, 2);
    harness.run_until_ended();
    Stall stall(harness, sends ? MessageType::kOffer : MessageType::kCommit);
    const auto prompt = make_prompt_after(common, 2, 9);
    const auto id = harness.submit(prompt, 12);
    ASSERT_TRUE(harness.run_until([&] { return engine.loop().stats().handing_over == 1 && stall.dropped() > 0; }));
    ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], chain_page(pool, 2), 1));
    ASSERT_TRUE(harness.run_until([&] { return engine.loop().stats().digest_failures == 1; }));
    stall.end();
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 12)));
    EXPECT_EQ(harness.heard(id).report.integrity_recomputes, 1);
    expect_balance(harness);
  }
}

// One row of a step fails by its tag, which leads to damaged bytes in a page that all rows have read: the others' rows
// are clean, but what came of them is not. Who has emitted ends; who has not is computed again.
TEST_P(DigestReach, NoReaderOfDamageEmitsOnceAnotherRowOfItsStepHasTold) {
  const LogCapture log;
  Injector injector;
  HarnessOptions options =
      harness_options({Where::kUnified, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
  options.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
  options.chunk = 4;
  options.first_observer = &injector;
  ServingHarness harness(options);
  auto& pool = harness.first().loop().pool();
  const auto common = make_prompt(1, 8);
  harness.submit(make_prompt_after(common, 2, 3), 1);
  harness.run_until_ended();
  const auto victim = harness.submit(make_prompt_after(common, 3, 3), 30);
  const auto reader = harness.submit(make_prompt_after(common, 4, 3), 30);
  ASSERT_TRUE(harness.run_until([&] { return harness.heard(reader).tokens.size() > 2; }));
  const auto late_prompt = make_prompt_after(common, 5, 24);
  const auto late = harness.submit(late_prompt, 6);
  ASSERT_TRUE(harness.run_until([&] { return harness.first().loop().stats().running == 3; }));
  std::size_t emitted = 0;
  kv_cache::Lease lease;
  injector.arm(victim, 0, Moment::kBeforeCheck, [&](const Target& target) {
    lease = target.victim.leases[0];
    EXPECT_TRUE(flip(pool, byte_sites(pool.layout())[0], target.victim.leases[0].page, 1));
    target.tag(target.victim.leases.back().page) ^= 16;
    emitted = harness.heard(reader).tokens.size();
  });
  harness.run_until_ended();
  ASSERT_TRUE(injector.reached());
  expect_corrupted(harness.heard(victim));
  expect_corrupted(harness.heard(reader));
  EXPECT_EQ(harness.heard(reader).tokens.size(), emitted);
  // Each of them has its line, also who is computed again.
  for (const auto id : {victim, reader, late}) {
    const std::size_t tokens = id == late ? 0 : harness.heard(id).tokens.size();
    const std::string who = fmt::format("request request-{} sequence {} has read page", id, id);
    expect_one_line(log, who,
                    fmt::format("engine 1: {} {} \\(tag {}\\), whose bytes are damaged; {} tokens emitted", who,
                                lease.page, lease.tag, tokens));
  }
  EXPECT_THAT(harness.heard(late).ids(), ElementsAreArray(harness.expected(late_prompt, 6)));
  EXPECT_EQ(harness.heard(late).report.integrity_recomputes, 1);
  EXPECT_EQ(harness.first().loop().stats().digest_failures, 1);
  expect_balance(harness);
}

// Found between the end of its prompt and its offer: the decode engine hears nothing of a sequence that ends here.
TEST_P(DigestReach, AReaderThatWaitsForItsHandoffIsNotOffered) {
  const LogCapture log;
  Injector injector;
  HarnessOptions options =
      harness_options({Where::kPrefill, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
  options.chunk = 32;                                     // Both prompts in one step.
  options.integrity.sweep_pages_per_second = 10'000'000;  // The whole pool after each step.
  options.first_observer = &injector;
  ServingHarness harness(options);
  const auto common = make_prompt(1, 8);
  harness.submit(common, 1);
  harness.run_until_ended();
  int offers = 0;
  harness.transport().set_filter([&](auto from, auto to, std::vector<std::byte> message) {
    if (type_of(message) == MessageType::kOffer) ++offers;
    harness.transport().deliver(from, to, std::move(message));
  });
  const auto victim = harness.submit(make_prompt_after(common, 2, 3), 6);
  const auto neighbour_prompt = make_prompt(3, 9);
  const auto neighbour = harness.submit(neighbour_prompt, 6);
  kv_cache::Lease lease;
  injector.arm(victim, 0, Moment::kBeforeSecondCheck, [&](const Target& t) {
    lease = t.victim.leases[0];
    EXPECT_TRUE(flip(t.step.pool, byte_sites(t.step.pool.layout())[0], lease.page, 1));
  });
  harness.run_until_ended();
  ASSERT_TRUE(injector.reached());
  expect_corrupted(harness.heard(victim));
  EXPECT_EQ(harness.heard(victim).tokens.size(), 1u);
  EXPECT_THAT(harness.heard(neighbour).ids(), ElementsAreArray(harness.expected(neighbour_prompt, 6)));
  EXPECT_EQ(offers, 1);
  expect_one_line(log, "has read page",
                  fmt::format("engine 1: request request-{} sequence {} has read page {} \\(tag {}\\), whose bytes are "
                              "damaged; 1 tokens emitted",
                              victim, victim, lease.page, lease.tag));
  expect_balance(harness);
}

// Fails in its next check of bytes: verdicts are all ones, from then on, and it says that it failed or does not.
class FailingDevice final : public ops::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void check_digests(ops::Stream& stream, const ops::CheckDigestsParams& params) override {
    ForwardingBackend::check_digests(stream, params);
    if (!failing) return;
    ++answers;
    const auto bytes = static_cast<std::size_t>(params.count) * sizeof(ops::RowVerdict);
    std::memset(static_cast<void*>(params.verdicts), 0xff, bytes);
  }
  base::Status health() const override {
    return says_so && answers > 0 ? base::internal_error("the device is gone") : ForwardingBackend::health();
  }
  bool failing = false;
  bool says_so = false;
  int answers = 0;
};

TEST_P(DigestReach, VerdictsOfADeviceThatFailedNameNoPage) {
  const std::unique_ptr<ops::Backend> reference = backends::cpu::make_reference_backend();
  FailingDevice device(*reference);
  HarnessOptions options =
      harness_options({Where::kPrefill, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
  options.backend = &device;
  ServingHarness harness(options);
  device.failing = true;
  const auto id = harness.submit(make_prompt(1, 22), 6);
  harness.run_until_ended();
  EXPECT_GT(device.answers, 0);
  expect_corrupted(harness.heard(id));
  EXPECT_EQ(harness.first().loop().stats().digest_failures, 0);
  expect_balance(harness);
}

TEST_P(DigestReach, ADeviceThatSaysThatItFailedCondemnsNoPage) {
  for (const bool swept : {false, true}) {
    SCOPED_TRACE(swept);
    const std::unique_ptr<ops::Backend> reference = backends::cpu::make_reference_backend();
    FailingDevice device(*reference);
    HarnessOptions options =
        harness_options({Where::kUnified, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
    options.backend = &device;
    options.integrity.sweep_pages_per_second = swept ? 10'000 : 0;
    ServingHarness harness(options);
    const auto prompt = make_prompt(1, 22);
    harness.submit(prompt, 2);
    harness.run_until_ended();
    device.failing = device.says_so = true;
    if (!swept) {
      const auto hit = harness.submit(prompt, 6);
      harness.run_until_ended();
      ASSERT_TRUE(harness.heard(hit).failed.has_value());
      EXPECT_EQ(harness.heard(hit).failed->code(), base::StatusCode::kInternal);
    }
    ASSERT_TRUE(harness.run_until([&] { return device.answers > 0; }));
    harness.turn();
    const request::EngineStats stats = harness.first().loop().stats();
    EXPECT_EQ(stats.digest_failures, 0);
    EXPECT_EQ(stats.check_failures, 0);
    EXPECT_EQ(stats.pages_quarantined, 0);
    EXPECT_EQ(stats.pages_cached, 5);
  }
}

// Counts the pages whose bytes are read.
class CountingDevice final : public ops::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void check_digests(ops::Stream& stream, const ops::CheckDigestsParams& params) override {
    pages += params.count;
    ForwardingBackend::check_digests(stream, params);
  }
  std::int64_t pages = 0;
};

TEST_P(DigestReach, APageThatManyHitInOneTurnIsReadOnce) {
  const std::unique_ptr<ops::Backend> reference = backends::cpu::make_reference_backend();
  CountingDevice device(*reference);
  HarnessOptions options =
      harness_options({Where::kUnified, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
  options.backend = &device;
  ServingHarness harness(options);
  auto& pool = harness.first().loop().pool();
  const auto common = make_prompt(1, 16);
  harness.submit(common, 2);
  harness.run_until_ended();
  ASSERT_EQ(pool.counts().cached, 4);
  for (const bool damaged : {false, true}) {
    SCOPED_TRACE(damaged);
    if (damaged) {
      ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], chain_page(pool, 2), 1));
    }
    device.pages = 0;
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<request::SequenceId> ids;
    for (std::uint64_t i = 0; i < 6; ++i) {
      prompts.push_back(make_prompt_after(common, 10 + i, 1));
      ids.push_back(harness.submit(prompts.back(), 2));
    }
    ASSERT_TRUE(harness.run_until([&] { return harness.first().loop().stats().running == 6; }));
    EXPECT_EQ(device.pages, 4);
    harness.run_until_ended();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_THAT(harness.heard(ids[i]).ids(), ElementsAreArray(harness.expected(prompts[i], 2)));
      EXPECT_EQ(harness.heard(ids[i]).report.cached_tokens, damaged ? 8 : 16);
    }
  }
  expect_balance(harness);
}

}  // namespace
}  // namespace tessera::test_support
