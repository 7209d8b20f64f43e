#include "tessera/text/chat_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/text/chat_families.h"
#include "tessera/text/json_reader.h"

namespace tessera::text {
namespace json = boost::json;
namespace {

constexpr std::array<const ChatFamily*, 4> kFamilies = {&kKimiFamily, &kGlmFamily, &kQwenFamily, &kSmollm2Family};

base::Result<json::value> read_json_file(const std::filesystem::path& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  base::Result<json::value> value = parse_json(text);
  if (!value.has_value()) return base::failure(value.error().with_context(path.string()));
  return value;
}

base::Result<std::string> read_model_type(const std::filesystem::path& path) {
  TESSERA_ASSIGN_OR_RETURN(const json::value root, read_json_file(path));
  TESSERA_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::from(root, path.string()));
  TESSERA_ASSIGN_OR_RETURN(const std::string_view model_type, config.string("model_type"));
  return std::string(model_type);
}

// chat_template.jinja where the folder has one, as newer checkpoints do; else chat_template of tokenizer_config.json: a
// string, or a list of named ones, of which "default" is meant. Empty if there is none.
base::Result<std::string> read_chat_template(const std::filesystem::path& model_dir) {
  base::Result<std::string> file = read_text_file(model_dir / "chat_template.jinja");
  if (file.has_value() || file.error().code() != base::StatusCode::kNotFound) return file;
  const std::filesystem::path path = model_dir / "tokenizer_config.json";
  const base::Result<json::value> root = read_json_file(path);
  if (!root.has_value()) {
    if (root.error().code() == base::StatusCode::kNotFound) return std::string();
    return base::failure(root.error());
  }
  TESSERA_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::from(*root, path.string()));
  const json::value* value = config.find("chat_template");
  if (value == nullptr) return std::string();
  if (!value->is_array()) {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view text, config.string("chat_template"));
    return std::string(text);
  }
  for (const json::value& entry : value->get_array()) {
    TESSERA_ASSIGN_OR_RETURN(const JsonObject named, JsonObject::from(entry, config.where("chat_template")));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view name, named.string("name"));
    if (name != "default") continue;
    TESSERA_ASSIGN_OR_RETURN(const std::string_view text, named.string("template"));
    return std::string(text);
  }
  return std::string();
}

}  // namespace

base::Result<std::unique_ptr<const ChatFormat>> ChatFormat::load(const std::filesystem::path& model_dir,
                                                                 const Tokenizer& tokenizer) {
  TESSERA_ASSIGN_OR_RETURN(std::string model_type, read_model_type(model_dir / "config.json"));
  TESSERA_ASSIGN_OR_RETURN(std::string chat_template, read_chat_template(model_dir));
  const ChatCheckpoint checkpoint{tokenizer, std::move(model_type), std::move(chat_template)};
  for (const ChatFamily* family : kFamilies) {
    const std::string_view name = family->recognize(checkpoint);
    if (!name.empty()) return family->create(name, checkpoint);
  }
  return base::failure(base::unimplemented(
      fmt::format("{}: no chat format is known for model_type '{}' with {}", model_dir.string(), checkpoint.model_type,
                  checkpoint.chat_template.empty() ? "no chat template" : "the chat template that it carries")));
}

std::vector<std::string_view> ChatFormat::names() {
  std::vector<std::string_view> names;
  for (const ChatFamily* family : kFamilies) names.insert(names.end(), family->names.begin(), family->names.end());
  return names;
}

base::Result<std::unique_ptr<const ChatFormat>> ChatFormat::by_name(std::string_view name, const Tokenizer& tokenizer) {
  for (const ChatFamily* family : kFamilies) {
    if (std::ranges::find(family->names, name) != family->names.end()) return family->create(name, {tokenizer});
  }
  return base::failure(
      base::invalid_argument(fmt::format("chat format '{}' is not known, expected one of {}", name, listed(names()))));
}

}  // namespace tessera::text
