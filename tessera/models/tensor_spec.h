// What a family says about itself: its tensors and its KV, once. Loading takes the tensors by these names and shapes,
// sharding cuts them as they say, planning adds them up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/ops/kv_layout.h"
#include "tessera/ops/weight.h"
#include "tessera/weights/shard.h"

namespace tessera::models {

// One weight as the mathematics needs it. How it is stored (plain, block-scaled, packed) is the checkpoint's business:
// weights/stored_weight.h.
struct TensorSpec {
  std::string name;                 // As in the checkpoint.
  std::vector<std::int64_t> shape;  // [N, K] of a product or table, [n] of a vector.
  ops::WeightUsage usage = ops::WeightUsage::kLinear;
  weights::ShardSpec shard;
  // A vector is [1, n].
  std::int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
  std::int64_t cols() const { return shape.back(); }
};

struct ModelDescription {
  // A tied head is listed twice under the embedding's name, once for each usage.
  std::vector<TensorSpec> tensors;
  // The name of the head's tensor, where it is a tensor of its own.
  std::string head_tensor;
  // Parts and layers; format and page size are filled in by kv_layout().
  ops::KvLayout kv;

  // Returns its index in `tensors`, by which the family finds the loaded weight.
  std::size_t add(TensorSpec spec) {
    tensors.push_back(std::move(spec));
    return tensors.size() - 1;
  }
  ops::KvLayout kv_layout(ops::KvFormat format, std::int32_t page_size) const {
    ops::KvLayout layout = kv;
    layout.format = format;
    layout.page_size = page_size;
    return layout;
  }
};

}  // namespace tessera::models
