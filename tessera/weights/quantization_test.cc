#include "tessera/weights/quantization.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/limits.h"
#include "tessera/weights/module_pattern.h"

namespace tessera::weights {
namespace {

using base::StatusCode;
using ops::WeightUsage;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr StoredFormat kPlain{};
constexpr StoredFormat kF8Block{StoredKind::kF8Block128, 0};
constexpr StoredFormat kF8Channel{StoredKind::kF8Channel, 0};
constexpr StoredFormat kInt4{StoredKind::kInt4Group, 32};

const std::string kFp8 =
    R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128]})";
const std::string kPacked =
    R"({"quant_method":"compressed-tensors","format":"pack-quantized","quantization_status":"compressed",)"
    R"("kv_cache_scheme":null,"config_groups":{"group_0":{"targets":["Linear"],"input_activations":null,)"
    R"("output_activations":null,"weights":{"num_bits":4,"type":"int","symmetric":true,"strategy":"group",)"
    R"("group_size":32,"dynamic":false,"actorder":null}}},"ignore":["lm_head","re:.*self_attn.*",)"
    R"("re:.*shared_experts.*","re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]})";
const std::string kChannel =
    R"({"quant_method":"compressed-tensors","format":"float-quantized","quantization_status":"compressed",)"
    R"("config_groups":{"group_0":{"targets":["Linear"],"input_activations":{"num_bits":8,"type":"float",)"
    R"("symmetric":true,"strategy":"token","dynamic":true,"observer":null},"output_activations":null,)"
    R"("weights":{"num_bits":8,"type":"float","symmetric":true,"strategy":"channel","group_size":null,)"
    R"("block_structure":null,"dynamic":false,"actorder":null,"observer":"minmax"}}},)"
    R"("ignore":["lm_head","model.layers.1.mlp.gate"],"global_compression_ratio":null})";

QuantizationConfig parsed(const std::string& json) {
  auto config = QuantizationConfig::parse(json, "config.json");
  EXPECT_TRUE(config.has_value()) << config.error().to_string();
  return config.has_value() ? *config : QuantizationConfig();
}

StoredFormat expected(const QuantizationConfig& config, const std::string& name,
                      WeightUsage usage = WeightUsage::kLinear) {
  PatternBudget budget;
  const auto format = config.expected(name, usage, budget);
  EXPECT_TRUE(format.has_value()) << format.error().to_string();
  return format.value_or(kPlain);
}

void expect_refused(const std::string& json, StatusCode code, const std::string& message) {
  const auto config = QuantizationConfig::parse(json, "config.json");
  ASSERT_FALSE(config.has_value()) << json;
  EXPECT_EQ(config.error().code(), code) << config.error().to_string();
  EXPECT_THAT(config.error().message(), HasSubstr(message)) << json;
  EXPECT_THAT(config.error().message(), HasSubstr("config.json: quantization_config"));
}

// `json` with its first `from`, which must be there, replaced.
std::string with(std::string json, const std::string& from, const std::string& to) {
  const std::size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? json : json.replace(at, from.size(), to);
}

TEST(QuantizationConfig, WithoutOneEveryWeightIsPlain) {
  const QuantizationConfig config;
  EXPECT_FALSE(config.quantized());
  EXPECT_EQ(expected(config, "model.layers.0.mlp.up_proj.weight"), kPlain);
  EXPECT_THAT(config.notes(), IsEmpty());
}

TEST(QuantizationConfig, Fp8BlocksOfEveryProduct) {
  const QuantizationConfig config = parsed(kFp8);
  EXPECT_TRUE(config.quantized());
  EXPECT_EQ(config.format(), kF8Block);
  EXPECT_EQ(expected(config, "model.layers.0.self_attn.kv_b_proj.weight"), kF8Block);
  EXPECT_EQ(expected(config, "model.layers.3.mlp.experts.17.down_proj.weight"), kF8Block);
  EXPECT_EQ(expected(config, "model.layers.3.self_attn.indexer.wq_b.weight"), kF8Block);
  // Plain although no list says so.
  EXPECT_EQ(expected(config, "lm_head.weight"), kPlain);
  EXPECT_EQ(expected(config, "language_model.lm_head.weight"), kPlain);
  EXPECT_EQ(expected(config, "model.layers.3.self_attn.indexer.weights_proj.weight"), kPlain);
  // Plain whatever the lists say.
  EXPECT_EQ(expected(config, "model.embed_tokens.weight", WeightUsage::kEmbedding), kPlain);
  EXPECT_EQ(expected(config, "model.layers.3.mlp.gate.weight", WeightUsage::kRouter), kPlain);
  EXPECT_EQ(expected(config, "model.norm.weight", WeightUsage::kVector), kPlain);
  EXPECT_EQ(expected(config, "model.layers.0.self_attn.q_proj.bias", WeightUsage::kVector), kPlain);
  EXPECT_THAT(config.notes(), ElementsAre(HasSubstr("activations are not quantized")));
}

TEST(QuantizationConfig, Fp8ModulesNotConverted) {
  const QuantizationConfig config = parsed(with(
      kFp8, "[128,128]", R"([128,128],"modules_to_not_convert":["model.layers.1","mlp.shared_experts","o_proj"])"));
  EXPECT_EQ(expected(config, "model.layers.1.mlp.up_proj.weight"), kPlain);
  EXPECT_EQ(expected(config, "model.layers.11.mlp.up_proj.weight"), kF8Block);
  EXPECT_EQ(expected(config, "model.layers.2.self_attn.o_proj.weight"), kPlain);
  EXPECT_EQ(expected(config, "model.layers.2.self_attn.no_proj.weight"), kF8Block);
  EXPECT_EQ(expected(config, "language_model.model.layers.1.mlp.up_proj.weight"), kPlain);
  // A name ends or begins the module's; in its middle it says nothing.
  EXPECT_EQ(expected(config, "model.layers.2.mlp.shared_experts.up_proj.weight"), kF8Block);
  EXPECT_EQ(expected(config, "model.layers.2.mlp.shared_experts.weight"), kPlain);
}

TEST(QuantizationConfig, Fp8ScaleFormatsThatAreStoredAlike) {
  for (const char* format : {"ue8m0", "float"}) {
    EXPECT_EQ(parsed(with(kFp8, R"("fmt")", R"("scale_fmt":")" + std::string(format) + R"(","fmt")")).format(),
              kF8Block);
  }
  EXPECT_EQ(parsed(R"({"quant_method":"fp8","weight_block_size":[128,128]})").format(), kF8Block);
}

TEST(QuantizationConfig, Fp8Refusals) {
  using enum StatusCode;
  expect_refused(with(kFp8, "e4m3", "e5m2"), kUnimplemented,
                 "quantization_config.fmt is '\"e5m2\"', expected \"e4m3\"");
  expect_refused(with(kFp8, "dynamic", "static"), kUnimplemented, "activation_scheme is '\"static\"'");
  expect_refused(with(kFp8, "[128,128]", "[64,128]"), kUnimplemented,
                 "weight_block_size is '[64,128]', expected [128,128]");
  expect_refused(with(kFp8, "[128,128]", "128"), kInvalidArgument, "weight_block_size is '128', expected [128,128]");
  expect_refused(with(kFp8, ",\"weight_block_size\":[128,128]", ""), kInvalidArgument, "weight_block_size is missing");
  expect_refused(with(kFp8, "\"fmt\"", R"("scale_fmt":"e5m3","fmt")"), kUnimplemented, "scale_fmt");
  expect_refused(with(kFp8, "\"fmt\"", R"("dequantize":true,"fmt")"), kUnimplemented, "dequantize");
  expect_refused(with(kFp8, "\"fmt\"", R"("weight_per_tensor":true,"fmt")"), kUnimplemented,
                 "unknown field 'weight_per_tensor'");
  for (const char* entry : {R"("re:.*gate")", R"("model.*")", R"("")", R"("a b")"}) {
    expect_refused(with(kFp8, "[128,128]", "[128,128],\"modules_to_not_convert\":[" + std::string(entry) + "]"),
                   kUnimplemented, "expected module names without patterns");
  }
  expect_refused(with(kFp8, "[128,128]", R"([128,128],"modules_to_not_convert":"lm_head")"), kInvalidArgument,
                 "expected a list of strings");
  expect_refused(with(kFp8, "[128,128]", R"([128,128],"modules_to_not_convert":[1])"), kInvalidArgument,
                 "expected a list of strings");
}

TEST(QuantizationConfig, Int4OfWhatIsNotIgnored) {
  const QuantizationConfig config = parsed(kPacked);
  EXPECT_EQ(config.format(), kInt4);
  for (const std::string prefix : {"", "language_model."}) {
    EXPECT_EQ(expected(config, prefix + "model.layers.1.mlp.experts.0.gate_proj.weight"), kInt4);
    EXPECT_EQ(expected(config, prefix + "model.layers.1.mlp.experts.383.down_proj.weight"), kInt4);
    EXPECT_EQ(expected(config, prefix + "model.layers.0.mlp.gate_proj.weight"), kPlain);
    EXPECT_EQ(expected(config, prefix + "model.layers.0.mlp.down_proj.weight"), kPlain);
    EXPECT_EQ(expected(config, prefix + "model.layers.1.mlp.shared_experts.up_proj.weight"), kPlain);
    EXPECT_EQ(expected(config, prefix + "model.layers.1.self_attn.kv_b_proj.weight"), kPlain);
    EXPECT_EQ(expected(config, prefix + "lm_head.weight"), kPlain);
    EXPECT_EQ(expected(config, prefix + "model.layers.1.mlp.gate.weight", WeightUsage::kRouter), kPlain);
  }
  EXPECT_THAT(config.notes(), IsEmpty());
  for (const std::int32_t size : {64, 128}) {
    const QuantizationConfig other =
        parsed(with(kPacked, "\"group_size\":32", "\"group_size\":" + std::to_string(size)));
    EXPECT_EQ(other.format(), (StoredFormat{StoredKind::kInt4Group, size}));
    EXPECT_EQ(stored_format_text(other.format()), "int4_group" + std::to_string(size));
  }
}

TEST(QuantizationConfig, TargetsMayBePatterns) {
  const QuantizationConfig config =
      parsed(with(kPacked, R"(["Linear"])", R"(["re:.*\\.experts\\.\\d+\\..*","odd.one"])"));
  EXPECT_EQ(expected(config, "model.layers.1.mlp.experts.12.gate_proj.weight"), kInt4);
  EXPECT_EQ(expected(config, "model.layers.1.mlp.other.gate_proj.weight"), kPlain);
  EXPECT_EQ(expected(config, "odd.one.weight"), kInt4);
  EXPECT_EQ(expected(config, "odd.one.more.weight"), kPlain);
}

TEST(QuantizationConfig, F8Channels) {
  const QuantizationConfig config = parsed(kChannel);
  EXPECT_EQ(config.format(), kF8Channel);
  EXPECT_EQ(expected(config, "model.layers.0.self_attn.q_proj.weight"), kF8Channel);
  EXPECT_EQ(expected(config, "lm_head.weight"), kPlain);
  EXPECT_EQ(expected(config, "model.layers.1.mlp.gate.weight"), kPlain);
  // An exact entry names one module and nothing inside it.
  EXPECT_EQ(expected(config, "model.layers.1.mlp.gate.inner.weight"), kF8Channel);
  EXPECT_THAT(config.notes(), ElementsAre(HasSubstr("activations are not quantized")));
  EXPECT_EQ(stored_format_text(config.format()), "f8_channel");
}

TEST(QuantizationConfig, AKvCacheSchemeIsSaidNotUsed) {
  const QuantizationConfig config =
      parsed(with(kChannel, "\"ignore\"", R"("kv_cache_scheme":{"num_bits":8,"type":"float"},"ignore")"));
  EXPECT_THAT(config.notes(), testing::Contains(HasSubstr("kv_cache_scheme is not used")));
}

TEST(QuantizationConfig, CompressedTensorsRefusals) {
  using enum StatusCode;
  const std::vector<std::tuple<std::string, std::string, StatusCode, std::string>> of_int4 = {
      {"pack-quantized", "marlin-24", kUnimplemented,
       "quantization_config.format is 'marlin-24', expected pack-quantized"},
      {"\"format\":\"pack-quantized\",", "", kInvalidArgument, "quantization_config.format is missing"},
      {"\"compressed\"", "\"frozen\"", kUnimplemented, "quantization_status is '\"frozen\"'"},
      {"\"num_bits\":4", "\"num_bits\":8", kUnimplemented,
       "quantization_config.config_groups.group_0.weights.num_bits is '8', expected 4"},
      {"\"num_bits\":4", "\"num_bits\":\"4\"", kInvalidArgument, "num_bits is '\"4\"', expected 4"},
      {"\"num_bits\":4,", "", kInvalidArgument, "num_bits is missing"},
      {"\"int\"", "\"float\"", kUnimplemented, "weights.type is '\"float\"', expected \"int\""},
      {"\"symmetric\":true", "\"symmetric\":false", kUnimplemented, "weights.symmetric is 'false'"},
      {"\"strategy\":\"group\"", "\"strategy\":\"channel\"", kUnimplemented, "weights.strategy"},
      {"\"strategy\":\"group\"", "\"strategy\":\"tensor_group\"", kUnimplemented, "weights.strategy"},
      {"\"group_size\":32", "\"group_size\":16", kUnimplemented, "group_size is '16', expected 32, 64 or 128"},
      {"\"group_size\":32", "\"group_size\":-1", kUnimplemented, "group_size is '-1'"},
      {"\"group_size\":32", "\"group_size\":null", kUnimplemented, "group_size is missing"},
      {"\"group_size\":32", "\"group_size\":32.5", kUnimplemented, "group_size"},
      {"\"dynamic\":false", "\"dynamic\":true", kUnimplemented, "weights.dynamic"},
      {"\"actorder\":null", "\"actorder\":\"group\"", kUnimplemented,
       "weights.actorder is set; reordered groups are not"},
      {"\"actorder\":null", "\"perm\":null", kUnimplemented, "unknown field 'perm'"},
      {"\"input_activations\":null", "\"input_activations\":{\"num_bits\":8}", kUnimplemented,
       "input_activations is set"},
      {"\"output_activations\":null", "\"output_activations\":{\"num_bits\":8}", kUnimplemented,
       "output_activations is set"},
      {"\"targets\":[\"Linear\"],", "", kInvalidArgument, "targets is missing or empty"},
      {"\"targets\":[\"Linear\"]", "\"targets\":[]", kInvalidArgument, "targets is missing or empty"},
      {"\"kv_cache_scheme\":null", "\"sparsity_config\":{\"format\":\"dense\"}", kUnimplemented,
       "sparsity_config is set"},
      {"\"kv_cache_scheme\":null", "\"transform_config\":{\"r1\":1}", kUnimplemented, "transform_config is set"},
      {"\"kv_cache_scheme\":null", "\"rotation\":1", kUnimplemented, "unknown field 'rotation'"},
      {"\"config_groups\":{\"group_0\"", "\"config_groups\":{\"group_1\":{},\"group_0\"", kUnimplemented,
       "config_groups has 2 groups, expected one"},
      {"re:.*self_attn.*", "re:(self_attn", kInvalidArgument,
       "quantization_config.ignore: pattern '(self_attn' is malformed"},
      {"re:.*self_attn.*", "re:(?P<n>a)", kUnimplemented, "which is not supported"},
  };
  for (const auto& [from, to, code, message] : of_int4) expect_refused(with(kPacked, from, to), code, message);

  const std::vector<std::tuple<std::string, std::string, StatusCode, std::string>> of_f8 = {
      {"\"strategy\":\"channel\"", "\"strategy\":\"tensor\"", kUnimplemented, "weights.strategy"},
      {"\"strategy\":\"channel\"", "\"strategy\":\"block\"", kUnimplemented, "weights.strategy"},
      {"\"group_size\":null", "\"group_size\":128", kUnimplemented, "group_size is set"},
      {"\"block_structure\":null", "\"block_structure\":[128,128]", kUnimplemented, "block_structure is set"},
      {"\"dynamic\":true", "\"dynamic\":false", kUnimplemented, "input_activations.dynamic is 'false', expected true"},
      {"\"strategy\":\"token\"", "\"strategy\":\"tensor\"", kUnimplemented, "input_activations.strategy"},
  };
  for (const auto& [from, to, code, message] : of_f8) expect_refused(with(kChannel, from, to), code, message);
}

TEST(QuantizationConfig, OtherMethodsAndTexts) {
  using enum StatusCode;
  for (const char* method : {"awq", "gptq", "bitsandbytes", "modelopt", "mxfp4"}) {
    expect_refused(with(kFp8, "\"fp8\"", fmt::format("\"{}\"", method)), kUnimplemented,
                   fmt::format("quant_method is '{}', expected fp8 or compressed-tensors", method));
  }
  expect_refused("{}", kInvalidArgument, "quant_method is missing");
  expect_refused(R"({"quant_method":7})", kInvalidArgument, "quant_method is '7', expected a string");
  expect_refused("[]", kInvalidArgument, "is not an object");
  expect_refused("{", kInvalidArgument, "is malformed");
  expect_refused("", kInvalidArgument, "is malformed");
  expect_refused(std::string(1000, '['), kInvalidArgument, "is malformed");
  expect_refused(std::string(static_cast<std::size_t>(base::limits::kConfigFileBytesMax) + 1, ' '), kOutOfRange,
                 "bytes");
  expect_refused(R"({"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":[]})",
                 kInvalidArgument, "config_groups is '[]', expected an object");
}

TEST(QuantizationConfig, ListsHaveLimits) {
  std::string patterns = "\"re:a\"";
  for (std::int64_t i = 0; i < base::limits::kModulePatternsMax; ++i) patterns += ",\"re:a\"";
  expect_refused(with(kPacked, "[\"lm_head\"", "[" + patterns + ",\"lm_head\""), StatusCode::kOutOfRange,
                 "ignore has more than 64 patterns");
  std::string names = "\"a\"";
  for (std::int64_t i = 0; i < base::limits::kModuleListMax; ++i) names += ",\"a\"";
  expect_refused(with(kPacked, "[\"lm_head\"", "[" + names), StatusCode::kOutOfRange, "ignore has 100004 entries");
}

// The configurations of the large models, as they are published.
TEST(QuantizationConfig, OfTheLargeModels) {
  const auto read = [](const std::string& name) {
    std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/configs/" + name, std::ios::binary);
    EXPECT_TRUE(file) << name;
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    // The object is the file's last in every one of them.
    const std::size_t at = text.find("\"quantization_config\":");
    EXPECT_NE(at, std::string::npos) << name;
    const std::size_t begin = text.find('{', at);
    std::size_t end = begin;
    for (int depth = 0; end < text.size(); ++end) {
      depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
      if (depth == 0) break;
    }
    return text.substr(begin, end - begin + 1);
  };
  EXPECT_EQ(parsed(read("kimi-k2.6.json")).format(), kInt4);
  EXPECT_EQ(parsed(read("glm-5.2.json")).format(), kF8Block);
  EXPECT_EQ(parsed(read("deepseek-v3.json")).format(), kF8Block);
}

// ---- Patterns ----

bool matches(const std::string& pattern, const std::string& name) {
  const auto compiled = ModulePattern::compile(pattern);
  EXPECT_TRUE(compiled.has_value()) << pattern << ": " << compiled.error().to_string();
  if (!compiled.has_value()) return false;
  PatternBudget budget;
  const auto found = compiled->matches(name, budget);
  EXPECT_TRUE(found.has_value()) << found.error().to_string();
  return found.value_or(false);
}

TEST(ModulePattern, MatchesFromTheFirstCharacterOn) {
  EXPECT_TRUE(matches("model", "model.layers"));
  EXPECT_FALSE(matches("layers", "model.layers"));
  EXPECT_TRUE(matches(".*layers", "model.layers"));
  EXPECT_TRUE(matches("", "anything"));
  EXPECT_TRUE(matches(".*mlp.gate$", "model.layers.1.mlp.gate"));
  EXPECT_FALSE(matches(".*mlp.gate$", "model.layers.1.mlp.gate_proj"));
  EXPECT_TRUE(matches("a|b", "bc"));
  EXPECT_TRUE(matches("model\\.layers\\.(0|1[0-9])\\.", "model.layers.15.mlp"));
  EXPECT_FALSE(matches("model\\.layers\\.(0|1[0-9])\\.", "model.layers.5.mlp"));
  EXPECT_TRUE(matches("^(?!.*experts).*", "model.layers.0.mlp"));
  EXPECT_FALSE(matches("^(?!.*experts).*", "model.layers.1.mlp.experts.0"));
  EXPECT_TRUE(matches("[^a]{2,3}?\\d+\\w*", "xx12z"));
}

TEST(ModulePattern, WhatTwoEnginesReadDifferentlyIsRefused) {
  for (const char* pattern :
       {"(?i)a", "(?P<x>a)",    "(?<=a)b", "(?#c)", "(*UCP)a", "\\p{L}", "\\Qa\\E", "\\1",   "\\x41", "\\h",
        "a\\",   "[[:alpha:]]", "[:a]",    "a*+",   "a++",     "a?+",    "a{2}+",   "a{,3}", "a\n",   "\xc3\xa9"}) {
    const auto compiled = ModulePattern::compile(pattern);
    ASSERT_FALSE(compiled.has_value()) << pattern;
    EXPECT_EQ(compiled.error().code(), StatusCode::kUnimplemented) << pattern << compiled.error().to_string();
  }
  for (const char* pattern : {"(", "a)", "[a", "*a", "a{3,2}"}) {
    const auto compiled = ModulePattern::compile(pattern);
    ASSERT_FALSE(compiled.has_value()) << pattern;
    EXPECT_EQ(compiled.error().code(), StatusCode::kInvalidArgument) << pattern;
  }
  const auto compiled = ModulePattern::compile(std::string(513, 'a'));
  ASSERT_FALSE(compiled.has_value());
  EXPECT_EQ(compiled.error().code(), StatusCode::kOutOfRange);
}

// A last character that is one of several: where it is a fixed one, a name without it is answered before any step.
TEST(ModulePattern, AnAnswerTakesABoundedNumberOfSteps) {
  const auto compiled = ModulePattern::compile("(a*)*[bc]");
  ASSERT_TRUE(compiled.has_value());
  PatternBudget budget;
  EXPECT_TRUE(*compiled->matches("aaab", budget));
  const auto found = compiled->matches(std::string(200, 'a'), budget);
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code(), StatusCode::kOutOfRange);
  EXPECT_THAT(found.error().message(), HasSubstr("pattern '(a*)*[bc]' takes too many steps"));

  const QuantizationConfig config = parsed(with(kPacked, "re:.*self_attn.*", "re:(a*)*[bc]"));
  const auto format = config.expected("model." + std::string(200, 'a') + ".weight", WeightUsage::kLinear, budget);
  EXPECT_TRUE(format.has_value());  // The pattern does not get past the "m".
  EXPECT_FALSE(config.expected(std::string(200, 'a') + ".weight", WeightUsage::kLinear, budget).has_value());
}

// No single match is refused, but there are many: what all of them take together is bounded as well.
TEST(ModulePattern, AllAnswersTogetherTakeABoundedNumberOfSteps) {
  const std::string slow = "re:.*.*[!@1]";
  const QuantizationConfig config = parsed(with(kPacked, "re:.*self_attn.*", slow));
  PatternBudget budget;
  std::int64_t answered = 0;
  auto format = config.expected("model.layers.0.experts.0.up_proj.weight", WeightUsage::kLinear, budget);
  while (format.has_value() && answered < 1'000'000) {
    ++answered;
    // Names that no pattern takes for the same: all of their digits are 1 or not.
    std::string name = "model.layers.";
    for (int bit = 0; bit < 20; ++bit) name += ((answered >> bit) & 1) != 0 ? 'b' : 'a';
    format = config.expected(name + ".weight", WeightUsage::kLinear, budget);
  }
  ASSERT_FALSE(format.has_value());
  EXPECT_EQ(format.error().code(), StatusCode::kOutOfRange);
  EXPECT_THAT(format.error().message(), HasSubstr("the patterns take more than 30000000 steps together"));
  EXPECT_GT(answered, 1'000);
}

// What a pattern says of one number it says of every other that it does not name.
TEST(ModulePattern, NamesThatDifferInNumbersThatNoPatternNames) {
  const auto digits = [](const std::string& pattern) { return ModulePattern::compile(pattern)->digits_told_apart(); };
  EXPECT_EQ(digits(".*self_attn.*"), 0u);
  EXPECT_EQ(digits(R"(.*\.[0-9]+\.\d)"), 0u);
  EXPECT_EQ(digits("layers.(0|13)"), 0b1011u);
  EXPECT_EQ(digits("layers.[3-7]"), 0x3ffu);
  EXPECT_EQ(digits("layers.[!-5]"), 0x3ffu);
  EXPECT_EQ(digits("a{2}"), 0b100u);
  EXPECT_EQ(alike_name("layers.10.experts.237", 0), "layers.00.experts.000");
  EXPECT_EQ(alike_name("layers.10.experts.237", 0b1011), "layers.10.experts.232");
  EXPECT_EQ(alike_name("layers.10.experts.237", 0x3ff), "layers.10.experts.237");

  const QuantizationConfig config = parsed(with(kPacked, "re:.*self_attn.*", "re:.*layers.(0|13).*"));
  PatternBudget budget;
  for (int layer = 0; layer < 64; ++layer) {
    const auto format = config.expected("model.layers." + std::to_string(layer) + ".experts.5.up_proj.weight",
                                        WeightUsage::kLinear, budget);
    ASSERT_TRUE(format.has_value());
    const bool plain = layer == 0 || layer == 13;
    EXPECT_EQ(*format, plain ? kPlain : kInt4) << layer;
  }
}

}  // namespace
}  // namespace tessera::weights
