#include "tessera/models/deepseek_v3.h"

#include <array>

#include "tessera/models/family_fields.h"

namespace tessera::models {

base::Status read_deepseek_v3_fields(const ConfigFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(read_decoder_fields(fields, config));
  TESSERA_RETURN_IF_ERROR(read_mla_fields(fields, QLora::kOptional, config));
  TESSERA_ASSIGN_OR_RETURN(const bool interleaved, fields.boolean_or("rope_interleave", true));
  config.mla->rope_interleave = interleaved ? RopeInterleave::kInterleaved : RopeInterleave::kHalf;
  TESSERA_RETURN_IF_ERROR(read_rope_fields(fields, RopeTypes::kDefaultOrYarn, config));
  return read_moe_fields(fields, config);
}

namespace {

DecoderTensors describe_deepseek_v3(const ModelConfig& config) { return describe_decoder(config, {}); }

constexpr std::array<std::string_view, 2> kModelTypes = {"deepseek_v3", "kimi_k2"};

}  // namespace

constinit const FamilyEntry kDeepseekV3Family = {
    "DeepseekV3ForCausalLM", kModelTypes, Family::kDeepseekV3, "", &read_deepseek_v3_fields, &describe_deepseek_v3,
};

}  // namespace tessera::models
