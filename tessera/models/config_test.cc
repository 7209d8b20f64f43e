#include "tessera/models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace tessera::models {
namespace {

using base::StatusCode;
using testing::HasSubstr;

// SmolLM2's config.json, with `from` replaced by `to`; an empty `from` changes nothing.
std::string config_text(const std::string& from = "", const std::string& to = "") {
  std::string text = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536,
    "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9,
    "num_hidden_layers": 30, "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "rope_interleaved": false,
    "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "vocab_size": 49152})";
  if (from.empty()) return text;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

base::Status refusal(const std::string& text) {
  const auto config = parse_config(text);
  return config.has_value() ? base::ok_status() : config.error();
}

TEST(Config, OldSpelling) {
  const auto config = parse_config(config_text());
  ASSERT_TRUE(config.has_value()) << config.error().to_string();
  EXPECT_EQ(config->family, Family::kLlama);
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->model_type, "llama");
  EXPECT_EQ(config->vocab_size, 49152);
  EXPECT_EQ(config->hidden_size, 576);
  EXPECT_EQ(config->intermediate_size, 1536);
  EXPECT_EQ(config->num_hidden_layers, 30);
  EXPECT_EQ(config->num_attention_heads, 9);
  ASSERT_TRUE(config->gqa.has_value());
  EXPECT_EQ(config->gqa->num_key_value_heads, 3);
  EXPECT_EQ(config->gqa->head_dim, 64);
  EXPECT_EQ(config->gqa->rotary_dim, 64);
  EXPECT_FALSE(config->mla.has_value() || config->moe.has_value() || config->dsa.has_value());
  EXPECT_EQ(config->max_position_embeddings, 8192);
  EXPECT_FLOAT_EQ(config->rms_norm_eps, 1e-5f);
  EXPECT_EQ(config->rope.rope_theta, 100000.0);
  EXPECT_FALSE(config->rope.yarn.has_value());
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->gqa->qkv_bias, QkvBias::kAbsent);
  EXPECT_EQ(config->dtype, "bfloat16");
}

TEST(Config, NewSpelling) {
  std::string text = config_text(R"("rope_scaling": null, "rope_theta": 100000)",
                                 R"("rope_parameters": {"rope_theta": 5e4, "rope_type": "default"})");
  text.replace(text.find("torch_dtype"), 11, "dtype");
  const auto config = parse_config(text);
  ASSERT_TRUE(config.has_value()) << config.error().to_string();
  EXPECT_EQ(config->rope.rope_theta, 50000.0);
  EXPECT_EQ(config->dtype, "bfloat16");
}

TEST(Config, BothSpellingsMayAgree) {
  EXPECT_TRUE(refusal(config_text(R"("rope_scaling": null)", R"("rope_parameters": {"rope_theta": 1e5,
                                                                "rope_type": "default"})"))
                  .ok());
  EXPECT_THAT(refusal(config_text(R"("rope_scaling": null)", R"("rope_parameters": {"rope_theta": 1e4,
                                                                "rope_type": "default"})"))
                  .message(),
              HasSubstr("config.json: rope_theta: is 100000, but rope_parameters say 10000"));
}

TEST(Config, DefaultsThatTheFormatDefines) {
  std::string text = config_text(R"("num_key_value_heads": 3,)", "");
  text.replace(text.find(R"("tie_word_embeddings": true,)"), 28, "");
  const auto config = parse_config(text);
  ASSERT_TRUE(config.has_value()) << config.error().to_string();
  EXPECT_EQ(config->gqa->num_key_value_heads, 9);
  EXPECT_FALSE(config->tie_word_embeddings);
  // A head size of its own need not divide the hidden size.
  const auto own = parse_config(config_text(R"("hidden_size": 576)", R"("hidden_size": 500, "head_dim": 72)"));
  ASSERT_TRUE(own.has_value()) << own.error().to_string();
  EXPECT_EQ(own->gqa->head_dim, 72);
}

// Files spell out what they do not use.
TEST(Config, FieldsOfRelativesAtTheValuesThatChangeNothing) {
  const base::Status status = refusal(config_text(R"("mlp_bias": false)", R"("partial_rotary_factor": 1.0,
      "pretraining_tp": 1, "embedding_multiplier": 1, "residual_multiplier": 1.0, "logits_scaling": 1.0,
      "logit_scale": null, "sliding_window": null, "use_sliding_window": false, "attention_chunk_size": null,
      "attention_multiplier": null, "final_logit_softcapping": null, "attn_logit_softcapping": null,
      "use_qk_norm": false, "qk_layernorm": false)"));
  EXPECT_TRUE(status.ok()) << status.to_string();
}

struct Refused {
  const char* name;
  const char* from;
  const char* to;
  StatusCode code;
  const char* message;
};

class ConfigRefusal : public testing::TestWithParam<Refused> {};

TEST_P(ConfigRefusal, NamesFileFieldAndExpectation) {
  const base::Status status = refusal(config_text(GetParam().from, GetParam().to));
  EXPECT_EQ(status.code(), GetParam().code) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("config.json: "));
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

const StatusCode kInvalid = StatusCode::kInvalidArgument;
const StatusCode kUnsupported = StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    All, ConfigRefusal,
    testing::Values(
        Refused{"NotJson", "{", "<", kInvalid, "no JSON"},
        Refused{"NoArchitecture", R"("architectures": ["LlamaForCausalLM"],)", "", kInvalid,
                "architectures: missing, expected a list of strings"},
        Refused{"UnknownArchitecture", "LlamaForCausalLM", "GPT2LMHeadModel", kUnsupported,
                "architectures: 'GPT2LMHeadModel' is unknown, expected one of LlamaForCausalLM"},
        Refused{"TwoArchitectures", R"(["LlamaForCausalLM"])", R"(["LlamaForCausalLM", "X"])", kInvalid,
                "2 entries, expected exactly one"},
        Refused{"ArchitectureIsText", R"(["LlamaForCausalLM"])", R"("LlamaForCausalLM")", kInvalid,
                "architectures: expected a list"},
        Refused{"OtherModelType", R"("model_type": "llama")", R"("model_type": "mistral")", kInvalid,
                "model_type: is 'mistral', expected 'llama'"},
        Refused{"Activation", R"("silu")", R"("gelu")", kUnsupported, "hidden_act: is 'gelu', expected 'silu'"},
        Refused{"NoActivation", R"("hidden_act": "silu",)", "", kInvalid, "hidden_act: missing"},
        Refused{"RopeScaling", R"("rope_scaling": null)", R"("rope_scaling": {"rope_type": "llama3", "factor": 8})",
                kUnsupported, "rope_scaling: rope_type: is 'llama3', expected 'default'"},
        Refused{"OldRopeScaling", R"("rope_scaling": null)", R"("rope_scaling": {"type": "linear", "factor": 2})",
                kUnsupported, "rope_scaling: type: is 'linear'"},
        Refused{"RopeScalingWithoutType", R"("rope_scaling": null)", R"("rope_scaling": {"factor": 2})", kInvalid,
                "rope_scaling: type: missing"},
        Refused{"NewRopeScaling", R"("rope_scaling": null, "rope_theta": 100000)",
                R"("rope_parameters": {"rope_theta": 1e5, "rope_type": "yarn"})", kUnsupported,
                "rope_parameters: rope_type: is 'yarn'"},
        Refused{"NoTheta", R"("rope_theta": 100000,)", "", kInvalid, "rope_theta: missing, expected a number"},
        Refused{"NoThetaInParameters", R"("rope_scaling": null)", R"("rope_parameters": {"rope_type": "default"})",
                kInvalid, "rope_parameters: rope_theta: missing"},
        Refused{"ZeroTheta", "100000", "0", kInvalid, "rope_theta: is 0, expected a number from 1 to"},
        Refused{"HugeTheta", "100000", "1e300", kInvalid, "rope_theta: is 1e+300"},
        Refused{"Interleaved", R"("rope_interleaved": false)", R"("rope_interleaved": true)", kUnsupported,
                "rope_interleaved: is true, expected false"},
        Refused{"AttentionBias", R"("attention_bias": false)", R"("attention_bias": true)", kUnsupported,
                "attention_bias: is true, expected false"},
        Refused{"MlpBias", R"("mlp_bias": false)", R"("mlp_bias": true)", kUnsupported, "mlp_bias: is true"},
        Refused{"BiasIsNumber", R"("mlp_bias": false)", R"("mlp_bias": 0)", kInvalid, "expected true or false"},
        Refused{"Quantized", R"("mlp_bias": false)", R"("quantization_config": {"quant_method": "fp9"})", kUnsupported,
                "quantization_config.quant_method is 'fp9', expected fp8 or compressed-tensors"},
        Refused{
            "BothRopeSpellings", R"("rope_scaling": null)",
            R"("rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"})",
            kInvalid, "rope_scaling: is there beside rope_parameters"},
        Refused{"PartialRotaryFactor", R"("mlp_bias": false)", R"("partial_rotary_factor": 1.5)", kInvalid,
                "partial_rotary_factor: is 1.5"},
        Refused{"OddPartialRotary", R"("mlp_bias": false)", R"("partial_rotary_factor": 0.33)", kUnsupported,
                "partial_rotary_factor: is 0.33, expected 1"},
        Refused{"Dtype", R"("bfloat16")", R"("float16")", kUnsupported,
                "torch_dtype: is 'float16', expected float32 or bfloat16"},
        Refused{"DtypeIsNumber", R"("bfloat16")", "16", kInvalid, "torch_dtype: expected a string"},
        Refused{"PartialRotary", R"("mlp_bias": false)", R"("partial_rotary_factor": 0.5)", kUnsupported,
                "partial_rotary_factor: is 0.5, expected 1"},
        Refused{"PretrainingTp", R"("mlp_bias": false)", R"("pretraining_tp": 2)", kUnsupported,
                "pretraining_tp: is 2, expected 1"},
        Refused{"EmbeddingMultiplier", R"("mlp_bias": false)", R"("embedding_multiplier": 12.0)", kUnsupported,
                "embedding_multiplier: is 12, expected 1"},
        Refused{"ResidualMultiplier", R"("mlp_bias": false)", R"("residual_multiplier": 0.22)", kUnsupported,
                "residual_multiplier: is 0.22, expected 1"},
        Refused{"LogitsScaling", R"("mlp_bias": false)", R"("logits_scaling": 8)", kUnsupported,
                "logits_scaling: is 8, expected 1"},
        Refused{"LogitScale", R"("mlp_bias": false)", R"("logit_scale": 0.0625)", kUnsupported,
                "logit_scale: is 0.0625, expected 1"},
        Refused{"SlidingWindow", R"("mlp_bias": false)", R"("sliding_window": 4096)", kUnsupported,
                "sliding_window: is not computed, expected none or null"},
        Refused{"UseSlidingWindow", R"("mlp_bias": false)", R"("use_sliding_window": true)", kUnsupported,
                "use_sliding_window: is true, expected false"},
        Refused{"AttentionChunks", R"("mlp_bias": false)", R"("attention_chunk_size": 8192)", kUnsupported,
                "attention_chunk_size: is not computed"},
        Refused{"AttentionMultiplier", R"("mlp_bias": false)", R"("attention_multiplier": 0.015625)", kUnsupported,
                "attention_multiplier: is not computed"},
        Refused{"FinalSoftcapping", R"("mlp_bias": false)", R"("final_logit_softcapping": 30.0)", kUnsupported,
                "final_logit_softcapping: is not computed"},
        Refused{"AttentionSoftcapping", R"("mlp_bias": false)", R"("attn_logit_softcapping": 50.0)", kUnsupported,
                "attn_logit_softcapping: is not computed"},
        Refused{"UseQkNorm", R"("mlp_bias": false)", R"("use_qk_norm": true)", kUnsupported,
                "use_qk_norm: is true, expected false"},
        Refused{"QkLayernorm", R"("mlp_bias": false)", R"("qk_layernorm": true)", kUnsupported,
                "qk_layernorm: is true, expected false"},
        Refused{"FactorIsText", R"("mlp_bias": false)", R"("residual_multiplier": "1")", kInvalid,
                "residual_multiplier: expected a number"},
        Refused{"PartialRotaryInParameters", R"("rope_scaling": null, "rope_theta": 100000)",
                R"("rope_parameters": {"rope_theta": 1e5, "rope_type": "default", "partial_rotary_factor": 0.25})",
                kUnsupported, "partial_rotary_factor: is 0.25, expected 1"},
        Refused{"NoVocabulary", R"("vocab_size": 49152)", R"("x": 1)", kInvalid, "vocab_size: missing"},
        Refused{"NullVocabulary", "49152", "null", kInvalid, "vocab_size: missing"},
        Refused{"HugeVocabulary", "49152", "2097153", kInvalid,
                "vocab_size: is 2097153, expected a whole number from 1 to 2097152"},
        Refused{"VocabularyBeyond64Bits", "49152", "18446744073709551615", kInvalid, "vocab_size: expected a whole"},
        Refused{"FractionalVocabulary", "49152", "49152.0", kInvalid, "vocab_size: expected a whole number"},
        Refused{"TextVocabulary", "49152", R"("49152")", kInvalid, "vocab_size: expected a whole number"},
        Refused{"NegativeHidden", "576", "-576", kInvalid, "hidden_size: is -576"},
        Refused{"HugeHidden", "576", "131073", kInvalid, "hidden_size: is 131073"},
        Refused{"NoHidden", R"("hidden_size": 576,)", "", kInvalid, "hidden_size: missing"},
        Refused{"HugeIntermediate", "1536", "1048577", kInvalid, "intermediate_size: is 1048577"},
        Refused{"ZeroLayers", R"("num_hidden_layers": 30)", R"("num_hidden_layers": 0)", kInvalid,
                "num_hidden_layers: is 0"},
        Refused{"HugeLayers", R"("num_hidden_layers": 30)", R"("num_hidden_layers": 1025)", kInvalid,
                "num_hidden_layers: is 1025"},
        Refused{"ZeroHeads", R"("num_attention_heads": 9)", R"("num_attention_heads": 0)", kInvalid,
                "num_attention_heads: is 0"},
        Refused{"HeadsDoNotDivideHidden", R"("num_attention_heads": 9)", R"("num_attention_heads": 15)", kInvalid,
                "num_attention_heads: is 15, expected a divisor of hidden_size 576"},
        Refused{"KvHeadsDoNotDivideHeads", R"("num_key_value_heads": 3)", R"("num_key_value_heads": 4)", kInvalid,
                "num_key_value_heads: is 4, expected a divisor of num_attention_heads 9"},
        Refused{"MoreKvHeadsThanHeads", R"("num_key_value_heads": 3)", R"("num_key_value_heads": 18)", kInvalid,
                "num_key_value_heads: is 18"},
        Refused{"OddHeadDim", R"("hidden_size": 576)", R"("hidden_size": 576, "head_dim": 63)", kInvalid,
                "head_dim: is 63, expected an even number"},
        Refused{"OddDerivedHeadDim", R"("hidden_size": 576)", R"("hidden_size": 567)", kInvalid,
                "head_dim: is 63, expected an even number"},
        Refused{"HugeHeads", R"("num_attention_heads": 9,)", R"("num_attention_heads": 4095, "head_dim": 4096,)",
                kInvalid, "head_dim: times num_attention_heads is 16773120, expected at most 1048576"},
        Refused{"HugeContext", "8192", "16777217", kInvalid, "max_position_embeddings: is 16777217"},
        Refused{"NoContext", R"("max_position_embeddings": 8192,)", "", kInvalid, "max_position_embeddings: missing"},
        Refused{"NoEpsilon", R"("rms_norm_eps": 1e-05,)", "", kInvalid, "rms_norm_eps: missing"},
        Refused{"NegativeEpsilon", "1e-05", "-1e-05", kInvalid, "rms_norm_eps: is -1e-05"}),
    [](const testing::TestParamInfo<Refused>& tested) { return std::string(tested.param.name); });

TEST(Config, ReadsTheFileOfAFolder) {
  const test_support::TemporaryFolder folder("config");
  const auto missing = read_config(folder.path());
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("config.json: cannot be opened"));

  std::ofstream(folder.path() / "config.json") << config_text();
  // Stop tokens have one reader, in the text room.
  std::ofstream(folder.path() / "generation_config.json") << "nonsense";
  const auto config = read_config(folder.path());
  ASSERT_TRUE(config.has_value()) << config.error().to_string();
  EXPECT_EQ(config->vocab_size, 49152);

  std::filesystem::resize_file(folder.path() / "config.json", 1ull << 40);  // Sparse: refused unread.
  EXPECT_EQ(read_config(folder.path()).error().code(), StatusCode::kOutOfRange);
}

TEST(Config, TheTinyCheckpointsHaveOne) { EXPECT_TRUE(refusal(test_support::tiny_llama_config({})).ok()); }

}  // namespace
}  // namespace tessera::models
