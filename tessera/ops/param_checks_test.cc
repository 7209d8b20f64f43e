#include "tessera/ops/param_checks.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

namespace tessera::ops {
namespace {

// Parameters that pass, for a case to spoil in one place.
class ParamChecksTest : public testing::Test {
 protected:
  Weight weight(WeightUsage usage, std::int64_t rows, std::int64_t cols) {
    Weight w;
    w.usage = usage;
    w.rows = rows;
    w.cols = cols;
    w.data = memory_.data();
    return w;
  }
  Matrix matrix(std::int64_t rows, std::int64_t cols) { return f32_matrix(memory_.data(), rows, cols); }
  Matrix other_matrix(std::int64_t rows, std::int64_t cols) { return f32_matrix(other_memory_.data(), rows, cols); }

  std::vector<float> memory_ = std::vector<float>(4096);
  std::vector<float> other_memory_ = std::vector<float>(4096);
};

using ParamChecksDeathTest = ParamChecksTest;

TEST_F(ParamChecksDeathTest, Embedding) {
  const Weight table = weight(WeightUsage::kEmbedding, 10, 16);
  const std::array<std::int32_t, 3> ids = {0, 9, 5};
  const EmbeddingParams good{&table, ids, matrix(3, 16)};
  check_params(good);
  EmbeddingParams p = good;
  p.table = nullptr;
  EXPECT_DEATH(check_params(p), "table");
  p = good;
  p.out.cols = 15;
  EXPECT_DEATH(check_params(p), "expected \\[3, 16\\]");
  p = good;
  p.out.row_stride = 15;
  EXPECT_DEATH(check_params(p), "row stride 15");
  p = good;
  p.out.dtype = DType::kBF16;
  EXPECT_DEATH(check_params(p), "BF16");
  const std::array<std::int32_t, 3> wrong_ids = {0, 10, 5};
  p = good;
  p.token_ids = wrong_ids;
  check_params(p);  // The ids are device memory, which it does not read.
  EXPECT_DEATH(check_token_ids(p), "token id 10 of 10");
  const Weight linear = weight(WeightUsage::kLinear, 10, 16);
  p = good;
  p.table = &linear;
  EXPECT_DEATH(check_params(p), "usage");
}

TEST_F(ParamChecksDeathTest, RmsNorm) {
  const Weight w = weight(WeightUsage::kVector, 1, 16);
  const RmsNormParams good{matrix(3, 16), &w, 1e-5f, matrix(3, 16)};
  check_params(good);
  const Weight short_weight = weight(WeightUsage::kVector, 1, 15);
  RmsNormParams p = good;
  p.weight = &short_weight;
  EXPECT_DEATH(check_params(p), "weight is \\[1, 15\\]");
  p = good;
  p.out.rows = 2;
  EXPECT_DEATH(check_params(p), "expected \\[3, 16\\]");
  p = good;
  p.epsilon = std::numeric_limits<float>::quiet_NaN();
  EXPECT_DEATH(check_params(p), "epsilon");
}

TEST_F(ParamChecksDeathTest, LayerNorm) {
  const Weight w = weight(WeightUsage::kVector, 1, 16);
  const LayerNormParams good{matrix(3, 16), &w, &w, 1e-6f, matrix(3, 16)};
  check_params(good);
  const Weight short_bias = weight(WeightUsage::kVector, 1, 15);
  LayerNormParams p = good;
  p.bias = &short_bias;
  EXPECT_DEATH(check_params(p), "weight is \\[1, 15\\]");
  p = good;
  p.bias = nullptr;
  EXPECT_DEATH(check_params(p), "weight != nullptr");
  p = good;
  p.out.cols = 15;
  EXPECT_DEATH(check_params(p), "expected \\[3, 16\\]");
}

TEST_F(ParamChecksDeathTest, Rope) {
  const std::array<std::int32_t, 2> positions = {0, 7};
  const std::array<float, 8> inverse{};
  const RopeParams good{matrix(2, 48), positions, inverse, 3, 16, 16, RopeStyle::kHalf, 1.0f};
  check_params(good);
  RopeParams p = good;
  p.rotary_dim = 18;
  EXPECT_DEATH(check_params(p), "rotary dim 18 of head dim 16");
  p = good;
  p.rotary_dim = 7;
  EXPECT_DEATH(check_params(p), "rotary dim 7");
  p = good;
  p.rotary_dim = 8;
  EXPECT_DEATH(check_params(p), "inverse_frequencies");
  p = good;
  p.heads = 2;
  EXPECT_DEATH(check_params(p), "expected \\[2, 32\\]");
  p = good;
  p.positions = std::span(positions).first(1);
  EXPECT_DEATH(check_params(p), "expected \\[1, 48\\]");
}

TEST_F(ParamChecksDeathTest, Linear) {
  const Weight w = weight(WeightUsage::kLinear, 8, 16);
  const Weight bias = weight(WeightUsage::kVector, 1, 8);
  const LinearParams good{matrix(3, 16), &w, &bias, other_matrix(3, 8), OutputMode::kOverwrite};
  check_params(good);
  LinearParams p = good;
  p.in.cols = 15;
  EXPECT_DEATH(check_params(p), "expected \\[3, 16\\]");
  p = good;
  p.out.cols = 7;
  EXPECT_DEATH(check_params(p), "expected \\[3, 8\\]");
  const Weight long_bias = weight(WeightUsage::kVector, 1, 9);
  p = good;
  p.bias = &long_bias;
  EXPECT_DEATH(check_params(p), "expected \\[1, 8\\]");
  p = good;
  p.out = matrix(3, 8);
  EXPECT_DEATH(check_params(p), "overlap");
  const Weight router = weight(WeightUsage::kRouter, 8, 16);
  p = good;
  p.weight = &router;
  check_params(p);
  Weight rounded_router = weight(WeightUsage::kRouter, 8, 16);
  rounded_router.format = WeightFormat::kBF16;
  p.weight = &rounded_router;
  EXPECT_DEATH(check_params(p), "kF32");
  const Weight embedding = weight(WeightUsage::kEmbedding, 8, 16);
  p = good;
  p.weight = &embedding;
  EXPECT_DEATH(check_params(p), "usage");
}

TEST_F(ParamChecksDeathTest, Swiglu) {
  const SwigluParams good{matrix(3, 16), other_matrix(3, 16), matrix(3, 16)};
  check_params(good);
  SwigluParams p = good;
  p.up.rows = 2;
  EXPECT_DEATH(check_params(p), "expected \\[3, 16\\]");
  p = good;
  p.out.data = nullptr;
  EXPECT_DEATH(check_params(p), "data");
}

TEST_F(ParamChecksDeathTest, VerifyPages) {
  std::vector<std::uint64_t> numbers(16);
  std::vector<std::int32_t> ints(16);
  std::vector<std::int64_t> longs(16);
  std::vector<RowVerdict> verdicts(2);
  VerifyPagesParams good;
  good.records = {numbers.data(), numbers.data(), ints.data(), ints.data(), 4};
  good.page_size = 16;
  good.rows = 2;
  good.max_pages_per_row = 3;
  good.page_table = ints.data();
  good.kv_lens = ints.data();
  good.expected_tags = numbers.data();
  good.expected_owners = numbers.data();
  good.tokens = 1;
  good.token_rows = ints.data();
  good.token_positions = ints.data();
  good.slot_mapping = longs.data();
  good.write_starts = ints.data();
  good.verdicts = verdicts.data();
  check_params(good);
  VerifyPagesParams p = good;
  p.records.tags = nullptr;
  EXPECT_DEATH(check_params(p), "tags");
  p = good;
  p.page_size = 0;
  EXPECT_DEATH(check_params(p), "page_size");
  p = good;
  p.verdicts = nullptr;
  EXPECT_DEATH(check_params(p), "verdicts");
  p = good;
  p.write_starts = nullptr;
  EXPECT_DEATH(check_params(p), "write_starts");
  p = good;
  p.sanitized_table = ints.data();
  EXPECT_DEATH(check_params(p), "sanitized_kv_lens");
  p.sanitized_kv_lens = ints.data();
  EXPECT_DEATH(check_params(p), "sanitized_slots");
}

TEST_F(ParamChecksDeathTest, SampleTokens) {
  std::vector<SampleRow> rows(2);
  std::vector<SampledToken> out(2);
  std::vector<std::int32_t> ids(10);
  std::vector<float> logprobs(10);
  const SampleTokensParams good{matrix(2, 16), rows, 5, out.data(), ids.data(), logprobs.data()};
  rows[0].top_logprobs = 5;
  check_params(good);
  SampleTokensParams p = good;
  p.top_ids = nullptr;
  EXPECT_DEATH(check_params(p), "top_ids");
  p = good;
  p.logits.rows = 3;
  EXPECT_DEATH(check_params(p), "expected \\[2, 16\\]");
  rows[0].top_logprobs = 6;
  EXPECT_DEATH(check_params(good), "top_logprobs");
  rows[0] = SampleRow{};
  rows[1].temperature = -0.5f;
  EXPECT_DEATH(check_params(good), "temperature -0.5");
  rows[1].temperature = std::numeric_limits<float>::quiet_NaN();
  EXPECT_DEATH(check_params(good), "temperature nan");
  rows[1] = SampleRow{};
  rows[1].top_p = std::numeric_limits<float>::quiet_NaN();
  EXPECT_DEATH(check_params(good), "top_p nan");
  rows[1] = SampleRow{};
  rows[1].top_k = -1;
  EXPECT_DEATH(check_params(good), "top_k -1");
  rows[1] = SampleRow{};
  rows[1].forced_token = 16;
  EXPECT_DEATH(check_params(good), "forced token 16");
}

}  // namespace
}  // namespace tessera::ops
