// The tiny checkpoints, made here, are those that Python made: the same bytes, in tensors that the readers accept.
#include "tests/support/recipe_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "tessera/weights/checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace tessera::weights {
namespace {

using test_support::RecipeTensor;
using test_support::TemporaryFolder;

TEST(RecipeCheckpoint, HasTheFingerprintThatPythonWrote) {
  const std::vector<std::string> names = test_support::tiny_checkpoint_names();
  EXPECT_GE(names.size(), 15u);
  for (const std::string& name : names) {
    const auto tensors = test_support::read_recipe(name);
    ASSERT_TRUE(tensors.has_value()) << tensors.error().to_string();
    std::ifstream file(test_support::tiny_goldens_dir() / name / "fingerprint.txt");
    std::string fingerprint;
    ASSERT_TRUE(file >> fingerprint) << name;
    EXPECT_EQ(test_support::recipe_fingerprint(name, *tensors), fingerprint) << name;
  }
}

TEST(RecipeCheckpoint, LiesOnDiskAsItsRecipeSays) {
  for (const std::string name : {"kimi_k26_int4", "glm4_moe_f8_channel", "llama"}) {
    TemporaryFolder folder("recipe");
    const base::Status written = test_support::write_recipe_checkpoint(name, folder.path());
    ASSERT_TRUE(written.ok()) << written.to_string();
    const auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
    const auto tensors = test_support::read_recipe(name);
    ASSERT_TRUE(tensors.has_value());
    EXPECT_EQ(checkpoint->tensors().size(), tensors->size());
    EXPECT_EQ(checkpoint->file_count(), name == "llama" ? 1 : 2);
    for (const RecipeTensor& tensor : *tensors) {
      const Tensor* found = checkpoint->find(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(found->dtype, tensor.dtype);
      EXPECT_TRUE(std::ranges::equal(found->shape, tensor.shape)) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(found->data, test_support::recipe_data(name, tensor))) << tensor.name;
    }
  }
}

TEST(RecipeCheckpoint, RangesTurnLastFirst) {
  const auto tensors = test_support::parse_recipe("# none\nshard\na.{0..1}.b{8..10} I64 2 values 1 -2 # two\n");
  ASSERT_TRUE(tensors.has_value());
  std::vector<std::string> names;
  for (const RecipeTensor& tensor : *tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, testing::ElementsAre("a.0.b8", "a.0.b9", "a.0.b10", "a.1.b8", "a.1.b9", "a.1.b10"));
  EXPECT_EQ((*tensors)[0].shard, 1);
  EXPECT_THAT((*tensors)[0].arguments, testing::ElementsAre(1, -2));
}

}  // namespace
}  // namespace tessera::weights
