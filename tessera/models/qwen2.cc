#include "tessera/models/qwen2.h"

#include <array>

#include "tessera/models/family_fields.h"

namespace tessera::models {

namespace {

base::Status read_qwen2_fields(const ConfigFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(read_decoder_fields(fields, config));
  TESSERA_RETURN_IF_ERROR(read_gqa_fields(fields, HeadDim::kMayBeMissing, PartialRotary::kNone, config));
  config.gqa->qkv_bias = QkvBias::kPresent;  // Always; there is no field for it.
  return read_rope_fields(fields, RopeTypes::kDefault, config);
}

DecoderTensors describe_qwen2(const ModelConfig& config) { return describe_decoder(config, {}); }

constexpr std::array<std::string_view, 1> kModelTypes = {"qwen2"};

}  // namespace

constinit const FamilyEntry kQwen2Family = {
    "Qwen2ForCausalLM", kModelTypes, Family::kQwen2, "", &read_qwen2_fields, &describe_qwen2,
};

}  // namespace tessera::models
