#include "tessera/text/python_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include "tessera/text/json_escape.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace json = boost::json;
namespace {

using Kind = PythonValue::Kind;

PythonValue of_bool(bool flag) { return {.kind = Kind::kBool, .flag = flag}; }
PythonValue of_text(Kind kind, std::string text) { return {.kind = kind, .text = std::move(text)}; }

// Of equal keys Python keeps the first one's place and the last one's value.
void keep_last_of_equal_keys(std::vector<PythonValue::Member>& members) {
  std::unordered_map<std::string_view, std::size_t> last;
  for (std::size_t i = 0; i < members.size(); ++i) last.insert_or_assign(members[i].first, i);
  if (last.size() == members.size()) return;
  std::vector<PythonValue::Member> kept;
  std::unordered_map<std::string_view, bool> seen;
  for (const auto& [key, value] : members) {
    if (seen.try_emplace(key, true).second) kept.emplace_back(key, members[last.at(key)].second);
  }
  members = std::move(kept);
}

// Builds the value from what Boost's parser meets. The texts of numbers are kept, so that no digit is lost.
class ValueHandler {
 public:
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);
  using Error = boost::system::error_code;
  using View = json::string_view;

  explicit ValueHandler(ValueBudget& budget) : budget_(budget) {}

  bool has_too_many() const { return has_too_many_; }
  PythonValue take() { return std::move(stack_.front().items.front()); }

  bool on_document_begin(Error&) {
    stack_.push_back({.kind = Kind::kList});
    return true;
  }
  bool on_document_end(Error&) { return true; }
  bool on_object_begin(Error& error) { return begin(Kind::kDict, error); }
  bool on_object_end(std::size_t, Error&) {
    keep_last_of_equal_keys(stack_.back().members);
    return end();
  }
  bool on_array_begin(Error& error) { return begin(Kind::kList, error); }
  bool on_array_end(std::size_t, Error&) { return end(); }
  bool on_key_part(View part, std::size_t, Error&) { return add_part(part); }
  bool on_key(View part, std::size_t, Error&) {
    add_part(part);
    stack_.back().members.emplace_back(std::exchange(part_, {}), PythonValue());
    return true;
  }
  bool on_string_part(View part, std::size_t, Error&) { return add_part(part); }
  bool on_string(View part, std::size_t, Error& error) {
    if (!count(error)) return false;
    add_part(part);
    return add(of_text(Kind::kString, std::exchange(part_, {})));
  }
  bool on_number_part(View part, Error&) { return add_part(part); }
  bool on_int64(std::int64_t, View part, Error& error) { return count(error) && add_integer(part); }
  bool on_uint64(std::uint64_t, View part, Error& error) { return count(error) && add_integer(part); }
  bool on_double(double, View part, Error& error) {
    if (!count(error)) return false;
    add_part(part);
    // An integer too long for 64 bits arrives here too.
    if (part_.find_first_of(".eE") == std::string::npos) return add_integer("");
    // Not the parser's own number, whose last bit may be wrong. What overflows is infinite, as in Python.
    return add(of_text(Kind::kFloat, python_float(std::strtod(std::exchange(part_, {}).c_str(), nullptr))));
  }
  bool on_bool(bool flag, Error& error) { return count(error) && add(of_bool(flag)); }
  bool on_null(Error& error) { return count(error) && add({}); }
  bool on_comment_part(View, Error&) { return true; }
  bool on_comment(View, Error&) { return true; }

 private:
  bool add_part(View part) {
    part_.append(part.data(), part.size());
    return true;
  }
  bool add_integer(View part) {
    add_part(part);
    std::string digits = std::exchange(part_, {});
    return add(of_text(Kind::kInt, digits == "-0" ? "0" : std::move(digits)));
  }
  // Before a value is made. Any error stops the parser.
  bool count(Error& error) {
    has_too_many_ = budget_.left == 0;
    if (has_too_many_) {
      error = json::error::array_too_large;
    } else {
      --budget_.left;
    }
    return !has_too_many_;
  }
  bool begin(Kind kind, Error& error) {
    if (!count(error)) return false;
    stack_.push_back({.kind = kind});
    return true;
  }
  bool end() {
    PythonValue value = std::move(stack_.back());
    stack_.pop_back();
    return add(std::move(value));
  }
  bool add(PythonValue value) {
    PythonValue& parent = stack_.back();
    if (parent.kind == Kind::kDict) {
      parent.members.back().second = std::move(value);
    } else {
      parent.items.push_back(std::move(value));
    }
    return true;
  }

  ValueBudget& budget_;
  bool has_too_many_ = false;
  std::vector<PythonValue> stack_;  // First a list that the whole value is put into.
  std::string part_;
};

void append_json_string(std::string_view text, std::string& out) {
  out += '"';
  append_json_escaped(text, out);
  out += '"';
}

// Python's json module writes "Infinity" for the number whose repr() is "inf", and can read it back.
void append_json_float(std::string_view repr, std::string& out) {
  if (repr == "inf") {
    out += "Infinity";
  } else if (repr == "-inf") {
    out += "-Infinity";
  } else {
    out += repr;
  }
}

// Python prefers single quotes, unless the text has some and has no double ones.
void append_repr_string(std::string_view text, std::string& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += quote;
}

void append_repr(const PythonValue& value, std::string& out) {
  switch (value.kind) {
    case Kind::kNone:
      out += "None";
      return;
    case Kind::kBool:
      out += value.flag ? "True" : "False";
      return;
    case Kind::kInt:
    case Kind::kFloat:
      out += value.text;
      return;
    case Kind::kString:
      append_repr_string(value.text, out);
      return;
    case Kind::kList:
      out += '[';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += ", ";
        append_repr(value.items[i], out);
      }
      out += ']';
      return;
    case Kind::kDict:
      out += '{';
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out += ", ";
        append_repr_string(value.members[i].first, out);
        out += ": ";
        append_repr(value.members[i].second, out);
      }
      out += '}';
      return;
  }
}

// The length of the white space character that begins or ends `text`; 0 if there is none.
std::size_t leading_space(std::string_view text) {
  if (text.empty()) return 0;
  const Utf8Unit first = next_utf8_unit(text);
  const bool is_space = first.kind == Utf8Unit::Kind::kCharacter && is_python_space(utf8_code_point(text));
  return is_space ? first.length : 0;
}
std::size_t trailing_space(std::string_view text) {
  constexpr std::size_t kLongest = 3;
  for (std::size_t length = 1; length <= std::min(kLongest, text.size()); ++length) {
    const std::string_view last = text.substr(text.size() - length);
    if (leading_space(last) == length) return length;
  }
  return 0;
}

}  // namespace

const PythonValue* PythonValue::find(std::string_view key) const {
  const auto member = std::ranges::find(members, key, &Member::first);
  return member == members.end() ? nullptr : &member->second;
}

bool PythonValue::truthy() const {
  switch (kind) {
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return flag;
    case Kind::kInt:
      return text != "0";
    case Kind::kFloat:
      return text != "0.0" && text != "-0.0";
    case Kind::kString:
      return !text.empty();
    case Kind::kList:
      return !items.empty();
    case Kind::kDict:
      return !members.empty();
  }
  return false;
}

base::Result<PythonValue> parse_python_json(std::string_view text, ValueBudget& budget) {
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(base::limits::kJsonDepthMax);
  json::basic_parser<ValueHandler> parser(options, budget);
  boost::system::error_code error;
  const std::size_t consumed = parser.write_some(false, text.data(), text.size(), error);
  if (parser.handler().has_too_many()) {
    return base::failure(base::out_of_range(
        fmt::format("more than {} JSON values in the tools and calls of one request", base::limits::kToolValuesMax)));
  }
  if (!error && text.find_first_not_of(" \t\r\n", consumed) != std::string_view::npos) error = json::error::extra_data;
  if (error) {
    return base::failure(base::data_loss(fmt::format("not valid JSON at byte {}: {}", consumed, error.message())));
  }
  return parser.handler().take();
}

PythonValue with_sorted_keys(PythonValue value) {
  for (PythonValue& item : value.items) item = with_sorted_keys(std::move(item));
  for (auto& [key, member] : value.members) member = with_sorted_keys(std::move(member));
  // The bytes of UTF-8 are in the order of the code points.
  std::ranges::sort(value.members, {}, &PythonValue::Member::first);
  return value;
}

void append_python_json(const PythonValue& value, JsonSpacing spacing, std::string& out) {
  const std::string_view comma = spacing == JsonSpacing::kCompact ? "," : ", ";
  const std::string_view colon = spacing == JsonSpacing::kCompact ? ":" : ": ";
  switch (value.kind) {
    case Kind::kNone:
      out += "null";
      return;
    case Kind::kBool:
      out += value.flag ? "true" : "false";
      return;
    case Kind::kInt:
      out += value.text;
      return;
    case Kind::kFloat:
      append_json_float(value.text, out);
      return;
    case Kind::kString:
      append_json_string(value.text, out);
      return;
    case Kind::kList:
      out += '[';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += comma;
        append_python_json(value.items[i], spacing, out);
      }
      out += ']';
      return;
    case Kind::kDict:
      out += '{';
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out += comma;
        append_json_string(value.members[i].first, out);
        out += colon;
        append_python_json(value.members[i].second, spacing, out);
      }
      out += '}';
      return;
  }
}

std::string python_str(const PythonValue& value) {
  if (value.is(Kind::kString)) return value.text;
  std::string out;
  append_repr(value, out);
  return out;
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string_view text(buffer.data(), result.ptr);
  const std::size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  // Python writes an exponent below -4 and from 16 on.
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string out = text.front() == '-' ? "-" : "";
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent) - 1, '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string_view python_strip(std::string_view text) {
  while (const std::size_t length = leading_space(text)) text.remove_prefix(length);
  while (const std::size_t length = trailing_space(text)) text.remove_suffix(length);
  return text;
}

std::string_view strip_leading_newlines(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::string_view strip_trailing_newlines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

std::string_view strip_newlines(std::string_view text) { return strip_leading_newlines(strip_trailing_newlines(text)); }

}  // namespace tessera::text
