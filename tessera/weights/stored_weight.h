// How a weight lies in a checkpoint: the one place that knows which tensors, in which dtypes and shapes, make up one
// weight (docs/checkpoints.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/ops/weight.h"
#include "tessera/weights/checkpoint.h"
#include "tessera/weights/quantization.h"

namespace tessera::weights {

// A weight as taken. Data, and scales unless they had to be converted, are read where they lie in the mapped files.
// Move-only use: keep it, beside the Checkpoint, for as long as a backend may use the weight in place.
struct StoredWeight {
  ops::WeightFormat format = ops::WeightFormat::kF32;
  std::int64_t rows = 0;  // A vector is [1, n].
  std::int64_t cols = 0;
  std::int32_t group_size = 0;
  // What was taken: the data first, then scales and the shape tensor where the format has them.
  std::vector<Tensor> tensors;
  // The scales in the dtype that ops::WeightFormat says, where the file has them in another one; else empty.
  std::vector<std::byte> converted_scales;

  // Host memory of its own, beyond the mapped files.
  std::int64_t owned_bytes() const { return std::ssize(converted_scales); }
  // Bytes of the checkpoint that make up the weight.
  std::int64_t stored_bytes() const;
  // invalid_argument, naming file, tensor and element, where a scale is infinite or NaN: it would make every number
  // that it scales so. Reads the scales, which of INT4 are a ninth of the weight's bytes.
  base::Status check_scales() const;
  // Points into the mapping and into this object's memory, also after it was moved. Both are marked as outliving the
  // backend: whoever prepares weights from it keeps it.
  ops::WeightSource source(ops::WeightUsage usage) const;
};

// Takes the tensors of the weight `name` out of the checkpoint and checks them all: that they are there, their dtypes,
// their shapes, and for INT4 the shape tensor's two numbers. `shape` is [N, K] or [n]; `expected` is what
// QuantizationConfig::expected said of it. Refused, by file, tensor and expectation: a missing tensor; a weight that is
// quantized where plain was expected, and the other way round; K that 8 or the group does not divide; F32 scales of
// INT4 that are no BF16 numbers (rounding them would change the weights). Touches no byte of data but the shape tensor
// and scales that need conversion.
base::Result<StoredWeight> take_weight(Checkpoint& checkpoint, std::string_view name,
                                       std::span<const std::int64_t> shape, const StoredFormat& expected = {});

// Takes every tensor that holds a scale for a quantized KV cache (`self_attn.k_scale`, `self_attn.k_proj.k_scale`,
// their `v` and `q` counterparts and the like). None is used: KV scales are computed as KV is written. The caller says
// so.
std::vector<Tensor> take_kv_scales(Checkpoint& checkpoint);

}  // namespace tessera::weights
