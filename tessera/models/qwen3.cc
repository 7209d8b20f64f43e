#include "tessera/models/qwen3.h"

#include <array>

#include "tessera/models/family_fields.h"

namespace tessera::models {

namespace {

base::Status read_qwen3_fields(const ConfigFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(read_decoder_fields(fields, config));
  TESSERA_RETURN_IF_ERROR(read_gqa_fields(fields, HeadDim::kRequired, PartialRotary::kNone, config));
  config.gqa->qk_norm = QkNorm::kPresent;
  TESSERA_RETURN_IF_ERROR(read_rope_fields(fields, RopeTypes::kDefault, config));
  return expect_boolean(fields, "attention_bias", false, false);
}

DecoderTensors describe_qwen3(const ModelConfig& config) { return describe_decoder(config, {}); }

constexpr std::array<std::string_view, 1> kModelTypes = {"qwen3"};

}  // namespace

constinit const FamilyEntry kQwen3Family = {
    "Qwen3ForCausalLM", kModelTypes, Family::kQwen3, "", &read_qwen3_fields, &describe_qwen3,
};

}  // namespace tessera::models
