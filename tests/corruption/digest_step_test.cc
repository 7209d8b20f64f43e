// Level digest-step: bytes of pages that change behind an engine's back, in every layer and part and in every kind of
// slot, and the recorded digests themselves. No token comes of them. And nothing else is ever taken for damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/corruption/injector.h"
#include "tests/corruption/integrity_settings.h"

namespace tessera::test_support {
namespace {

using kv_cache::IntegrityLevel;
using kv_cache::PageId;
using kv_cache::PageState;
using kv_transfer::wire::MessageType;
using testing::ElementsAreArray;

// Every row of `sites` is one flip in one run: the victim ends without a token of the step, nobody else notices.
class DigestStep : public testing::TestWithParam<Setting> {
 protected:
  enum class Slot : std::uint8_t { kFirst, kEndOfAPage, kBeforeTheStep, kOfTheStep };

  // The token position of the victim that a slot class means.
  static std::int64_t position(Slot slot, const engine::StepRowView& row, std::int64_t page_size) {
    switch (slot) {
      case Slot::kFirst:
        return 0;
      case Slot::kEndOfAPage:
        return page_size - 1;
      case Slot::kBeforeTheStep:
        return row.start - 1;
      case Slot::kOfTheStep:
        return row.start + row.count - 1;
    }
    return -1;
  }

  void flip_one(const ByteSite& site, Slot slot, Moment moment) {
    const Setting& setting = GetParam();
    Injector injector;
    HarnessOptions options = harness_options(setting, IntegrityLevel::kDigestStep);
    if (setting.where == Where::kPrefill) options.chunk = 32;  // All prompts in one step.
    (setting.where == Where::kDecode ? options.decode_observer : options.first_observer) = &injector;
    ServingHarness harness(options);
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<request::SequenceId> ids;
    for (std::uint64_t i = 0; i < 3; ++i) {
      prompts.push_back(make_prompt(40 + i, setting.where == Where::kPrefill ? 10 : 13));
    }
    if (setting.where == Where::kPrefill) {
      // A prefill step reads what it did not write where the prompt begins in the cache: here two pages of it.
      harness.submit(prompts[1], 2);
      harness.run_until_ended();
    }
    for (const auto& prompt : prompts) ids.push_back(harness.submit(prompt, 9));
    const std::int64_t start_min = setting.where == Where::kPrefill ? 8 : 16;
    std::int64_t generated = -1;  // Tokens emitted before the step.
    bool changed = false;
    injector.arm(ids[1], start_min, moment, [&](const Target& t) {
      const std::int64_t page_size = t.step.pool.layout().page_size;
      const std::int64_t p = position(slot, t.victim, page_size);
      const PageId page = t.victim.leases[static_cast<std::size_t>(p / page_size)].page;
      changed = flip(t.step.pool, site, page, static_cast<std::int32_t>(p % page_size));
      generated = std::max<std::int64_t>(0, t.victim.start + 1 - std::ssize(prompts[1]));
    });
    harness.run_until_ended();

    ASSERT_TRUE(injector.reached());
    ASSERT_TRUE(changed);
    const Heard heard = harness.heard(ids[1]);
    expect_corrupted(heard);
    const auto right = harness.expected(prompts[1], 9);
    ASSERT_EQ(std::ssize(heard.tokens), generated);
    EXPECT_THAT(heard.ids(), ElementsAreArray(right.begin(), right.begin() + generated));
    for (const std::size_t i : {0, 2}) {
      EXPECT_THAT(harness.heard(ids[i]).ids(), ElementsAreArray(harness.expected(prompts[i], 9))) << "neighbour " << i;
    }
    const request::EngineStats stats = engine_of(harness, setting.where).loop().stats();
    EXPECT_EQ(stats.digest_failures, 1);
    EXPECT_EQ(stats.check_failures, 0);
    EXPECT_EQ(stats.pages_quarantined, 1);  // The one that was damaged.
    const auto again = harness.submit(prompts[1], 9);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(again).ids(), ElementsAreArray(right));
    expect_balance(harness);
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, DigestStep, testing::ValuesIn(settings()), setting_name);

TEST_P(DigestStep, NoTokenComesOfAFlippedByte) {
  const Setting& setting = GetParam();
  const std::vector<ByteSite> sites = sites_of(harness_options(setting, IntegrityLevel::kDigestStep), setting.where);
  ASSERT_GE(sites.size(), 5u);
  for (const ByteSite& site : sites) {
    for (const Slot slot : {Slot::kFirst, Slot::kEndOfAPage, Slot::kBeforeTheStep, Slot::kOfTheStep}) {
      for (const Moment moment : {Moment::kBeforeCheck, Moment::kBeforeSecondCheck}) {
        // Before the step there is nothing in its slots yet.
        if (slot == Slot::kOfTheStep && moment == Moment::kBeforeCheck) continue;
        SCOPED_TRACE(testing::Message() << site.name << ", slot class " << static_cast<int>(slot) << ", moment "
                                        << static_cast<int>(moment));
        flip_one(site, slot, moment);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// No token came of the damage, so that computing again is exact: for every reader of a shared page.
TEST_P(DigestStep, IsMadeUpForByComputingAgain) {
  const Setting& setting = GetParam();
  if (setting.where == Where::kPrefill) return;  // As below.
  Injector injector;
  HarnessOptions options = harness_options(setting, IntegrityLevel::kDigestStep);
  options.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
  (setting.where == Where::kDecode ? options.decode_observer : options.first_observer) = &injector;
  ServingHarness harness(options);
  const auto prompt = make_prompt(1, 18);
  harness.submit(prompt, 2);
  harness.run_until_ended();
  const std::vector<request::SequenceId> readers = {harness.submit(prompt, 20), harness.submit(prompt, 20)};
  injector.arm(readers[0], 25, Moment::kBeforeSecondCheck, [](const Target& t) {
    ASSERT_EQ(t.step.pool.state(t.victim.leases[2].page), PageState::kShared);
    ASSERT_TRUE(flip(t.step.pool, byte_sites(t.step.pool.layout())[0], t.victim.leases[2].page, 3));
  });
  harness.run_until_ended();
  ASSERT_TRUE(injector.reached());
  for (const auto id : readers) {
    EXPECT_TRUE(harness.heard(id).finished.has_value());
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 20)));
    EXPECT_EQ(harness.heard(id).report.integrity_recomputes, 1);
  }
  EXPECT_EQ(engine_of(harness, setting.where).loop().stats().digest_failures, 1);
  expect_balance(harness);
}

// Those who share the page fail in the same step, whoever else has it; a row that failed for another reason hides
// nothing from the others.
TEST_P(DigestStep, EveryReaderOfASharedPageIsStopped) {
  const Setting& setting = GetParam();
  if (setting.where == Where::kPrefill) return;  // Has no two steps of one sequence here; the step is the same code.
  for (const bool another_fault : {false, true}) {
    SCOPED_TRACE(another_fault);
    Injector injector;
    HarnessOptions options = harness_options(setting, IntegrityLevel::kDigestStep);
    (setting.where == Where::kDecode ? options.decode_observer : options.first_observer) = &injector;
    ServingHarness harness(options);
    const auto common = make_prompt(1, 16);
    harness.submit(common, 2);
    harness.run_until_ended();  // Now the pages are cached.
    const auto with = [&](std::uint64_t seed) { return make_prompt_after(common, seed, 5); };
    const auto stranger_prompt = make_prompt(5, 17);
    const std::vector<request::SequenceId> readers = {harness.submit(with(2), 20), harness.submit(with(3), 20)};
    const auto stranger = harness.submit(stranger_prompt, 20);
    std::vector<std::size_t> emitted;
    injector.arm(readers[0], 25, Moment::kBeforeCheck, [&](const Target& t) {
      const PageId page = t.victim.leases[1].page;
      ASSERT_EQ(t.step.pool.state(page), PageState::kShared);
      ASSERT_TRUE(flip(t.step.pool, byte_sites(t.step.pool.layout())[1], page, 2));
      if (another_fault) t.table_entry(0) = -1;
      for (const auto id : readers) emitted.push_back(harness.tokens_so_far(id).size());
    });
    harness.run_until_ended();
    ASSERT_TRUE(injector.reached());
    for (std::size_t i = 0; i < readers.size(); ++i) {
      expect_corrupted(harness.heard(readers[i]));
      EXPECT_EQ(harness.heard(readers[i]).tokens.size(), emitted[i]);
    }
    EXPECT_THAT(harness.heard(stranger).ids(), ElementsAreArray(harness.expected(stranger_prompt, 20)));
    EXPECT_EQ(engine_of(harness, setting.where).loop().stats().digest_failures, 1);
    // The readers' own pages are to blame for nothing, unless the page table was wrong.
    const std::int64_t quarantined = engine_of(harness, setting.where).loop().stats().pages_quarantined;
    EXPECT_EQ(quarantined > 1, another_fault);
    const auto again = harness.submit(with(2), 20);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(again).ids(), ElementsAreArray(harness.expected(with(2), 20)));
    expect_balance(harness);
  }
}

// ---- Nothing else is damage ----

class NoFalseAlarm : public testing::TestWithParam<std::tuple<Pools, OracleKv, IntegrityLevel>> {
 protected:
  HarnessOptions options() const {
    const auto [pools, kv, level] = GetParam();
    HarnessOptions options;
    options.pools = pools;
    options.kv = kv;
    options.integrity.level = level;
    options.integrity.sweep_pages_per_second = 200'000;
    return options;
  }
  static void expect_no_alarm(ServingHarness& harness) {
    for (engine::Engine* engine : {&harness.first(), &harness.decode()}) {
      const request::EngineStats stats = engine->loop().stats();
      EXPECT_EQ(stats.digest_failures, 0);
      EXPECT_EQ(stats.check_failures, 0);
      EXPECT_GT(stats.pages_swept, 0);
    }
    harness.expect_pages_balance();
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, NoFalseAlarm,
                         testing::Combine(testing::Values(Pools::kUnified, Pools::kSplit),
                                          testing::Values(OracleKv::kKeysAndValues, OracleKv::kLatents),
                                          testing::Values(IntegrityLevel::kDigest, IntegrityLevel::kDigestStep)),
                         [](const auto& param_info) {
                           return std::string(std::get<0>(param_info.param) == Pools::kSplit ? "Split" : "Unified") +
                                  (std::get<1>(param_info.param) == OracleKv::kLatents ? "Latents" : "KeysAndValues") +
                                  (std::get<2>(param_info.param) == IntegrityLevel::kDigest ? "Digest" : "DigestStep");
                         });

TEST_P(NoFalseAlarm, WhateverLiesInUnusedSlots) {
  for (const int garbage : {0x7f, 0xff}) {
    ServingHarness harness(options());
    for (engine::Engine* engine : {&harness.first(), &harness.decode()}) {
      const ops::KvCacheView& cache = engine->loop().pool().cache();
      std::memset(cache.base, garbage, static_cast<std::size_t>(cache.layout.pool_bytes(cache.num_pages)));
    }
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<request::SequenceId> ids;
    // Prompts that end in every slot of a page.
    for (std::uint64_t i = 0; i < 6; ++i) {
      prompts.push_back(make_prompt(i, 9 + static_cast<std::int64_t>(i)));
      ids.push_back(harness.submit(prompts.back(), 12));
    }
    harness.run_until_ended();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_THAT(harness.heard(ids[i]).ids(), ElementsAreArray(harness.expected(prompts[i], 12)));
    }
    expect_no_alarm(harness);
  }
}

// More sequences than pages: preemption, replay, eviction; and prompts that share their beginnings.
TEST_P(NoFalseAlarm, UnderPressure) {
  HarnessOptions small = options();
  small.pages = 24;
  small.prefill_pages = 24;
  ServingHarness harness(small);
  const auto common = make_prompt(99, 12);
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<request::SequenceId> ids;
  for (std::uint64_t i = 0; i < 14; ++i) {
    prompts.push_back(
        make_prompt_after(i % 2 == 0 ? common : make_prompt(i, 3), 100 + i, 1 + static_cast<std::int64_t>(i) % 7));
    ids.push_back(harness.submit(prompts.back(), 25));
  }
  harness.run_until_ended();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_THAT(harness.heard(ids[i]).ids(), ElementsAreArray(harness.expected(prompts[i], 25))) << i;
  }
  EXPECT_GT(harness.preemptions(), 0);
  EXPECT_GT(harness.first().loop().stats().prefix_hit_tokens, 0);
  expect_no_alarm(harness);
}

// Clients that leave at any time, also while pages are on their way; pages that come back behind the fence, or when the
// cache is flushed, and are somebody else's at once.
TEST_P(NoFalseAlarm, WhereClientsLeaveAndCachesAreFlushed) {
  HarnessOptions small = options();
  small.pages = 20;
  small.prefill_pages = 20;
  ServingHarness harness(small);
  auto& decode = harness.decode().loop();
  const auto common = make_prompt(99, 12);
  std::map<request::SequenceId, std::vector<std::int32_t>> staying;
  std::int64_t fenced = 0;  // The most pages that waited for their fence.
  // The peers' word that they write nothing more comes late.
  std::vector<std::function<void()>> held;
  harness.transport().set_filter([&](auto from, auto to, std::vector<std::byte> message) {
    const MessageType type = type_of(message);
    std::function<void()> deliver = [&harness, from, to, message = std::move(message)] {
      harness.transport().deliver(from, to, message);
    };
    if (type == MessageType::kAbort || type == MessageType::kAbortAck) {
      held.push_back(std::move(deliver));
    } else {
      deliver();
    }
  });
  const auto deliver_held = [&] {
    for (const auto& deliver : std::exchange(held, {})) deliver();
  };
  for (std::uint64_t i = 0; i < 24; ++i) {
    const auto prompt =
        make_prompt_after(i % 3 == 0 ? common : make_prompt(i, 5), 100 + i, 4 + static_cast<int>(i % 5));
    const auto id = harness.submit(prompt, 8);
    if (i % 2 == 0) staying[id] = prompt;
    // Leaves as it waits, computes or is sent; some as they are received.
    for (std::uint64_t turn = 0; turn < 1 + i % 5; ++turn) harness.turn();
    if (i % 4 == 1) {
      harness.run_until([&] { return decode.stats().handing_over > 0 || harness.heard(id).tokens.size() > 1; });
    }
    if (i % 2 == 1) harness.abort(id);
    if (i % 5 == 4) harness.router().flush_prefix_cache();
    harness.turn();
    fenced = std::max(fenced, decode.pool().awaiting_fence());
    if (i % 3 == 0) deliver_held();
  }
  harness.transport().set_filter({});
  deliver_held();
  harness.run_until_ended();
  for (const auto& [id, prompt] : staying) {
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 8)));
  }
  if (harness.split()) {
    EXPECT_GT(fenced, 0);
  }
  expect_no_alarm(harness);
}

// A digest says what a page holds and which layer and slot it is, not which page: so that a page's image is the same
// wherever it lies.
TEST_P(NoFalseAlarm, AfterACopyOfTheSameImage) {
  Injector injector;
  HarnessOptions copying = options();
  copying.decode_observer = &injector;
  if (copying.pools == Pools::kUnified) copying.first_observer = &injector;
  ServingHarness harness(copying);
  // Too short to share a page.
  const auto prompt = make_prompt(1, 3);
  const auto first = harness.submit(prompt, 16);
  const auto second = harness.submit(prompt, 16);
  injector.arm(first, 12, Moment::kBeforeCheck, [](const Target& t) {
    ASSERT_NE(t.victim.leases[1].page, t.neighbour->leases[1].page);
    copy_page(t.step.pool, t.victim.leases[1].page, t.neighbour->leases[1].page);
  });
  harness.run_until_ended();
  ASSERT_TRUE(injector.reached());
  for (const auto id : {first, second}) {
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 16)));
  }
  harness.expect_pages_balance();
  EXPECT_EQ(harness.decode().loop().stats().digest_failures, 0);
}

}  // namespace
}  // namespace tessera::test_support
