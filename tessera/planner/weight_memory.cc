#include "tessera/planner/weight_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/weights/safetensors.h"
#include "tessera/weights/stored_shard.h"

namespace tessera::planner {

namespace {

using models::WeightPart;
using weights::StoredFormat;
using weights::StoredKind;

constexpr std::int64_t kScaleBlock = 128;
constexpr std::int32_t kInt4GroupSize = 32;
constexpr std::int64_t kF32Bytes = 4;
constexpr std::int64_t kBf16Bytes = 2;

bool is_body_product(const TensorGroup& group) {
  return group.usage == ops::WeightUsage::kLinear && group.role != TensorRole::kKeptPlain &&
         group.part != WeightPart::kHead && group.part != WeightPart::kEmbedding && group.rows >= kScaleBlock;
}

// What is not quantized is stored as the file has it under kAsStored, and as BF16 under any other recipe.
std::int64_t plain_bytes(const ModelFacts& facts, WeightRecipe recipe) {
  return recipe == WeightRecipe::kAsStored ? facts.plain_element_bytes : kBf16Bytes;
}

}  // namespace

std::string_view weight_recipe_name(WeightRecipe recipe) {
  switch (recipe) {
    case WeightRecipe::kAsStored:
      return "as-stored";
    case WeightRecipe::kBf16:
      return "bf16";
    case WeightRecipe::kFp8:
      return "fp8";
    case WeightRecipe::kFp8Channel:
      return "fp8-channel";
    case WeightRecipe::kInt4:
      return "int4";
    case WeightRecipe::kInt4Fp8:
      return "int4-fp8";
  }
  return "?";
}

base::Result<WeightRecipe> find_weight_recipe(std::string_view name) {
  std::string known;
  for (const WeightRecipe recipe : kWeightRecipes) {
    if (weight_recipe_name(recipe) == name) return recipe;
    known += known.empty() ? "" : ", ";
    known += weight_recipe_name(recipe);
  }
  return base::failure(base::invalid_argument(
      fmt::format("weights {} are unknown, expected one of {}", weights::quote_name(name), known)));
}

StoredFormat recipe_format(WeightRecipe recipe, const TensorGroup& group) {
  const StoredFormat plain{};
  const StoredFormat int4{StoredKind::kInt4Group, kInt4GroupSize};
  const bool routed = group.part == WeightPart::kRoutedExperts;
  switch (recipe) {
    case WeightRecipe::kAsStored:
      return group.stored;
    case WeightRecipe::kBf16:
      return plain;
    case WeightRecipe::kFp8:
      return is_body_product(group) ? StoredFormat{StoredKind::kF8Block128, 0} : plain;
    case WeightRecipe::kFp8Channel:
      return is_body_product(group) ? StoredFormat{StoredKind::kF8Channel, 0} : plain;
    case WeightRecipe::kInt4:
      return routed ? int4 : plain;
    case WeightRecipe::kInt4Fp8:
      return routed ? int4 : recipe_format(WeightRecipe::kFp8, group);
  }
  return plain;
}

std::int64_t stored_bytes(const StoredFormat& format, std::int64_t plain_element_bytes, std::int64_t rows,
                          std::int64_t cols) {
  switch (format.kind) {
    case StoredKind::kPlain:
      return rows * cols * plain_element_bytes;
    case StoredKind::kF8Block128:
      return rows * cols + base::ceil_div(rows, kScaleBlock) * base::ceil_div(cols, kScaleBlock) * kF32Bytes;
    case StoredKind::kF8Channel:
      return rows * cols + rows * kF32Bytes;
    case StoredKind::kInt4Group:
      return rows * base::ceil_div(cols, 2) + rows * base::ceil_div(cols, format.group_size) * kBf16Bytes;
  }
  return 0;
}

const PartBytes* WeightMemory::find(WeightPart part) const {
  const auto found = std::ranges::find(parts, part, &PartBytes::part);
  return found == parts.end() ? nullptr : &*found;
}

base::Result<RankTensor> rank_tensor(const TensorGroup& group, const StoredFormat& format, std::int32_t tp) {
  TESSERA_CHECK(tp >= 1);
  if (group.shard.dimension == weights::ShardDimension::kNone || tp == 1) {
    return RankTensor{group.rows, group.cols, tp > 1};
  }
  const weights::ShardSpec shard = weights::stored_shard_spec(group.shard, format);
  std::int32_t world = tp;
  if (group.role == TensorRole::kKvHeads) {
    // A vector [1, n] of biases is divided over its columns.
    const std::int64_t extent = shard.dimension == weights::ShardDimension::kRows ? group.rows : group.cols;
    const std::int64_t heads = extent / group.shard.unit;
    if (heads >= 1 && heads < tp && tp % heads == 0) world = static_cast<std::int32_t>(heads);
  }
  TESSERA_ASSIGN_OR_RETURN(const weights::TensorSlice slice,
                           weights::slice_for_rank(group.example, group.rows, group.cols, shard, {0, world}));
  return RankTensor{slice.rows(), slice.cols(), world < tp};
}

base::Result<WeightMemory> weight_memory(const ModelFacts& facts, WeightRecipe recipe, UpProjection up,
                                         std::int32_t tp) {
  const std::int64_t plain = plain_bytes(facts, recipe);
  std::map<WeightPart, PartBytes> parts;
  for (const TensorGroup& group : facts.tensors) {
    if (group.role == TensorRole::kTiedHead) continue;
    const bool widened = group.role == TensorRole::kUpProjection && up == UpProjection::kBf16;
    const StoredFormat format = widened ? StoredFormat{} : recipe_format(recipe, group);
    TESSERA_ASSIGN_OR_RETURN(const RankTensor rank, rank_tensor(group, format, tp));
    PartBytes& part = parts[group.part];
    part.part = group.part;
    part.parameters += group.parameters();
    part.bytes += stored_bytes(format, plain, group.rows, group.cols) * group.count;
    const std::int64_t rank_bytes = stored_bytes(format, plain, rank.rows, rank.cols) * group.count;
    part.rank_bytes += rank_bytes;
    if (rank.replicated) part.replicated_bytes += rank_bytes;
  }
  WeightMemory memory;
  memory.recipe = recipe;
  memory.tp = tp;
  for (const auto& [name, part] : parts) {
    memory.parts.push_back(part);
    memory.bytes += part.bytes;
    memory.rank_bytes += part.rank_bytes;
    memory.replicated_bytes += part.replicated_bytes;
  }
  return memory;
}

CheckpointSize checkpoint_size(const ModelFacts& facts, WeightRecipe recipe) {
  CheckpointSize size;
  size.recipe = recipe;
  const std::int64_t plain = plain_bytes(facts, recipe);
  const auto group_bytes = [&](const TensorGroup& group) {
    return stored_bytes(recipe_format(recipe, group), plain, group.rows, group.cols) * group.count;
  };
  for (const TensorGroup& group : facts.tensors) {
    if (group.role == TensorRole::kTiedHead) continue;
    (group.part == WeightPart::kRoutedExperts ? size.expert_bytes : size.other_bytes) += group_bytes(group);
  }
  for (const TensorGroup& group : facts.skipped) size.speculation_bytes += group_bytes(group);
  return size;
}

}  // namespace tessera::planner
