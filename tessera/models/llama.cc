#include "tessera/models/llama.h"

#include <array>

#include "tessera/models/family_fields.h"

namespace tessera::models {

namespace {

base::Status read_llama_fields(const ConfigFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(read_decoder_fields(fields, config));
  TESSERA_RETURN_IF_ERROR(read_gqa_fields(fields, HeadDim::kMayBeMissing, PartialRotary::kNone, config));
  TESSERA_RETURN_IF_ERROR(read_rope_fields(fields, RopeTypes::kDefault, config));
  TESSERA_RETURN_IF_ERROR(expect_boolean(fields, "rope_interleaved", false, false));
  TESSERA_RETURN_IF_ERROR(expect_boolean(fields, "use_qk_norm", false, false));
  TESSERA_RETURN_IF_ERROR(expect_boolean(fields, "attention_bias", false, false));
  return expect_boolean(fields, "mlp_bias", false, false);
}

DecoderTensors describe_llama(const ModelConfig& config) { return describe_decoder(config, {}); }

constexpr std::array<std::string_view, 1> kModelTypes = {"llama"};

}  // namespace

constinit const FamilyEntry kLlamaFamily = {
    "LlamaForCausalLM", kModelTypes, Family::kLlama, "", &read_llama_fields, &describe_llama,
};

}  // namespace tessera::models
