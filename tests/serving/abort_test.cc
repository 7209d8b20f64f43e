// A client may leave at any moment: pages are given back once, the terminal event comes once, and nobody else notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

// Aborts after every possible number of turns, with a neighbour that must not notice. So every state that a sequence
// passes through is hit, also those between two messages of a handoff.
void abort_after_every_turn(const HarnessOptions& options) {
  const auto prompt = make_prompt(1, 22);
  const auto neighbour_prompt = make_prompt(2, 9);
  bool ended_by_itself = false;
  int cancelled = 0;
  for (int turns = 0; !ended_by_itself; ++turns) {
    ASSERT_LT(turns, 400);
    ServingHarness harness(options);
    const auto neighbour = harness.submit(neighbour_prompt, 12);
    const auto id = harness.submit(prompt, 6);
    for (int i = 0; i < turns; ++i) harness.turn();
    ended_by_itself = harness.heard(id).ended();
    harness.abort(id);
    harness.run_until_ended();
    const Heard heard = harness.heard(id);
    EXPECT_EQ(heard.terminals, 1) << "after " << turns << " turns";
    EXPECT_EQ(heard.after_terminal, 0) << "after " << turns << " turns";
    if (!ended_by_itself && heard.failed.has_value()) {
      EXPECT_EQ(heard.failed->code(), base::StatusCode::kCancelled);
      ++cancelled;
    }
    EXPECT_THAT(harness.heard(neighbour).ids(), ElementsAreArray(harness.expected(neighbour_prompt, 12)));
    harness.expect_pages_balance();
  }
  EXPECT_GT(cancelled, 5);
}

TEST(Abort, AfterEveryTurnUnified) {
  HarnessOptions options;
  options.pools = Pools::kUnified;
  options.chunk = 4;
  abort_after_every_turn(options);
}

TEST(Abort, AfterEveryTurnSplit) {
  HarnessOptions options;
  options.chunk = 4;
  abort_after_every_turn(options);
}

TEST(Abort, WhileWaitingForRoomInTheDecodePool) {
  HarnessOptions options;
  options.pages = 12;
  ServingHarness harness(options);
  const auto long_prompt = make_prompt(1, 30);
  const auto running = harness.submit(long_prompt, 17);
  const auto waiting = harness.submit(make_prompt(2, 30), 17);
  ASSERT_TRUE(harness.run_until([&] { return harness.decode().loop().stats().waiting == 1; }));
  harness.abort(waiting);
  harness.run_until_ended();
  EXPECT_EQ(harness.heard(waiting).failed->code(), base::StatusCode::kCancelled);
  EXPECT_THAT(harness.heard(running).ids(), ElementsAreArray(harness.expected(long_prompt, 17)));
  harness.expect_pages_balance();
}

TEST(Abort, OfTheUnknownAndOfTheEndedIsIgnored) {
  ServingHarness harness({});
  harness.abort(12345);
  const auto id = harness.submit(make_prompt(1, 5), 3);
  harness.run_until_ended();
  harness.abort(id);
  for (int i = 0; i < 20; ++i) harness.turn();
  EXPECT_EQ(harness.heard(id).terminals, 1);
  EXPECT_EQ(harness.heard(id).after_terminal, 0);
  harness.expect_pages_balance();
}

// An abort that reaches the decode engine before the handoff does: the handoff is refused when it comes.
TEST(Abort, AHandoffOfAnAbortedSequenceIsRefused) {
  ServingHarness harness({});
  const auto id = harness.submit(make_prompt(1, 9), 10);
  ASSERT_TRUE(harness.decode().try_send(request::AbortSequence{id}));
  harness.run_until_ended();
  ASSERT_TRUE(harness.heard(id).failed.has_value());
  EXPECT_EQ(harness.heard(id).failed->code(), base::StatusCode::kCancelled);
  EXPECT_EQ(harness.decode().loop().stats().handoffs_done, 0);
  harness.expect_pages_balance();
}

// The storm that stalled other servers: hundreds leave right after their first token.
TEST(Abort, ThreeHundredClientsLeaveAfterTheFirstToken) {
  for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
    HarnessOptions options;
    options.pools = pools;
    options.pages = 40;
    options.prefill_pages = 30;
    ServingHarness harness(options);
    std::vector<request::SequenceId> ids;
    for (int i = 0; i < 300; ++i) ids.push_back(harness.submit(make_prompt(static_cast<std::uint64_t>(i), 5), 50));
    std::size_t gone = 0;
    ASSERT_TRUE(harness.run_until([&] {
      for (const auto id : ids) {
        const Heard heard = harness.heard(id);
        if (!heard.ended() && !heard.tokens.empty()) {
          harness.abort(id);
          ++gone;
        }
      }
      return harness.live() == 0;
    }));
    EXPECT_GT(gone, 250u);
    // And the server still serves.
    const auto prompt = make_prompt(7777, 10);
    const auto after = harness.submit(prompt, 8);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(after).ids(), ElementsAreArray(harness.expected(prompt, 8)));
    harness.expect_pages_balance();
  }
}

}  // namespace
}  // namespace tessera::test_support
