// A prefill and a decode engine of different KV formats, joined by a handoff.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

TEST(Split, GeneratesWhatTheOracleSays) {
  ServingHarness harness({});
  const auto prompt = make_prompt(1, 21);
  const auto id = harness.submit(prompt, 30);
  harness.run_until_ended();
  const Heard heard = harness.heard(id);
  // The prompt's KV is prefill's, the generated tokens' decode's: the oracle's flavors judge it.
  EXPECT_THAT(heard.ids(), ElementsAreArray(harness.expected(prompt, 30)));
  EXPECT_EQ(heard.finished, request::FinishReason::kLength);
  for (std::size_t i = 0; i < heard.tokens.size(); ++i) EXPECT_EQ(heard.tokens[i].index, static_cast<int>(i));
  EXPECT_EQ(heard.report.prompt_tokens, 21);
  EXPECT_EQ(heard.report.generated_tokens, 30);
  EXPECT_EQ(heard.report.prefill_kv, ops::KvFormat::kBF16);
  EXPECT_EQ(heard.report.decode_kv, ops::KvFormat::kF8E4M3);
  EXPECT_EQ(heard.report.handoff_pages, 6);
  // 2 layers x 2 parts x 16 elements: 128 bytes a token in BF16; in FP8 64 and 2 scales a part.
  EXPECT_EQ(heard.report.handoff_source_bytes, 6 * 4 * 128);
  EXPECT_EQ(heard.report.handoff_wire_bytes, 6 * 4 * (64 + 2 * 2 * 2 * 2));
  EXPECT_EQ(heard.report.verified_steps, 2 + 29);
  harness.expect_pages_balance();
}

TEST(Split, EveryPairOfFormats) {
  using ops::KvFormat;
  for (const auto& [prefill, decode] : {std::pair{KvFormat::kBF16, KvFormat::kBF16},
                                        {KvFormat::kF32, KvFormat::kF32},
                                        {KvFormat::kF32, KvFormat::kBF16},
                                        {KvFormat::kBF16, KvFormat::kF8E4M3}}) {
    HarnessOptions options;
    options.prefill_kv = prefill;
    options.decode_kv = decode;
    ServingHarness harness(options);
    const auto prompt = make_prompt(2, 13);
    const auto id = harness.submit(prompt, 12);
    harness.run_until_ended();
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 12)))
        << ops::kv_format_name(prefill) << " to " << ops::kv_format_name(decode);
    harness.expect_pages_balance();
  }
}

TEST(Split, PromptsOfEveryLengthAroundPagesAndChunks) {
  ServingHarness harness({});
  std::vector<std::pair<request::SequenceId, std::vector<std::int32_t>>> sent;
  for (const std::int64_t length : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33}) {
    const auto prompt = make_prompt(static_cast<std::uint64_t>(100 + length), length);
    sent.emplace_back(harness.submit(prompt, 6), prompt);
  }
  harness.run_until_ended();
  for (const auto& [id, prompt] : sent) {
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 6))) << prompt.size();
  }
  harness.expect_pages_balance();
}

TEST(Split, OneTokenNeedsNoHandoff) {
  ServingHarness harness({});
  const auto prompt = make_prompt(3, 10);
  const auto id = harness.submit(prompt, 1);
  request::SamplingParams stops = greedy(10);
  stops.stop_token_ids = {harness.expected(prompt, 1)[0]};
  const auto stopped = harness.submit(prompt, stops);
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 1)));
  EXPECT_EQ(harness.heard(id).finished, request::FinishReason::kLength);
  EXPECT_EQ(harness.heard(stopped).finished, request::FinishReason::kStop);
  EXPECT_EQ(harness.heard(id).report.handoff_pages, 0);
  EXPECT_EQ(harness.decode().loop().stats().handoffs_done, 0);
  harness.expect_pages_balance();
}

TEST(Split, BothPoolsReuseThePrefix) {
  ServingHarness harness({});
  const auto prompt = make_prompt(4, 24);
  harness.submit(prompt, 5);
  harness.run_until_ended();
  const auto again = harness.submit(prompt, 5);
  const auto longer = make_prompt_after(prompt, 5, 9);
  const auto second = harness.submit(longer, 5);
  harness.run_until_ended();
  EXPECT_EQ(harness.heard(again).report.cached_tokens, 20);
  EXPECT_EQ(harness.heard(second).report.cached_tokens, 24);
  // The decode engine had all whole pages already.
  EXPECT_EQ(harness.heard(again).report.handoff_pages, 0);
  EXPECT_EQ(harness.heard(second).report.handoff_pages, 3);
  EXPECT_THAT(harness.heard(again).ids(), ElementsAreArray(harness.expected(prompt, 5)));
  EXPECT_THAT(harness.heard(second).ids(), ElementsAreArray(harness.expected(longer, 5)));
  harness.expect_pages_balance();
}

TEST(Split, TenantsShareNothing) {
  ServingHarness harness({});
  const auto prompt = make_prompt(6, 24);
  harness.submit(prompt, 3);
  harness.run_until_ended();
  request::SequenceSpec spec;
  spec.id = harness.router().next_id();
  spec.tenant = "another";
  spec.prompt = prompt;
  spec.sampling = greedy(3);
  std::optional<request::SequenceReport> report;
  ASSERT_TRUE(harness.router()
                  .submit(spec,
                          [&](router::SequenceEvent event) {
                            if (auto* finished = std::get_if<request::SequenceFinished>(&event)) {
                              report = finished->report;
                            }
                          })
                  .ok());
  harness.run_until_ended();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->cached_tokens, 0);
  EXPECT_EQ(report->handoff_pages, 6);
}

TEST(Split, PromptJustOverTheLimitOfOneSide) {
  HarnessOptions small_prefill;
  small_prefill.prefill_pages = 6;  // 24 tokens
  ServingHarness first(small_prefill);
  EXPECT_EQ(first.try_submit(make_prompt(7, 24), greedy(4)).code(), base::StatusCode::kOutOfRange);
  const auto fits = make_prompt(8, 23);
  const auto id = first.submit(fits, 4);
  first.run_until_ended();
  EXPECT_THAT(first.heard(id).ids(), ElementsAreArray(first.expected(fits, 1)));

  HarnessOptions small_decode;
  small_decode.pages = 6;
  ServingHarness second(small_decode);
  EXPECT_EQ(second.try_submit(make_prompt(9, 24), greedy(4)).code(), base::StatusCode::kOutOfRange);
  const auto shorter = make_prompt(10, 20);
  const auto runs = second.submit(shorter, 100);
  second.run_until_ended();
  EXPECT_THAT(second.heard(runs).ids(), ElementsAreArray(second.expected(shorter, 4)));
  EXPECT_EQ(second.heard(runs).finished, request::FinishReason::kLength);
  second.expect_pages_balance();
}

TEST(Split, NumbersThatAreNotFiniteEndOnlyTheirSequence) {
  ServingHarness harness({});
  auto poisoned = make_prompt(11, 9);
  poisoned[6] = ContextOracleModel::kPoison;
  const auto prompt = make_prompt(12, 9);
  const auto good = harness.submit(prompt, 10);
  const auto bad = harness.submit(poisoned, 10);
  harness.run_until_ended();
  ASSERT_TRUE(harness.heard(bad).failed.has_value());
  EXPECT_EQ(harness.heard(bad).failed->code(), base::StatusCode::kInternal);
  EXPECT_THAT(harness.heard(good).ids(), ElementsAreArray(harness.expected(prompt, 10)));
  harness.expect_pages_balance();
}

TEST(Split, RunsOnThreads) {
  HarnessOptions options;
  options.driving = Driving::kThreads;
  ServingHarness harness(options);
  std::vector<std::pair<request::SequenceId, std::vector<std::int32_t>>> sent;
  for (std::uint64_t i = 0; i < 12; ++i) {
    const auto prompt = make_prompt(200 + i, static_cast<std::int64_t>(3 + 4 * i));
    sent.emplace_back(harness.submit(prompt, 16), prompt);
  }
  harness.run_until_ended();
  for (const auto& [id, prompt] : sent) {
    EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 16)));
    EXPECT_EQ(harness.heard(id).after_terminal, 0);
  }
  harness.expect_pages_balance();
}

}  // namespace
}  // namespace tessera::test_support
