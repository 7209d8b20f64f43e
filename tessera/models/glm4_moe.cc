#include "tessera/models/glm4_moe.h"

#include <array>

#include "tessera/models/family_fields.h"

namespace tessera::models {

namespace {

base::Status read_glm4_moe_fields(const ConfigFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(read_decoder_fields(fields, config));
  TESSERA_RETURN_IF_ERROR(read_gqa_fields(fields, HeadDim::kMayBeMissing, PartialRotary::kHalfIfMissing, config));
  TESSERA_ASSIGN_OR_RETURN(const bool bias, fields.boolean_or("attention_bias", false));
  config.gqa->qkv_bias = bias ? QkvBias::kPresent : QkvBias::kAbsent;
  TESSERA_ASSIGN_OR_RETURN(const bool norm, fields.boolean_or("use_qk_norm", false));
  config.gqa->qk_norm = norm ? QkNorm::kPresent : QkNorm::kAbsent;
  TESSERA_RETURN_IF_ERROR(read_rope_fields(fields, RopeTypes::kDefault, config));
  return read_moe_fields(fields, config);
}

DecoderTensors describe_glm4_moe(const ModelConfig& config) { return describe_decoder(config, {}); }

constexpr std::array<std::string_view, 1> kModelTypes = {"glm4_moe"};

}  // namespace

constinit const FamilyEntry kGlm4MoeFamily = {
    "Glm4MoeForCausalLM", kModelTypes, Family::kGlm4Moe, "", &read_glm4_moe_fields, &describe_glm4_moe,
};

}  // namespace tessera::models
