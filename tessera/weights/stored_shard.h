// How a quantized weight is divided among ranks: what its format keeps together.
#pragma once

#include "tessera/weights/quantization.h"
#include "tessera/weights/shard.h"

namespace tessera::weights {

// The spec for a weight that is stored so: its unit becomes one that cuts neither what the model keeps together nor a
// 128x128 block (either dimension), a group or a word of INT4 (columns). A rank's scales are then its own, whole.
ShardSpec stored_shard_spec(const ShardSpec& spec, const StoredFormat& format);

}  // namespace tessera::weights
