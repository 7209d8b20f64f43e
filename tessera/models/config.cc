#include "tessera/models/config.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "tessera/base/limits.h"
#include "tessera/models/config_fields.h"
#include "tessera/models/family.h"
#include "tessera/models/family_fields.h"
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

base::Status read_model_type(const ConfigFields& fields, const FamilyEntry& family, ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(config.model_type, fields.text("model_type"));
  std::string known;
  for (const std::string_view type : family.model_types) {
    if (config.model_type == type) return base::ok_status();
    known += fmt::format("{}'{}'", known.empty() ? "" : " or ", type);
  }
  return fields.refuse("model_type", fmt::format("is {}, expected {} for {}", weights::quote_name(config.model_type),
                                                 known, family.architecture));
}

// Files with a text model inside say how it is quantized at the root, in the text model's fields, or twice.
base::Status read_quantization(const ConfigFields& fields, const ConfigFields& text, ModelConfig& config) {
  constexpr std::string_view kField = "quantization_config";
  std::optional<ConfigFields> first;
  for (const ConfigFields* place : {&fields, &text}) {
    if (!place->has(kField)) continue;
    TESSERA_ASSIGN_OR_RETURN(const ConfigFields object, place->object(kField));
    if (first.has_value() && !first->equals(object)) {
      return fields.refuse(kField, "contradicts the one of the text model");
    }
    first = object;
  }
  if (!first.has_value()) return base::ok_status();
  TESSERA_ASSIGN_OR_RETURN(config.quantization, weights::QuantizationConfig::parse(first->json(), kConfigFileName));
  return base::ok_status();
}

bool has_dtype(const ConfigFields& fields) { return fields.has("dtype") || fields.has("torch_dtype"); }

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
  TESSERA_RETURN_IF_ERROR(read_model_type(fields, *family, config));
  ConfigFields text = fields;
  if (!family->text_object.empty()) {
    TESSERA_ASSIGN_OR_RETURN(text, fields.object(family->text_object));
  }
  TESSERA_RETURN_IF_ERROR(family->read_fields(text, config));
  TESSERA_RETURN_IF_ERROR(read_dtype(has_dtype(text) ? text : fields, config));
  TESSERA_RETURN_IF_ERROR(read_quantization(fields, text, config));
  TESSERA_RETURN_IF_ERROR(
      expect_boolean(fields, "tie_word_embeddings", config.tie_word_embeddings, config.tie_word_embeddings));
  return config;
}

base::Result<ModelConfig> read_config(const std::filesystem::path& dir) {
  TESSERA_ASSIGN_OR_RETURN(const std::string config_json,
                           weights::read_text_file(dir / kConfigFileName, limits::kConfigFileBytesMax));
  return parse_config(config_json);
}

}  // namespace tessera::models
