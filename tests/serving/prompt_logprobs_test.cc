// Log-probabilities of prompts, against the oracle's own logits at every position.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using request::PromptLogprob;
using testing::ElementsAreArray;

constexpr double kTolerance = 1e-5;

request::SamplingParams scoring(std::int32_t max_tokens, std::int32_t alternatives) {
  request::SamplingParams sampling = greedy(max_tokens);
  sampling.prompt_logprobs = alternatives;
  return sampling;
}

// All that was heard, in order; fails where a position is missing, repeated or late.
std::vector<PromptLogprob> told(const Heard& heard) {
  std::vector<PromptLogprob> all;
  for (const request::PromptLogprobsEvent& event : heard.prompt_logprobs) {
    EXPECT_EQ(event.first, std::ssize(all) + 1);
    EXPECT_FALSE(event.logprobs.empty());
    all.insert(all.end(), event.logprobs.begin(), event.logprobs.end());
  }
  return all;
}

// What a client must have heard of the first `count` of them: log softmax in double of the logits that the oracle has
// after every beginning of the prompt.
void expect_true(const std::vector<PromptLogprob>& heard, const std::vector<std::int32_t>& prompt, Flavors flavors,
                 std::size_t count, std::size_t alternatives) {
  ASSERT_EQ(heard.size(), count);
  std::array<float, ContextOracleModel::kVocab> logits{};
  for (std::size_t i = 0; i < count; ++i) {
    ContextOracle(std::span(prompt).first(i + 1), flavors).logits(logits);
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    const auto logprob = [&](std::int32_t token) { return logits.at(static_cast<std::size_t>(token)) - std::log(sum); };
    EXPECT_NEAR(heard[i].logprob, logprob(prompt[i + 1]), kTolerance) << "token " << i + 1;
    std::vector<std::int32_t> best(logits.size());
    std::iota(best.begin(), best.end(), 0);
    std::ranges::sort(best, {}, [&](std::int32_t token) { return std::pair(-logprob(token), token); });
    ASSERT_EQ(heard[i].top.size(), alternatives);
    for (std::size_t t = 0; t < alternatives; ++t) {
      EXPECT_EQ(heard[i].top[t].token, best[t]);
      EXPECT_NEAR(heard[i].top[t].logprob, logprob(best[t]), kTolerance);
      // Whoever compares the two numbers finds the token among the alternatives.
      if (best[t] == prompt[i + 1]) {
        EXPECT_EQ(heard[i].top[t].logprob, heard[i].logprob);
      }
    }
  }
}

void expect_true(const ServingHarness& harness, request::SequenceId id, const std::vector<std::int32_t>& prompt,
                 std::size_t alternatives) {
  expect_true(told(harness.heard(id)), prompt, harness.flavors(), prompt.size() - 1, alternatives);
}

class PromptLogprobs : public testing::TestWithParam<Pools> {
 protected:
  static HarnessOptions options() {
    HarnessOptions options;
    options.pools = GetParam();
    return options;
  }
};

TEST_P(PromptLogprobs, OfPromptsOfEveryLengthAroundPagesAndChunks) {
  for (const std::int64_t chunk : {1, 3, 8, 64}) {
    HarnessOptions with_chunk = options();
    with_chunk.scored_chunk = chunk;
    ServingHarness harness(with_chunk);
    for (const std::int64_t length : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33}) {
      SCOPED_TRACE(testing::Message() << "chunk " << chunk << ", prompt " << length);
      const auto prompt = make_prompt(static_cast<std::uint64_t>(100 + length), length);
      const auto id = harness.submit(prompt, scoring(6, 4));
      harness.run_until_ended();
      expect_true(harness, id, prompt, 4);
      EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 6)));
      EXPECT_EQ(harness.heard(id).report.cached_tokens, 0);
    }
    harness.expect_pages_balance();
  }
}

TEST_P(PromptLogprobs, AreTheSameToTheBitForEveryChunk) {
  const auto prompt = make_prompt(50, 45);
  const auto run = [&](std::int64_t scored_chunk, std::int64_t chunk) {
    HarnessOptions changed = options();
    changed.scored_chunk = scored_chunk;
    changed.chunk = chunk;
    ServingHarness harness(changed);
    const auto id = harness.submit(prompt, scoring(1, 2));
    harness.run_until_ended();
    std::vector<float> numbers;
    for (const PromptLogprob& one : told(harness.heard(id))) {
      numbers.push_back(one.logprob);
      for (const request::TokenLogprob& top : one.top) numbers.push_back(top.logprob);
    }
    return numbers;
  };
  const auto whole = run(64, 64);
  EXPECT_EQ(whole.size(), 44u * 3);
  EXPECT_EQ(run(1, 64), whole);
  EXPECT_EQ(run(7, 16), whole);
  EXPECT_EQ(run(16, 5), whole);
}

TEST_P(PromptLogprobs, NobodyElseHasThem) {
  ServingHarness harness(options());
  const auto id = harness.submit(make_prompt(51, 9), 3);
  harness.run_until_ended();
  EXPECT_TRUE(harness.heard(id).prompt_logprobs.empty());
}

TEST_P(PromptLogprobs, WithoutATokenToGenerateTheyAreAll) {
  HarnessOptions small = options();
  small.pages = small.prefill_pages = 6;  // 24 tokens
  ServingHarness harness(small);
  for (const std::int64_t length : {1, 17, 24}) {
    const auto prompt = make_prompt(static_cast<std::uint64_t>(length), length);
    const auto id = harness.submit(prompt, scoring(0, 1));
    const auto silent = harness.submit(prompt, 0);
    harness.run_until_ended();
    expect_true(harness, id, prompt, 1);
    for (const auto each : {id, silent}) {
      const Heard heard = harness.heard(each);
      EXPECT_TRUE(heard.tokens.empty());
      EXPECT_EQ(heard.finished, request::FinishReason::kLength);
      EXPECT_EQ(heard.report.prompt_tokens, length);
      EXPECT_EQ(heard.report.generated_tokens, 0);
      EXPECT_EQ(heard.report.handoff_pages, 0);
    }
    EXPECT_TRUE(harness.heard(silent).prompt_logprobs.empty());
  }
  EXPECT_EQ(harness.try_submit(make_prompt(1, 25), scoring(0, 1)).code(), base::StatusCode::kOutOfRange);
  EXPECT_EQ(harness.try_submit(make_prompt(1, 24), scoring(1, 1)).code(), base::StatusCode::kOutOfRange);
  harness.expect_pages_balance();
}

// No step has more rows of logits than there is memory for, whoever else is in it, and everybody is served.
TEST_P(PromptLogprobs, ShareTheLogitsOfAStepWithOthers) {
  std::int64_t most = 0;
  HarnessOptions mixed = options();
  mixed.running_max = 6;
  mixed.scored_chunk = 5;
  mixed.pages = mixed.prefill_pages = 200;
  mixed.on_first_batch = [&](const models::ForwardBatch& batch) {
    most = std::max<std::int64_t>(most, std::ssize(batch.logit_tokens));
  };
  ServingHarness harness(mixed);
  struct Sent {
    request::SequenceId id;
    std::vector<std::int32_t> prompt;
    bool scored;
  };
  std::vector<Sent> sent;
  for (int i = 0; i < 24; ++i) {
    const bool scored = i % 3 != 1;
    const auto prompt = make_prompt(300 + static_cast<std::uint64_t>(i), 3 + i * 2);
    sent.push_back({harness.submit(prompt, scored ? scoring(20, 2) : greedy(20)), prompt, scored});
  }
  harness.run_until_ended();
  for (const Sent& one : sent) {
    SCOPED_TRACE(one.id);
    EXPECT_THAT(harness.heard(one.id).ids(), ElementsAreArray(harness.expected(one.prompt, 20)));
    if (one.scored) {
      expect_true(harness, one.id, one.prompt, 2);
    } else {
      EXPECT_TRUE(harness.heard(one.id).prompt_logprobs.empty());
    }
  }
  EXPECT_GE(most, 5);
  EXPECT_LE(most, 6 + 5);
  harness.expect_pages_balance();
}

TEST_P(PromptLogprobs, TakeNothingFromThePrefixCacheAndLeaveTheirPages) {
  ServingHarness harness(options());
  const auto prompt = make_prompt(60, 25);
  for (int i = 0; i < 2; ++i) {
    const auto id = harness.submit(prompt, scoring(2, 0));
    harness.run_until_ended();
    expect_true(harness, id, prompt, 0);
    EXPECT_EQ(harness.heard(id).report.cached_tokens, 0);
  }
  EXPECT_EQ(harness.first().loop().stats().prefix_query_tokens, 0);
  const auto other = harness.submit(prompt, 2);
  harness.run_until_ended();
  EXPECT_EQ(harness.heard(other).report.cached_tokens, 24);
  EXPECT_THAT(harness.heard(other).ids(), ElementsAreArray(harness.expected(prompt, 2)));
  harness.expect_pages_balance();
}

TEST_P(PromptLogprobs, ComeOnceWhateverIsComputedAgain) {
  HarnessOptions tight = options();
  // The largest sequence takes 23 pages; all of them together some 300.
  tight.pages = 30;
  tight.prefill_pages = 30;
  tight.scored_chunk = 4;
  ServingHarness harness(tight);
  std::vector<std::pair<request::SequenceId, std::vector<std::int32_t>>> sent;
  for (int i = 0; i < 24; ++i) {
    const auto prompt = make_prompt(400 + static_cast<std::uint64_t>(i), 5 + (i * 7) % 37);
    sent.emplace_back(harness.submit(prompt, scoring(40, 1)), prompt);
  }
  harness.run_until_ended();
  for (const auto& [id, prompt] : sent) {
    SCOPED_TRACE(id);
    expect_true(harness, id, prompt, 1);
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 40)));
  }
  EXPECT_GT(harness.preemptions(), 0);
  harness.expect_pages_balance();
}

TEST_P(PromptLogprobs, EndWhereTheClientLeaves) {
  HarnessOptions slow = options();
  slow.scored_chunk = 3;
  ServingHarness harness(slow);
  const auto prompt = make_prompt(70, 40);
  const auto id = harness.submit(prompt, scoring(5, 2));
  const auto other = harness.submit(make_prompt(71, 20), scoring(5, 2));
  ASSERT_TRUE(harness.run_until([&] { return harness.heard(id).prompt_logprobs.size() >= 4; }));
  harness.abort(id);
  harness.run_until_ended();
  const Heard heard = harness.heard(id);
  ASSERT_TRUE(heard.failed.has_value());
  EXPECT_EQ(heard.failed->code(), base::StatusCode::kCancelled);
  EXPECT_EQ(heard.after_terminal, 0);
  const auto some = told(heard);
  EXPECT_LT(some.size(), prompt.size() - 1);
  expect_true(some, prompt, harness.flavors(), some.size(), 2);
  expect_true(harness, other, make_prompt(71, 20), 2);
  harness.expect_pages_balance();
}

TEST_P(PromptLogprobs, NothingOfAStepWhoseNumbersAreNotFinite) {
  HarnessOptions slow = options();
  slow.scored_chunk = 4;
  ServingHarness harness(slow);
  auto prompt = make_prompt(72, 12);
  prompt[6] = ContextOracleModel::kPoison;
  const auto id = harness.submit(prompt, scoring(5, 1));
  harness.run_until_ended();
  ASSERT_TRUE(harness.heard(id).failed.has_value());
  EXPECT_EQ(harness.heard(id).failed->code(), base::StatusCode::kInternal);
  EXPECT_EQ(told(harness.heard(id)).size(), 4u);
  harness.expect_pages_balance();
}

TEST_P(PromptLogprobs, MoreAlternativesThanTheLimitAreRefused) {
  ServingHarness harness(options());
  for (const std::int32_t alternatives : {-1, 21}) {
    const auto id = harness.submit(make_prompt(73, 5), scoring(1, alternatives));
    harness.run_until_ended();
    ASSERT_TRUE(harness.heard(id).failed.has_value());
    EXPECT_EQ(harness.heard(id).failed->code(), base::StatusCode::kInvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(Pools, PromptLogprobs, testing::Values(Pools::kUnified, Pools::kSplit),
                         [](const auto& param) { return param.param == Pools::kUnified ? "Unified" : "Split"; });

}  // namespace
}  // namespace tessera::test_support
