#include "tessera/text/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/parser.hpp>
#include <fstream>
#include <system_error>
#include <utility>

#include "tessera/base/limits.h"

namespace tessera::text {
namespace json = boost::json;

base::Result<std::string> read_text_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return base::failure(base::not_found(fmt::format("{}: there is no such file", path.string())));
  }
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return base::failure(base::invalid_argument(fmt::format("{}: {}", path.string(), error.message())));
  if (bytes > static_cast<std::uintmax_t>(base::limits::kJsonFileBytesMax)) {
    return base::failure(base::out_of_range(
        fmt::format("{}: {} bytes, expected at most {}", path.string(), bytes, base::limits::kJsonFileBytesMax)));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file || file.gcount() != static_cast<std::streamsize>(text.size())) {
    return base::failure(base::data_loss(fmt::format("{}: cannot be read", path.string())));
  }
  return text;
}

base::Result<json::value> parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(base::limits::kJsonDepthMax);
  json::parser parser(json::make_shared_resource<json::monotonic_resource>(), options);
  boost::system::error_code error;
  const std::size_t consumed = parser.write_some(text.data(), text.size(), error);
  if (!error && consumed < text.size()) error = json::error::extra_data;
  if (error) {
    return base::failure(base::data_loss(fmt::format("not valid JSON at byte {}: {}", consumed, error.message())));
  }
  return parser.release();
}

std::string_view json_kind(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "unknown";
}

namespace {

base::Status wrong_kind(const std::string& where, std::string_view expected, const json::value& value) {
  return base::invalid_argument(fmt::format("{}: is {}, expected {}", where, json_kind(value), expected));
}

}  // namespace

base::Result<JsonObject> JsonObject::from(const json::value& value, std::string where) {
  if (!value.is_object()) return base::failure(wrong_kind(where, "an object", value));
  return JsonObject(value.get_object(), std::move(where));
}

std::string JsonObject::where(std::string_view name) const {
  return where_.empty() ? std::string(name) : fmt::format("{}.{}", where_, name);
}

base::Status JsonObject::check_names(std::initializer_list<std::string_view> names) const {
  for (const auto& [key, value] : *object_) {
    if (std::find(names.begin(), names.end(), std::string_view(key)) == names.end()) {
      return base::unimplemented(fmt::format("{}: is not a field that is understood", where(std::string_view(key))));
    }
  }
  return {};
}

const json::value* JsonObject::find(std::string_view name) const {
  const json::value* value = object_->if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

base::Result<const json::value*> JsonObject::required(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) return base::failure(base::invalid_argument(fmt::format("{}: is missing", where(name))));
  return value;
}

base::Result<std::string_view> JsonObject::string(std::string_view name) const {
  TESSERA_ASSIGN_OR_RETURN(const json::value* value, required(name));
  if (!value->is_string()) return base::failure(wrong_kind(where(name), "a string", *value));
  return std::string_view(value->get_string());
}

base::Result<const json::array*> JsonObject::array(std::string_view name) const {
  TESSERA_ASSIGN_OR_RETURN(const json::value* value, required(name));
  if (!value->is_array()) return base::failure(wrong_kind(where(name), "an array", *value));
  return &value->get_array();
}

base::Result<JsonObject> JsonObject::object(std::string_view name) const {
  TESSERA_ASSIGN_OR_RETURN(const json::value* value, required(name));
  return from(*value, where(name));
}

base::Result<bool> JsonObject::boolean(std::string_view name, bool fallback) const {
  const json::value* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) return base::failure(wrong_kind(where(name), "a boolean", *value));
  return value->get_bool();
}

}  // namespace tessera::text
