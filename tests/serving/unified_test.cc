// One engine for both phases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

HarnessOptions unified() {
  HarnessOptions options;
  options.pools = Pools::kUnified;
  return options;
}

TEST(Unified, GeneratesWhatTheOracleSays) {
  ServingHarness harness(unified());
  const auto prompt = make_prompt(1, 21);
  const auto id = harness.submit(prompt, 30);
  harness.run_until_ended();
  const Heard heard = harness.heard(id);
  EXPECT_THAT(heard.ids(), ElementsAreArray(harness.expected(prompt, 30)));
  EXPECT_EQ(heard.finished, request::FinishReason::kLength);
  for (std::size_t i = 0; i < heard.tokens.size(); ++i) EXPECT_EQ(heard.tokens[i].index, static_cast<int>(i));
  EXPECT_EQ(heard.report.prompt_tokens, 21);
  EXPECT_EQ(heard.report.generated_tokens, 30);
  EXPECT_EQ(heard.report.cached_tokens, 0);
  // Two chunks of the prompt and a step for each further token.
  EXPECT_EQ(heard.report.verified_steps, 2 + 29);
  EXPECT_EQ(heard.report.handoff_pages, 0);
  harness.expect_pages_balance();
}

TEST(Unified, EveryKvFormatIsExact) {
  for (const ops::KvFormat format : {ops::KvFormat::kF32, ops::KvFormat::kBF16, ops::KvFormat::kF8E4M3}) {
    HarnessOptions options = unified();
    options.prefill_kv = format;
    ServingHarness harness(options);
    const auto prompt = make_prompt(2, 9);
    const auto id = harness.submit(prompt, 12);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 12))) << ops::kv_format_name(format);
    harness.expect_pages_balance();
  }
}

TEST(Unified, PromptsOfEveryLengthAroundPagesAndChunks) {
  ServingHarness harness(unified());
  std::vector<std::pair<request::SequenceId, std::vector<std::int32_t>>> sent;
  for (const std::int64_t length : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33}) {
    const auto prompt = make_prompt(static_cast<std::uint64_t>(100 + length), length);
    sent.emplace_back(harness.submit(prompt, 6), prompt);
    harness.run_until_ended();
  }
  for (const auto& [id, prompt] : sent) {
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 6))) << prompt.size();
  }
  harness.expect_pages_balance();
}

TEST(Unified, StopTokenEndsTheSequenceAndIsItsLastToken) {
  ServingHarness harness(unified());
  const auto prompt = make_prompt(3, 10);
  const auto expected = harness.expected(prompt, 20);
  request::SamplingParams sampling = greedy(20);
  sampling.stop_token_ids = {expected[7]};
  const auto first = static_cast<std::ptrdiff_t>(std::ranges::find(expected, expected[7]) - expected.begin());
  const auto id = harness.submit(prompt, sampling);
  sampling.ignore_eos = true;
  const auto ignoring = harness.submit(prompt, sampling);
  harness.run_until_ended();
  EXPECT_EQ(harness.heard(id).finished, request::FinishReason::kStop);
  EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(expected.begin(), expected.begin() + first + 1));
  EXPECT_EQ(harness.heard(ignoring).finished, request::FinishReason::kLength);
  EXPECT_THAT(harness.heard(ignoring).ids(), ElementsAreArray(expected));
  harness.expect_pages_balance();
}

TEST(Unified, SecondPromptReusesThePagesOfTheFirst) {
  ServingHarness harness(unified());
  const auto prompt = make_prompt(4, 24);
  const auto first = harness.submit(prompt, 5);
  harness.run_until_ended();
  const auto longer = make_prompt_after(prompt, 5, 9);
  const auto second = harness.submit(longer, 5);
  const auto again = harness.submit(prompt, 5);
  harness.run_until_ended();
  EXPECT_EQ(harness.heard(first).report.cached_tokens, 0);
  EXPECT_EQ(harness.heard(second).report.cached_tokens, 24);
  // The last token of a prompt is always computed: its logits are wanted.
  EXPECT_EQ(harness.heard(again).report.cached_tokens, 20);
  EXPECT_THAT(harness.heard(second).ids(), ElementsAreArray(harness.expected(longer, 5)));
  EXPECT_THAT(harness.heard(again).ids(), ElementsAreArray(harness.expected(prompt, 5)));
  harness.expect_pages_balance();
}

TEST(Unified, FlushForgetsThePrefixes) {
  ServingHarness harness(unified());
  const auto prompt = make_prompt(6, 24);
  harness.submit(prompt, 2);
  harness.run_until_ended();
  harness.router().flush_prefix_cache();
  harness.turn();
  EXPECT_EQ(harness.first().loop().stats().pages_cached, 0);
  const auto again = harness.submit(prompt, 2);
  harness.run_until_ended();
  EXPECT_EQ(harness.heard(again).report.cached_tokens, 0);
}

TEST(Unified, SamplingDependsOnTheSeedAndNotOnTheBatch) {
  const auto prompt = make_prompt(7, 12);
  request::SamplingParams sampling = greedy(16);
  sampling.temperature = 1.0f;
  sampling.top_p = 0.9f;
  sampling.top_k = 50;
  const auto run = [&](std::uint64_t seed, int neighbours) {
    ServingHarness harness(unified());
    for (int i = 0; i < neighbours; ++i) harness.submit(make_prompt(static_cast<std::uint64_t>(50 + i), 5 + i), 20);
    sampling.seed = seed;
    const auto id = harness.submit(prompt, sampling);
    harness.run_until_ended();
    return harness.heard(id).ids();
  };
  const auto alone = run(11, 0);
  EXPECT_EQ(alone, run(11, 5));
  EXPECT_NE(alone, run(12, 0));
}

TEST(Unified, LogprobsComeWhereAskedFor) {
  ServingHarness harness(unified());
  request::SamplingParams sampling = greedy(3);
  sampling.logprobs = true;
  sampling.top_logprobs = 4;
  const auto with = harness.submit(make_prompt(8, 6), sampling);
  const auto without = harness.submit(make_prompt(9, 6), 3);
  harness.run_until_ended();
  for (const request::TokenEvent& event : harness.heard(with).tokens) {
    ASSERT_EQ(event.top_logprobs.size(), 4u);
    EXPECT_LT(event.logprob, 0.0f);
    // Greedy: the token is the best alternative.
    EXPECT_EQ(event.top_logprobs[0].token, event.token);
    EXPECT_EQ(event.top_logprobs[0].logprob, event.logprob);
    EXPECT_GE(event.top_logprobs[0].logprob, event.top_logprobs[3].logprob);
  }
  for (const request::TokenEvent& event : harness.heard(without).tokens) EXPECT_TRUE(event.top_logprobs.empty());
}

TEST(Unified, NumbersThatAreNotFiniteEndOnlyTheirSequence) {
  ServingHarness harness(unified());
  auto poisoned = make_prompt(10, 9);
  poisoned[6] = ContextOracleModel::kPoison;
  const auto prompt = make_prompt(11, 9);
  const auto good = harness.submit(prompt, 10);
  const auto bad = harness.submit(poisoned, 10);
  harness.run_until_ended();
  ASSERT_TRUE(harness.heard(bad).failed.has_value());
  EXPECT_EQ(harness.heard(bad).failed->code(), base::StatusCode::kInternal);
  EXPECT_TRUE(harness.heard(bad).tokens.empty());
  EXPECT_THAT(harness.heard(good).ids(), ElementsAreArray(harness.expected(prompt, 10)));
  harness.expect_pages_balance();
}

TEST(Unified, TheContextIsUsedToItsLastToken) {
  HarnessOptions options = unified();
  options.pages = 6;  // 24 tokens
  ServingHarness harness(options);
  EXPECT_EQ(harness.router().context_tokens_max(), 24);
  EXPECT_EQ(harness.try_submit(make_prompt(12, 24), greedy(1)).code(), base::StatusCode::kOutOfRange);
  const auto prompt = make_prompt(13, 23);
  const auto one = harness.submit(prompt, 100);
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(one).ids(), ElementsAreArray(harness.expected(prompt, 1)));
  EXPECT_EQ(harness.heard(one).finished, request::FinishReason::kLength);
  const auto longest = make_prompt(14, 1);
  const auto many = harness.submit(longest, 1000);
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(many).ids(), ElementsAreArray(harness.expected(longest, 23)));
  harness.expect_pages_balance();
}

}  // namespace
}  // namespace tessera::test_support
