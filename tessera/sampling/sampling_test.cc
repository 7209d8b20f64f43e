#include <gtest/gtest.h>

#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/sampling/stopping.h"
#include "tessera/sampling/token_sampler.h"

namespace tessera::sampling {
namespace {

using request::FinishReason;

TEST(FinishReasons, StopBeforeLengthBeforeContext) {
  request::SamplingParams params;
  params.max_tokens = 3;
  params.stop_token_ids = {9, 11};
  const auto reason = [&](std::int64_t generated, std::int32_t last, std::int64_t context = 1000) {
    return finish_reason(
        params,
        {.prompt_tokens = 10, .generated_tokens = generated, .context_tokens_max = context, .last_token = last});
  };
  EXPECT_EQ(reason(1, 5), std::nullopt);
  EXPECT_EQ(reason(1, 11), FinishReason::kStop);
  EXPECT_EQ(reason(3, 5), FinishReason::kLength);
  EXPECT_EQ(reason(3, 9), FinishReason::kStop);
  EXPECT_EQ(reason(2, 5, 12), FinishReason::kLength);
  EXPECT_EQ(reason(1, 5, 12), std::nullopt);
  params.ignore_eos = true;
  EXPECT_EQ(reason(1, 11), std::nullopt);
}

TEST(SampleRows, CarryTheParametersAndThePosition) {
  request::SamplingParams params;
  params.temperature = 0.5f;
  params.top_p = 0.8f;
  params.top_k = 4;
  params.seed = 99;
  params.top_logprobs = 3;
  const ops::SampleRow row = sample_row(params, 17);
  EXPECT_EQ(row.temperature, 0.5f);
  EXPECT_EQ(row.top_p, 0.8f);
  EXPECT_EQ(row.top_k, 4);
  EXPECT_EQ(row.seed, 99u);
  EXPECT_EQ(row.position, 17u);
  EXPECT_EQ(row.forced_token, -1);
  EXPECT_EQ(row.top_logprobs, 0);  // Nobody asked for logprobs.
  params.logprobs = true;
  EXPECT_EQ(sample_row(params, 17).top_logprobs, 3);
}

TEST(SampleRows, APromptTokenIsScoredAndNotDrawn) {
  request::SamplingParams params;
  params.temperature = 0.5f;
  params.logprobs = true;
  params.top_logprobs = 7;
  params.prompt_logprobs = 2;
  const ops::SampleRow row = prompt_row(params, 31);
  EXPECT_EQ(row.forced_token, 31);
  EXPECT_EQ(row.top_logprobs, 2);
}

TEST(TokenSampler, RowsAskForDifferentNumbersOfAlternatives) {
  const auto backend = backends::cpu::make_reference_backend();
  const auto stream = backend->make_stream();
  auto made = TokenSampler::create(*backend, {.rows_max = 3, .top_logprobs_max = 4});
  ASSERT_TRUE(made.has_value());
  TokenSampler& sampler = **made;
  std::vector<float> logits{0, 1, 5, 2, 3, /**/ 9, 1, 2, 3, 4, /**/ 1, 1, 1, 8, 1};
  std::vector<ops::SampleRow> rows(3);
  rows[0].top_logprobs = 2;
  rows[2].top_logprobs = 4;
  sampler.enqueue(*stream, ops::f32_matrix(logits.data(), 3, 5), rows);
  sampler.enqueue_read(*stream);
  stream->synchronize();
  EXPECT_EQ(sampler.token(0).token, 2);
  EXPECT_EQ(sampler.token(1).token, 0);
  EXPECT_EQ(sampler.token(2).token, 3);
  ASSERT_EQ(sampler.top(0).size(), 2u);
  EXPECT_EQ(sampler.top(0)[0].token, 2);
  EXPECT_EQ(sampler.top(0)[1].token, 4);
  EXPECT_TRUE(sampler.top(1).empty());
  ASSERT_EQ(sampler.top(2).size(), 4u);
  EXPECT_EQ(sampler.top(2)[0].token, 3);
  EXPECT_EQ(sampler.top(2)[1].token, 0);  // The lowest id among equals.
  // A step in which nobody draws.
  sampler.enqueue(*stream, ops::f32_matrix(logits.data(), 0, 5), {});
  sampler.enqueue_read(*stream);
}

}  // namespace
}  // namespace tessera::sampling
