#include "tessera/planner/decode_floor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/planner/gpu.h"
#include "tessera/planner/prefill_floor.h"

namespace tessera::planner {
namespace {

using models::WeightPart;
using ops::WeightUsage;
using ::testing::HasSubstr;
using weights::ShardDimension;

// Two layers, one of them with experts; every number small enough to follow by hand.
ModelFacts small_model() {
  ModelFacts facts;
  facts.num_hidden_layers = 2;
  facts.num_attention_heads = 4;
  facts.n_routed_experts = 8;
  facts.num_experts_per_tok = 2;
  facts.expert_layers = 1;
  facts.qk_head_dim = 96;
  facts.v_head_dim = 64;
  facts.kv = ops::mla_kv_layout(ops::KvFormat::kBF16, 2, 64, 512, 64);
  const auto add = [&](WeightPart part, std::int64_t rows, std::int64_t cols, ShardDimension dimension,
                       std::int64_t count, WeightUsage usage = WeightUsage::kLinear) {
    TensorGroup group;
    group.part = part;
    group.usage = usage;
    group.rows = rows;
    group.cols = cols;
    group.shard.dimension = dimension;
    group.count = count;
    group.example = "some.weight";
    facts.tensors.push_back(group);
  };
  add(WeightPart::kEmbedding, 1000, 256, ShardDimension::kRows, 1, WeightUsage::kEmbedding);
  add(WeightPart::kAttention, 256, 256, ShardDimension::kNone, 2);
  add(WeightPart::kRouter, 8, 256, ShardDimension::kNone, 1, WeightUsage::kRouter);
  add(WeightPart::kRoutedExperts, 128, 256, ShardDimension::kRows, 8 * 3);
  add(WeightPart::kNorms, 1, 256, ShardDimension::kNone, 5, WeightUsage::kVector);
  add(WeightPart::kHead, 1000, 256, ShardDimension::kRows, 1);
  return facts;
}

constexpr std::int64_t kOutside = 2 * (2 * 256 * 256 + 8 * 256 + 5 * 256 + 500 * 256);  // On one of two ranks, BF16.
constexpr std::int64_t kExpert = 2 * 3 * 64 * 256;

StepBytes small_step(const ModelFacts& facts) {
  const WeightMemory memory = weight_memory(facts, WeightRecipe::kBf16, UpProjection::kBf16, 2).value();
  return step_bytes(facts, memory, ops::KvFormat::kF8E4M3, 64).value();
}

TEST(StepBytes, ReadsAllButTheEmbeddingTable) {
  const StepBytes bytes = small_step(small_model());
  EXPECT_EQ(bytes.outside_bytes, kOutside);
  EXPECT_EQ(bytes.expert_bytes, kExpert);
  EXPECT_EQ(bytes.layers, 2);
  EXPECT_EQ(bytes.expert_layers, 1);
}

TEST(StepBytes, ReadsATiedHead) {
  ModelFacts facts = small_model();
  facts.tensors.back().role = TensorRole::kTiedHead;
  EXPECT_EQ(small_step(facts).outside_bytes, kOutside);
}

TEST(StepFloor, AddsUpBytes) {
  const ModelFacts facts = small_model();
  const StepFloor floor = step_floor(facts, small_step(facts), {4, 1000, 5.5}, 1e12);
  EXPECT_DOUBLE_EQ(floor.expert_bytes, 5.5 * kExpert);
  EXPECT_DOUBLE_EQ(floor.kv_bytes, 4.0 * 1000 * 2 * 580);
  EXPECT_DOUBLE_EQ(floor.bytes_moved, kOutside + floor.expert_bytes + floor.kv_bytes);
  EXPECT_DOUBLE_EQ(floor.floor_ms, floor.bytes_moved / 1e9);
  EXPECT_DOUBLE_EQ(floor.tokens_per_second, 4 / (floor.bytes_moved / 1e12));
}

StepRecord good_record() {
  StepRecord record;
  record.batch = 4;
  record.context = 1000;
  record.layers = 2;
  record.experts_touched = 6;
  record.bytes_moved = 1e7;
  record.read_bandwidth = 4e12;
  record.step_ms = 0.01;
  return record;
}

TEST(CheckRecord, RecomputesTheFloor) {
  const ModelFacts facts = small_model();
  const StepBytes bytes = small_step(facts);
  StepRecord record = good_record();
  const StepFloor expected = step_floor(facts, bytes, {4, 1000, 6}, 4e12);
  record.bytes_moved = expected.bytes_moved * 1.25;
  record.step_ms = expected.floor_ms * 1.5;
  const RecordCheck check = check_record(facts, bytes, record).value();
  EXPECT_DOUBLE_EQ(check.floor.floor_ms, expected.floor_ms);
  EXPECT_NEAR(check.bytes_ratio, 1.25, 1e-12);
  EXPECT_NEAR(check.times_floor, 1.5, 1e-12);
}

TEST(CheckRecord, RefusesWhatCannotBeOneOfTheModel) {
  const ModelFacts facts = small_model();
  const StepBytes bytes = small_step(facts);
  ASSERT_TRUE(check_record(facts, bytes, good_record()).has_value());
  const auto expect_refused = [&](const char* field, auto change) {
    StepRecord record = good_record();
    change(record);
    const auto check = check_record(facts, bytes, record);
    ASSERT_FALSE(check.has_value()) << field;
    EXPECT_THAT(check.error().message(), HasSubstr(std::string("record: ") + field + " is")) << field;
  };
  expect_refused("layers", [](StepRecord& r) { r.layers = 3; });
  expect_refused("batch", [](StepRecord& r) { r.batch = 0; });
  expect_refused("context", [](StepRecord& r) { r.context = 0; });
  expect_refused("experts_touched", [](StepRecord& r) { r.experts_touched = 1; });
  expect_refused("experts_touched", [](StepRecord& r) { r.experts_touched = 8.5; });
  expect_refused("experts_touched", [](StepRecord& r) {
    r.batch = 1;
    r.experts_touched = 3;  // One token takes two.
  });
  expect_refused("experts_touched",
                 [](StepRecord& r) { r.experts_touched = std::numeric_limits<double>::quiet_NaN(); });
  expect_refused("read_bandwidth", [](StepRecord& r) { r.read_bandwidth = 0; });
  expect_refused("step_ms", [](StepRecord& r) { r.step_ms = -1; });
  expect_refused("bytes_moved", [](StepRecord& r) { r.bytes_moved = 0; });
}

// By hand: products 2 N K for each token that uses them, the head once.
TEST(PrefillFloor, CountsMultiplicationsAndAdditions) {
  const ModelFacts facts = small_model();
  const WeightMemory memory = weight_memory(facts, WeightRecipe::kBf16, UpProjection::kBf16, 2).value();
  Gpu gpu = *find_gpu("h200");
  gpu.bf16_flops.value = 1e12;
  gpu.fp8_flops.value = 2e12;
  gpu.read_bandwidth.value = 1e12;
  constexpr std::int64_t kTokens = 3000;
  const PrefillFloor floor = prefill_floor(facts, memory, gpu, {}, kTokens).value();
  const double dense = 2.0 * kTokens * (2 * 256 * 256 + 8 * 256) + 2.0 * 500 * 256;
  const double experts = 2.0 * kTokens * 2 * 3 * 64 * 256;
  const double pairs = 3000.0 * 3001 / 2;
  const double attention = 2.0 * (96 + 64) * 2 * 2 * pairs;  // Two heads a rank, two layers.
  EXPECT_DOUBLE_EQ(floor.dense_flop, dense);
  EXPECT_DOUBLE_EQ(floor.expert_flop, experts);
  EXPECT_DOUBLE_EQ(floor.attention_flop, attention);
  EXPECT_EQ(floor.indexer_flop, 0);
  EXPECT_NEAR(floor.compute_ms, (dense + experts + attention) / 1e9, 1e-9);
  EXPECT_DOUBLE_EQ(floor.floor_ms, floor.compute_ms);
  EXPECT_DOUBLE_EQ(floor.tokens_per_second, kTokens / floor.floor_ms * 1e3);
  // One token: reading the weights takes longer than the arithmetic.
  const PrefillFloor one = prefill_floor(facts, memory, gpu, {}, 1).value();
  EXPECT_NEAR(one.weights_ms, (kOutside + 2.0 * kExpert) / 1e9, 1e-12);
  EXPECT_DOUBLE_EQ(one.floor_ms, one.weights_ms);
  // FP8 products at the FP8 peak; head, router and attention as before.
  const WeightMemory fp8 = weight_memory(facts, WeightRecipe::kFp8Channel, UpProjection::kBf16, 2).value();
  const PrefillFloor faster = prefill_floor(facts, fp8, gpu, {}, kTokens).value();
  const double in_fp8 = 2.0 * kTokens * 2 * 256 * 256 + experts;
  EXPECT_NEAR(floor.compute_ms - faster.compute_ms, in_fp8 / 2e9, 1e-9);
}

TEST(PrefillFloor, SparseAttentionIsLinearAndItsIndexerIsNot) {
  ModelFacts facts = small_model();
  facts.index_topk = 1000;
  facts.index_n_heads = 4;
  facts.index_head_dim = 32;
  facts.index_layers = 1;
  const WeightMemory memory = weight_memory(facts, WeightRecipe::kBf16, UpProjection::kBf16, 2).value();
  const Gpu gpu = *find_gpu("h200");
  const PrefillFloor floor = prefill_floor(facts, memory, gpu, {}, 3000).value();
  double selected = 0;
  double all = 0;
  for (int i = 1; i <= 3000; ++i) {
    selected += std::min(i, 1000);
    all += i;
  }
  EXPECT_DOUBLE_EQ(floor.attention_flop, 2.0 * (96 + 64) * 2 * 2 * selected);
  EXPECT_DOUBLE_EQ(floor.indexer_flop, 2.0 * 4 * 32 * all);
  EXPECT_EQ(prefill_floor(facts, memory, gpu, {}, 1000)->indexer_flop, 0);
}

TEST(Gpus, AreKnownByName) {
  for (const Gpu& gpu : gpus()) {
    EXPECT_EQ(find_gpu(gpu.name)->memory_bytes, gpu.memory_bytes);
    EXPECT_GE(gpu.fp8_flops.value, gpu.bf16_flops.value) << gpu.name;
    EXPECT_GT(gpu.read_bandwidth.value, 1e12) << gpu.name;
  }
  EXPECT_EQ(find_gpu("h200")->memory_bytes, 141'000'000'000);
  EXPECT_THAT(find_gpu("h2000").error().message(), HasSubstr("'h2000' is unknown, expected one of h200, h100"));
}

}  // namespace
}  // namespace tessera::planner
