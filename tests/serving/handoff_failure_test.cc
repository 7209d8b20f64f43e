// What a transport may do to a handoff: whatever it is, no wrong token leaves, the sequence ends once, its neighbours
// do not notice, and no page is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serving/serving_harness.h"
#include "tests/support/fault_access.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

enum class Fault : std::uint8_t { kDrop, kDuplicate, kFlipBody, kTruncate, kHoldBack };

const char* fault_name(Fault fault) {
  switch (fault) {
    case Fault::kDrop:
      return "Drop";
    case Fault::kDuplicate:
      return "Duplicate";
    case Fault::kFlipBody:
      return "FlipBody";
    case Fault::kTruncate:
      return "Truncate";
    case Fault::kHoldBack:
      return "HoldBack";
  }
  return "?";
}

class HandoffFault : public testing::TestWithParam<Fault> {};

// Each message of a handoff in turn, in both directions.
TEST_P(HandoffFault, OnEveryMessage) {
  const Fault fault = GetParam();
  const auto prompt = make_prompt(1, 22);
  const auto neighbour_prompt = make_prompt(2, 9);
  int finished = 0;
  int failed = 0;
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 200);
    HarnessOptions options;
    // Longer than the protocol waits before it says something again.
    options.handoff_timeout = std::chrono::seconds(1);
    ServingHarness harness(options);
    auto& transport = harness.transport();
    int seen = 0;
    bool reached = false;
    std::optional<std::tuple<kv_transfer::PeerId, kv_transfer::PeerId, std::vector<std::byte>>> held;
    transport.set_filter([&](kv_transfer::PeerId from, kv_transfer::PeerId to, std::vector<std::byte> message) {
      if (seen++ != n) {
        transport.deliver(from, to, std::move(message));
        if (held.has_value()) {
          transport.deliver(std::get<0>(*held), std::get<1>(*held), std::move(std::get<2>(*held)));
          held.reset();
        }
        return;
      }
      reached = true;
      switch (fault) {
        case Fault::kDrop:
          break;
        case Fault::kDuplicate:
          transport.deliver(from, to, message);
          transport.deliver(from, to, std::move(message));
          break;
        case Fault::kFlipBody:
          message.back() ^= std::byte{0x10};
          transport.deliver(from, to, std::move(message));
          break;
        case Fault::kTruncate:
          message.resize(message.size() - 1);
          transport.deliver(from, to, std::move(message));
          break;
        case Fault::kHoldBack:
          held.emplace(from, to, std::move(message));
          break;
      }
    });
    const auto id = harness.submit(prompt, 8);
    harness.run_until_ended();
    if (!reached) {
      // Hello, offer, two chunks of each layer, commit, and the answers to hello, offer and commit.
      EXPECT_GE(n, 10);
      break;
    }
    const Heard heard = harness.heard(id);
    EXPECT_EQ(heard.terminals, 1) << n;
    const auto expected = harness.expected(prompt, 8);
    ASSERT_LE(heard.tokens.size(), expected.size());
    EXPECT_THAT(heard.ids(), ElementsAreArray(expected.begin(), expected.begin() + std::ssize(heard.tokens))) << n;
    if (heard.finished.has_value()) {
      EXPECT_EQ(heard.tokens.size(), expected.size());
      ++finished;
    } else {
      ++failed;
    }
    // The engines still serve; a held message may come much later.
    const auto after = harness.submit(neighbour_prompt, 12);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(after).ids(), ElementsAreArray(harness.expected(neighbour_prompt, 12))) << n;
    for (int i = 0; i < 2000; ++i) harness.turn();
    harness.expect_pages_balance();
  }
  EXPECT_GE(finished + failed, 10);
  // Doubled messages harm nobody.
  if (fault == Fault::kDuplicate) {
    EXPECT_EQ(failed, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Transport, HandoffFault,
                         testing::Values(Fault::kDrop, Fault::kDuplicate, Fault::kFlipBody, Fault::kTruncate,
                                         Fault::kHoldBack),
                         [](const auto& test) { return fault_name(test.param); });

TEST(HandoffFailure, ASilentPeerEndsTheSequenceAtTheDeadline) {
  HarnessOptions options;
  options.handoff_timeout = std::chrono::seconds(1);
  ServingHarness harness(options);
  harness.transport().set_filter([](auto, auto, auto) {});
  const auto id = harness.submit(make_prompt(1, 22), 8);
  harness.run_until_ended();
  ASSERT_TRUE(harness.heard(id).failed.has_value());
  EXPECT_EQ(harness.heard(id).failed->code(), base::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(harness.heard(id).tokens.size(), 1u);  // Prefill's.
  harness.transport().set_filter({});
  const auto prompt = make_prompt(2, 9);
  const auto after = harness.submit(prompt, 5);
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(after).ids(), ElementsAreArray(harness.expected(prompt, 5)));
  harness.expect_pages_balance();
}

TEST(HandoffFailure, AnAllocationThatFailsOnTheDecodeSideIsTriedAgain) {
  for (std::int64_t n = 1; n <= 8; ++n) {
    ServingHarness harness({});
    fault_injection::Access::fail_nth_allocation(harness.decode().loop().pool(), n);
    fault_injection::Access::fail_nth_allocation(harness.first().loop().pool(), n);
    const auto prompt = make_prompt(1, 22);
    const auto id = harness.submit(prompt, 12);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 12))) << n;
    harness.expect_pages_balance();
  }
}

TEST(HandoffFailure, ADecodeEngineThatDoesNotExistEndsTheSequence) {
  ServingHarness harness({});
  request::StartSequence command;
  command.spec.id = 77;
  command.spec.prompt = make_prompt(1, 9);
  command.spec.sampling = greedy(4);
  command.decode_engine = 55;
  ASSERT_TRUE(harness.first().try_send(command));
  for (int i = 0; i < 50; ++i) harness.turn();
  EXPECT_EQ(harness.first().loop().stats().handoffs_failed, 1);
  EXPECT_EQ(harness.first().loop().live(), 0);
  harness.expect_pages_balance();
}

}  // namespace
}  // namespace tessera::test_support
