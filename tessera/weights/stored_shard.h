// How a quantized weight is divided among ranks: what its format keeps together, and which scales go with a slice.
#pragma once

#include <cstdint>

#include "tessera/weights/quantization.h"
#include "tessera/weights/shard.h"

namespace tessera::weights {

// The spec for a weight that is stored so: its unit becomes one that cuts neither what the model keeps together nor a
// 128x128 block (either dimension), a group or a word of INT4 (columns). A rank's scales are then its own, whole.
ShardSpec stored_shard_spec(const ShardSpec& spec, const StoredFormat& format);

// The part of the scales that belongs to a slice of the weight, as rows and columns of the scales tensor (one column
// for kF8Channel). The slice's edges lie on the format's units, except where it ends with the weight. Empty for kPlain.
TensorSlice scale_slice(const StoredFormat& format, const TensorSlice& weight);

}  // namespace tessera::weights
