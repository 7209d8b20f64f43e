#include "tessera/models/kimi_k25.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "tessera/models/deepseek_v3.h"
#include "tessera/models/family_fields.h"
#include "tessera/weights/safetensors.h"

namespace tessera::models {

namespace {

base::Status read_kimi_k25_fields(const ConfigFields& fields, ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(const std::string type, fields.text("model_type"));
  if (type != "kimi_k2" && type != "deepseek_v3") {
    return fields.refuse_unsupported(
        "model_type", fmt::format("is {}, expected 'kimi_k2' or 'deepseek_v3'", weights::quote_name(type)));
  }
  return read_deepseek_v3_fields(fields, config);
}

DecoderTensors describe_kimi_k25(const ModelConfig& config) {
  return describe_decoder(config,
                          {.prefix = "language_model.", .skipped = {{"vision_tower.", ""}, {"mm_projector.", ""}}});
}

constexpr std::array<std::string_view, 1> kModelTypes = {"kimi_k25"};

}  // namespace

constinit const FamilyEntry kKimiK25Family = {
    "KimiK25ForConditionalGeneration",
    kModelTypes,
    Family::kKimiK25,
    "text_config",
    &read_kimi_k25_fields,
    &describe_kimi_k25,
};

}  // namespace tessera::models
