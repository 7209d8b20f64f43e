// The reference backend, given quantized weights where they lie in a checkpoint, computes with exactly the numbers that
// compressed-tensors and transformers make of them. (dequantize_test of the weights room holds the plain dequantizer,
// which is the judge here, against the hashes that those libraries left.)
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/ops/backend.h"
#include "tessera/weights/mapped_file.h"
#include "tessera/weights/stored_weight.h"
#include "tests/support/dequantize.h"
#include "tests/support/recipe_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace json = boost::json;

json::value read_json(const std::filesystem::path& path) {
  const auto text = weights::read_text_file(path, 1 << 24);
  EXPECT_TRUE(text.has_value()) << path;
  return json::parse(text.value_or("null"));
}

// W I^T: row k of the result is column k of the weight.
std::vector<float> columns(ops::Backend& backend, const ops::WeightSource& source) {
  auto weight = backend.prepare_weight(source);
  EXPECT_TRUE(weight.has_value()) << weight.error().to_string();
  const std::size_t k = static_cast<std::size_t>(source.cols);
  std::vector<float> identity(k * k, 0.0f);
  for (std::size_t i = 0; i < k; ++i) identity[i * k + i] = 1.0f;
  std::vector<float> out(k * static_cast<std::size_t>(source.rows));
  const auto stream = backend.make_stream();
  ops::LinearParams params;
  params.in = {identity.data(), base::DType::kF32, source.cols, source.cols, source.cols};
  params.weight = &*weight;
  params.out = {out.data(), base::DType::kF32, source.cols, source.rows, source.rows};
  backend.linear(*stream, params);
  stream->synchronize();
  return out;
}

class QuantizedProducts : public testing::TestWithParam<std::string> {};

TEST_P(QuantizedProducts, OfOneHotRowsAreTheDequantizedWeights) {
  const test_support::TemporaryFolder folder("quantized_products");
  const base::Status written = test_support::write_recipe_checkpoint(GetParam(), folder.path());
  ASSERT_TRUE(written.ok()) << written.to_string();
  auto checkpoint = weights::Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
  const json::value config = read_json(folder.path() / "config.json");
  const json::object& root = config.as_object();
  const json::object& text = root.contains("text_config") ? root.at("text_config").as_object() : root;
  const auto quantization =
      weights::QuantizationConfig::parse(json::serialize(text.at("quantization_config")), "config.json");
  ASSERT_TRUE(quantization.has_value()) << quantization.error().to_string();

  const auto recipe = test_support::read_recipe(GetParam());
  ASSERT_TRUE(recipe.has_value());
  std::map<std::vector<std::int64_t>, int> seen;  // One weight of each shape is enough.
  const auto backend = backends::cpu::make_reference_backend();
  weights::PatternBudget budget;
  for (const test_support::RecipeTensor& tensor : *recipe) {
    const bool packed = tensor.name.ends_with(".weight_shape");
    if (!packed && (!tensor.name.ends_with(".weight") || tensor.dtype != base::DType::kF8E4M3)) continue;
    const std::vector<std::int64_t>& shape = packed ? tensor.arguments : tensor.shape;
    if (seen[shape]++ > 0) continue;
    const std::string name = packed ? tensor.name.substr(0, tensor.name.size() - 6) : tensor.name;
    SCOPED_TRACE(name);
    const auto expected = quantization->expected(name, ops::WeightUsage::kLinear, budget);
    ASSERT_TRUE(expected.has_value());
    const auto stored = weights::take_weight(*checkpoint, name, shape, *expected);
    ASSERT_TRUE(stored.has_value()) << stored.error().to_string();
    const ops::WeightSource source = stored->source(ops::WeightUsage::kLinear);
    const std::vector<float> dequantized = test_support::dequantize(source);
    const std::vector<float> computed = columns(*backend, source);
    std::int64_t different = 0;
    for (std::int64_t n = 0; n < source.rows; ++n) {
      for (std::int64_t k = 0; k < source.cols; ++k) {
        const float value = computed[static_cast<std::size_t>(k * source.rows + n)];
        different += value == dequantized[static_cast<std::size_t>(n * source.cols + k)] ? 0 : 1;
      }
    }
    EXPECT_EQ(different, 0);
  }
  EXPECT_GE(seen.size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedProducts,
                         testing::Values("kimi_k2_f8_block", "kimi_k26_int4", "glm4_moe_f8_channel",
                                         "glm_moe_dsa_f8_block"),
                         [](const testing::TestParamInfo<std::string>& tested) { return tested.param; });

}  // namespace
}  // namespace tessera
