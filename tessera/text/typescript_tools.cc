#include "tessera/text/typescript_tools.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

using Kind = PythonValue::Kind;

// Empty: the schema is outside what the encoder understands.
using Text = std::optional<std::string>;

constexpr std::string_view kIndent = "  ";

enum class SchemaKind { kAny, kNever, kRef, kAnyOf, kEnum, kUnion, kObject, kArray, kScalar, kUnknown };

// The first of these that the schema has decides, in this order.
SchemaKind kind_of(const PythonValue& schema) {
  if (schema.is(Kind::kBool)) return schema.flag ? SchemaKind::kAny : SchemaKind::kNever;
  if (!schema.is(Kind::kDict)) return SchemaKind::kUnknown;
  if (schema.find("$ref") != nullptr) return SchemaKind::kRef;
  if (schema.find("anyOf") != nullptr) return SchemaKind::kAnyOf;
  if (schema.find("enum") != nullptr) return SchemaKind::kEnum;
  if (const PythonValue* type = schema.find("type")) {
    if (type->is(Kind::kList)) return SchemaKind::kUnion;
    if (!type->is(Kind::kString)) return SchemaKind::kUnknown;
    if (type->text == "object") return SchemaKind::kObject;
    return type->text == "array" ? SchemaKind::kArray : SchemaKind::kScalar;
  }
  return schema.members.empty() ? SchemaKind::kAny : SchemaKind::kUnknown;
}

// A description as comment lines without a newline at the end; an empty line stays empty.
std::string comment_lines(std::string_view description, std::string_view indent) {
  std::string out;
  while (true) {
    const std::size_t end = description.find('\n');
    const std::string_view line = description.substr(0, end);
    if (!line.empty()) {
      out += indent;
      out += "// ";
      out += line;
    }
    if (end == std::string_view::npos) return out;
    out += '\n';
    description.remove_prefix(end + 1);
  }
}

// The text of "description": "" if there is none.
Text description_of(const PythonValue& schema) {
  const PythonValue* description = schema.find("description");
  if (description == nullptr || !description->truthy()) return "";
  if (!description->is(Kind::kString)) return std::nullopt;
  return description->text;
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

// One function's declaration.
class FunctionWriter {
 public:
  Text write(const PythonValue& function) {
    const PythonValue none{.kind = Kind::kDict};
    const PythonValue* parameters = function.find("parameters");
    if (parameters == nullptr || !parameters->truthy()) parameters = &none;
    if (!parameters->is(Kind::kDict)) return std::nullopt;
    Text type = object_type(*parameters, "");
    if (!type) return std::nullopt;

    std::vector<std::string> lines;
    if (refers_to_root_) {
      const Text root = root_interface(*parameters);
      if (!root) return std::nullopt;
      lines.push_back(*root);
      type = "parameters";
    }
    // Definitions may register further ones, which are not written.
    const std::vector<Definition> definitions = definitions_;
    for (const auto& [name, schema] : definitions) {
      const Text interface = definition_interface(*name, *schema);
      if (!interface) return std::nullopt;
      lines.push_back(*interface);
    }
    const Text description = description_of(function);
    if (!description) return std::nullopt;
    if (!description->empty()) lines.push_back(comment_lines(*description, ""));
    const PythonValue* name = function.find("name");
    lines.push_back("type " + (name == nullptr ? "function" : python_str(*name)) + " = (_: " + *type + ") => any;");
    return joined(lines, "\n");
  }

 private:
  // Parts of the function's declaration.
  struct Definition {
    const std::string* name;
    const PythonValue* schema;
  };
  struct Field {
    std::string name;
    bool is_optional;
    std::string text;
  };

  // What the encoder says about a value before the line of its type: description and constraints.
  static Text comments(const PythonValue& schema, std::string_view indent) {
    if (!schema.is(Kind::kDict) || schema.members.empty()) return "";
    const Text description = description_of(schema);
    if (!description) return std::nullopt;
    std::string out;
    if (!description->empty()) out += comment_lines(*description, indent) + "\n";
    std::vector<std::string_view> names;
    const SchemaKind kind = kind_of(schema);
    if (kind == SchemaKind::kArray) names = {"maxItems", "minItems"};
    if (kind == SchemaKind::kScalar) {
      const std::string& type = schema.find("type")->text;
      if (type == "string") names = {"maxLength", "minLength", "pattern"};
      if (type == "number" || type == "integer") names = {"maximum", "minimum"};
    }
    std::vector<std::string> constraints;
    for (const std::string_view name : names) {
      const PythonValue* value = schema.find(name);
      if (value != nullptr) constraints.push_back(std::string(name) + ": " + python_str(*value));
    }
    if (!constraints.empty()) out += std::string(indent) + "// " + joined(constraints, ", ") + "\n";
    return out;
  }

  Text type(const PythonValue& schema, const std::string& indent) {
    switch (kind_of(schema)) {
      case SchemaKind::kAny:
        return "any";
      case SchemaKind::kNever:
        return "null";
      case SchemaKind::kRef:
        return ref_type(*schema.find("$ref"));
      case SchemaKind::kAnyOf:
        return any_of_type(*schema.find("anyOf"), indent);
      case SchemaKind::kEnum:
        return enum_type(schema);
      case SchemaKind::kUnion:
        return union_type(*schema.find("type"));
      case SchemaKind::kObject:
        return object_type(schema, indent);
      case SchemaKind::kArray:
        return array_type(schema, indent);
      case SchemaKind::kScalar: {
        const std::string& name = schema.find("type")->text;
        return name == "integer" ? "number" : name;
      }
      case SchemaKind::kUnknown:
        break;
    }
    return std::nullopt;
  }

  Text ref_type(const PythonValue& ref) {
    constexpr std::string_view kDefinitions = "#/$defs/";
    if (!ref.is(Kind::kString)) return std::nullopt;
    if (ref.text == "#") {
      refers_to_root_ = true;
      return "parameters";
    }
    if (!ref.text.starts_with(kDefinitions)) return std::nullopt;
    std::string name = ref.text.substr(ref.text.rfind('/') + 1);
    const auto definition = definition_index_.find(name);
    if (definition == definition_index_.end()) return std::nullopt;
    const PythonValue& schema = *definitions_[definition->second].schema;
    if (!schema.is(Kind::kDict)) return std::nullopt;
    // The encoder's own mark of a reference to the root.
    const PythonValue* mark = schema.find("$self_ref");
    return mark != nullptr && mark->truthy() ? Text("parameters") : Text(std::move(name));
  }

  Text any_of_type(const PythonValue& choices, const std::string& indent) {
    if (!choices.is(Kind::kList)) return std::nullopt;
    std::vector<std::string> types;
    for (const PythonValue& choice : choices.items) {
      const Text one = type(choice, indent);
      if (!one) return std::nullopt;
      types.push_back(*one);
    }
    return joined(types, " | ");
  }

  static Text enum_type(const PythonValue& schema) {
    const PythonValue& values = *schema.find("enum");
    if (!values.is(Kind::kList)) return std::nullopt;
    if (const PythonValue* type = schema.find("type")) {
      const std::optional<std::string> name = enum_base_type(*type);
      if (!name) return std::nullopt;
      const bool fits =
          std::ranges::all_of(values.items, [&](const PythonValue& value) { return fits_enum_type(value, *name); });
      if (!fits) return std::nullopt;
    }
    std::vector<std::string> texts;
    texts.reserve(values.items.size());
    for (const PythonValue& value : values.items) {
      texts.push_back(value.is(Kind::kString) ? '"' + value.text + '"' : python_str(value));
    }
    return joined(texts, " | ");
  }

  // The type that an enum's values must have: of a list, the one beside "null".
  static std::optional<std::string> enum_base_type(const PythonValue& type) {
    if (!type.is(Kind::kList)) return type.is(Kind::kString) ? type.text : "";
    const auto is_null = [](const PythonValue& one) { return one.is(Kind::kString) && one.text == "null"; };
    const PythonValue* base = nullptr;
    if (type.items.size() == 1) {
      base = &type.items[0];
    } else if (type.items.size() == 2 && std::ranges::any_of(type.items, is_null)) {
      base = is_null(type.items[0]) ? &type.items[1] : &type.items[0];
    }
    if (base == nullptr) return std::nullopt;
    return base->is(Kind::kString) ? base->text : "";
  }

  // A Python bool is an int.
  static bool fits_enum_type(const PythonValue& value, std::string_view type) {
    if (value.is(Kind::kNone)) return true;
    if (type == "string") return value.is(Kind::kString);
    if (type == "number") return value.is(Kind::kInt) || value.is(Kind::kFloat) || value.is(Kind::kBool);
    if (type == "integer") return value.is(Kind::kInt) || value.is(Kind::kBool);
    return type != "boolean" || value.is(Kind::kBool);
  }

  static Text union_type(const PythonValue& names) {
    constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
        {"string", "string"}, {"number", "number"}, {"integer", "number"},   {"boolean", "boolean"},
        {"null", "null"},     {"object", "{}"},     {"array", "Array<any>"},
    };
    std::vector<std::string> types;
    for (const PythonValue& name : names.items) {
      const auto* known = std::ranges::find_if(
          kTypes, [&](const auto& entry) { return name.is(Kind::kString) && name.text == entry.first; });
      if (known == std::end(kTypes)) return std::nullopt;
      types.emplace_back(known->second);
    }
    return joined(types, " | ");
  }

  Text array_type(const PythonValue& schema, const std::string& indent) {
    const PythonValue any{.kind = Kind::kDict};
    const PythonValue* item = schema.find("items");
    if (item == nullptr || !item->truthy()) item = &any;
    const std::string inner = indent + std::string(kIndent);
    const Text about = comments(*item, inner);
    const Text one = about ? type(*item, about->empty() ? indent : inner) : std::nullopt;
    if (!one) return std::nullopt;
    if (about->empty()) return "Array<" + *one + ">";
    return "Array<\n" + *about + inner + *one + "\n" + indent + ">";
  }

  Text object_type(const PythonValue& schema, const std::string& indent) {
    const std::string inner = indent + std::string(kIndent);
    if (const PythonValue* definitions = schema.find("$defs"); definitions != nullptr && definitions->truthy()) {
      if (!definitions->is(Kind::kDict)) return std::nullopt;
      for (const auto& [name, definition] : definitions->members) define(name, definition);
    }
    // The schema of further fields is looked at before the fields.
    const Text further = index_signature(schema, inner);
    if (!further) return std::nullopt;
    std::optional<std::vector<Field>> fields = read_fields(schema, inner);
    if (!fields) return std::nullopt;
    std::ranges::sort(*fields, [](const Field& a, const Field& b) {
      return std::pair(a.is_optional, std::string_view(a.name)) < std::pair(b.is_optional, std::string_view(b.name));
    });
    std::vector<std::string> lines;
    for (Field& field : *fields) lines.push_back(std::move(field.text));
    if (!further->empty()) lines.push_back(*further);
    if (lines.empty()) return "{}";
    return "{\n" + joined(lines, ",\n") + "\n" + indent + "}";
  }

  // "" if the schema does not speak of additionalProperties.
  Text index_signature(const PythonValue& schema, const std::string& indent) {
    const PythonValue* further = schema.find("additionalProperties");
    if (further == nullptr || further->is(Kind::kNone)) return "";
    const std::string begin = indent + "[k: string]: ";
    if (further->is(Kind::kBool)) return begin + (further->flag ? "any" : "never");
    if (!further->is(Kind::kDict)) return std::nullopt;
    const Text one = type(*further, indent);
    return one ? Text(begin + *one) : std::nullopt;
  }

  std::optional<std::vector<Field>> read_fields(const PythonValue& schema, const std::string& indent) {
    std::vector<Field> fields;
    const PythonValue* properties = schema.find("properties");
    if (properties == nullptr) return fields;
    if (!properties->is(Kind::kDict)) return std::nullopt;
    std::set<std::string_view> required;
    if (const PythonValue* names = schema.find("required")) {
      if (!read_required(*names, required)) return std::nullopt;
    }
    for (const auto& [name, property] : properties->members) {
      const bool is_optional = !required.contains(name);
      const Text text = field_text(name, property, is_optional, indent);
      if (!text) return std::nullopt;
      fields.push_back({name, is_optional, *text});
    }
    return fields;
  }

  // What set() makes of it: the characters of a text, the keys of a dict, the values of a list, of which none may be a
  // list or a dict. False where it raises.
  static bool read_required(const PythonValue& names, std::set<std::string_view>& required) {
    switch (names.kind) {
      case Kind::kString:
        for (std::string_view left = names.text; !left.empty(); left.remove_prefix(utf8_length(left.front()))) {
          required.insert(left.substr(0, utf8_length(left.front())));
        }
        return true;
      case Kind::kDict:
        for (const auto& [name, value] : names.members) required.insert(name);
        return true;
      case Kind::kList:
        for (const PythonValue& name : names.items) {
          if (name.is(Kind::kList) || name.is(Kind::kDict)) return false;
          if (name.is(Kind::kString)) required.insert(name.text);
        }
        return true;
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        break;
    }
    return false;
  }

  Text field_text(const std::string& name, const PythonValue& property, bool is_optional, const std::string& indent) {
    const Text about = comments(property, indent);
    const Text one = about ? type(property, indent) : std::nullopt;
    if (!one) return std::nullopt;
    std::string out = *about;
    const PythonValue* fallback = property.find("default");
    if (fallback != nullptr && !fallback->is(Kind::kNone)) {
      out += indent + "// Default: ";
      // Numbers and booleans as Python writes them, the rest as JSON.
      if (fallback->is(Kind::kBool) || fallback->is(Kind::kInt) || fallback->is(Kind::kFloat)) {
        out += python_str(*fallback);
      } else {
        append_python_json(*fallback, JsonSpacing::kSpaces, out);
      }
      out += '\n';
    }
    return out + indent + name + (is_optional ? "?: " : ": ") + *one;
  }

  // The parameters themselves, which a schema in them refers to: their fields in the order of the schema.
  Text root_interface(const PythonValue& parameters) {
    const std::optional<std::vector<Field>> fields = read_fields(parameters, std::string(kIndent));
    if (!fields) return std::nullopt;
    std::vector<std::string> lines;
    for (const Field& field : *fields) lines.push_back(field.text);
    return lines.empty() ? "interface parameters {}" : "interface parameters {\n" + joined(lines, ",\n") + "\n}";
  }

  Text definition_interface(const std::string& name, const PythonValue& schema) {
    const Text body = type(schema, "");
    if (!body || !schema.is(Kind::kDict)) return std::nullopt;
    const Text description = description_of(schema);
    if (!description) return std::nullopt;
    const std::string about = description->empty() ? "" : comment_lines(*description, "") + "\n";
    return about + "interface " + name + " " + *body;
  }

  void define(const std::string& name, const PythonValue& schema) {
    const auto [known, is_new] = definition_index_.try_emplace(name, definitions_.size());
    if (is_new) {
      definitions_.push_back({&name, &schema});
    } else {
      definitions_[known->second].schema = &schema;
    }
  }

  std::vector<Definition> definitions_;  // In the order in which they were met.
  std::unordered_map<std::string, std::size_t> definition_index_;
  bool refers_to_root_ = false;
};

}  // namespace

std::optional<std::string> typescript_tools(const PythonValue& tools) {
  std::string functions;
  for (const PythonValue& tool : tools.items) {
    const PythonValue* type = tool.find("type");
    const PythonValue* function = tool.find("function");
    if (type == nullptr || !type->is(Kind::kString) || type->text != "function" || function == nullptr ||
        !function->truthy()) {
      continue;
    }
    const Text text = FunctionWriter().write(*function);
    if (!text) return std::nullopt;
    functions += *text + "\n";
  }
  if (functions.empty()) return std::nullopt;
  return "# Tools\n\n## functions\nnamespace functions {\n" + functions + "}\n";
}

}  // namespace tessera::text
