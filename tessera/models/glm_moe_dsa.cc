#include "tessera/models/glm_moe_dsa.h"

#include <array>

#include "tessera/models/family_fields.h"

namespace tessera::models {

namespace {

base::Status read_glm_moe_dsa_fields(const ConfigFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(read_decoder_fields(fields, config, AttentionLayers::kIndexed));
  TESSERA_RETURN_IF_ERROR(read_mla_fields(fields, QLora::kRequired, config));
  TESSERA_RETURN_IF_ERROR(expect_boolean(fields, "rope_interleave", true, true));
  TESSERA_RETURN_IF_ERROR(expect_boolean(fields, "indexer_rope_interleave", true, true));
  TESSERA_RETURN_IF_ERROR(expect_boolean(fields, "mlp_bias", false, false));
  TESSERA_RETURN_IF_ERROR(read_rope_fields(fields, RopeTypes::kDefaultOrYarn, config));
  TESSERA_RETURN_IF_ERROR(read_dsa_fields(fields, config));
  return read_moe_fields(fields, config);
}

DecoderTensors describe_glm_moe_dsa(const ModelConfig& config) { return describe_decoder(config, {}); }

constexpr std::array<std::string_view, 1> kModelTypes = {"glm_moe_dsa"};

}  // namespace

constinit const FamilyEntry kGlmMoeDsaFamily = {
    "GlmMoeDsaForCausalLM", kModelTypes, Family::kGlmMoeDsa, "", &read_glm_moe_dsa_fields, &describe_glm_moe_dsa,
};

}  // namespace tessera::models
