// Pools too small for what is asked of them: preemption, recompute and replay must not change a single token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

struct Sent {
  request::SequenceId id = 0;
  std::vector<std::int32_t> prompt;
  std::int32_t count = 0;
};

// 64 streams of mixed lengths, some with a common beginning.
std::vector<Sent> submit_mix(ServingHarness& harness) {
  std::vector<Sent> sent;
  const auto common = make_prompt(999, 10);
  for (int i = 0; i < 64; ++i) {
    auto prompt = make_prompt(static_cast<std::uint64_t>(1000 + i), 1 + (i * 7) % 37);
    if (i % 4 == 0) prompt.insert(prompt.begin(), common.begin(), common.end());
    const std::int32_t count = 1 + (i * 13) % 45;
    sent.push_back({harness.submit(prompt, count), prompt, count});
  }
  return sent;
}

HarnessOptions tight(Pools pools, Driving driving) {
  HarnessOptions options;
  options.pools = pools;
  options.driving = driving;
  // The largest sequence takes 23 pages; all of them together more than 600.
  options.pages = 40;
  options.prefill_pages = 30;
  options.running_max = 24;
  return options;
}

void expect_all_equal_solo(ServingHarness& harness, const std::vector<Sent>& sent) {
  for (const Sent& one : sent) {
    const Heard heard = harness.heard(one.id);
    EXPECT_EQ(heard.terminals, 1);
    EXPECT_EQ(heard.after_terminal, 0);
    EXPECT_FALSE(heard.failed.has_value()) << heard.failed->to_string();
    EXPECT_THAT(heard.ids(), ElementsAreArray(harness.expected(one.prompt, one.count))) << "sequence " << one.id;
    for (std::size_t i = 0; i < heard.tokens.size(); ++i) ASSERT_EQ(heard.tokens[i].index, static_cast<int>(i));
    EXPECT_EQ(heard.report.prompt_tokens, std::ssize(one.prompt));
    EXPECT_EQ(heard.report.generated_tokens, one.count);
  }
}

class Pressure : public testing::TestWithParam<std::tuple<Pools, Driving>> {};

TEST_P(Pressure, SixtyFourStreamsThroughATightPoolEqualTheirSoloRuns) {
  const auto [pools, driving] = GetParam();
  ServingHarness harness(tight(pools, driving));
  const std::vector<Sent> sent = submit_mix(harness);
  harness.run_until_ended();
  expect_all_equal_solo(harness, sent);
  harness.expect_pages_balance();
  EXPECT_GT(harness.preemptions(), 0);
}

// The injection is at a moment that the seed chooses: a third of the clients leave in mid-stream.
TEST_P(Pressure, AThirdOfTheClientsLeaveAndTheSurvivorsNeverNotice) {
  const auto [pools, driving] = GetParam();
  HarnessOptions options = tight(pools, driving);
  // On threads nothing is decoded until some have left, so that these do so in mid-stream however fast the machine is.
  constexpr std::size_t kLeaveFirst = 8;
  std::latch first_ones_left(1);
  if (driving == Driving::kThreads) options.before_decode_forward = [&] { first_ones_left.wait(); };
  ServingHarness harness(options);
  const std::vector<Sent> sent = submit_mix(harness);
  std::vector<Sent> survivors;
  std::vector<Sent> leavers;
  for (std::size_t i = 0; i < sent.size(); ++i) (i % 3 == 1 ? leavers : survivors).push_back(sent[i]);
  if (driving == Driving::kByHand) {
    for (std::size_t i = 0; i < leavers.size(); ++i) {
      for (std::size_t turns = 0; turns < 3 + i % 7; ++turns) harness.turn();
      harness.abort(leavers[i].id);
    }
  } else {
    for (std::size_t i = 0; i < leavers.size(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      harness.abort(leavers[i].id);
      if (i + 1 == kLeaveFirst) first_ones_left.count_down();
    }
  }
  harness.run_until_ended();
  expect_all_equal_solo(harness, survivors);
  int cut_short = 0;
  for (const Sent& one : leavers) {
    const Heard heard = harness.heard(one.id);
    EXPECT_EQ(heard.terminals, 1);
    EXPECT_EQ(heard.after_terminal, 0);
    // What was heard before the end was right.
    const auto expected = harness.expected(one.prompt, one.count);
    ASSERT_LE(heard.tokens.size(), expected.size());
    EXPECT_THAT(heard.ids(), ElementsAreArray(expected.begin(), expected.begin() + std::ssize(heard.tokens)));
    if (heard.failed.has_value()) {
      EXPECT_EQ(heard.failed->code(), base::StatusCode::kCancelled);
      ++cut_short;
    }
  }
  EXPECT_GT(cut_short, 5);
  harness.expect_pages_balance();
}

std::string pressure_name(const testing::TestParamInfo<std::tuple<Pools, Driving>>& test) {
  const auto [pools, driving] = test.param;
  return std::string(pools == Pools::kUnified ? "Unified" : "Split") +
         (driving == Driving::kByHand ? "ByHand" : "OnThreads");
}

INSTANTIATE_TEST_SUITE_P(Engines, Pressure,
                         testing::Combine(testing::Values(Pools::kUnified, Pools::kSplit),
                                          testing::Values(Driving::kByHand, Driving::kThreads)),
                         pressure_name);

// The cached pages that the second one hopes for are those that the first one needs.
TEST(Admission, WhoWaitsHoldsBackNoCachedPageOfWhoIsAdmitted) {
  HarnessOptions options;
  options.pools = Pools::kUnified;
  options.pages = 8;
  ServingHarness harness(options);
  auto prompt = make_prompt(1, 16);
  harness.submit(prompt, 1);
  harness.run_until_ended();
  ASSERT_EQ(harness.first().loop().stats().pages_cached, 4);
  const auto large_prompt = make_prompt(2, 29);
  const auto large = harness.submit(large_prompt, 3);
  prompt.push_back(5);
  const auto cached = harness.submit(prompt, 3);
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(large).ids(), ElementsAreArray(harness.expected(large_prompt, 3)));
  EXPECT_THAT(harness.heard(cached).ids(), ElementsAreArray(harness.expected(prompt, 3)));
  harness.expect_pages_balance();
}

TEST(Replay, APreemptedSequenceGoesOnExactlyAlsoWhenItSamples) {
  for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
    const auto run = [&](bool disturbed) {
      HarnessOptions options;
      options.pools = pools;
      options.pages = 16;
      ServingHarness harness(options);
      // The earlier sequence takes the pages of the later one while both grow.
      if (disturbed) harness.submit(make_prompt(1, 20), 40);
      request::SamplingParams sampling = greedy(30);
      sampling.temperature = 0.8f;
      sampling.seed = 5;
      const auto id = harness.submit(make_prompt(2, 12), sampling);
      harness.run_until_ended();
      const Heard heard = harness.heard(id);
      EXPECT_EQ(heard.report.preemptions > 0, disturbed);
      EXPECT_EQ(heard.report.prompt_tokens, 12);
      EXPECT_EQ(heard.report.generated_tokens, 30);
      harness.expect_pages_balance();
      return heard.ids();
    };
    EXPECT_EQ(run(true), run(false));
  }
}

TEST(Replay, TheSplitRouterStartsThePreemptedAgain) {
  HarnessOptions options;
  options.pages = 16;
  ServingHarness harness(options);
  harness.submit(make_prompt(1, 20), 40);
  harness.submit(make_prompt(2, 12), 30);
  harness.run_until_ended();
  EXPECT_GT(harness.router().snapshot().restarts, 0);
  EXPECT_EQ(harness.router().snapshot().restarts, harness.preemptions());
  harness.expect_pages_balance();
}

TEST(Admission, APromptThatFitsNowhereBlocksNobody) {
  // The context allows it, the pool does not: quarantine has made the pool smaller than it was.
  HarnessOptions options;
  options.pools = Pools::kUnified;
  options.pages = 12;
  ServingHarness harness(options);
  auto& pool = harness.first().loop().pool();
  const auto stream = backends::cpu::make_reference_backend()->make_stream();
  for (kv_cache::PageId page = 1; page <= 4; ++page) pool.quarantine(*stream, page, "test");
  const auto large = harness.submit(make_prompt(1, 40), 3);
  const auto prompt = make_prompt(2, 9);
  const auto small = harness.submit(prompt, 3);
  harness.run_until_ended();
  ASSERT_TRUE(harness.heard(large).failed.has_value());
  EXPECT_EQ(harness.heard(large).failed->code(), base::StatusCode::kResourceExhausted);
  EXPECT_THAT(harness.heard(small).ids(), ElementsAreArray(harness.expected(prompt, 3)));
  harness.expect_pages_balance(4);
}

TEST(Backpressure, ADriverThatReadsSlowlyLosesNothing) {
  for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
    HarnessOptions options;
    options.pools = pools;
    options.event_queue = 3;
    ServingHarness harness(options);
    std::vector<Sent> sent;
    for (int i = 0; i < 8; ++i) {
      const auto prompt = make_prompt(static_cast<std::uint64_t>(i), 5 + i);
      sent.push_back({harness.submit(prompt, 10), prompt, 10});
    }
    harness.run_until_ended();
    expect_all_equal_solo(harness, sent);
    harness.expect_pages_balance();
  }
}

}  // namespace
}  // namespace tessera::test_support
