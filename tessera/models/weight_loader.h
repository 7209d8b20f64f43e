// From a checkpoint's tensors to a backend's weights.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/models/family.h"
#include "tessera/weights/stored_weight.h"

namespace tessera::models {

// What the description lists, beside it, taken out of the checkpoint: all that can be wrong with tensors short of their
// bytes. A head is there if and only if the config says that it is not tied; every tensor is there with its shape, and
// stored as the config's quantization says; no tensor is left over but those that the family skips and scales for KV
// formats of others, which are counted and reported in the log. Reads no byte of data but scales to be converted.
struct TakenWeights {
  std::vector<weights::StoredWeight> stored;  // [tensors of the description]
  SkippedTensors skipped;
};
base::Result<TakenWeights> take_weights(const ModelConfig& config, const ModelDescription& description,
                                        weights::Checkpoint& checkpoint);

// Loads what the description lists: take_weights() first, so that a wrong checkpoint is refused before any memory is
// taken. Then the tensors are prepared and digested, one after another; the experts of a layer are prepared together.
// Scales that are not finite are refused then, because INT4's are too many to be read twice.
//
// Memory: the files stay mapped. Beside them there is what the backend makes of a weight that it cannot use in place,
// and scales that had to be converted; while a weight is prepared, one weight's (or one layer's experts') more.
base::Result<LoadedModel> load_weights(const ModelConfig& config, std::string_view config_text,
                                       const ModelDescription& description, weights::Checkpoint checkpoint,
                                       ops::Backend& backend, const std::function<void(const LoadProgress&)>& progress);

}  // namespace tessera::models
