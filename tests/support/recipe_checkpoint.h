// The tiny checkpoints of tests/goldens/tiny, made from their recipes to the byte as tools/tiny_checkpoints/recipe.py
// makes them (the format of recipes is described there). Tests need no Python for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/status.h"

namespace tessera::test_support {

// One tensor of a recipe, its name's ranges resolved.
struct RecipeTensor {
  std::string name;
  base::DType dtype = base::DType::kF32;
  std::vector<std::int64_t> shape;
  std::string fill;  // "normal", "uniform", "codes" or "values".
  std::vector<std::int64_t> arguments;
  std::int64_t shard = 0;  // From 1; 0 in a recipe without shards.
};

// The folder with recipes and goldens of all tiny checkpoints.
std::filesystem::path tiny_goldens_dir();
// The names of all of them, sorted.
std::vector<std::string> tiny_checkpoint_names();

base::Result<std::vector<RecipeTensor>> parse_recipe(std::string_view text);
// The recipe of the tiny checkpoint `name`.
base::Result<std::vector<RecipeTensor>> read_recipe(std::string_view name);
// The tensor's bytes as they lie in the file.
std::vector<std::byte> recipe_data(std::string_view checkpoint, const RecipeTensor& tensor);
// Hexadecimal SHA-256 over all tensors; equals the fingerprint.txt that Python wrote beside the recipe.
std::string recipe_fingerprint(std::string_view checkpoint, std::vector<RecipeTensor> tensors);

// Writes the model folder of the tiny checkpoint `name` into `dir`, which exists: configuration, tokenizer, weights.
base::Status write_recipe_checkpoint(std::string_view name, const std::filesystem::path& dir);

}  // namespace tessera::test_support
