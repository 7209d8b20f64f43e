#include "tessera/text/argument_types.h"

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <string>

#include "tessera/text/json_reader.h"

namespace tessera::text {
namespace {

namespace json = boost::json;

JsonTypes named_type(const json::value& name) {
  if (!name.is_string()) return {};
  const std::string_view type = name.get_string();
  if (type == "null") return JsonTypes(JsonType::kNull);
  if (type == "boolean") return JsonTypes(JsonType::kBoolean);
  if (type == "integer") return JsonTypes(JsonType::kInteger);
  if (type == "number") return JsonTypes(JsonType::kInteger) | JsonTypes(JsonType::kNumber);
  if (type == "string") return JsonTypes(JsonType::kString);
  if (type == "array") return JsonTypes(JsonType::kArray);
  if (type == "object") return JsonTypes(JsonType::kObject);
  return {};
}

JsonType type_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return JsonType::kNull;
    case json::kind::bool_:
      return JsonType::kBoolean;
    case json::kind::int64:
    case json::kind::uint64:
      return JsonType::kInteger;
    case json::kind::double_:
      return JsonType::kNumber;
    case json::kind::string:
      return JsonType::kString;
    case json::kind::array:
      return JsonType::kArray;
    case json::kind::object:
      return JsonType::kObject;
  }
  return JsonType::kNull;
}

class SchemaTypes {
 public:
  explicit SchemaTypes(const json::object& root) : root_(root) {}

  JsonTypes of(const json::value& schema) {
    const json::object* object = schema.if_object();
    if (object == nullptr) return JsonTypes::any();
    JsonTypes types = JsonTypes::any();
    const auto narrow = [&](JsonTypes allowed) {
      if (!(types & allowed).empty()) types = types & allowed;
    };
    if (const json::value* type = object->if_contains("type")) narrow(union_of(*type, named_type));
    if (const json::value* values = object->if_contains("enum"); values != nullptr && values->is_array()) {
      narrow(union_of(*values, [](const json::value& value) { return JsonTypes(type_of(value)); }));
    }
    if (const json::value* value = object->if_contains("const")) narrow(JsonTypes(type_of(*value)));
    for (const std::string_view choice : {"anyOf", "oneOf"}) {
      const json::value* schemas = object->if_contains(choice);
      if (schemas != nullptr && schemas->is_array()) {
        narrow(union_of(*schemas, [this](const json::value& one) { return of(one); }));
      }
    }
    if (const json::value* all = object->if_contains("allOf"); all != nullptr && all->is_array()) {
      for (const json::value& one : all->get_array()) {
        if (!may_go_on()) break;
        narrow(of(one));
      }
    }
    if (const json::value* reference = object->if_contains("$ref"); reference != nullptr && reference->is_string()) {
      const json::value* target = find(reference->get_string());
      if (target != nullptr && may_go_on()) narrow(of(*target));
    }
    const json::value* nullable = object->if_contains("nullable");
    if (nullable != nullptr && nullable->is_bool() && nullable->get_bool()) types = types | JsonTypes(JsonType::kNull);
    return types;
  }

 private:
  // Of one value, or of all values of an array.
  template <typename TypesOf>
  JsonTypes union_of(const json::value& values, TypesOf types_of) {
    if (!values.is_array()) return types_of(values);
    JsonTypes types;
    for (const json::value& value : values.get_array()) {
      if (!may_go_on()) return JsonTypes::any();
      types = types | types_of(value);
    }
    return types;
  }

  bool may_go_on() {
    if (values_left_ > 0) --values_left_;
    return values_left_ > 0;
  }

  // "#/$defs/NAME"; nullptr if it leads nowhere. Only references into the tool's own schema are followed.
  const json::value* find(std::string_view reference) const {
    if (!reference.starts_with("#/")) return nullptr;
    const json::value* at = nullptr;
    const json::object* in = &root_;
    std::string_view path = reference.substr(2);
    while (in != nullptr) {
      const std::size_t end = path.find('/');
      at = in->if_contains(path.substr(0, end));
      if (at == nullptr || end == std::string_view::npos) return at;
      in = at->if_object();
      path.remove_prefix(end + 1);
    }
    return nullptr;
  }

  const json::object& root_;
  int values_left_ = 1024;  // To look at: references may go round in circles, and enums be long.
};

}  // namespace

JsonTypes argument_types(const json::object* parameters, std::string_view name) {
  if (parameters == nullptr) return JsonTypes::any();
  const json::value* schema = nullptr;
  if (const json::value* properties = parameters->if_contains("properties");
      properties != nullptr && properties->is_object()) {
    schema = properties->get_object().if_contains(name);
  }
  if (schema == nullptr) schema = parameters->if_contains("additionalProperties");
  return schema == nullptr ? JsonTypes::any() : SchemaTypes(*parameters).of(*schema);
}

std::optional<JsonType> json_type_of(std::string_view text) {
  if (text.empty()) return std::nullopt;
  constexpr std::string_view kWhite = " \t\n\r";
  if (kWhite.contains(text.front()) || kWhite.contains(text.back())) return std::nullopt;
  const auto value = parse_json(text);
  if (!value.has_value()) return std::nullopt;
  if (!value->is_number()) return type_of(*value);
  return text.find_first_of(".eE") == std::string_view::npos ? JsonType::kInteger : JsonType::kNumber;
}

}  // namespace tessera::text
