#include "tessera/models/config.h"

#include <fmt/format.h>

#include "tessera/base/limits.h"
#include "tessera/models/config_fields.h"
#include "tessera/models/family.h"
#include "tessera/weights/mapped_file.h"
#include "tessera/weights/safetensors.h"

namespace tessera::models {

namespace {

namespace limits = base::limits;

base::Result<const FamilyEntry*> find_family(const ConfigFields& fields) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> architectures, fields.texts("architectures", 16));
  if (architectures.size() != 1) {
    return base::failure(
        fields.refuse("architectures", fmt::format("{} entries, expected exactly one", architectures.size())));
  }
  std::string known;
  for (const FamilyEntry* entry : families()) {
    if (entry->architecture == architectures.front()) return entry;
    known += known.empty() ? "" : ", ";
    known += entry->architecture;
  }
  return base::failure(fields.refuse_unsupported(
      "architectures",
      fmt::format("{} is unknown, expected one of {}", weights::quote_name(architectures.front()), known)));
}

// Newer files say dtype, older ones torch_dtype.
base::Status read_dtype(const ConfigFields& fields, ModelConfig& config) {
  const std::string_view field = fields.has("dtype") ? "dtype" : "torch_dtype";
  if (!fields.has(field)) return base::ok_status();
  TESSERA_ASSIGN_OR_RETURN(config.dtype, fields.text(field));
  if (config.dtype != "float32" && config.dtype != "bfloat16") {
    return fields.refuse_unsupported(
        field, fmt::format("is {}, expected float32 or bfloat16", weights::quote_name(config.dtype)));
  }
  return base::ok_status();
}

}  // namespace

base::Result<ModelConfig> parse_config(std::string_view config_json) {
  TESSERA_ASSIGN_OR_RETURN(const ConfigFields fields, ConfigFields::parse(config_json, kConfigFileName));
  TESSERA_ASSIGN_OR_RETURN(const FamilyEntry* family, find_family(fields));
  ModelConfig config;
  config.family = family->family;
  config.architecture = family->architecture;
  TESSERA_ASSIGN_OR_RETURN(config.model_type, fields.text("model_type"));
  if (config.model_type != family->model_type) {
    return base::failure(
        fields.refuse("model_type", fmt::format("is {}, expected '{}' for {}", weights::quote_name(config.model_type),
                                                family->model_type, family->architecture)));
  }
  if (fields.has("quantization_config")) {
    return base::failure(
        fields.refuse_unsupported("quantization_config", "quantized checkpoints are not read, expected none"));
  }
  TESSERA_RETURN_IF_ERROR(read_dtype(fields, config));
  TESSERA_RETURN_IF_ERROR(family->read_fields(fields, config));
  return config;
}

base::Result<ModelConfig> read_config(const std::filesystem::path& dir) {
  TESSERA_ASSIGN_OR_RETURN(const std::string config_json,
                           weights::read_text_file(dir / kConfigFileName, limits::kConfigFileBytesMax));
  return parse_config(config_json);
}

}  // namespace tessera::models
