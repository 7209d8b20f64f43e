// What engines say of the rows of a batch: prompt tokens or generated ones, whether they are computed for the first
// time, behind a cached prefix, or again after a preemption. That the phases are also the right ones for every token
// follows from the context oracle, which hashes them, in all other tests; here is seen that every case occurs.
#include <gtest/gtest.h>

#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using models::RowPhase;

constexpr std::int64_t kPrompt = 12;  // Tokens of every prompt, so that a row's positions say what it is.

struct Seen {
  int prompts = 0;
  int behind_a_prefix = 0;  // Prompt rows that do not begin at position 0.
  int decodes = 0;
  int replays = 0;  // Generated rows of several tokens.
  int mixed_batches = 0;

  void take(const models::ForwardBatch& batch) {
    ASSERT_EQ(batch.row_phases.size() + 1, batch.cu_seqlens_q.size());
    bool prompt = false;
    bool generated = false;
    for (std::size_t r = 0; r < batch.row_phases.size(); ++r) {
      const auto begin = static_cast<std::size_t>(batch.cu_seqlens_q[r]);
      const auto end = static_cast<std::size_t>(batch.cu_seqlens_q[r + 1]);
      ASSERT_LT(begin, end);
      const bool in_prompt = batch.row_phases[r] == RowPhase::kPrompt;
      for (std::size_t t = begin; t < end; ++t) EXPECT_EQ(batch.positions[t] < kPrompt, in_prompt);
      (in_prompt ? prompt : generated) = true;
      if (in_prompt) {
        ++prompts;
        behind_a_prefix += batch.positions[begin] > 0 ? 1 : 0;
      } else {
        ++(end - begin > 1 ? replays : decodes);
      }
    }
    mixed_batches += prompt && generated ? 1 : 0;
  }
};

TEST(RowPhases, Unified) {
  Seen seen;
  HarnessOptions options;
  options.pools = Pools::kUnified;
  options.pages = 16;
  options.on_first_batch = [&](const models::ForwardBatch& batch) { seen.take(batch); };
  ServingHarness harness(options);
  const auto prompt = make_prompt(1, kPrompt);
  const auto other = make_prompt(2, kPrompt);
  const auto first = harness.submit(prompt, 40);
  const auto second = harness.submit(other, 30);
  harness.run_until([&] { return harness.tokens_so_far(first).size() > 3; });
  const auto same = harness.submit(prompt, 4);
  harness.run_until_ended();
  EXPECT_EQ(harness.tokens_so_far(first), harness.expected(prompt, 40));
  EXPECT_EQ(harness.tokens_so_far(second), harness.expected(other, 30));
  EXPECT_EQ(harness.tokens_so_far(same), harness.expected(prompt, 4));
  EXPECT_GT(harness.preemptions(), 0);
  EXPECT_GT(seen.prompts, 2);
  EXPECT_GT(seen.behind_a_prefix, 0);
  EXPECT_GT(seen.decodes, 0);
  EXPECT_GT(seen.replays, 0);
  EXPECT_GT(seen.mixed_batches, 0);
}

TEST(RowPhases, APairOfPools) {
  Seen prefill;
  Seen decode;
  HarnessOptions options;
  options.pages = 16;
  options.on_first_batch = [&](const models::ForwardBatch& batch) { prefill.take(batch); };
  options.on_decode_batch = [&](const models::ForwardBatch& batch) { decode.take(batch); };
  ServingHarness harness(options);
  harness.submit(make_prompt(1, kPrompt), 40);
  harness.submit(make_prompt(2, kPrompt), 30);
  harness.run_until_ended();
  EXPECT_GT(harness.preemptions(), 0);
  EXPECT_GT(prefill.prompts, 2);  // The preempted one's again.
  EXPECT_EQ(prefill.decodes + prefill.replays, 0);
  EXPECT_EQ(decode.prompts, 0);
  EXPECT_GT(decode.decodes, 0);
  EXPECT_GT(decode.replays, 0);
}

}  // namespace
}  // namespace tessera::test_support
