// What each family reads from its config.json, on the full configurations in configs/, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tessera/models/config.h"
#include "tessera/models/family.h"
#include "tessera/models/rope.h"

namespace tessera::models {
namespace {

using base::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

std::string file_text(const std::string& name) {
  std::ifstream file(std::filesystem::path(TESSERA_SOURCE_DIR) / "configs" / name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

ModelConfig parsed(const std::string& text) {
  auto config = parse_config(text);
  EXPECT_TRUE(config.has_value()) << config.error().to_string();
  return config.has_value() ? *config : ModelConfig{};
}

std::int64_t parameters(const ModelConfig& config) {
  std::int64_t sum = 0;
  for (const TensorSpec& spec : describe(config).tensors) sum += spec.rows() * spec.cols();
  return sum;
}

std::int64_t count(const ModelConfig& config, MlpType type) {
  return std::ranges::count(config.moe->mlp_layer_types, type);
}

TEST(FamilyConfig, DeepseekV3) {
  const ModelConfig c = parsed(file_text("deepseek-v3.json"));
  EXPECT_EQ(c.family, Family::kDeepseekV3);
  EXPECT_FALSE(c.gqa.has_value() || c.dsa.has_value());
  ASSERT_TRUE(c.mla.has_value() && c.moe.has_value() && c.rope.yarn.has_value());
  EXPECT_EQ(c.mla->q_lora_rank, 1536);
  EXPECT_EQ(c.mla->kv_lora_rank, 512);
  EXPECT_EQ(c.mla->qk_head_dim(), 192);
  EXPECT_EQ(c.mla->v_head_dim, 128);
  EXPECT_EQ(c.mla->rope_interleave, RopeInterleave::kInterleaved);
  EXPECT_EQ(c.moe->n_routed_experts, 256);
  EXPECT_EQ(c.moe->n_shared_experts, 1);
  EXPECT_EQ(c.moe->num_experts_per_tok, 8);
  EXPECT_EQ(c.moe->n_group, 8);
  EXPECT_EQ(c.moe->topk_group, 4);
  EXPECT_EQ(c.moe->norm_topk_prob, TopkProb::kNormalized);
  EXPECT_FLOAT_EQ(c.moe->routed_scaling_factor, 2.5f);
  EXPECT_EQ(count(c, MlpType::kDense), 3);
  EXPECT_EQ(c.moe->mlp_layer_types[2], MlpType::kDense);
  EXPECT_EQ(c.moe->mlp_layer_types[3], MlpType::kSparse);
  EXPECT_EQ(c.num_nextn_predict_layers, 1);
  EXPECT_EQ(c.rope.yarn->factor, 40.0);
  EXPECT_EQ(c.rope.yarn->attention_factor, 1.0);  // mscale and mscale_all_dim are equal.
  EXPECT_EQ(c.rope.yarn->mscale_all_dim, 1.0);
  EXPECT_TRUE(c.quantization.quantized());
  EXPECT_NEAR(static_cast<double>(parameters(c)), 671e9, 0.01 * 671e9);
  const ModelDescription d = describe(c);
  EXPECT_TRUE(d.skips("model.layers.61.eh_proj.weight"));
  EXPECT_FALSE(d.skips("model.layers.6.mlp.gate.weight"));
  EXPECT_FALSE(d.skips("model.layers.62.eh_proj.weight"));
  EXPECT_TRUE(d.skips("model.layers.6.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(d.skips("model.layers.60.self_attn.rotary_emb.inv_freq"));
  for (const char* layer : {"62", "06", "-1", "6.", "", "6x", "99999999999999999999"}) {
    EXPECT_FALSE(d.skips("model.layers." + std::string(layer) + ".self_attn.rotary_emb.inv_freq")) << layer;
  }
  EXPECT_EQ(d.kv_layout(ops::KvFormat::kBF16, 64).token_bytes(), 70272);
}

TEST(FamilyConfig, KimiK26) {
  const ModelConfig c = parsed(file_text("kimi-k2.6.json"));
  EXPECT_EQ(c.family, Family::kKimiK25);
  EXPECT_EQ(c.architecture, "KimiK25ForConditionalGeneration");
  EXPECT_EQ(c.hidden_size, 7168);
  EXPECT_EQ(c.moe->n_routed_experts, 384);
  EXPECT_EQ(count(c, MlpType::kDense), 1);
  EXPECT_EQ(c.rope.yarn->factor, 64.0);
  EXPECT_EQ(c.dtype, "bfloat16");
  EXPECT_TRUE(c.quantization.quantized());
  const ModelDescription d = describe(c);
  EXPECT_EQ(d.tensors.front().name, "language_model.model.embed_tokens.weight");
  EXPECT_EQ(d.head_tensor, "language_model.lm_head.weight");
  EXPECT_TRUE(d.skips("vision_tower.encoder.blocks.0.wqkv.weight"));
  EXPECT_TRUE(d.skips("mm_projector.linear_1.weight"));
  EXPECT_FALSE(d.skips("language_model.model.layers.61.enorm.weight"));  // There are no layers for speculation.
  EXPECT_EQ(d.expert_stacks.size(), 60u);
  EXPECT_EQ(d.mla_ups.size(), 61u);
  EXPECT_NEAR(static_cast<double>(parameters(c)), 1026e9, 0.01 * 1026e9);
  EXPECT_EQ(d.kv_layout(ops::KvFormat::kBF16, 64).token_bytes(), 70272);
}

TEST(FamilyConfig, Glm52) {
  const ModelConfig c = parsed(file_text("glm-5.2.json"));
  EXPECT_EQ(c.family, Family::kGlmMoeDsa);
  ASSERT_TRUE(c.dsa.has_value());
  EXPECT_EQ(c.dsa->index_n_heads, 32);
  EXPECT_EQ(c.dsa->index_head_dim, 128);
  EXPECT_EQ(c.dsa->index_topk, 2048);
  std::vector<std::int64_t> full;
  for (std::size_t i = 0; i < c.dsa->indexer_types.size(); ++i) {
    if (c.dsa->indexer_types[i] == IndexerType::kFull) full.push_back(static_cast<std::int64_t>(i));
  }
  EXPECT_THAT(full, ElementsAre(0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74));
  EXPECT_FALSE(c.rope.yarn.has_value());
  EXPECT_EQ(c.rope.rope_theta, 8e6);
  EXPECT_NEAR(static_cast<double>(parameters(c)), 743e9, 0.01 * 743e9);
  const ops::KvLayout kv = describe(c).kv_layout(ops::KvFormat::kF8E4M3, 64);
  EXPECT_EQ(kv.token_bytes(), 78 * 580 + 21 * 132);
  EXPECT_EQ(kv.layer_parts(0), 2);
  EXPECT_EQ(kv.layer_parts(3), 1);
}

TEST(FamilyConfig, Glm46) {
  const ModelConfig c = parsed(file_text("glm-4.6.json"));
  EXPECT_EQ(c.family, Family::kGlm4Moe);
  ASSERT_TRUE(c.gqa.has_value() && c.moe.has_value());
  EXPECT_EQ(c.gqa->rotary_dim, 64);
  EXPECT_EQ(c.gqa->qkv_bias, QkvBias::kPresent);
  EXPECT_EQ(c.gqa->qk_norm, QkNorm::kPresent);
  EXPECT_EQ(c.num_nextn_predict_layers, 1);
  EXPECT_NEAR(static_cast<double>(parameters(c)), 357e9, 0.02 * 357e9);
}

// The text of a full configuration with `from` replaced by `to`.
struct Refused {
  const char* name;
  const char* file;
  const char* from;
  const char* to;
  StatusCode code;
  const char* message;
};

class FamilyRefusal : public testing::TestWithParam<Refused> {};

TEST_P(FamilyRefusal, NamesFileFieldAndExpectation) {
  std::string text = file_text(GetParam().file);
  const std::size_t at = text.find(GetParam().from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, std::string_view(GetParam().from).size(), GetParam().to);
  const auto config = parse_config(text);
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().code(), GetParam().code) << config.error().to_string();
  EXPECT_THAT(config.error().message(), HasSubstr("config.json: "));
  EXPECT_THAT(config.error().message(), HasSubstr(GetParam().message));
}

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr StatusCode kUnsupported = StatusCode::kUnimplemented;
constexpr const char* kDeepseek = "deepseek-v3.json";
constexpr const char* kKimi = "kimi-k2.6.json";
constexpr const char* kGlm5 = "glm-5.2.json";
constexpr const char* kGlm4 = "glm-4.6.json";

INSTANTIATE_TEST_SUITE_P(
    All, FamilyRefusal,
    testing::Values(
        Refused{"OtherModelType", kDeepseek, R"("deepseek_v3")", R"("deepseek_v2")", kInvalid,
                "model_type: is 'deepseek_v2', expected 'deepseek_v3' or 'kimi_k2' for DeepseekV3ForCausalLM"},
        Refused{"SoftmaxRouting", kDeepseek, R"("sigmoid")", R"("softmax")", kUnsupported,
                "scoring_func: is 'softmax', expected 'sigmoid'"},
        Refused{"GreedyRouting", kDeepseek, R"("noaux_tc")", R"("group_limited_greedy")", kUnsupported,
                "topk_method: is 'group_limited_greedy', expected 'noaux_tc'"},
        Refused{"ExpertsInEverySecondLayer", kDeepseek, R"("moe_layer_freq": 1)", R"("moe_layer_freq": 2)",
                kUnsupported, "moe_layer_freq: is 2, expected 1"},
        Refused{"GroupsDoNotDivide", kDeepseek, R"("n_group": 8)", R"("n_group": 7)", kInvalid,
                "n_group: is 7, expected to divide n_routed_experts 256"},
        Refused{"GroupsOfOne", kDeepseek, R"("n_group": 8)", R"("n_group": 256)", kInvalid, "n_group: is 256"},
        Refused{"MoreGroupsThanThereAre", kDeepseek, R"("topk_group": 4)", R"("topk_group": 9)", kInvalid,
                "topk_group: is 9, expected a whole number from 1 to 8"},
        Refused{"NoGroups", kDeepseek, R"("n_group": 8,)", "", kInvalid, "n_group: missing"},
        Refused{"MoreExpertsThanTheGroupsHave", kDeepseek, R"("num_experts_per_tok": 8)",
                R"("num_experts_per_tok": 129)", kInvalid, "num_experts_per_tok: is 129"},
        Refused{"AbsurdExperts", kDeepseek, R"("n_routed_experts": 256)", R"("n_routed_experts": 1000000)", kInvalid,
                "n_routed_experts: is 1000000"},
        Refused{"ManyExpertsInManyLayers", kDeepseek, R"("n_routed_experts": 256)", R"("n_routed_experts": 4096)",
                kInvalid, "n_routed_experts: times num_hidden_layers is 249856, expected at most 65536"},
        Refused{"WideSharedExperts", kDeepseek, R"("n_shared_experts": 1)", R"("n_shared_experts": 65)", kInvalid,
                "n_shared_experts: is 65"},
        Refused{"NoScalingFactor", kDeepseek, R"("routed_scaling_factor": 2.5,)", "", kInvalid,
                "routed_scaling_factor: missing"},
        Refused{"MoreDenseLayersThanLayers", kDeepseek, R"("first_k_dense_replace": 3)",
                R"("first_k_dense_replace": 62)", kInvalid, "first_k_dense_replace: is 62"},
        Refused{"FewerKvHeads", kDeepseek, R"("num_key_value_heads": 128)", R"("num_key_value_heads": 8)", kUnsupported,
                "num_key_value_heads: is 8, expected 128"},
        Refused{"OddRope", kDeepseek, R"("qk_rope_head_dim": 64)", R"("qk_rope_head_dim": 63)", kInvalid,
                "qk_rope_head_dim: is 63, expected an even number"},
        Refused{"QueriesOfAnotherSize", kDeepseek, R"("qk_rope_head_dim": 64)",
                R"("qk_head_dim": 128, "qk_rope_head_dim": 64)", kUnsupported, "qk_head_dim: is 128, expected 192"},
        Refused{"HugeLatent", kDeepseek, R"("kv_lora_rank": 512)", R"("kv_lora_rank": 65537)", kInvalid,
                "kv_lora_rank: is 65537"},
        Refused{"HugeHeads", kDeepseek, R"("qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64)",
                R"("qk_nope_head_dim": 4096, "qk_rope_head_dim": 4096)", kInvalid,
                "num_attention_heads: times the sizes of a head is 1064960, expected at most 1048576"},
        Refused{"AttentionBias", kDeepseek, R"("attention_bias": false)", R"("attention_bias": true)", kUnsupported,
                "attention_bias: is true, expected false"},
        Refused{"YarnWithoutFactor", kDeepseek, R"("factor": 40,)", "", kInvalid, "rope_scaling: factor: missing"},
        Refused{"YarnWithoutContext", kDeepseek, R"("original_max_position_embeddings": 4096,)", "", kInvalid,
                "rope_scaling: original_max_position_embeddings: missing"},
        Refused{"YarnSpeeds", kDeepseek, R"("beta_fast": 32)", R"("beta_fast": 0.5)", kInvalid,
                "rope_scaling: beta_fast: is 0.5, expected at least beta_slow 1"},
        Refused{"YarnUntruncated", kDeepseek, R"("beta_fast": 32)", R"("truncate": false)", kUnsupported,
                "rope_scaling: truncate: is false, expected true"},
        Refused{"OtherScaling", kDeepseek, R"("yarn")", R"("linear")", kUnsupported,
                "rope_scaling: type: is 'linear', expected 'default' or 'yarn'"},
        Refused{"ManyNextnLayers", kDeepseek, R"("num_nextn_predict_layers": 1)", R"("num_nextn_predict_layers": 17)",
                kInvalid, "num_nextn_predict_layers: is 17"},
        Refused{"KimiWithoutText", kKimi, R"("text_config")", R"("other_config")", kInvalid, "text_config: missing"},
        Refused{"KimiOtherText", kKimi, R"("kimi_k2")", R"("qwen2")", kUnsupported,
                "text_config: model_type: is 'qwen2', expected 'kimi_k2' or 'deepseek_v3'"},
        Refused{"KimiTied", kKimi, R"("tie_word_embeddings": false,)", R"("tie_word_embeddings": true,)", kUnsupported,
                "tie_word_embeddings: is true, expected false"},
        Refused{"KimiTwoQuantizations", kKimi, R"("dtype": "bfloat16",)",
                R"("quantization_config": {"quant_method": "fp8"},)", kInvalid,
                "quantization_config: contradicts the one of the text model"},
        Refused{"HalfRotaryIndexer", kGlm5, R"("indexer_rope_interleave": true)", R"("indexer_rope_interleave": false)",
                kUnsupported, "indexer_rope_interleave: is false"},
        Refused{"HalfRotary", kGlm5, R"("rope_interleave": true,)", R"("rope_interleave": false,)", kUnsupported,
                "rope_interleave: is false, expected true"},
        Refused{"NoQueryLatent", kGlm5, R"("q_lora_rank": 2048,)", "", kInvalid, "q_lora_rank: missing"},
        Refused{"IndexHeadSmallerThanRope", kGlm5, R"("index_head_dim": 128)", R"("index_head_dim": 32)", kInvalid,
                "index_head_dim: is 32, expected a whole number from 64"},
        Refused{"HugeTopk", kGlm5, R"("index_topk": 2048)", R"("index_topk": 65537)", kInvalid, "index_topk: is 65537"},
        Refused{"FirstLayerShares", kGlm5, R"("index_skip_topk_offset": 3)", R"("index_skip_topk_offset": 0)", kInvalid,
                "indexer_types: the first layer shares a selection"},
        Refused{"FewIndexerTypes", kGlm5, R"("index_topk_freq": 4)", R"("indexer_types": ["full", "shared"])", kInvalid,
                "indexer_types: has 2 entries, expected num_hidden_layers 78"},
        Refused{"UnknownIndexerType", kGlm5, R"("index_topk_freq": 4)", R"("indexer_types": ["some"])", kUnsupported,
                "indexer_types: has 'some', expected 'full' or 'shared'"},
        Refused{"ShortPattern", kGlm5, R"("index_topk_freq": 4)", R"("index_topk_pattern": "FFS")", kInvalid,
                "index_topk_pattern: expected one letter F or S for each of 78 layers"},
        Refused{"FewMlpTypes", kGlm5, R"("index_topk_freq": 4)", R"("mlp_layer_types": ["dense"])", kInvalid,
                "mlp_layer_types: has 1 entries, expected num_hidden_layers 78"},
        Refused{"OddRotary", kGlm4, R"("partial_rotary_factor": 0.5)", R"("partial_rotary_factor": 0.336)", kInvalid,
                "partial_rotary_factor: rotates 43 of 128 elements"},
        Refused{"UnknownMlpType", kGlm5, R"("index_topk_freq": 4)", R"("mlp_layer_types": ["moe"])", kUnsupported,
                "mlp_layer_types: has 'moe'"},
        Refused{"Yarn", kGlm4, R"("rope_scaling": null)", R"("rope_scaling": {"type": "yarn", "factor": 4})",
                kUnsupported, "rope_scaling: type: is 'yarn', expected 'default'"},
        Refused{"RotaryFactorsDiffer", kGlm4, R"("rope_scaling": null,
  "rope_theta": 1000000)",
                R"("rope_parameters": {"rope_theta": 1000000, "rope_type": "default", "partial_rotary_factor": 1.0})",
                kInvalid, "partial_rotary_factor: is 0.5, but rope_parameters say 1"}),
    [](const testing::TestParamInfo<Refused>& tested) { return std::string(tested.param.name); });

TEST(FamilyConfig, ListsWinOverCounts) {
  std::string text = file_text("glm-5.2.json");
  const auto replace = [&](const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  };
  replace(R"("num_hidden_layers": 78)", R"("num_hidden_layers": 4)");
  replace(R"("index_topk_freq": 4)", R"("index_topk_freq": 4, "index_topk_pattern": "FSFS",
      "mlp_layer_types": ["dense", "sparse", "sparse", "dense"])");
  const ModelConfig c = parsed(text);
  EXPECT_THAT(c.dsa->indexer_types,
              ElementsAre(IndexerType::kFull, IndexerType::kShared, IndexerType::kFull, IndexerType::kShared));
  EXPECT_THAT(c.moe->mlp_layer_types,
              ElementsAre(MlpType::kDense, MlpType::kSparse, MlpType::kSparse, MlpType::kDense));
}

// As transformers saves it, which writes out what it made of the counts.
TEST(FamilyConfig, LayersOfSparseAttention) {
  std::string text = file_text("glm-5.2.json");
  const std::string from = R"("num_hidden_layers": 78,)";
  ASSERT_NE(text.find(from), std::string::npos);
  const auto with_types = [&](const std::string& types) {
    std::string changed = text;
    return changed.replace(changed.find(from), from.size(), from + R"("layer_types": [)" + types + "],");
  };
  EXPECT_TRUE(parsed(with_types(R"("indexed_attention", "indexed_attention")")).dsa.has_value());
  EXPECT_TRUE(parsed(with_types(R"("deepseek_sparse_attention")")).dsa.has_value());
  for (const std::string other : {"full_attention", "sliding_attention"}) {
    const auto refused = parse_config(with_types(R"("indexed_attention", ")" + other + R"(")"));
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message(), HasSubstr("layer_types: has '" + other + "', expected 'indexed_attention'"));
  }
  text = file_text("deepseek-v3.json");
  ASSERT_NE(text.find(R"("num_hidden_layers": 61,)"), std::string::npos);
  text.replace(text.find(R"("num_hidden_layers": 61,)"), 24,
               R"("num_hidden_layers": 61, "layer_types": ["indexed_attention"],)");
  EXPECT_THAT(parse_config(text).error().message(),
              HasSubstr("layer_types: has 'indexed_attention', expected 'full_attention'"));
}

// The same object in two places, its fields in another order.
TEST(FamilyConfig, QuantizationSaidTwice) {
  std::string text = file_text("kimi-k2.6.json");
  const std::string from = R"("architectures")";
  ASSERT_NE(text.find(from), std::string::npos);
  const std::string again = R"("quantization_config": {
      "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                 "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
      "kv_cache_scheme": null, "quant_method": "compressed-tensors", "format": "pack-quantized",
      "quantization_status": "compressed", "config_groups": {"group_0": {
        "weights": {"type": "int", "num_bits": 4, "group_size": SIZE, "symmetric": true, "strategy": "group",
                    "dynamic": false, "actorder": null},
        "targets": ["Linear"], "output_activations": null, "input_activations": null}}}, )";
  const auto with_size = [&](const std::string& size) {
    std::string changed = text;
    std::string object = again;
    object.replace(object.find("SIZE"), 4, size);
    return changed.insert(changed.find(from), object);
  };
  EXPECT_EQ(parsed(with_size("32")).quantization.format(),
            (weights::StoredFormat{weights::StoredKind::kInt4Group, 32}));
  EXPECT_THAT(parse_config(with_size("64")).error().message(),
              HasSubstr("quantization_config: contradicts the one of the text model"));
}

// Sixty-four patterns that each take thousands of steps on every one of 70,000 names: refused instead of answered.
TEST(FamilyConfig, PatternsThatTakeTooManyStepsTogether) {
  std::string text = file_text("kimi-k2.6.json");
  const std::string from = R"("ignore": [)";
  ASSERT_NE(text.find(from), std::string::npos);
  std::string patterns;
  for (int i = 0; i < 60; ++i) {
    patterns += R"("re:(?:.*.*[!@]|.*.*[!@]|.*.*[!@]|.*.*[!@]|.*.*[!@]|.*[0-8]!))" + std::to_string(i) + R"(", )";
  }
  text.insert(text.find(from) + from.size(), patterns);
  const ModelConfig config = parsed(text);
  const auto formats = stored_formats(config, describe(config));
  ASSERT_FALSE(formats.has_value());
  EXPECT_EQ(formats.error().code(), base::StatusCode::kOutOfRange);
  EXPECT_THAT(formats.error().message(), HasSubstr("steps"));
  // Many that are honest are fine, also where they name numbers.
  std::string honest = file_text("kimi-k2.6.json");
  patterns.clear();
  for (int i = 0; i < 20; ++i) patterns += R"("re:.*layers\\.)" + std::to_string(i % 2) + R"(\\.mlp\\..*_proj$", )";
  honest.insert(honest.find(from) + from.size(), patterns);
  const ModelConfig honest_config = parsed(honest);
  const auto honest_formats = stored_formats(honest_config, describe(honest_config));
  ASSERT_TRUE(honest_formats.has_value()) << honest_formats.error().to_string();
}

TEST(FamilyConfig, QwenFamilies) {
  const std::string common = R"("hidden_act": "silu", "hidden_size": 128, "intermediate_size": 256,
    "max_position_embeddings": 1024, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": true, "vocab_size": 256,
    "use_sliding_window": false, "sliding_window": 4096})";
  const ModelConfig qwen2 = parsed(R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", )" + common);
  EXPECT_EQ(qwen2.gqa->qkv_bias, QkvBias::kPresent);
  EXPECT_EQ(qwen2.gqa->qk_norm, QkNorm::kAbsent);
  EXPECT_EQ(qwen2.gqa->head_dim, 32);
  const std::string head = R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", )";
  const ModelConfig qwen3 = parsed(head + R"("head_dim": 64, )" + common);
  EXPECT_EQ(qwen3.gqa->qkv_bias, QkvBias::kAbsent);
  EXPECT_EQ(qwen3.gqa->qk_norm, QkNorm::kPresent);
  EXPECT_EQ(qwen3.gqa->head_dim, 64);
  EXPECT_THAT(parse_config(head + common).error().message(), HasSubstr("head_dim: missing"));
  std::string sliding = common;
  sliding.replace(sliding.find(R"(_window": false)"), 15, R"(_window": true)");
  EXPECT_THAT(parse_config(head + R"("head_dim": 64, )" + sliding).error().message(),
              HasSubstr("use_sliding_window: is true, expected false"));
  EXPECT_THAT(
      parse_config(head + R"("head_dim": 64, "layer_types": ["full_attention", "sliding_attention"], )" + common)
          .error()
          .message(),
      HasSubstr("layer_types: has 'sliding_attention', expected 'full_attention'"));
}

// Frequencies of the implementation that the models were trained with (torch, in F32): theta 50000, 64 elements, YaRN
// with factor 64 over 4096, beta 32 and 1.
TEST(Rope, YarnFrequencies) {
  const ModelConfig c = parsed(file_text("kimi-k2.6.json"));
  const std::vector<float> f = rope_inverse_frequencies(c.rope, 64);
  ASSERT_EQ(f.size(), 32u);
  EXPECT_EQ(f[0], 1.0f);
  // Every one of them within one unit in the last place.
  const std::vector<float> expected = {
      0x1.000000p+0f,  0x1.6d1ce6p-1f,  0x1.045db6p-1f,  0x1.7356fep-2f,  0x1.08ce7ap-2f,  0x1.79ac46p-3f,
      0x1.0d52a2p-3f,  0x1.801d36p-4f,  0x1.11ea82p-4f,  0x1.669e4ep-5f,  0x1.d1c380p-6f,  0x1.2b8c46p-6f,
      0x1.7cbc94p-7f,  0x1.dcb77ap-8f,  0x1.24ac82p-8f,  0x1.5dfd2cp-9f,  0x1.92fe3cp-10f, 0x1.b59982p-11f,
      0x1.ac7f18p-12f, 0x1.4c22eap-13f, 0x1.2f2b10p-16f, 0x1.b0629ep-17f, 0x1.3456b6p-17f, 0x1.b7c26ep-18f,
      0x1.3998eep-18f, 0x1.bf4270p-19f, 0x1.3ef21ap-19f, 0x1.c6e330p-20f, 0x1.4462a2p-20f, 0x1.cea540p-21f,
      0x1.49eaeap-21f, 0x1.d6892cp-22f};
  for (std::size_t i = 0; i < f.size(); ++i) {
    EXPECT_LE(std::abs(f[i] - expected[i]), std::nextafter(expected[i], 2.0f) - expected[i]) << i;
  }
  EXPECT_EQ(yarn_mscale(1.0, 1.0), 1.0);
  EXPECT_NEAR(yarn_mscale(64.0, 1.0), 1.4158883083359672, 1e-12);
}

}  // namespace
}  // namespace tessera::models
