// From a checkpoint's tensors to a backend's weights.
#pragma once

#include <functional>
#include <string_view>

#include "tessera/base/status.h"
#include "tessera/models/family.h"

namespace tessera::models {

// Loads what the description lists. In this order, so that a wrong checkpoint is refused before any memory is taken:
// every tensor is there with its shape and a dtype that can be computed with; no tensor is left over; a head is there
// if and only if the config says that it is not tied. Then the tensors are digested and prepared, one after another.
base::Result<LoadedModel> load_weights(const ModelConfig& config, std::string_view config_text,
                                       const ModelDescription& description, weights::Checkpoint checkpoint,
                                       ops::Backend& backend, const std::function<void(const LoadProgress&)>& progress);

}  // namespace tessera::models
