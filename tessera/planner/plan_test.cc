#include "tessera/planner/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tessera/planner/test_config.h"
#include "tessera/weights/checkpoint.h"

namespace tessera::planner {
namespace {

using models::WeightPart;
using ::testing::HasSubstr;

PlanRequest request_at(std::int32_t tp) {
  PlanRequest request;
  request.gpu = find_gpu("h200").value();
  request.tp = tp;
  return request;
}

const models::ModelConfig& kimi() {
  static const models::ModelConfig config = full_config("kimi-k2.6.json");
  return config;
}

constexpr const char* kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
  "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
  "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
  "rope_theta": 10000.0, "tie_word_embeddings": true})";

// The model in this repository ships in FP8 blocks: what the arithmetic says of its configuration is what its files
// hold. (Correction biases are F32 in the files and counted as BF16: they are taken out of the comparison.)
TEST(FactsOf, AgreesWithARealCheckpoint) {
  const auto dir = std::filesystem::path(TESSERA_SOURCE_DIR) / "models" / "tessera-pocket";
  const ModelFacts facts = facts_of(models::read_config(dir).value()).value();
  const auto checkpoint = weights::Checkpoint::open(dir);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  std::int64_t bytes = 0;
  std::int64_t biases = 0;
  for (const weights::Tensor& tensor : checkpoint->tensors()) {
    const bool bias = tensor.name.ends_with("e_score_correction_bias");
    (bias ? biases : bytes) += static_cast<std::int64_t>(tensor.data.size());
  }
  ASSERT_GT(biases, 0);
  ASSERT_TRUE(facts.quantized);
  EXPECT_EQ(checkpoint_size(facts, WeightRecipe::kAsStored).bytes() - biases / 2, bytes);
}

// Of a quantized checkpoint too, whose products run in FP8 except the head's.
TEST(FactsOf, TiedHeadsAreAsPlainAsTheEmbedding) {
  std::string text = kLlama;
  text.replace(text.rfind('}'), 1,
               R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})");
  const ModelFacts facts = facts_of(config_of(text)).value();
  std::int64_t heads = 0;
  for (const TensorGroup& group : facts.tensors) {
    if (group.part == models::WeightPart::kAttention) {
      EXPECT_EQ(group.stored.kind, weights::StoredKind::kF8Block128);
    }
    if (group.role != TensorRole::kTiedHead) continue;
    EXPECT_EQ(group.stored, weights::StoredFormat{});
    ++heads;
  }
  EXPECT_EQ(heads, 1);
  const WeightMemory memory = weight_memory(facts, WeightRecipe::kAsStored, UpProjection::kBf16, 1).value();
  const StepBytes step = step_bytes(facts, memory, ops::KvFormat::kBF16, 1).value();
  const std::int64_t blocks = 2 * (2 * 2) + 2 * (1 * 2) + 3 * (4 * 2);
  const std::int64_t layer = 2 * 256 * 256 + 2 * 64 * 256 + 3 * 512 * 256 + 4 * blocks + 2 * 2 * 256;
  EXPECT_EQ(step.outside_bytes, 3 * layer + 2 * 256 + 2 * 1000 * 256);
}

TEST(FactsOf, TiedHeadsAreStoredOnceAndReadAsHeads) {
  const ModelFacts facts = facts_of(config_of(kLlama)).value();
  const std::int64_t layer = 2 * 256 * 256 + 2 * 64 * 256 + 3 * 512 * 256 + 2 * 256;
  EXPECT_EQ(facts.parameters(), 3 * layer + 256 + 1000 * 256);
  EXPECT_EQ(facts.active_parameters(), facts.parameters());
  const WeightMemory memory = weight_memory(facts, WeightRecipe::kAsStored, UpProjection::kBf16, 1).value();
  EXPECT_EQ(memory.bytes, 2 * facts.parameters());
  EXPECT_EQ(memory.replicated_bytes, 0);
  EXPECT_EQ(step_bytes(facts, memory, ops::KvFormat::kBF16, 64)->outside_bytes, 2 * facts.parameters());
}

TEST(FactsOf, FewerKvHeadsThanRanks) {
  const Plan plan = make_plan(config_of(kLlama), request_at(4)).value();
  // Two KV heads on four ranks: each rank holds one.
  EXPECT_EQ(plan.decode.kv.front().rank_token_bytes, 3 * 2 * 32 * 2);
  EXPECT_EQ(plan.decode.kv.front().token_bytes, 3 * 2 * 64 * 2);
  const std::int64_t whole = 2 * (3 * (2 * 256 * 256 + 2 * 64 * 256 + 2 * 256 + 3 * 512 * 256) + 256 + 1000 * 256);
  const std::int64_t kv_again = 2 * 3 * 2 * 64 * 256;  // Each of K and V is held twice.
  const std::int64_t norms_again = 2 * 7 * 256 * 3;    // Norms four times.
  EXPECT_EQ(plan.decode.weights.rank_bytes * 4, whole + kv_again + norms_again);
}

// The layer for speculation is as the last layer, with its own projection and norms.
TEST(FactsOf, SpeculationLayersAreCountedApart) {
  const ModelFacts facts = full_facts("deepseek-v3.json");
  std::int64_t skipped = 0;
  for (const TensorGroup& group : facts.skipped) skipped += group.parameters();
  const std::int64_t attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 7168 * 128 * 128;
  const std::int64_t experts = std::int64_t{257} * 3 * 7168 * 2048 + 256 * 7168 + 256;
  const std::int64_t norms = 1536 + 512 + 2 * 7168 + 3 * 7168;
  EXPECT_EQ(skipped, attention + experts + norms + 2 * 7168 * 7168);
  EXPECT_EQ(full_facts("kimi-k2.6.json").skipped.size(), 0u);
}

TEST(MakePlan, RefusesRequestsByName) {
  const auto expect_refused = [](const char* words, auto change) {
    PlanRequest request = request_at(8);
    change(request);
    const auto plan = make_plan(kimi(), request);
    ASSERT_FALSE(plan.has_value()) << words;
    EXPECT_THAT(plan.error().message(), HasSubstr(words));
  };
  expect_refused("tp is 0", [](PlanRequest& r) { r.tp = 0; });
  expect_refused("tp is 5000", [](PlanRequest& r) { r.tp = 5000; });
  expect_refused("64 attention heads cannot be divided among 7 ranks", [](PlanRequest& r) { r.tp = 7; });
  expect_refused("64 attention heads cannot be divided among 128 ranks", [](PlanRequest& r) { r.tp = 128; });
  expect_refused("gpus is 12, expected a multiple of tp 8", [](PlanRequest& r) { r.gpus = 12; });
  expect_refused("gpus is -8", [](PlanRequest& r) { r.gpus = -8; });
  expect_refused("page size is 0", [](PlanRequest& r) { r.page_size = 0; });
  expect_refused("GPU memory is 0", [](PlanRequest& r) { r.gpu.memory_bytes = 0; });
  expect_refused("read bandwidth is 0", [](PlanRequest& r) { r.gpu.read_bandwidth.value = 0; });
  expect_refused("FP8 FLOP/s is nan",
                 [](PlanRequest& r) { r.gpu.fp8_flops.value = std::numeric_limits<double>::quiet_NaN(); });
  expect_refused("reserve is 1", [](PlanRequest& r) { r.reserve.fraction = 1.0; });
  expect_refused("reserve is -1", [](PlanRequest& r) { r.reserve.bytes = -1; });
  expect_refused("context is 0", [](PlanRequest& r) { r.contexts = {8192, 0}; });
  expect_refused("context is a list of 0", [](PlanRequest& r) { r.contexts = {}; });
  expect_refused("batch is 1048577", [](PlanRequest& r) { r.batches = {1, (1 << 20) + 1}; });
  expect_refused("held tokens is -1", [](PlanRequest& r) { r.held_tokens = {-1}; });
}

TEST(MakePlan, RefusesWhatCannotBeDivided) {
  PlanRequest request = request_at(8);
  request.decode.weights = WeightRecipe::kFp8;
  const auto plan = make_plan(full_config("glm-4.6.json"), request);  // 1536 / 8 is one and a half scale blocks.
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(plan.error().message(), HasSubstr("cannot be divided among 8 ranks in units of 128"));
  EXPECT_THAT(plan.error().message(), HasSubstr("model.layers.3.mlp"));
  request.decode.weights = WeightRecipe::kFp8Channel;
  EXPECT_TRUE(make_plan(full_config("glm-4.6.json"), request).has_value());
}

TEST(MakePlan, RefusesAbsurdConfigurations) {
  const auto parse = [](std::string_view from, std::string_view to) {
    return models::parse_config(config_text("kimi-k2.6.json", from, to));
  };
  EXPECT_THAT(parse("\"num_hidden_layers\": 61", "\"num_hidden_layers\": 1000000000").error().message(),
              HasSubstr("num_hidden_layers"));
  EXPECT_THAT(parse("\"n_routed_experts\": 384", "\"n_routed_experts\": 4000000000").error().message(),
              HasSubstr("n_routed_experts"));
  EXPECT_THAT(parse("\"KimiK25ForConditionalGeneration\"", "\"NobodyForCausalLM\"").error().message(),
              HasSubstr("NobodyForCausalLM"));
  // Every field within its own limits, and yet more than any arithmetic here is meant for.
  const auto wide = parse("\"moe_intermediate_size\": 2048", "\"moe_intermediate_size\": 1048576");
  ASSERT_TRUE(wide.has_value()) << wide.error().message();
  const auto facts = facts_of(*wide);
  ASSERT_FALSE(facts.has_value());
  EXPECT_THAT(facts.error().message(), HasSubstr("parameters, expected at most 1e+14"));
}

TEST(MakePlan, TakesTheReserveAsItIsSaid) {
  PlanRequest request = request_at(8);
  request.reserve.fraction = 0.25;
  const Plan quarter = make_plan(kimi(), request).value();
  EXPECT_EQ(quarter.reserve_bytes, 35'250'000'000);
  request.reserve.bytes = 10'000'000'000;
  const Plan ten = make_plan(kimi(), request).value();
  EXPECT_EQ(ten.reserve_bytes, 10'000'000'000);
  EXPECT_EQ(ten.decode.free_bytes - quarter.decode.free_bytes, 25'250'000'000);
  EXPECT_EQ(ten.decode.free_bytes, 141'000'000'000 - 10'000'000'000 - ten.decode.weights.rank_bytes);
  // What a plan finds to fit is what it implies of itself, but for the null page and what is less than a page.
  request.held_tokens = {ten.decode.chosen_kv().tokens};
  const Plan again = make_plan(kimi(), request).value();
  EXPECT_NEAR(again.implied.back().reserve_bytes, 10e9, 2.0 * 64 * 35'380);
  EXPECT_GE(again.implied.back().reserve_bytes, 10e9);
}

TEST(MakePlan, GroupsAndReplicas) {
  PlanRequest request = request_at(8);
  request.gpus = 24;
  const Plan plan = make_plan(kimi(), request).value();
  EXPECT_EQ(plan.replicas, 3);
  ASSERT_EQ(plan.groups.size(), 6u);
  EXPECT_EQ(plan.groups[0].tp, 1);
  EXPECT_LT(plan.groups[0].free_bytes, 0);
  EXPECT_EQ(plan.groups[0].tokens, 0);
  EXPECT_EQ(plan.groups[3].tp, 8);
  EXPECT_EQ(plan.groups[3].rank_bytes, plan.decode.weights.rank_bytes);
  EXPECT_EQ(plan.groups[3].tokens, plan.decode.chosen_kv().tokens);
  EXPECT_THAT(memory_sentence(plan, plan.groups[0].rank_bytes, 1), HasSubstr("one h200 cannot hold it"));
  EXPECT_THAT(memory_sentence(plan, plan.groups[3].rank_bytes, 8), HasSubstr("are left for KV"));
}

TEST(Fit, SaysWhichPoolAndWhy) {
  PlanRequest request = request_at(8);
  EXPECT_TRUE(fit(make_plan(kimi(), request).value()).ok());
  request.prefill.weights = WeightRecipe::kBf16;
  const base::Status weights = fit(make_plan(kimi(), request).value());
  EXPECT_THAT(weights.message(), HasSubstr("prefill pool: each of 8 h200 cannot hold it"));
  request.prefill.weights = WeightRecipe::kAsStored;
  request.contexts = {1 << 22};
  const base::Status context = fit(make_plan(kimi(), request).value());
  EXPECT_EQ(context.code(), base::StatusCode::kResourceExhausted);
  EXPECT_THAT(context.message(), HasSubstr("one sequence of 4194304 tokens does not fit"));
}

}  // namespace
}  // namespace tessera::planner
