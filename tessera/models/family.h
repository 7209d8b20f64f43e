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
#include "tessera/models/decoder_tensors.h"
#include "tessera/models/model.h"
#include "tessera/models/tensor_spec.h"
#include "tessera/weights/checkpoint.h"
#include "tessera/weights/stored_weight.h"

namespace tessera::models {

// What a checkpoint holds and the model does not compute with.
struct SkippedTensors {
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
};

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
  std::vector<weights::StoredWeight> converted = {};  // Those whose converted scales the backend reads here.
  // Beside ModelDescription::tensors; empty where a tensor went into one of the two below.
  std::vector<ops::Weight> weights = {};
  std::vector<ops::ExpertStack> expert_stacks = {};  // Beside ModelDescription::expert_stacks.
  std::vector<ops::MlaUpProjection> mla_ups = {};    // Beside ModelDescription::mla_ups.
  std::int64_t weight_bytes = 0;
  SkippedTensors skipped = {};
  std::string weight_format = {};
  std::string digest = {};
};

struct FamilyEntry {
  std::string_view architecture;                  // In config.json's `architectures`.
  std::span<const std::string_view> model_types;  // Any of them.
  Family family;
  // The field of config.json that holds the text model's fields; empty where they lie at the root.
  std::string_view text_object;
  // Reads the fields of this family into the config, whose architecture and model_type are set.
  base::Status (*read_fields)(const ConfigFields& fields, ModelConfig& config);
  DecoderTensors (*describe)(const ModelConfig& config);
};

std::span<const FamilyEntry* const> families();
const FamilyEntry& family_entry(Family family);

// The tensors and KV of a configuration; for planning, sharding and tests.
ModelDescription describe(const ModelConfig& config);

// How the checkpoint stores each of the description's tensors, by the config's quantization: [tensors]. A tied head is
// the embedding's tensor, and plain as that is. out_of_range where the quantization's patterns take too many steps.
base::Result<std::vector<weights::StoredFormat>> stored_formats(const ModelConfig& config,
                                                                const ModelDescription& description);

}  // namespace tessera::models
