// What is reported of a sequence and of the prefix cache: every prompt and every stretch of time counted once.
#include <gtest/gtest.h>

#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using std::chrono::seconds;

TEST(Report, DecodeTimeBeforeAPreemptionCounts) {
  for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
    HarnessOptions options;
    options.pools = pools;
    options.pages = 12;
    ServingHarness harness(options);
    harness.submit(make_prompt(1, 16), 26);
    const auto id = harness.submit(make_prompt(2, 16), 20);
    ASSERT_TRUE(harness.run_until([&] { return harness.heard(id).tokens.size() >= 2; }));
    const base::Nanoseconds begin = harness.clock().now();
    // Slow steps until it loses its pages, quick ones afterwards.
    while (harness.preemptions() == 0) {
      ASSERT_FALSE(harness.heard(id).ended());
      harness.clock().advance(seconds(1));
      harness.turn();
    }
    const base::Nanoseconds before = harness.clock().now() - begin;
    ASSERT_GT(before, seconds(2));
    harness.run_until_ended();
    const Heard heard = harness.heard(id);
    ASSERT_TRUE(heard.finished.has_value());
    EXPECT_EQ(heard.report.preemptions, 1);
    EXPECT_GE(heard.report.decode_ns, (before - seconds(1)).count());
    EXPECT_LE(heard.report.decode_ns, (before + seconds(1)).count());
    harness.expect_pages_balance();
  }
}

// The sums that the router's snapshot has of one engine.
struct Looked {
  std::int64_t queries = 0;
  std::int64_t hits = 0;
  friend bool operator==(const Looked&, const Looked&) = default;
};

Looked looked(ServingHarness& harness, request::EngineRole role) {
  harness.clock().advance(seconds(2));  // Engines then send their stats.
  for (int i = 0; i < 3; ++i) harness.turn();
  for (const auto& engine : harness.router().snapshot().engines) {
    if (engine.info.role == role) return {engine.stats.prefix_query_tokens, engine.stats.prefix_hit_tokens};
  }
  return {-1, -1};
}

TEST(Report, APromptIsLookedUpOnceInTheEngineThatTakesIt) {
  ServingHarness harness({});
  const auto prompt = make_prompt(1, 200);
  harness.submit(prompt, 3);
  harness.run_until_ended();
  EXPECT_EQ(looked(harness, request::EngineRole::kPrefill), (Looked{200, 0}));
  EXPECT_EQ(looked(harness, request::EngineRole::kDecode), (Looked{200, 0}));
  harness.submit(prompt, 3);
  harness.run_until_ended();
  // All whole pages but the one of the last token, whose logits are wanted; decode has its own copies.
  EXPECT_EQ(looked(harness, request::EngineRole::kPrefill), (Looked{400, 196}));
  EXPECT_EQ(looked(harness, request::EngineRole::kDecode), (Looked{400, 200}));
  harness.expect_pages_balance();
}

// The head of the queue asks for its prefix whenever the pool changes; and a preempted sequence is admitted again.
TEST(Report, WaitingAndPreemptionsAreNotLookups) {
  for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
    HarnessOptions options;
    options.pools = pools;
    options.pages = 12;
    options.prefill_pages = 12;
    ServingHarness harness(options);
    std::int64_t tokens = 0;
    for (int i = 0; i < 12; ++i) {
      const std::int64_t length = 10 + i;
      harness.submit(make_prompt(static_cast<std::uint64_t>(i), length), 18);
      tokens += length;
    }
    harness.run_until_ended();
    EXPECT_GT(harness.preemptions(), 0);
    const auto role = pools == Pools::kUnified ? request::EngineRole::kUnified : request::EngineRole::kPrefill;
    EXPECT_EQ(looked(harness, role), (Looked{tokens, 0}));
    harness.expect_pages_balance();
  }
}

}  // namespace
}  // namespace tessera::test_support
