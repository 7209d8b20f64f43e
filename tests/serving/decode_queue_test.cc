// More than the decode pool has room for: what is prefilled waits for it as a queue, and what is not stays unprefilled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAreArray;

// A decode pool of ten pages, which the first sequence needs for itself; the second one's handoff waits for them.
struct FullDecodePool {
  explicit FullDecodePool(base::Nanoseconds timeout) : harness(options(timeout)) {
    first = harness.submit(first_prompt, 20);
    second = harness.submit(second_prompt, 5);
    EXPECT_TRUE(harness.run_until([&] { return queued(); }));
  }
  static HarnessOptions options(base::Nanoseconds timeout) {
    HarnessOptions options;
    options.pages = 10;
    options.handoff_timeout = timeout;
    return options;
  }
  bool queued() { return harness.decode().loop().stats().waiting == 1; }

  const std::vector<std::int32_t> first_prompt = make_prompt(1, 20);
  const std::vector<std::int32_t> second_prompt = make_prompt(2, 30);
  ServingHarness harness;
  request::SequenceId first = 0;
  request::SequenceId second = 0;
};

TEST(DecodeQueue, LongerThanTheHandoffsTimeoutIsWaitedFor) {
  FullDecodePool pool(milliseconds(10));
  const base::Nanoseconds begin = pool.harness.clock().now();
  while (pool.queued()) {
    pool.harness.clock().advance(milliseconds(2));
    pool.harness.turn();
  }
  EXPECT_GT(pool.harness.clock().now() - begin, milliseconds(30));
  pool.harness.run_until_ended();
  EXPECT_THAT(pool.harness.heard(pool.first).ids(), ElementsAreArray(pool.harness.expected(pool.first_prompt, 20)));
  EXPECT_THAT(pool.harness.heard(pool.second).ids(), ElementsAreArray(pool.harness.expected(pool.second_prompt, 5)));
  EXPECT_EQ(pool.harness.first().loop().stats().handoffs_failed, 0);
  pool.harness.expect_pages_balance();
}

TEST(DecodeQueue, AnEngineThatFallsSilentWhileItQueuesEndsWhatWaits) {
  FullDecodePool pool(milliseconds(10));
  pool.harness.transport().set_filter([](auto, auto, auto) {});
  for (int i = 0; i < 15; ++i) {
    pool.harness.clock().advance(milliseconds(2));
    pool.harness.turn();
  }
  pool.harness.transport().set_filter({});
  pool.harness.run_until_ended();
  EXPECT_THAT(pool.harness.heard(pool.first).ids(), ElementsAreArray(pool.harness.expected(pool.first_prompt, 20)));
  ASSERT_TRUE(pool.harness.heard(pool.second).failed.has_value());
  EXPECT_EQ(pool.harness.heard(pool.second).failed->code(), base::StatusCode::kDeadlineExceeded);
  pool.harness.expect_pages_balance();
}

// Pages of a handoff that was given up are in quarantine until the other side has said that it writes no more. Who
// needs them waits for that word, and is not told that the pool is too small.
TEST(DecodeQueue, WhoNeedsPagesThatWaitForAFenceWaitsForThem) {
  HarnessOptions options;
  options.pages = 10;
  ServingHarness harness(options);
  std::vector<std::vector<std::byte>> held;
  bool holding = true;
  harness.transport().set_filter([&](auto from, auto to, std::vector<std::byte> message) {
    // Everything that the first handoff sends once it was given pages.
    if (holding && from == 1 && harness.decode().loop().stats().handing_over == 1) {
      held.push_back(std::move(message));
    } else if (holding && from == 1 && !held.empty() && message[16] == held.front()[16]) {
      held.push_back(std::move(message));
    } else {
      harness.transport().deliver(from, to, std::move(message));
    }
  });
  const auto gone = harness.submit(make_prompt(1, 30), 5);
  ASSERT_TRUE(harness.run_until([&] { return !held.empty(); }));
  harness.abort(gone);
  ASSERT_TRUE(harness.run_until([&] { return harness.decode().loop().stats().pages_quarantined == 8; }));
  const auto prompt = make_prompt(2, 30);
  const auto waiting = harness.submit(prompt, 5);
  ASSERT_TRUE(harness.run_until([&] { return harness.decode().loop().stats().waiting == 1; }));
  for (int i = 0; i < 50; ++i) harness.turn();
  ASSERT_FALSE(harness.heard(waiting).ended());
  holding = false;
  for (auto& message : held) harness.transport().deliver(1, 2, std::move(message));
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(waiting).ids(), ElementsAreArray(harness.expected(prompt, 5)));
  harness.expect_pages_balance();
}

// The decode pool holds two or three of these sequences, and the prefill pool all of them.
class Overload : public testing::Test {
 protected:
  static constexpr std::int64_t kAhead = 3;
  static constexpr std::int64_t kDecodeRoom = 5;  // Prompts that the decode pool's pages could hold at once.
  static constexpr int kRequests = 24;

  static HarnessOptions options() {
    HarnessOptions options;
    options.pages = 16;
    options.prefill_pages = 256;
    options.running_max = 64;
    options.prefill_ahead_max = kAhead;
    options.handoff_timeout = milliseconds(10);
    return options;
  }
  Overload() : harness_(options()) {
    for (int i = 0; i < kRequests; ++i) {
      prompts_.push_back(make_prompt(static_cast<std::uint64_t>(i), 12));
      ids_.push_back(harness_.submit(prompts_.back(), 14));
    }
  }
  // A slow turn: the queue lasts many timeouts.
  void turn() {
    harness_.clock().advance(milliseconds(1));
    harness_.turn();
  }
  request::EngineStats prefill() { return harness_.first().loop().stats(); }
  request::EngineStats decode() { return harness_.decode().loop().stats(); }

  ServingHarness harness_;
  std::vector<std::vector<std::int32_t>> prompts_;
  std::vector<request::SequenceId> ids_;
};

TEST_F(Overload, PromptsWaitUnprefilledWhileTheDecodePoolIsFull) {
  std::int64_t queued_most = 0;
  const base::Nanoseconds begin = harness_.clock().now();
  for (int i = 0; harness_.live() > 0; ++i) {
    ASSERT_LT(i, 20'000);
    turn();
    // What waits for room is bounded, however many wait; the rest holds no pages.
    ASSERT_LE(decode().waiting, kAhead);
    ASSERT_LE(prefill().resident_tokens, (kAhead + kDecodeRoom) * 12);
    queued_most = std::max(queued_most, decode().waiting);
    if (decode().waiting == kAhead) {
      ASSERT_EQ(prefill().running, 0);
    }
  }
  EXPECT_EQ(queued_most, kAhead);
  EXPECT_GT(harness_.clock().now() - begin, milliseconds(100));
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_THAT(harness_.heard(ids_[i]).ids(), ElementsAreArray(harness_.expected(prompts_[i], 14))) << i;
  }
  EXPECT_EQ(prefill().handoffs_failed, 0);
  harness_.expect_pages_balance();
}

TEST_F(Overload, WhoWaitsInAnyOfTheQueuesCanLeave) {
  ASSERT_TRUE(harness_.run_until([&] { return decode().waiting == kAhead && prefill().waiting > 5; }));
  // Every second one: running, queued for decode room, and not prefilled.
  for (int i = 0; i < kRequests; i += 2) harness_.abort(ids_[i]);
  for (int i = 0; harness_.live() > 0; ++i) {
    ASSERT_LT(i, 20'000);
    turn();
  }
  int with_token = 0;
  int without_token = 0;
  for (int i = 0; i < kRequests; ++i) {
    const Heard heard = harness_.heard(ids_[i]);
    EXPECT_EQ(heard.terminals, 1);
    if (i % 2 == 1) {
      EXPECT_THAT(heard.ids(), ElementsAreArray(harness_.expected(prompts_[i], 14))) << i;
    } else if (heard.failed.has_value()) {
      EXPECT_EQ(heard.failed->code(), base::StatusCode::kCancelled);
      ++(heard.tokens.empty() ? without_token : with_token);
    }
  }
  EXPECT_GT(with_token, 1);
  EXPECT_GT(without_token, 1);
  for (int i = 0; i < 100; ++i) turn();
  harness_.expect_pages_balance();
}

}  // namespace
}  // namespace tessera::test_support
