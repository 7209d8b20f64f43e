// The table of architecture families. A new family is a file of its own that defines a FamilyEntry, and a row in
// families() (family.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/models/config.h"
#include "tessera/models/config_fields.h"
#include "tessera/models/model.h"
#include "tessera/models/tensor_spec.h"
#include "tessera/weights/checkpoint.h"

namespace tessera::models {

// A checkpoint's weights inside a backend.
//
// Lifetime: weights may point into the checkpoint's mapping (that is what WeightSource::outlives_backend asks for), so
// the two are kept together, and the model that owns this outlives every forward pass: engines are destroyed before
// their model, the model before the backend. When the model goes, its Weights go with the mapping, and the backend
// keeps no pointer to either.
struct LoadedModel {
  ModelConfig config;
  ops::Backend* backend = nullptr;
  weights::Checkpoint checkpoint;
  std::vector<ops::Weight> weights;  // Beside ModelDescription::tensors.
  std::int64_t weight_bytes = 0;
  std::string weight_format;
  std::string digest;
};

struct FamilyEntry {
  std::string_view architecture;  // In config.json's `architectures`.
  std::string_view model_type;
  Family family;
  // Reads the fields of this family into the config, whose architecture and model_type are set.
  base::Status (*read_fields)(const ConfigFields& fields, ModelConfig& config);
  ModelDescription (*describe)(const ModelConfig& config);
  base::Result<std::unique_ptr<Model>> (*make)(LoadedModel loaded);
};

std::span<const FamilyEntry* const> families();
const FamilyEntry& family_entry(Family family);

// The tensors and KV of a configuration; for planning, sharding and tests.
ModelDescription describe(const ModelConfig& config);

}  // namespace tessera::models
