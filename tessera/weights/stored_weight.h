// How a weight lies in a checkpoint: the one place that knows which tensors, in which dtypes, make up one weight. Plain
// F32 and BF16 so far; a block-scaled or packed weight is several tensors (its scales beside it) and is found here too.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/ops/weight.h"
#include "tessera/weights/checkpoint.h"

namespace tessera::weights {

struct StoredWeight {
  ops::WeightFormat format = ops::WeightFormat::kF32;
  std::vector<Tensor> tensors;  // The data first, then scales where the format has them.
};

// Takes the tensors of weight `name` out of the checkpoint and checks them: stored as F32 or BF16, exactly of `shape`.
// Messages name file, tensor and expectation. No byte of data is touched.
base::Result<StoredWeight> take_weight(Checkpoint& checkpoint, std::string_view name,
                                       std::span<const std::int64_t> shape);

}  // namespace tessera::weights
