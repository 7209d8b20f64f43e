// Quantized weights as they are taken from tiny checkpoints mean, to the bit, what compressed-tensors (INT4 groups, FP8
// channels) and transformers (FP8 blocks) make of them: tests/goldens/README.md, "tiny".
#include "tests/support/dequantize.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tessera/weights/mapped_file.h"
#include "tessera/weights/stored_weight.h"
#include "tests/support/recipe_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace tessera::weights {
namespace {

namespace json = boost::json;
using test_support::RecipeTensor;

std::string sha256(std::span<const std::byte> bytes) {
  std::array<unsigned char, 32> sha{};
  EXPECT_EQ(EVP_Digest(bytes.data(), bytes.size(), sha.data(), nullptr, EVP_sha256(), nullptr), 1);
  std::string hex;
  for (const unsigned char byte : sha) {
    for (const int digit : {byte >> 4, byte & 15}) hex += "0123456789abcdef"[digit];
  }
  return hex;
}

json::value read_json(const std::filesystem::path& path) {
  const auto text = read_text_file(path, 1 << 24);
  EXPECT_TRUE(text.has_value()) << path;
  return json::parse(text.value_or("null"));
}

// The weights' shapes, which for packed ones no tensor but the shape tensor tells.
std::map<std::string, std::vector<std::int64_t>, std::less<>> weight_shapes(const std::vector<RecipeTensor>& recipe) {
  std::map<std::string, std::vector<std::int64_t>, std::less<>> shapes;
  for (const RecipeTensor& tensor : recipe) {
    if (tensor.name.ends_with(".weight")) shapes[tensor.name] = tensor.shape;
    if (tensor.name.ends_with(".weight_shape")) {
      shapes[tensor.name.substr(0, tensor.name.size() - std::string("_shape").size())] = tensor.arguments;
    }
  }
  return shapes;
}

class Dequantize : public testing::TestWithParam<std::string> {};

TEST_P(Dequantize, EqualsTheLibrariesToTheBit) {
  const std::filesystem::path goldens = test_support::tiny_goldens_dir() / GetParam();
  const test_support::TemporaryFolder folder("dequantize");
  const base::Status written = test_support::write_recipe_checkpoint(GetParam(), folder.path());
  ASSERT_TRUE(written.ok()) << written.to_string();
  auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
  const auto recipe = test_support::read_recipe(GetParam());
  ASSERT_TRUE(recipe.has_value());
  const auto shapes = weight_shapes(*recipe);

  const json::value config = read_json(goldens / "config.json");
  const json::object& root = config.as_object();
  const json::object& text = root.contains("text_config") ? root.at("text_config").as_object() : root;
  const auto quantization = QuantizationConfig::parse(json::serialize(text.at("quantization_config")), "config.json");
  ASSERT_TRUE(quantization.has_value()) << quantization.error().to_string();

  const json::value golden = read_json(goldens / "goldens.json");
  PatternBudget budget;
  std::size_t quantized = 0;
  for (const json::value& entry : golden.at("dequantized").as_array()) {
    const std::string name = entry.at("name").as_string().c_str();
    SCOPED_TRACE(name);
    const auto shape = shapes.find(name);
    ASSERT_NE(shape, shapes.end());
    const auto expected = quantization->expected(name, ops::WeightUsage::kLinear, budget);
    ASSERT_TRUE(expected.has_value());
    ASSERT_EQ(stored_format_text(*expected), std::string(entry.at("format").as_string().c_str()));
    const auto weight = take_weight(*checkpoint, name, shape->second, *expected);
    ASSERT_TRUE(weight.has_value()) << weight.error().to_string();
    const std::vector<float> values = test_support::dequantize(weight->source(ops::WeightUsage::kLinear));
    EXPECT_EQ(sha256(std::as_bytes(std::span(values))), entry.at("f32").as_string());
    if (const json::value* rounded = entry.as_object().if_contains("bf16"); rounded != nullptr) {
      std::vector<base::BF16> halves;
      for (const float value : values) halves.push_back(base::to_bf16(value));
      EXPECT_EQ(sha256(std::as_bytes(std::span(halves))), rounded->as_string());
    }
    ++quantized;
  }
  // Whatever the libraries did not call quantized is taken as plain, and nothing is left.
  std::size_t expected_quantized = 0;
  for (const auto& [name, shape] : shapes) {
    if (shape.size() != 2 || name.ends_with(".mlp.gate.weight") || name.ends_with("embed_tokens.weight")) continue;
    const auto expected = quantization->expected(name, ops::WeightUsage::kLinear, budget);
    ASSERT_TRUE(expected.has_value());
    const bool vision = name.starts_with("vision_tower.") || name.starts_with("mm_projector.");
    if (expected->kind == StoredKind::kPlain || vision) continue;
    ++expected_quantized;
  }
  EXPECT_EQ(quantized, expected_quantized);
  EXPECT_GT(quantized, 10u);
}

INSTANTIATE_TEST_SUITE_P(Formats, Dequantize,
                         testing::Values("kimi_k2_f8_block", "kimi_k26_int4", "glm4_moe_f8_channel",
                                         "glm_moe_dsa_f8_block"),
                         [](const testing::TestParamInfo<std::string>& tested) { return tested.param; });

// A known word of compressed-tensors.
TEST(PackedWord, IsTheKnownOne) {
  const std::uint32_t word = 0x7a3245e2;
  const base::BF16 scale = base::to_bf16(0.5f);
  ops::WeightSource source;
  source.format = ops::WeightFormat::kInt4Group;
  source.rows = 1;
  source.cols = 8;
  source.group_size = 8;
  source.data = &word;
  source.scales = &scale;
  EXPECT_EQ(test_support::dequantize(source), (std::vector<float>{-3, 3, -1.5f, -2, -3, -2.5f, 1, -0.5f}));
}

}  // namespace
}  // namespace tessera::weights
