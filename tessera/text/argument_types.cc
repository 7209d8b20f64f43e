#include "tessera/text/argument_types.h"

#include <algorithm>
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
    return object == nullptr ? JsonTypes::any() : of(*object);
  }

  // Of the argument `name` in the schema `object` of all arguments; nullptr if it has none of that name.
  const json::value* argument(const json::object& object, std::string_view name) {
    if (const json::value* properties = object.if_contains("properties");
        properties != nullptr && properties->is_object()) {
      if (const json::value* found = properties->get_object().if_contains(name)) return found;
    }
    if (const json::object* target = referred(object); target != nullptr && may_go_on()) {
      if (const json::value* found = argument(*target, name)) return found;
    }
    if (const json::value* all = object.if_contains("allOf"); all != nullptr && all->is_array()) {
      for (const json::value& one : all->get_array()) {
        if (!may_go_on()) break;
        const json::object* part = one.if_object();
        const json::value* found = part == nullptr ? nullptr : argument(*part, name);
        if (found != nullptr) return found;
      }
    }
    return nullptr;
  }

 private:
  JsonTypes of(const json::object& object) {
    JsonTypes types = JsonTypes::any();
    const auto narrow = [&](JsonTypes allowed) {
      if (!(types & allowed).empty()) types = types & allowed;
    };
    if (const json::value* type = object.if_contains("type")) narrow(union_of(*type, named_type));
    if (const json::value* values = object.if_contains("enum"); values != nullptr && values->is_array()) {
      narrow(union_of(*values, [](const json::value& value) { return JsonTypes(type_of(value)); }));
    }
    if (const json::value* value = object.if_contains("const")) narrow(JsonTypes(type_of(*value)));
    for (const std::string_view choice : {"anyOf", "oneOf"}) {
      const json::value* schemas = object.if_contains(choice);
      if (schemas != nullptr && schemas->is_array()) {
        narrow(union_of(*schemas, [this](const json::value& one) { return of(one); }));
      }
    }
    if (const json::value* all = object.if_contains("allOf"); all != nullptr && all->is_array()) {
      for (const json::value& one : all->get_array()) {
        if (!may_go_on()) break;
        narrow(of(one));
      }
    }
    if (const json::object* target = referred(object); target != nullptr && may_go_on()) narrow(of(*target));
    const json::value* nullable = object.if_contains("nullable");
    if (nullable != nullptr && nullable->is_bool() && nullable->get_bool()) types = types | JsonTypes(JsonType::kNull);
    return types;
  }

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

  // Where "$ref" leads; nullptr if there is none, or nothing there. Only references into the tool's own schema are
  // followed, and looking one up must not cost more than it should.
  const json::object* referred(const json::object& object) const {
    constexpr std::size_t kReferenceBytesMax = 1024;
    const json::value* reference = object.if_contains("$ref");
    if (reference == nullptr || !reference->is_string()) return nullptr;
    std::string_view path = reference->get_string();
    if (path.size() > kReferenceBytesMax || !path.starts_with('#')) return nullptr;
    path.remove_prefix(1);
    const json::object* at = &root_;
    while (at != nullptr && !path.empty()) {
      if (path.front() != '/') return nullptr;
      path.remove_prefix(1);
      const std::size_t end = std::min(path.find('/'), path.size());
      const json::value* next = at->if_contains(unescaped(path.substr(0, end)));
      at = next == nullptr ? nullptr : next->if_object();
      path.remove_prefix(end);
    }
    return at;
  }

  // A name in a JSON pointer: ~1 is a slash, ~0 is a tilde.
  static std::string unescaped(std::string_view name) {
    std::string out;
    for (std::size_t i = 0; i < name.size(); ++i) {
      const char next = name[i] == '~' && i + 1 < name.size() ? name[i + 1] : '\0';
      if (next == '0' || next == '1') ++i;
      out += next == '0' ? '~' : next == '1' ? '/' : name[i];
    }
    return out;
  }

  const json::object& root_;
  int values_left_ = 1024;  // To look at: references may go round in circles, and enums be long.
};

}  // namespace

JsonTypes argument_types(const json::object* parameters, std::string_view name) {
  if (parameters == nullptr) return JsonTypes::any();
  SchemaTypes schemas(*parameters);
  const json::value* schema = schemas.argument(*parameters, name);
  if (schema == nullptr) schema = parameters->if_contains("additionalProperties");
  return schema == nullptr ? JsonTypes::any() : schemas.of(*schema);
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
