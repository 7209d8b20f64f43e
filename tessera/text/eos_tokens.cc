#include "tessera/text/eos_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <iterator>
#include <limits>
#include <string>

#include "tessera/base/limits.h"
#include "tessera/text/json_reader.h"

namespace tessera::text {
namespace json = boost::json;
namespace {

using Ids = std::vector<TokenId>;

base::Status add_id(const json::value& value, const std::string& where, const Tokenizer& tokenizer, Ids& ids) {
  if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > std::numeric_limits<TokenId>::max() ||
      !tokenizer.contains(static_cast<TokenId>(value.get_int64()))) {
    return base::invalid_argument(fmt::format("{}: is not the id of a token of the vocabulary", where));
  }
  ids.push_back(static_cast<TokenId>(value.get_int64()));
  return {};
}

// eos_token_id: an id, a list of ids, or nothing.
base::Status add_ids(const JsonObject& config, const Tokenizer& tokenizer, Ids& ids) {
  const json::value* value = config.find("eos_token_id");
  if (value == nullptr) return {};
  const std::string where = config.where("eos_token_id");
  if (value->is_array() && std::ssize(value->get_array()) > base::limits::kStopTokensMax) {
    return base::out_of_range(fmt::format("{}: {} tokens, expected at most {}", where, value->get_array().size(),
                                          base::limits::kStopTokensMax));
  }
  if (!value->is_array()) return add_id(*value, where, tokenizer, ids);
  for (const json::value& entry : value->get_array()) {
    TESSERA_RETURN_IF_ERROR(add_id(entry, where, tokenizer, ids));
  }
  return {};
}

base::Status add_from_config(const JsonObject& config, const Tokenizer& tokenizer, Ids& ids) {
  TESSERA_RETURN_IF_ERROR(add_ids(config, tokenizer, ids));
  if (config.find("text_config") == nullptr) return {};
  TESSERA_ASSIGN_OR_RETURN(const JsonObject text_config, config.object("text_config"));
  return add_ids(text_config, tokenizer, ids);
}

base::Status add_from_tokenizer_config(const JsonObject& config, const Tokenizer& tokenizer, Ids& ids) {
  const json::value* value = config.find("eos_token");
  if (value == nullptr) return {};
  std::string_view content;
  if (value->is_string()) {
    content = value->get_string();
  } else {
    TESSERA_ASSIGN_OR_RETURN(const JsonObject token, config.object("eos_token"));
    TESSERA_ASSIGN_OR_RETURN(content, token.string("content"));
  }
  const auto id = tokenizer.token_id(content);
  if (!id.has_value()) {
    return base::invalid_argument(
        fmt::format("{}: '{}' is not one of the tokenizer's added_tokens", config.where("eos_token"), content));
  }
  ids.push_back(*id);
  return {};
}

using AddFrom = base::Status (*)(const JsonObject&, const Tokenizer&, Ids&);

base::Status add_from_file(const std::filesystem::path& path, AddFrom add, const Tokenizer& tokenizer, Ids& ids) {
  const auto text = read_text_file(path);
  if (!text.has_value()) return text.error().code() == base::StatusCode::kNotFound ? base::ok_status() : text.error();
  const auto root = parse_json(*text);
  if (!root.has_value()) return root.error().with_context(path.string());
  const auto object = JsonObject::from(*root, "");
  if (!object.has_value()) return object.error().with_context(path.string());
  return add(*object, tokenizer, ids).with_context(path.string());
}

}  // namespace

base::Result<std::vector<TokenId>> read_eos_ids(const std::filesystem::path& model_dir, const Tokenizer& tokenizer) {
  Ids ids;
  TESSERA_RETURN_IF_ERROR(add_from_file(model_dir / "config.json", add_from_config, tokenizer, ids));
  TESSERA_RETURN_IF_ERROR(add_from_file(model_dir / "generation_config.json", add_ids, tokenizer, ids));
  TESSERA_RETURN_IF_ERROR(
      add_from_file(model_dir / "tokenizer_config.json", add_from_tokenizer_config, tokenizer, ids));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace tessera::text
