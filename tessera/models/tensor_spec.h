// What a family says about itself: its tensors and its KV, once. Loading takes the tensors by these names and shapes,
// sharding cuts them as they say, planning adds them up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/ops/kv_layout.h"
#include "tessera/ops/mla.h"
#include "tessera/ops/weight.h"
#include "tessera/weights/shard.h"

namespace tessera::models {

// What part of a model a tensor belongs to, for plans and reports.
enum class WeightPart : std::uint8_t {
  kEmbedding,
  kHead,
  kNorms,
  kAttention,  // Its biases and inner norms too.
  kIndexer,
  kRouter,  // The correction bias too.
  kRoutedExperts,
  kSharedExperts,
  kDenseMlp,
};

// "embedding", "routed experts", ...
constexpr std::string_view weight_part_name(WeightPart part) {
  switch (part) {
    case WeightPart::kEmbedding:
      return "embedding";
    case WeightPart::kHead:
      return "head";
    case WeightPart::kNorms:
      return "norms";
    case WeightPart::kAttention:
      return "attention";
    case WeightPart::kIndexer:
      return "indexer";
    case WeightPart::kRouter:
      return "router";
    case WeightPart::kRoutedExperts:
      return "routed experts";
    case WeightPart::kSharedExperts:
      return "shared experts";
    case WeightPart::kDenseMlp:
      return "dense mlp";
  }
  return "?";
}

// One weight as the mathematics needs it. How it is stored (plain, block-scaled, packed) is the checkpoint's business:
// weights/stored_weight.h.
struct TensorSpec {
  std::string name;  // As in the checkpoint; of a quantized weight, as it would be called if it were not.
  std::vector<std::int64_t> shape;  // [N, K] of a product or table, [n] of a vector.
  ops::WeightUsage usage = ops::WeightUsage::kLinear;
  weights::ShardSpec shard;
  WeightPart part = WeightPart::kNorms;
  std::int32_t layer = -1;   // -1: outside the layers.
  std::int32_t expert = -1;  // Of kRoutedExperts: its number; else -1.
  // A vector is [1, n].
  std::int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
  std::int64_t cols() const { return shape.back(); }
};

// The routed experts of one layer, which a backend prepares together: tensors[first + 3 * e + 0, 1, 2] are gate, up and
// down of expert e.
struct ExpertStackSpec {
  std::size_t first = 0;
  std::int64_t experts = 0;
};

// A kv_b_proj, which a backend prepares for both forms of latent attention.
struct MlaUpSpec {
  std::size_t tensor = 0;
  ops::MlaShape shape;
};

// Names of tensors that begin and end so.
struct NamePattern {
  std::string prefix;
  std::string suffix;
  // Where it is given, what is between the two is a number below it, without leading zeros: a layer that there is.
  std::optional<std::int64_t> numbers_below = {};
  bool matches(std::string_view name) const;
};

struct ModelDescription {
  // A tied head is listed twice under the embedding's name, once for each usage.
  std::vector<TensorSpec> tensors;
  std::vector<ExpertStackSpec> expert_stacks;  // By ascending `first`.
  std::vector<MlaUpSpec> mla_ups;              // By ascending `tensor`.
  // The name of the head's tensor, where it is a tensor of its own.
  std::string head_tensor;
  // Tensors that a checkpoint of this family may hold and that are not computed with: layers for speculation, vision
  // towers. Counted and reported; any other tensor that is left over is an error.
  std::vector<NamePattern> skipped;
  // Parts and layers; format and page size are filled in by kv_layout().
  ops::KvLayout kv;

  // Returns its index in `tensors`, by which the family finds the loaded weight.
  std::size_t add(TensorSpec spec) {
    tensors.push_back(std::move(spec));
    return tensors.size() - 1;
  }
  // The embedding's tensor, listed once more for the head's product.
  bool is_tied_head(const TensorSpec& spec) const {
    return spec.part == WeightPart::kHead && spec.usage == ops::WeightUsage::kLinear && spec.name != head_tensor;
  }
  bool skips(std::string_view name) const {
    for (const NamePattern& pattern : skipped) {
      if (pattern.matches(name)) return true;
    }
    return false;
  }
  ops::KvLayout kv_layout(ops::KvFormat format, std::int32_t page_size) const {
    ops::KvLayout layout = kv;
    layout.format = format;
    layout.page_size = page_size;
    return layout;
  }
};

}  // namespace tessera::models
