// The published figures of the large models, from their full configurations, each within 2 percent: parameters,
// checkpoint sizes, KV bytes a token, and the floors that were worked out by hand for one GPU of eight H200s. Each test
// says what its figure is.
#include "tessera/planner/published.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tessera/planner/plan.h"
#include "tessera/planner/test_config.h"

namespace tessera::planner {
namespace {

using models::WeightPart;
using ops::KvFormat;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr double kWithin = 0.02;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kReadBandwidth = 4.3e12;  // What the floors were worked out with.

PlanRequest h200_at_tp8(double read_bandwidth = kReadBandwidth) {
  PlanRequest request;
  request.gpu = find_gpu("h200").value();
  request.gpu.read_bandwidth.value = read_bandwidth;
  request.tp = 8;
  return request;
}

double checkpoint_bytes(const Plan& plan, WeightRecipe recipe) {
  return static_cast<double>(std::ranges::find(plan.checkpoints, recipe, &CheckpointSize::recipe)->bytes());
}

const DecodeRow& row_of(const Plan& plan, std::int64_t batch) {
  return *std::ranges::find(plan.decode_rows, batch, &DecodeRow::batch);
}

#define EXPECT_WITHIN(value, expected) \
  EXPECT_LT(off_by(static_cast<double>(value), expected), kWithin) << static_cast<double>(value)

TEST(Published, KimiParametersAndCheckpoint) {
  const Plan plan = make_plan(full_config("kimi-k2.6.json"), h200_at_tp8()).value();
  EXPECT_WITHIN(plan.facts.parameters(), 1026e9);
  EXPECT_WITHIN(plan.facts.active_parameters(), 31.7e9);
  EXPECT_WITHIN(checkpoint_bytes(plan, WeightRecipe::kAsStored), 594.5e9);
  // What it ships in is the recipe "int4".
  EXPECT_EQ(checkpoint_bytes(plan, WeightRecipe::kAsStored), checkpoint_bytes(plan, WeightRecipe::kInt4));
  ASSERT_THAT(plan.facts.uncounted, SizeIs(1));
  EXPECT_THAT(plan.facts.uncounted.front(), HasSubstr("vision tower"));
}

TEST(Published, KimiKvBytesOnEveryRank) {
  const ModelFacts facts = full_facts("kimi-k2.6.json");
  for (const std::int32_t tp : {1, 2, 4, 8, 16, 64}) {
    EXPECT_EQ(kv_memory(facts, KvFormat::kBF16, 64, tp, 0)->rank_token_bytes, 70'272) << tp;
    // 35,136 bytes are without scales; ours have 4 bytes of them a token and layer.
    const std::int64_t fp8 = kv_memory(facts, KvFormat::kF8E4M3, 64, tp, 0)->rank_token_bytes;
    EXPECT_EQ(fp8 - 61 * 4, 35'136) << tp;
    EXPECT_WITHIN(fp8, 35'136.0);
  }
}

TEST(Published, Fp8HoldsMoreTokensAtTheRatioOfTheLayouts) {
  for (const char* file : {"kimi-k2.6.json", "glm-5.2.json", "glm-4.6.json", "deepseek-v3.json"}) {
    PlanRequest request = h200_at_tp8();
    request.decode.weights = WeightRecipe::kInt4;
    request.prefill.weights = WeightRecipe::kInt4;
    const Plan plan = make_plan(full_config(file), request).value();
    const auto& kv = plan.decode.kv;
    ASSERT_EQ(kv[0].format, KvFormat::kBF16);
    ASSERT_EQ(kv[1].format, KvFormat::kF8E4M3);
    ASSERT_GT(kv[0].tokens, 100'000) << file;
    const double layouts = static_cast<double>(kv[0].rank_token_bytes) / static_cast<double>(kv[1].rank_token_bytes);
    const double tokens = static_cast<double>(kv[1].tokens) / static_cast<double>(kv[0].tokens);
    EXPECT_LT(off_by(tokens, layouts), 1e-3) << file;  // Whole pages.
  }
  const ModelFacts kimi = full_facts("kimi-k2.6.json");
  EXPECT_EQ(kv_memory(kimi, KvFormat::kBF16, 64, 8, 0)->token_bytes * 580,
            kv_memory(kimi, KvFormat::kF8E4M3, 64, 8, 0)->token_bytes * 1152);
}

// About 116 GiB of weights and KV a GPU, in both formats.
TEST(Published, KimiTokenCountsImplyAReserve) {
  const Plan plan = make_plan(full_config("kimi-k2.6.json"), h200_at_tp8()).value();
  ASSERT_THAT(plan.implied, SizeIs(2));
  EXPECT_EQ(plan.implied[0].tokens, 686'000);
  EXPECT_EQ(plan.implied[1].tokens, 1'370'000);
  for (const ImpliedReserve& implied : plan.implied) {
    const double used = static_cast<double>(implied.weight_bytes) + implied.kv_bytes;
    EXPECT_WITHIN(used, 116 * kGiB);
    EXPECT_NEAR(implied.reserve_bytes, 141e9 - used, 1);
    EXPECT_GT(implied.reserve_bytes, 0);
  }
}

TEST(Published, GlmParametersAndCheckpoints) {
  const Plan plan = make_plan(full_config("glm-5.2.json"), h200_at_tp8()).value();
  EXPECT_WITHIN(plan.facts.parameters(), 743e9);
  EXPECT_WITHIN(plan.facts.active_parameters(), 40.3e9);
  EXPECT_EQ(plan.facts.speculation_layers, 1);
  const double fp8 = checkpoint_bytes(plan, WeightRecipe::kFp8);
  const double int4 = checkpoint_bytes(plan, WeightRecipe::kInt4);
  EXPECT_WITHIN(fp8, 755e9);
  EXPECT_WITHIN(fp8, 705 * kGiB);
  EXPECT_WITHIN(int4, 420 * kGiB);
  EXPECT_WITHIN(int4, 421 * kGiB);
  EXPECT_EQ(checkpoint_bytes(plan, WeightRecipe::kAsStored), fp8);
  // "About 88 to 52 a GPU": an eighth of the checkpoint each.
  EXPECT_WITHIN(fp8 / 8, 88 * kGiB);
  EXPECT_WITHIN(int4 / 8, 52 * kGiB);
}

// What a rank really holds is not an eighth of the checkpoint: MTP is left out, and what is not divided is on every
// rank. In FP8 the two are about even; in INT4 the copies are in BF16 and weigh more than what is left out.
TEST(Published, GlmRanksHoldCopiesOfWhatIsNotDivided) {
  PlanRequest request = h200_at_tp8();
  request.decode.weights = WeightRecipe::kInt4;
  request.decode_up = UpProjection::kAsRecipe;
  const Plan plan = make_plan(full_config("glm-5.2.json"), request).value();
  EXPECT_WITHIN(plan.prefill.weights.rank_bytes, 88 * kGiB);
  const CheckpointSize& size = *std::ranges::find(plan.checkpoints, WeightRecipe::kInt4, &CheckpointSize::recipe);
  const WeightMemory& rank = plan.decode.weights;
  EXPECT_EQ(8 * rank.rank_bytes, size.bytes() - size.speculation_bytes + 7 * rank.replicated_bytes);
  EXPECT_WITHIN(rank.rank_bytes, 54.4 * kGiB);
}

// A configuration of the same sizes is not yet the model that a count was published for.
TEST(Published, CountsAreThoseOfOneModel) {
  const auto implied = [](const std::string& text) {
    return make_plan(config_of(text), h200_at_tp8()).value().implied.size();
  };
  EXPECT_EQ(implied(config_text("kimi-k2.6.json")), 2u);
  EXPECT_EQ(implied(config_text("glm-5.2.json")), 2u);
  // GLM-5 and 5.1: an indexer in every layer.
  EXPECT_EQ(implied(config_text("glm-5.2.json", R"("index_topk_freq": 4)", R"("index_topk_freq": 1)")), 0u);
  EXPECT_EQ(implied(config_text("kimi-k2.6.json", R"("group_size": 32)", R"("group_size": 64)")), 0u);
  // Kimi K2 Instruct: another architecture, in FP8 blocks; made of DeepSeek-V3's configuration.
  std::string k2 = config_text("deepseek-v3.json");
  const std::pair<std::string, std::string> changes[] = {
      {R"("n_routed_experts": 256)", R"("n_routed_experts": 384)"},
      {R"("num_attention_heads": 128)", R"("num_attention_heads": 64)"},
      {R"("num_key_value_heads": 128)", R"("num_key_value_heads": 64)"},
      {R"("n_group": 8)", R"("n_group": 1)"},
      {R"("topk_group": 4)", R"("topk_group": 1)"}};
  for (const auto& [from, to] : changes) {
    ASSERT_NE(k2.find(from), std::string::npos) << from;
    k2.replace(k2.find(from), from.size(), to);
  }
  EXPECT_EQ(implied(k2), 0u);
}

TEST(Published, GlmTokenCountImpliesAReserve) {
  const Plan plan = make_plan(full_config("glm-5.2.json"), h200_at_tp8()).value();
  ASSERT_THAT(plan.implied, SizeIs(2));
  for (const ImpliedReserve& implied : plan.implied) {
    EXPECT_EQ(implied.tokens, 1'180'000);
    EXPECT_EQ(implied.weights, WeightRecipe::kInt4);
  }
  EXPECT_LT(plan.implied[0].reserve_bytes, 0);  // BF16 KV: not on this GPU.
  EXPECT_GT(plan.implied[1].reserve_bytes, 0);
  const double used = static_cast<double>(plan.implied[1].weight_bytes) + plan.implied[1].kv_bytes;
  EXPECT_GT(used, 105 * kGiB);
  EXPECT_LT(used, 120 * kGiB);
}

TEST(Published, GlmKvBytes) {
  const ModelFacts facts = full_facts("glm-5.2.json");
  EXPECT_EQ(facts.index_layers, 21);
  const KvMemory bf16 = kv_memory(facts, KvFormat::kBF16, 64, 8, 0).value();
  const KvMemory fp8 = kv_memory(facts, KvFormat::kF8E4M3, 64, 8, 0).value();
  EXPECT_EQ(bf16.index_token_bytes, 132 * 21);
  EXPECT_EQ(bf16.token_bytes, 1152 * 78 + 132 * 21);
  EXPECT_EQ(fp8.token_bytes, 580 * 78 + 132 * 21);
  // Sparse: 92.7 MB a request of any length, and 2.77 KB a token of context.
  const ops::KvLayout layout = rank_kv_layout(facts, KvFormat::kF8E4M3, 64, 8).value();
  EXPECT_WITHIN(kv_read_bytes(facts, layout, 2048), 92.7e6);
  EXPECT_WITHIN(kv_read_bytes(facts, layout, 1'000'000) - kv_read_bytes(facts, layout, 2048), 2.77e9);
}

struct FloorFigure {
  std::int64_t batch;
  double expert_gb;
  double tokens_per_second;
};

void expect_floors(const Plan& plan, double outside_gb, const std::vector<FloorFigure>& figures) {
  EXPECT_WITHIN(plan.step.outside_bytes, outside_gb * 1e9);
  for (const FloorFigure& figure : figures) {
    SCOPED_TRACE(figure.batch);
    const StepFloor& floor = row_of(plan, figure.batch).floor;
    EXPECT_WITHIN(floor.expert_bytes, figure.expert_gb * 1e9);
    EXPECT_WITHIN(floor.tokens_per_second, figure.tokens_per_second);
  }
}

TEST(Floors, KimiWithFp8Kv) {
  const Plan plan = make_plan(full_config("kimi-k2.6.json"), h200_at_tp8()).value();
  expect_floors(plan, 4.54, {{1, 1.49, 681}, {8, 11.1, 1921}, {16, 20.4, 2328}, {32, 35.0, 2824}, {64, 52.8, 3632}});
}

TEST(Floors, GlmWithInt4Experts) {
  PlanRequest request = h200_at_tp8();
  request.decode.weights = WeightRecipe::kInt4Fp8;
  const Plan plan = make_plan(full_config("glm-5.2.json"), request).value();
  constexpr double kInt4 = 0.5625;
  expect_floors(plan, 3.96,
                {{1, 2.83 * kInt4, 757},
                 {8, 20.3 * kInt4, 2096},
                 {16, 36.1 * kInt4, 2616},
                 {32, 57.8 * kInt4, 3393},
                 {64, 78.7 * kInt4, 4879}});
}

TEST(Floors, GlmWithFp8Experts) {
  const Plan plan = make_plan(full_config("glm-5.2.json"), h200_at_tp8()).value();
  EXPECT_WITHIN(plan.step.outside_bytes, 3.96e9);
  const std::vector<FloorFigure> figures = {{1, 2.83, 0}, {8, 20.3, 0}, {16, 36.1, 0}, {32, 57.8, 0}, {64, 78.7, 0}};
  for (const FloorFigure& figure : figures) {
    EXPECT_WITHIN(row_of(plan, figure.batch).floor.expert_bytes, figure.expert_gb * 1e9);
  }
}

// Gains that the floors allow: a pool of exactly 32 BF16 sequences at 8k holds 63 in FP8, or 64 at little more.
TEST(Floors, TwiceTheSequencesInFp8) {
  PlanRequest request = h200_at_tp8();
  request.decode.kv = KvFormat::kBF16;
  const Plan bf16 = make_plan(full_config("kimi-k2.6.json"), request).value();
  request.decode.kv = KvFormat::kF8E4M3;
  const Plan fp8 = make_plan(full_config("kimi-k2.6.json"), request).value();
  EXPECT_WITHIN(row_of(fp8, 64).floor.tokens_per_second / row_of(bf16, 32).floor.tokens_per_second, 1.53);
}

// Model cards: 671 B parameters with 37 B active; 355 B. KV bytes are sums made by hand.
TEST(Published, OtherModels) {
  const ModelFacts deepseek = full_facts("deepseek-v3.json");
  EXPECT_WITHIN(deepseek.parameters(), 671e9);
  EXPECT_WITHIN(deepseek.active_parameters(), 37e9);
  EXPECT_EQ(kv_memory(deepseek, KvFormat::kBF16, 64, 8, 0)->token_bytes, 70'272);
  const ModelFacts glm = full_facts("glm-4.6.json");
  EXPECT_WITHIN(glm.parameters(), 355e9);
  const KvMemory kv = kv_memory(glm, KvFormat::kBF16, 64, 8, 0).value();
  EXPECT_EQ(kv.token_bytes, 92 * 2 * 8 * 128 * 2);
  EXPECT_EQ(kv.rank_token_bytes, 92 * 2 * 128 * 2);
  EXPECT_EQ(kv_memory(glm, KvFormat::kBF16, 64, 16, 0)->rank_token_bytes, 92 * 2 * 128 * 2);
}

TEST(Published, OneGpuCannotHoldThem) {
  PlanRequest request = h200_at_tp8();
  request.tp = 1;
  for (const char* file : {"kimi-k2.6.json", "glm-5.2.json", "glm-4.6.json", "deepseek-v3.json"}) {
    const Plan plan = make_plan(full_config(file), request).value();
    const base::Status status = fit(plan);
    EXPECT_EQ(status.code(), base::StatusCode::kResourceExhausted) << file;
    EXPECT_THAT(status.message(), HasSubstr("one h200 cannot hold it: ")) << file;
    EXPECT_THAT(status.message(), HasSubstr("GB too much")) << file;
    EXPECT_EQ(plan.decode.chosen_kv().tokens, 0) << file;
    EXPECT_FALSE(plan.decode_rows.front().kv_fits) << file;
  }
}

}  // namespace
}  // namespace tessera::planner
