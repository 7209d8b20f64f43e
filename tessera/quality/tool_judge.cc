#include "tessera/quality/tool_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <system_error>
#include <utility>

#include "tessera/quality/outcome.h"

namespace tessera::quality {

namespace {

using Value = text::PythonValue;
using Kind = text::PythonValue::Kind;

bool is_number(const Value& value) { return value.is(Kind::kBool) || value.is(Kind::kInt) || value.is(Kind::kFloat); }

// bool is a subclass of int: True is 1.
std::string integer_text(const Value& value) {
  if (value.is(Kind::kBool)) return value.flag ? "1" : "0";
  return value.text == "-0" ? "0" : value.text;
}

double number_of(const Value& value) {
  const std::string text = value.is(Kind::kFloat) ? value.text : integer_text(value);
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc::result_out_of_range) return number;
  // Only an integer can be beyond the largest double: Python's floats are written as they are.
  return std::copysign(std::numeric_limits<double>::infinity(), text.starts_with('-') ? -1.0 : 1.0);
}

bool same_number(const Value& a, const Value& b) {
  if (!a.is(Kind::kFloat) && !b.is(Kind::kFloat)) return integer_text(a) == integer_text(b);
  return number_of(a) == number_of(b);
}

bool same_dict(const Value& a, const Value& b) {
  if (a.members.size() != b.members.size()) return false;
  return std::ranges::all_of(a.members, [&b](const Value::Member& member) {
    const Value* const other = b.find(member.first);
    return other != nullptr && python_equal(member.second, *other);
  });
}

bool is_of_type(const Value& value, std::string_view type) {
  if (type == "object" || type == "dict") return value.is(Kind::kDict);
  if (type == "array" || type == "tuple") return value.is(Kind::kList);
  if (type == "string") return value.is(Kind::kString);
  if (type == "integer") return value.is(Kind::kInt);
  if (type == "number" || type == "float") return value.is(Kind::kInt) || value.is(Kind::kFloat);
  if (type == "boolean") return value.is(Kind::kBool);
  if (type == "null") return value.is(Kind::kNone);
  return type == "any";
}

bool type_allows(const Value& type, const Value& value) {
  if (type.is(Kind::kString)) return is_of_type(value, type.text);
  if (!type.is(Kind::kList)) return false;
  return std::ranges::any_of(type.items, [&value](const Value& one) { return type_allows(one, value); });
}

bool members_satisfy(const Value& schema, const Value& value) {
  if (const Value* const required = schema.find("required"); required != nullptr) {
    for (const Value& name : required->items) {
      if (value.find(name.text) == nullptr) return false;
    }
  }
  const Value* const properties = schema.find("properties");
  if (properties == nullptr) return true;
  return std::ranges::all_of(value.members, [properties](const Value::Member& member) {
    const Value* const rule = properties->find(member.first);
    return rule != nullptr && satisfies(*rule, member.second);
  });
}

std::string json_of(const Value& value) {
  std::string text;
  text::append_python_json(value, text::JsonSpacing::kSpaces, text);
  return text;
}

}  // namespace

std::optional<MadeCall> read_call(const ToolCall& call) {
  text::ValueBudget budget;
  base::Result<Value> arguments = text::parse_python_json(call.arguments, budget);
  if (!arguments.has_value() || !arguments->is(Kind::kDict)) return std::nullopt;
  return MadeCall{call.name, *std::move(arguments)};
}

std::optional<std::vector<MadeCall>> read_calls(const Answer& answer) {
  if (answer.cut_off || answer.calls.empty() || !text::python_strip(answer.text).empty()) return std::nullopt;
  std::vector<MadeCall> calls;
  calls.reserve(answer.calls.size());
  for (const ToolCall& call : answer.calls) {
    std::optional<MadeCall> read = read_call(call);
    if (!read.has_value()) return std::nullopt;
    calls.push_back(*std::move(read));
  }
  return calls;
}

bool python_equal(const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) return same_number(a, b);
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kString:
      return a.text == b.text;
    case Kind::kList:
      return std::ranges::equal(a.items, b.items, python_equal);
    case Kind::kDict:
      return same_dict(a, b);
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      break;
  }
  return true;
}

bool same_calls(std::span<const MadeCall> made, std::span<const MadeCall> expected) {
  if (made.size() != expected.size()) return false;
  std::vector<bool> found(expected.size(), false);
  for (const MadeCall& call : made) {
    std::size_t i = 0;
    while (i < expected.size() &&
           (found[i] || call.name != expected[i].name || !python_equal(call.arguments, expected[i].arguments))) {
      ++i;
    }
    if (i == expected.size()) return false;
    found[i] = true;
  }
  return true;
}

base::Result<std::vector<DeclaredTool>> read_tools(std::string_view tools) {
  text::ValueBudget budget;
  TESSERA_ASSIGN_OR_RETURN(Value list, text::parse_python_json(tools, budget));
  if (!list.is(Kind::kList)) return base::failure(base::invalid_argument("tools: expected an array"));
  std::vector<DeclaredTool> declared;
  declared.reserve(list.items.size());
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const Value* const function = list.items[i].find("function");
    const Value* const name = function == nullptr ? nullptr : function->find("name");
    const Value* const parameters = function == nullptr ? nullptr : function->find("parameters");
    if (name == nullptr || !name->is(Kind::kString)) {
      return base::failure(base::invalid_argument(fmt::format("tools[{}].function.name: expected a string", i)));
    }
    if (parameters == nullptr || !parameters->is(Kind::kDict)) {
      return base::failure(base::invalid_argument(fmt::format("tools[{}].function.parameters: expected an object", i)));
    }
    declared.push_back({name->text, *parameters});
  }
  return declared;
}

bool satisfies(const Value& schema, const Value& value) {
  if (const Value* const type = schema.find("type"); type != nullptr && !type_allows(*type, value)) return false;
  if (const Value* const allowed = schema.find("enum"); allowed != nullptr) {
    const auto same = [&value](const Value& one) { return python_equal(one, value); };
    if (std::ranges::none_of(allowed->items, same)) return false;
  }
  if (value.is(Kind::kDict)) return members_satisfy(schema, value);
  const Value* const items = schema.find("items");
  if (!value.is(Kind::kList) || items == nullptr) return true;
  return std::ranges::all_of(value.items, [items](const Value& item) { return satisfies(*items, item); });
}

bool satisfies(std::span<const DeclaredTool> tools, const MadeCall& call) {
  const auto tool = std::ranges::find(tools, call.name, &DeclaredTool::name);
  return tool != tools.end() && satisfies(tool->parameters, call.arguments);
}

std::string shown(const MadeCall& call) { return fmt::format("{}({})", call.name, json_of(call.arguments)); }

std::string shown(const Answer& answer) {
  std::string text = answer.text;
  for (const ToolCall& call : answer.calls) {
    text += fmt::format("{}{}({})", text.empty() ? "" : "\n", call.name, call.arguments);
  }
  return shown(text);
}

}  // namespace tessera::quality
