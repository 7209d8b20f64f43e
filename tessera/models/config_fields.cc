#include "tessera/models/config_fields.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <utility>

namespace tessera::models {

namespace json = boost::json;

base::Result<ConfigFields> ConfigFields::parse(std::string_view text, std::string_view file_name) {
  json::error_code ec;
  json::value root = json::parse(text, ec);
  if (ec) return base::failure(base::invalid_argument(fmt::format("{}: no JSON: {}", file_name, ec.message())));
  if (!root.is_object()) return base::failure(base::invalid_argument(fmt::format("{}: expected an object", file_name)));
  auto shared = std::make_shared<const json::value>(std::move(root));
  const json::object* object = &shared->get_object();
  return ConfigFields(std::move(shared), object, std::string(file_name));
}

ConfigFields::ConfigFields(std::shared_ptr<const json::value> root, const json::object* object, std::string where)
    : root_(std::move(root)), object_(object), where_(std::move(where)) {}

const json::value* ConfigFields::find(std::string_view field) const {
  const json::value* value = object_->if_contains(json::string_view(field.data(), field.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

base::Status ConfigFields::refuse(std::string_view field, std::string_view message) const {
  return base::invalid_argument(fmt::format("{}: {}: {}", where_, field, message));
}

base::Status ConfigFields::refuse_unsupported(std::string_view field, std::string_view message) const {
  return base::unimplemented(fmt::format("{}: {}: {}", where_, field, message));
}

base::Result<const json::value*> ConfigFields::require(std::string_view field, std::string_view expected) const {
  const json::value* value = find(field);
  if (value == nullptr) return base::failure(refuse(field, fmt::format("missing, expected {}", expected)));
  return value;
}

base::Result<std::int64_t> ConfigFields::to_integer(std::string_view field, const json::value& value,
                                                    Range<std::int64_t> range) const {
  const std::string expected = fmt::format("expected a whole number from {} to {}", range.min, range.max);
  if (value.is_int64()) {
    const std::int64_t number = value.get_int64();
    if (number >= range.min && number <= range.max) return number;
    return base::failure(refuse(field, fmt::format("is {}, {}", number, expected)));
  }
  return base::failure(refuse(field, expected));
}

base::Result<std::int64_t> ConfigFields::integer(std::string_view field, Range<std::int64_t> range) const {
  TESSERA_ASSIGN_OR_RETURN(const json::value* value,
                           require(field, fmt::format("a whole number from {} to {}", range.min, range.max)));
  return to_integer(field, *value, range);
}

base::Result<std::int64_t> ConfigFields::integer_or(std::string_view field, Range<std::int64_t> range,
                                                    std::int64_t missing) const {
  const json::value* value = find(field);
  if (value == nullptr) return missing;
  return to_integer(field, *value, range);
}

base::Result<double> ConfigFields::number(std::string_view field, Range<double> range) const {
  const std::string expected = fmt::format("a number from {} to {}", range.min, range.max);
  TESSERA_ASSIGN_OR_RETURN(const json::value* value, require(field, expected));
  if (!value->is_number()) return base::failure(refuse(field, "expected " + expected));
  const double number = value->to_number<double>();
  // Written so that NaN is refused too.
  if (!(number >= range.min && number <= range.max)) {
    return base::failure(refuse(field, fmt::format("is {}, expected {}", number, expected)));
  }
  return number;
}

base::Result<double> ConfigFields::number_or(std::string_view field, Range<double> range, double missing) const {
  if (!has(field)) return missing;
  return number(field, range);
}

base::Result<std::string> ConfigFields::text(std::string_view field) const {
  TESSERA_ASSIGN_OR_RETURN(const json::value* value, require(field, "a string"));
  if (!value->is_string()) return base::failure(refuse(field, "expected a string"));
  return std::string(value->get_string().data(), value->get_string().size());
}

base::Result<bool> ConfigFields::boolean_or(std::string_view field, bool missing) const {
  const json::value* value = find(field);
  if (value == nullptr) return missing;
  if (!value->is_bool()) return base::failure(refuse(field, "expected true or false"));
  return value->get_bool();
}

base::Result<ConfigFields> ConfigFields::object(std::string_view field) const {
  TESSERA_ASSIGN_OR_RETURN(const json::value* value, require(field, "an object"));
  if (!value->is_object()) return base::failure(refuse(field, "expected an object"));
  return ConfigFields(root_, &value->get_object(), fmt::format("{}: {}", where_, field));
}

bool ConfigFields::equals(const ConfigFields& other) const { return *object_ == *other.object_; }

std::string ConfigFields::json() const { return json::serialize(*object_); }

base::Result<std::vector<std::string>> ConfigFields::texts(std::string_view field, std::int64_t count_max) const {
  TESSERA_ASSIGN_OR_RETURN(const json::value* value, require(field, "a list of strings"));
  if (!value->is_array() || std::ssize(value->get_array()) > count_max) {
    return base::failure(refuse(field, fmt::format("expected a list of at most {} strings", count_max)));
  }
  std::vector<std::string> out;
  for (const json::value& item : value->get_array()) {
    if (!item.is_string()) return base::failure(refuse(field, "expected a list of strings"));
    out.emplace_back(item.get_string().data(), item.get_string().size());
  }
  return out;
}

}  // namespace tessera::models
