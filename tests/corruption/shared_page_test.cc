// A page that several sequences share, and a page that nobody holds now.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/corruption/injector.h"
#include "tests/serving/serving_harness.h"
#include "tests/support/fault_access.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

// Both holders of a shared page fail, each at its own check; who does not hold it goes on; and nobody gets the page
// from the cache afterwards.
TEST(SharedPage, EveryHolderFailsAndNobodyElse) {
  for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
    Injector injector;
    HarnessOptions options;
    options.pools = pools;
    (pools == Pools::kUnified ? options.first_observer : options.decode_observer) = &injector;
    ServingHarness harness(options);
    const auto common = make_prompt(1, 16);
    harness.submit(common, 2);
    harness.run_until_ended();  // Now the pages are cached.
    const auto with = [&](std::uint64_t seed) {
      auto prompt = common;
      for (const std::int32_t token : make_prompt(seed, 5)) prompt.push_back(token);
      return prompt;
    };
    const auto stranger_prompt = make_prompt(5, 17);
    const auto first = harness.submit(with(2), 20);
    const auto second = harness.submit(with(3), 20);
    const auto stranger = harness.submit(stranger_prompt, 20);
    injector.arm(first, 25, Moment::kBeforeCheck, [](const Target& t) { t.tag(t.victim.leases[1].page) ^= 4; });
    harness.run_until_ended();
    ASSERT_TRUE(injector.reached());
    for (const auto id : {first, second}) {
      ASSERT_TRUE(harness.heard(id).failed.has_value());
      EXPECT_EQ(harness.heard(id).failed->code(), base::StatusCode::kCorruption);
    }
    EXPECT_THAT(harness.heard(stranger).ids(), ElementsAreArray(harness.expected(stranger_prompt, 20)));
    const auto quarantined = harness.decode().loop().stats().pages_quarantined;
    const auto again = harness.submit(with(2), 20);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(again).ids(), ElementsAreArray(harness.expected(with(2), 20)));
    EXPECT_EQ(harness.decode().loop().stats().pages_quarantined, quarantined);
    harness.expect_pages_balance(pools == Pools::kUnified ? quarantined : 0,
                                 pools == Pools::kUnified ? 0 : quarantined);
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
