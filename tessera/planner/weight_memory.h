// What weights weigh: of the checkpoint, and on one rank, by part, under a stated recipe. Bytes are exact for the
// tensors and their scales; file headers and the padding of allocations are not counted.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/planner/model_facts.h"

namespace tessera::planner {

// Which tensors are held in which format. Embedding, head, router, norms and biases are BF16 in every recipe but
// kAsStored, and so is a product of fewer than 128 outputs (an indexer's weights_proj).
enum class WeightRecipe : std::uint8_t {
  kAsStored,    // As quantization_config says.
  kBf16,        // Everything BF16.
  kFp8,         // Products FP8 e4m3 with an F32 scale for each 128x128 block.
  kFp8Channel,  // Products FP8 e4m3 with an F32 scale for each output.
  kInt4,        // Routed experts INT4 in groups of 32 with BF16 scales, the rest BF16.
  kInt4Fp8,     // Routed experts INT4 as kInt4, the other products as kFp8.
};

inline constexpr WeightRecipe kWeightRecipes[] = {WeightRecipe::kAsStored, WeightRecipe::kBf16,
                                                  WeightRecipe::kFp8,      WeightRecipe::kFp8Channel,
                                                  WeightRecipe::kInt4,     WeightRecipe::kInt4Fp8};

// "as-stored", "bf16", "fp8", "fp8-channel", "int4", "int4-fp8".
std::string_view weight_recipe_name(WeightRecipe recipe);
base::Result<WeightRecipe> find_weight_recipe(std::string_view name);

// How kv_b_proj is held by a rank that decodes. Absorbed products take it apart by head, which cuts its scale blocks
// where a head's rows are no multiple of 128; engines therefore hold it in BF16.
enum class UpProjection : std::uint8_t { kBf16, kAsRecipe };

// A tensor's format under a recipe.
weights::StoredFormat recipe_format(WeightRecipe recipe, const TensorGroup& group);

// Data and scales of one tensor [rows, cols].
std::int64_t stored_bytes(const weights::StoredFormat& format, std::int64_t plain_element_bytes, std::int64_t rows,
                          std::int64_t cols);

struct PartBytes {
  models::WeightPart part = models::WeightPart::kNorms;
  std::int64_t parameters = 0;        // Of the whole model.
  std::int64_t bytes = 0;             // One copy of the whole model.
  std::int64_t rank_bytes = 0;        // On each rank.
  std::int64_t replicated_bytes = 0;  // Of rank_bytes: tensors that other ranks hold as well.
};

struct WeightMemory {
  WeightRecipe recipe = WeightRecipe::kAsStored;
  std::int32_t tp = 1;
  std::vector<PartBytes> parts;  // In the order of models::WeightPart; those that the model has.
  std::int64_t bytes = 0;
  std::int64_t rank_bytes = 0;
  std::int64_t replicated_bytes = 0;
  const PartBytes* find(models::WeightPart part) const;
};

// What one rank of `tp` holds of one tensor of the group.
struct RankTensor {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  bool replicated = false;
};

// invalid_argument naming the tensor where the tensor, a head, an expert, a scale block or a group would be cut.
base::Result<RankTensor> rank_tensor(const TensorGroup& group, const weights::StoredFormat& format, std::int32_t tp);

// Fails as rank_tensor does.
base::Result<WeightMemory> weight_memory(const ModelFacts& facts, WeightRecipe recipe, UpProjection up,
                                         std::int32_t tp);

struct CheckpointSize {
  WeightRecipe recipe = WeightRecipe::kAsStored;
  std::int64_t expert_bytes = 0;       // Routed experts.
  std::int64_t other_bytes = 0;        // All else that is computed with.
  std::int64_t speculation_bytes = 0;  // MTP layers, under the same recipe.
  std::int64_t bytes() const { return expert_bytes + other_bytes + speculation_bytes; }
};

CheckpointSize checkpoint_size(const ModelFacts& facts, WeightRecipe recipe);

}  // namespace tessera::planner
