// Log-probabilities of prompts are emitted like tokens: only of steps whose checks were clean, and never again once
// they may be wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/corruption/integrity_settings.h"
#include "tests/support/fault_access.h"

namespace tessera::test_support {
namespace {

using kv_cache::OnIntegrityError;

constexpr std::int64_t kScoredChunk = 8;

// Damages the tag of the first page of the only sequence, once, in the step that begins at `start`.
class Damager final : public engine::StepObserver {
 public:
  enum class When : std::uint8_t { kBeforeCheck, kBeforeSecondCheck };
  Damager(std::int64_t start, When when) : start_(start), when_(when) {}
  void before_check(const engine::StepView& step) override { look(step, When::kBeforeCheck); }
  void before_second_check(const engine::StepView& step) override { look(step, When::kBeforeSecondCheck); }
  bool done() const { return done_; }

 private:
  void look(const engine::StepView& step, When when) {
    if (done_ || when != when_ || step.rows[0].start != start_) return;
    done_ = true;
    fault_injection::Access::tags(step.pool)[step.rows[0].leases.front().page] ^= 4;
  }
  const std::int64_t start_;
  const When when_;
  bool done_ = false;
};

// Of consecutive prompt tokens from the second on; fails where one is missing or comes twice.
std::vector<float> numbers(const Heard& heard) {
  std::vector<float> all;
  for (const request::PromptLogprobsEvent& event : heard.prompt_logprobs) {
    EXPECT_EQ(event.first, std::ssize(all) + 1);
    for (const request::PromptLogprob& one : event.logprobs) all.push_back(one.logprob);
  }
  return all;
}

request::SamplingParams scoring() {
  request::SamplingParams sampling = greedy(3);
  sampling.prompt_logprobs = 0;
  return sampling;
}

HarnessOptions options_of(Pools pools, OnIntegrityError on_error) {
  HarnessOptions options;
  options.pools = pools;
  options.scored_chunk = kScoredChunk;
  options.integrity.on_error = on_error;
  return options;
}

std::vector<float> undisturbed(const HarnessOptions& options, const std::vector<std::int32_t>& prompt) {
  ServingHarness harness(options);
  const auto id = harness.submit(prompt, scoring());
  harness.run_until_ended();
  return numbers(harness.heard(id));
}

class ScoresUnderCorruption : public testing::TestWithParam<std::tuple<Pools, Damager::When>> {};

TEST_P(ScoresUnderCorruption, NothingOfAStepWhoseCheckFailed) {
  const auto [pools, when] = GetParam();
  HarnessOptions options = options_of(pools, OnIntegrityError::kAbort);
  const auto prompt = make_prompt(80, 30);
  std::vector<float> expected = undisturbed(options, prompt);
  ASSERT_EQ(expected.size(), prompt.size() - 1);
  Damager damager(2 * kScoredChunk, when);
  options.first_observer = &damager;
  ServingHarness harness(options);
  const auto id = harness.submit(prompt, scoring());
  harness.run_until_ended();
  ASSERT_TRUE(damager.done());
  expect_corrupted(harness.heard(id));
  expected.resize(2 * kScoredChunk);
  EXPECT_EQ(numbers(harness.heard(id)), expected);
}

TEST_P(ScoresUnderCorruption, ComputedAgainEachComesOnce) {
  const auto [pools, when] = GetParam();
  HarnessOptions options = options_of(pools, OnIntegrityError::kRecompute);
  const auto prompt = make_prompt(81, 30);
  const std::vector<float> expected = undisturbed(options, prompt);
  Damager damager(kScoredChunk, when);
  options.first_observer = &damager;
  ServingHarness harness(options);
  const auto id = harness.submit(prompt, scoring());
  harness.run_until_ended();
  ASSERT_TRUE(damager.done());
  EXPECT_FALSE(harness.heard(id).failed.has_value());
  EXPECT_EQ(harness.heard(id).report.integrity_recomputes, 1);
  EXPECT_EQ(numbers(harness.heard(id)), expected);
  EXPECT_EQ(harness.heard(id).ids(), harness.expected(prompt, 3));
}

INSTANTIATE_TEST_SUITE_P(Checks, ScoresUnderCorruption,
                         testing::Combine(testing::Values(Pools::kUnified, Pools::kSplit),
                                          testing::Values(Damager::When::kBeforeCheck,
                                                          Damager::When::kBeforeSecondCheck)));

// Its client has what may have come of damaged bytes: to compute the rest again would not take that back.
TEST(ScoresOfDamagedBytes, EndTheSequenceEvenWhereOthersAreComputedAgain) {
  HarnessOptions options = options_of(Pools::kUnified, OnIntegrityError::kRecompute);
  options.scored_chunk = 1;
  options.integrity.level = kv_cache::IntegrityLevel::kDigest;
  options.integrity.sweep_pages_per_second = 10'000;
  ServingHarness harness(options);
  const auto prompt = make_prompt(82, 200);
  const auto id = harness.submit(prompt, scoring());
  ASSERT_TRUE(harness.run_until([&] { return harness.heard(id).prompt_logprobs.size() >= 12; }));
  auto& pool = harness.first().loop().pool();
  kv_cache::PageId page = 1;
  while (pool.lease_count(page) == 0 || pool.position(page) != 1) ++page;
  ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], page, 1));
  harness.run_until_ended();
  expect_corrupted(harness.heard(id));
  EXPECT_TRUE(harness.heard(id).tokens.empty());
  EXPECT_LT(numbers(harness.heard(id)).size(), prompt.size() - 1);
  EXPECT_EQ(harness.first().loop().stats().integrity_recomputes, 0);
}

}  // namespace
}  // namespace tessera::test_support
