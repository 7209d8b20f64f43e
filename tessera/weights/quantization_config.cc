// The parser of `quantization_config`. Two dialects: `fp8` (DeepSeek, Kimi K2 Instruct, GLM-5.x) and
// `compressed-tensors` (INT4 experts of Kimi K2-Thinking and later, FP8 of GLM-4.x).
#include <fmt/format.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <initializer_list>
#include <optional>
#include <utility>

#include "tessera/base/limits.h"
#include "tessera/weights/quantization_rules.h"
#include "tessera/weights/safetensors.h"

namespace tessera::weights {

namespace {

namespace json = boost::json;
namespace limits = base::limits;
using Rules = QuantizationConfig::Rules;

constexpr std::string_view kObjectName = "quantization_config";
constexpr std::string_view kPatternPrefix = "re:";

bool is_null(const json::value* value) { return value == nullptr || value->is_null(); }

// One object of the configuration and where it stands, for messages.
class Section {
 public:
  Section(const json::object& object, std::string where) : object_(&object), where_(std::move(where)) {}

  // Null also where the field is null.
  const json::value* find(std::string_view field) const {
    const json::value* value = object_->if_contains(field);
    return is_null(value) ? nullptr : value;
  }
  std::string path(std::string_view field) const { return fmt::format("{}.{}", where_, field); }
  base::Status invalid(std::string_view field, std::string_view message) const {
    return base::invalid_argument(fmt::format("{} {}", path(field), message));
  }
  base::Status unsupported(std::string_view field, std::string_view message) const {
    return base::unimplemented(fmt::format("{} {}", path(field), message));
  }
  base::Status only(std::initializer_list<std::string_view> fields) const {
    for (const auto& [name, value] : *object_) {
      if (std::ranges::find(fields, std::string_view(name)) == fields.end()) {
        return base::unimplemented(fmt::format("{} has an unknown field {}", where_, quote_name(name)));
      }
    }
    return base::ok_status();
  }
  base::Result<std::string_view> text(std::string_view field) const {
    const json::value* value = find(field);
    if (value == nullptr) return base::failure(invalid(field, "is missing, expected a string"));
    if (!value->is_string()) return base::failure(invalid(field, is_not(*value, "a string")));
    return std::string_view(value->get_string());
  }
  base::Result<std::string_view> text_or(std::string_view field, std::string_view missing) const {
    if (find(field) == nullptr) return missing;
    return text(field);
  }
  enum class Missing : std::uint8_t { kFine, kRefused };
  // The field has this value.
  base::Status equals(std::string_view field, const json::value& expected, Missing missing) const {
    const json::value* value = find(field);
    if (value == nullptr && missing == Missing::kFine) return base::ok_status();
    const std::string wanted = json::serialize(expected);
    if (value == nullptr) return invalid(field, fmt::format("is missing, expected {}", wanted));
    if (*value == expected) return base::ok_status();
    const bool same_type = value->kind() == expected.kind() || (value->is_number() && expected.is_number());
    const std::string message = is_not(*value, wanted);
    return same_type ? unsupported(field, message) : invalid(field, message);
  }
  // The field is missing, null or empty.
  base::Status absent(std::string_view field, std::string_view what) const {
    const json::value* value = find(field);
    if (value == nullptr || (value->is_object() && value->get_object().empty())) return base::ok_status();
    return unsupported(field, fmt::format("is set; {} not supported", what));
  }
  base::Result<Section> object(std::string_view field) const {
    const json::value* value = find(field);
    if (value == nullptr) return base::failure(invalid(field, "is missing, expected an object"));
    if (!value->is_object()) return base::failure(invalid(field, is_not(*value, "an object")));
    return Section(value->get_object(), path(field));
  }
  // Strings; an empty list where the field is missing.
  base::Result<std::vector<std::string_view>> texts(std::string_view field) const {
    std::vector<std::string_view> out;
    const json::value* value = find(field);
    if (value == nullptr) return out;
    if (!value->is_array()) return base::failure(invalid(field, is_not(*value, "a list of strings")));
    if (std::ssize(value->get_array()) > limits::kModuleListMax) {
      return base::failure(base::out_of_range(fmt::format("{} has {} entries, expected at most {}", path(field),
                                                          value->get_array().size(), limits::kModuleListMax)));
    }
    for (const json::value& entry : value->get_array()) {
      if (!entry.is_string()) return base::failure(invalid(field, is_not(entry, "a list of strings")));
      out.emplace_back(entry.get_string());
    }
    return out;
  }
  std::size_t size() const { return object_->size(); }
  std::string_view first_name() const { return object_->begin()->key(); }

 private:
  static std::string is_not(const json::value& value, std::string_view expected) {
    return fmt::format("is {}, expected {}", quote_name(json::serialize(value)), expected);
  }
  const json::object* object_;
  std::string where_;
};

base::Status read_list(const Section& section, std::string_view field, ModuleList& list) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string_view> entries, section.texts(field));
  std::int64_t patterns = 0;
  for (const std::string_view entry : entries) {
    if (!entry.starts_with(kPatternPrefix)) {
      list.add_name(std::string(entry));
      continue;
    }
    if (++patterns > limits::kModulePatternsMax) {
      return base::out_of_range(
          fmt::format("{} has more than {} patterns", section.path(field), limits::kModulePatternsMax));
    }
    auto pattern = ModulePattern::compile(entry.substr(kPatternPrefix.size()));
    if (!pattern.has_value()) return pattern.error().with_context(section.path(field));
    list.add_pattern(std::move(*pattern));
  }
  return base::ok_status();
}

// transformers and DeepSeek: e4m3 in blocks of 128x128, activations quantized on the fly.
base::Status read_fp8(const Section& section, Rules& rules) {
  using enum Section::Missing;
  TESSERA_RETURN_IF_ERROR(section.only({"quant_method", "fmt", "activation_scheme", "weight_block_size", "scale_fmt",
                                        "modules_to_not_convert", "dequantize"}));
  TESSERA_RETURN_IF_ERROR(section.equals("fmt", "e4m3", kFine));
  TESSERA_RETURN_IF_ERROR(section.equals("activation_scheme", "dynamic", kFine));
  TESSERA_RETURN_IF_ERROR(section.equals("weight_block_size", json::array{128, 128}, kRefused));
  TESSERA_RETURN_IF_ERROR(section.equals("dequantize", false, kFine));
  // With ue8m0 the scales are powers of two; they are stored as any others.
  TESSERA_ASSIGN_OR_RETURN(const std::string_view scale_format, section.text_or("scale_fmt", "float"));
  if (scale_format != "float" && scale_format != "ue8m0") {
    return section.unsupported("scale_fmt", fmt::format("is {}, expected float or ue8m0", quote_name(scale_format)));
  }
  rules.format = {StoredKind::kF8Block128, 0};
  rules.targets_all = true;
  rules.plain = ModuleList(ModuleList::Entry::kModuleOrPart);
  // The checkpoints of this dialect leave these as they were, also where no list says so; GLM-5.x's list calls the
  // second one `indexers_proj`, a name that none of its tensors has.
  rules.plain.add_name("lm_head");
  rules.plain.add_name("indexer.weights_proj");
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string_view> names, section.texts("modules_to_not_convert"));
  for (const std::string_view name : names) {
    // transformers reads these as regular expressions; what is written in them is names.
    const auto plain_character = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
             c == '.';
    };
    if (name.empty() || !std::ranges::all_of(name, plain_character)) {
      return section.unsupported("modules_to_not_convert",
                                 fmt::format("holds {}, expected module names without patterns", quote_name(name)));
    }
    rules.plain.add_name(std::string(name));
  }
  rules.notes.emplace_back("activations are not quantized: the checkpoint suggests dynamic FP8");
  return base::ok_status();
}

base::Status read_weights_section(const Section& weights, bool integers, Rules& rules) {
  using enum Section::Missing;
  TESSERA_RETURN_IF_ERROR(
      weights.only({"num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "actorder",
                    "observer", "observer_kwargs", "scale_dtype", "zp_dtype"}));
  TESSERA_RETURN_IF_ERROR(weights.equals("num_bits", integers ? 4 : 8, kRefused));
  TESSERA_RETURN_IF_ERROR(weights.equals("type", integers ? "int" : "float", kRefused));
  TESSERA_RETURN_IF_ERROR(weights.equals("symmetric", true, kFine));
  TESSERA_RETURN_IF_ERROR(weights.equals("dynamic", false, kFine));
  TESSERA_RETURN_IF_ERROR(weights.absent("actorder", "reordered groups are"));
  TESSERA_RETURN_IF_ERROR(weights.absent("block_structure", "blocks in compressed-tensors are"));
  TESSERA_RETURN_IF_ERROR(weights.equals("strategy", integers ? "group" : "channel", kRefused));
  if (!integers) {
    TESSERA_RETURN_IF_ERROR(weights.absent("group_size", "groups of FP8 are"));
    rules.format = {StoredKind::kF8Channel, 0};
    return base::ok_status();
  }
  const json::value* group_size = weights.find("group_size");
  for (const std::int32_t size : {32, 64, 128}) {
    if (group_size != nullptr && *group_size == json::value(size)) {
      rules.format = {StoredKind::kInt4Group, size};
      return base::ok_status();
    }
  }
  return weights.unsupported("group_size",
                             fmt::format("is {}, expected 32, 64 or 128",
                                         group_size == nullptr ? "missing" : quote_name(json::serialize(*group_size))));
}

base::Status read_input_activations(const Section& group, Rules& rules) {
  using enum Section::Missing;
  if (group.find("input_activations") == nullptr) return base::ok_status();
  TESSERA_ASSIGN_OR_RETURN(const Section activations, group.object("input_activations"));
  TESSERA_RETURN_IF_ERROR(activations.equals("dynamic", true, kRefused));
  TESSERA_RETURN_IF_ERROR(activations.equals("num_bits", 8, kRefused));
  TESSERA_RETURN_IF_ERROR(activations.equals("type", "float", kRefused));
  TESSERA_RETURN_IF_ERROR(activations.equals("strategy", "token", kRefused));
  TESSERA_RETURN_IF_ERROR(activations.equals("symmetric", true, kFine));
  rules.notes.emplace_back("activations are not quantized: the checkpoint suggests dynamic FP8 per token");
  return base::ok_status();
}

base::Status read_compressed_tensors(const Section& section, Rules& rules) {
  using enum Section::Missing;
  TESSERA_RETURN_IF_ERROR(
      section.only({"quant_method", "format", "quantization_status", "config_groups", "ignore", "kv_cache_scheme",
                    "global_compression_ratio", "sparsity_config", "transform_config", "version"}));
  TESSERA_ASSIGN_OR_RETURN(const std::string_view format, section.text("format"));
  const bool integers = format == "pack-quantized";
  if (!integers && format != "float-quantized") {
    return section.unsupported("format",
                               fmt::format("is {}, expected pack-quantized or float-quantized", quote_name(format)));
  }
  TESSERA_RETURN_IF_ERROR(section.equals("quantization_status", "compressed", kFine));
  TESSERA_RETURN_IF_ERROR(section.absent("sparsity_config", "sparse weights are"));
  TESSERA_RETURN_IF_ERROR(section.absent("transform_config", "transforms are"));

  TESSERA_ASSIGN_OR_RETURN(const Section groups, section.object("config_groups"));
  if (groups.size() != 1) {
    return section.unsupported("config_groups", fmt::format("has {} groups, expected one", groups.size()));
  }
  TESSERA_ASSIGN_OR_RETURN(const Section group, groups.object(groups.first_name()));
  TESSERA_RETURN_IF_ERROR(group.only({"targets", "weights", "input_activations", "output_activations", "format"}));
  TESSERA_RETURN_IF_ERROR(group.equals("format", json::value(json::string_view(format)), kFine));
  TESSERA_RETURN_IF_ERROR(group.absent("output_activations", "quantized outputs are"));
  TESSERA_ASSIGN_OR_RETURN(const Section weights, group.object("weights"));
  TESSERA_RETURN_IF_ERROR(read_weights_section(weights, integers, rules));
  if (integers) {
    TESSERA_RETURN_IF_ERROR(group.absent("input_activations", "quantized activations of INT4 weights are"));
  } else {
    TESSERA_RETURN_IF_ERROR(read_input_activations(group, rules));
  }

  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string_view> targets, group.texts("targets"));
  if (targets.empty()) return group.invalid("targets", "is missing or empty, expected [\"Linear\"]");
  for (const std::string_view target : targets) {
    if (target == "Linear") rules.targets_all = true;
  }
  if (!rules.targets_all) TESSERA_RETURN_IF_ERROR(read_list(group, "targets", rules.targets));
  TESSERA_RETURN_IF_ERROR(read_list(section, "ignore", rules.plain));
  if (section.find("kv_cache_scheme") != nullptr) {
    rules.notes.emplace_back("kv_cache_scheme is not used: KV scales are computed when KV is written");
  }
  return base::ok_status();
}

}  // namespace

base::Result<QuantizationConfig> QuantizationConfig::parse(std::string_view text, std::string_view file_name) {
  if (std::ssize(text) > limits::kConfigFileBytesMax) {
    return base::failure(base::out_of_range(fmt::format("{}: {} of {} bytes, expected at most {}", file_name,
                                                        kObjectName, text.size(), limits::kConfigFileBytesMax)));
  }
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(limits::kJsonDepthMax);
  boost::system::error_code error;
  const json::value root = json::parse(text, error, {}, options);
  const std::string where = fmt::format("{}: {}", file_name, kObjectName);
  if (error) return base::failure(base::invalid_argument(fmt::format("{} is malformed: {}", where, error.message())));
  if (!root.is_object()) return base::failure(base::invalid_argument(where + " is not an object"));

  const Section section(root.get_object(), where);
  auto rules = std::make_shared<Rules>();
  TESSERA_ASSIGN_OR_RETURN(const std::string_view method, section.text("quant_method"));
  if (method == "fp8") {
    TESSERA_RETURN_IF_ERROR(read_fp8(section, *rules));
  } else if (method == "compressed-tensors") {
    TESSERA_RETURN_IF_ERROR(read_compressed_tensors(section, *rules));
  } else {
    return base::failure(section.unsupported(
        "quant_method", fmt::format("is {}, expected fp8 or compressed-tensors", quote_name(method))));
  }
  QuantizationConfig config;
  config.rules_ = std::move(rules);
  return config;
}

}  // namespace tessera::weights
