#include "tessera/quality/bfcl_judge.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "tessera/text/utf8.h"

namespace tessera::quality {

namespace {

using Value = text::PythonValue;
using Kind = text::PythonValue::Kind;

bool is_empty_string(const Value& value) { return value.is(Kind::kString) && value.text.empty(); }
bool may_be_left_out(const Value& accepted) { return std::ranges::any_of(accepted.items, is_empty_string); }
bool is_among(const Value& value, std::span<const Value> values) {
  return std::ranges::any_of(values, [&value](const Value& one) { return python_equal(one, value); });
}

// The class of Python that a type of BFCL stands for.
std::optional<Kind> kind_of(std::string_view type) {
  static constexpr std::array<std::pair<std::string_view, Kind>, 8> kKinds = {{{"string", Kind::kString},
                                                                               {"integer", Kind::kInt},
                                                                               {"float", Kind::kFloat},
                                                                               {"boolean", Kind::kBool},
                                                                               {"array", Kind::kList},
                                                                               {"tuple", Kind::kList},
                                                                               {"dict", Kind::kDict},
                                                                               {"any", Kind::kString}}};
  for (const auto& [name, kind] : kKinds) {
    if (name == type) return kind;
  }
  return std::nullopt;
}

std::optional<Kind> type_of(const Value& schema) {
  const Value* const type = schema.find("type");
  return type == nullptr ? std::nullopt : kind_of(type->text);
}

// str.lower() of Latin, Greek and Cyrillic letters; of other scripts with two cases the data have none.
char32_t lower(char32_t c) {
  if ((c >= 'A' && c <= 'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7)) return c + 32;
  const bool is_odd_capital = (c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E);
  if (is_odd_capital) return c % 2 == 1 ? c + 1 : c;
  if (c == 0x178) return 0xFF;
  if (c >= 0x100 && c <= 0x177 && c != 0x130 && c != 0x131 && c != 0x138 && c != 0x149) return c | 1;
  if ((c >= 0x391 && c <= 0x3A9) || (c >= 0x410 && c <= 0x42F)) return c + 32;
  return c >= 0x400 && c <= 0x40F ? c + 80 : c;
}

std::string standardized(std::string_view text) {
  constexpr std::string_view kDropped = " ,./-_*^";
  std::string out;
  while (!text.empty()) {
    const std::size_t length = text::next_utf8_unit(text).length;
    if (!text::is_valid_utf8(text.substr(0, length))) {
      out += text.substr(0, length);
    } else if (const char32_t c = text::utf8_code_point(text); c >= 0x80 || kDropped.find(text[0]) == kDropped.npos) {
      text::append_utf8(c == '\'' ? U'"' : lower(c), out);
    }
    text.remove_prefix(length);
  }
  return out;
}

// Strings standardized, all else as it is: lists and dicts inside too.
Value standardized(const Value& value) {
  if (!value.is(Kind::kString)) return value;
  return {.kind = Kind::kString, .text = standardized(value.text)};
}
std::vector<Value> standardized(std::span<const Value> values) {
  std::vector<Value> out;
  out.reserve(values.size());
  for (const Value& value : values) out.push_back(standardized(value));
  return out;
}

struct TypeVerdict {
  bool valid = false;
  // The accepted values are of another type than the function declares: the checker takes the value for the name of a
  // variable, and compares it as it is.
  bool is_variable = false;
};

// Of the first accepted value that is not "".
std::optional<Kind> accepted_kind(std::span<const Value> accepted) {
  for (const Value& value : accepted) {
    if (!is_empty_string(value)) return value.kind;
  }
  return std::nullopt;
}

TypeVerdict check_type(const Value& value, std::span<const Value> accepted, Kind expected, std::optional<Kind> nested) {
  const std::optional<Kind> known = accepted_kind(accepted);
  const bool is_variable = known.has_value() && *known != expected;
  if (!value.is(expected)) return {.valid = known == value.kind, .is_variable = known == value.kind};
  if (!nested.has_value()) return {.valid = true, .is_variable = is_variable};
  // All items must fit one of the accepted lists; what is no list is asked nothing.
  const bool fits = std::ranges::any_of(accepted, [&value, nested](const Value& one) {
    return !one.is(Kind::kList) || std::ranges::all_of(value.items, [&one, nested](const Value& item) {
      return check_type(item, one.items, *nested, std::nullopt).valid;
    });
  });
  return {.valid = fits, .is_variable = is_variable};
}

bool string_is_right(const Value& value, std::span<const Value> accepted) {
  const std::string own = standardized(value.text);
  return std::ranges::any_of(
      accepted, [&own](const Value& one) { return one.is(Kind::kString) && standardized(one.text) == own; });
}

bool list_is_right(const Value& value, std::span<const Value> accepted) {
  const Value own{.kind = Kind::kList, .items = standardized(value.items)};
  return std::ranges::any_of(accepted, [&own](const Value& one) {
    // "" counts as a list of no characters.
    if (!one.is(Kind::kList) && !is_empty_string(one)) return false;
    return python_equal(own, {.kind = Kind::kList, .items = standardized(one.items)});
  });
}

// Against {key: [accepted values]}.
bool dict_fits(const Value& value, const Value& accepted) {
  if (!value.is(Kind::kDict) || !accepted.is(Kind::kDict)) return false;
  for (const auto& [key, item] : value.members) {
    const Value* const values = accepted.find(key);
    if (values == nullptr || !values->is(Kind::kList)) return false;
    if (!is_among(standardized(item), standardized(values->items))) return false;
  }
  return std::ranges::all_of(accepted.members, [&value](const Value::Member& member) {
    return value.find(member.first) != nullptr || may_be_left_out(member.second);
  });
}

bool dict_is_right(const Value& value, std::span<const Value> accepted) {
  return std::ranges::any_of(accepted, [&value](const Value& one) { return dict_fits(value, one); });
}

// In order; "" counts as a list of nothing.
bool list_of_dicts_is_right(const Value& value, std::span<const Value> accepted) {
  return std::ranges::any_of(accepted, [&value](const Value& one) {
    if (!one.is(Kind::kList) && !is_empty_string(one)) return false;
    return std::ranges::equal(value.items, one.items, dict_fits);
  });
}

// None for what is beyond the largest double, of which Python makes no float.
std::optional<Value> as_float(const Value& integer) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(integer.text.data(), integer.text.data() + integer.text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return Value{.kind = Kind::kFloat, .text = text::python_float(number)};
}

bool argument_is_right(const Value& schema, Value value, std::span<const Value> accepted) {
  const std::optional<Kind> expected = type_of(schema);
  if (!expected.has_value()) return false;
  std::optional<Kind> nested;
  if (*expected == Kind::kList) {
    const Value* const items = schema.find("items");
    nested = items == nullptr ? std::nullopt : type_of(*items);
    if (!nested.has_value()) return false;
  }
  if (*expected == Kind::kFloat && value.is(Kind::kInt)) {
    std::optional<Value> number = as_float(value);
    if (!number.has_value()) return false;
    value = *std::move(number);
  }
  const TypeVerdict verdict = check_type(value, accepted, *expected, nested);
  if (!verdict.valid) return false;
  if (!verdict.is_variable) {
    if (*expected == Kind::kDict) return dict_is_right(value, accepted);
    if (nested == Kind::kDict) return list_of_dicts_is_right(value, accepted);
    if (*expected == Kind::kString) return string_is_right(value, accepted);
    if (*expected == Kind::kList) return list_is_right(value, accepted);
  }
  return is_among(value, accepted);
}

const Value* properties_of(const Value& function) {
  const Value* const parameters = function.find("parameters");
  return parameters == nullptr ? nullptr : parameters->find("properties");
}

bool is_required(const Value& function, std::string_view argument) {
  const Value* const parameters = function.find("parameters");
  const Value* const required = parameters == nullptr ? nullptr : parameters->find("required");
  return required != nullptr &&
         std::ranges::any_of(required->items, [argument](const Value& one) { return one.text == argument; });
}

// `answer`: {function: {argument: [accepted values]}}.
bool call_is_right(const Value& function, const MadeCall& call, const Value& answer) {
  const Value* const name = function.find("name");
  const Value* const properties = properties_of(function);
  if (name == nullptr || properties == nullptr || answer.members.size() != 1 || call.name != name->text) return false;
  const Value& accepted = answer.members.front().second;
  const Value* const required = function.find("parameters")->find("required");
  if (required == nullptr) return false;
  const auto is_given = [&call](const Value& argument) { return call.arguments.find(argument.text) != nullptr; };
  if (!std::ranges::all_of(required->items, is_given)) return false;
  for (const auto& [argument, value] : call.arguments.members) {
    const Value* const schema = properties->find(argument);
    const Value* const values = accepted.find(argument);
    if (schema == nullptr || values == nullptr || !argument_is_right(*schema, value, values->items)) return false;
  }
  return std::ranges::all_of(accepted.members, [&call](const Value::Member& member) {
    return call.arguments.find(member.first) != nullptr || may_be_left_out(member.second);
  });
}

const Value* function_of(const Value& functions, const Value& answer) {
  if (answer.members.empty()) return nullptr;
  for (const Value& function : functions.items) {
    const Value* const name = function.find("name");
    if (name != nullptr && name->text == answer.members.front().first) return &function;
  }
  return nullptr;
}

// Each expected call takes the first call that fits it and that none before has taken, as the checker does.
bool parallel_calls_are_right(const Value& functions, const Value& answers, std::span<const MadeCall> calls) {
  std::vector<bool> taken(calls.size(), false);
  for (const Value& answer : answers.items) {
    const Value* const function = function_of(functions, answer);
    if (function == nullptr) return false;
    std::size_t i = 0;
    while (i < calls.size() && (taken[i] || !call_is_right(*function, calls[i], answer))) ++i;
    if (i == calls.size()) return false;
    taken[i] = true;
  }
  return true;
}

// One accepted value, out of what stands for it: in a dict, lists of accepted values again.
Value chosen(const Value& accepted) {
  if (accepted.is(Kind::kList)) {
    Value list{.kind = Kind::kList};
    for (const Value& item : accepted.items) list.items.push_back(item.is(Kind::kDict) ? chosen(item) : item);
    return list;
  }
  if (!accepted.is(Kind::kDict)) return accepted;
  Value dict{.kind = Kind::kDict};
  for (const auto& [key, values] : accepted.members) {
    if (!may_be_left_out(values) && !values.items.empty()) dict.members.emplace_back(key, values.items.front());
  }
  return dict;
}

// The schema in JSON Schema's words; "any" is what has no type.
Value json_schema(const Value& schema) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kNames = {
      {{"dict", "object"}, {"float", "number"}, {"tuple", "array"}}};
  Value mapped = schema;
  std::erase_if(mapped.members,
                [](const Value::Member& member) { return member.first == "type" && member.second.text == "any"; });
  for (auto& [key, value] : mapped.members) {
    if (key == "type") {
      for (const auto& [theirs, ours] : kNames) {
        if (value.text == theirs) value.text = ours;
      }
    } else if (key == "items") {
      value = json_schema(value);
    } else if (key == "properties") {
      for (auto& [name, property] : value.members) property = json_schema(property);
    }
  }
  return mapped;
}

}  // namespace

std::optional<BfclCategory> bfcl_category(std::string_view name) {
  if (name == "simple_python") return BfclCategory::kSimple;
  if (name == "multiple") return BfclCategory::kMultiple;
  if (name == "parallel" || name == "parallel_multiple") return BfclCategory::kParallel;
  if (name == "irrelevance") return BfclCategory::kIrrelevance;
  return std::nullopt;
}

bool bfcl_calls_are_right(BfclCategory category, const Value& functions, const Value& answers,
                          std::span<const MadeCall> calls) {
  if (calls.size() != answers.items.size()) return false;
  switch (category) {
    case BfclCategory::kIrrelevance:
      return true;
    case BfclCategory::kSimple:
      // The one function there is, whatever the answer calls it.
      return !functions.items.empty() && !calls.empty() &&
             call_is_right(functions.items.front(), calls.front(), answers.items.front());
    case BfclCategory::kMultiple:
    case BfclCategory::kParallel:
      break;
  }
  return parallel_calls_are_right(functions, answers, calls);
}

std::vector<MadeCall> bfcl_right_calls(const Value& functions, const Value& answers) {
  std::vector<MadeCall> calls;
  calls.reserve(answers.items.size());
  for (const Value& answer : answers.items) {
    const Value* const function = function_of(functions, answer);
    if (function == nullptr) return {};
    const auto& [name, arguments] = answer.members.front();
    MadeCall call{name, {.kind = Kind::kDict}};
    for (const auto& [argument, accepted] : arguments.members) {
      if (may_be_left_out(accepted) && !is_required(*function, argument)) continue;
      const auto first = std::ranges::find_if_not(accepted.items, is_empty_string);
      if (first != accepted.items.end()) call.arguments.members.emplace_back(argument, chosen(*first));
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

Value bfcl_tools(const Value& functions) {
  Value tools{.kind = Kind::kList};
  for (const Value& function : functions.items) {
    Value declared = function;
    for (auto& [key, value] : declared.members) {
      if (key == "parameters") value = json_schema(value);
    }
    Value tool{.kind = Kind::kDict};
    tool.members.emplace_back("type", Value{.kind = Kind::kString, .text = "function"});
    tool.members.emplace_back("function", std::move(declared));
    tools.items.push_back(std::move(tool));
  }
  return tools;
}

}  // namespace tessera::quality
