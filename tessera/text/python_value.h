// Values as Python has them, for chat formats: the templates that they reproduce are run by Python, so tools and
// arguments are written as its json module, str() and repr() write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/limits.h"
#include "tessera/base/status.h"

namespace tessera::text {

// A JSON value after json.loads(). Plain state.
struct PythonValue {
  enum class Kind : std::uint8_t { kNone, kBool, kInt, kFloat, kString, kList, kDict };
  using Member = std::pair<std::string, PythonValue>;

  Kind kind = Kind::kNone;
  bool flag = false;                    // kBool
  std::string text = {};                // kString: the characters; kInt, kFloat: as repr() writes the number
  std::vector<PythonValue> items = {};  // kList
  std::vector<Member> members = {};     // kDict: in order, keys differ

  bool is(Kind other) const { return kind == other; }
  // Of a dict: nullptr if there is no such key, or the value is no dict.
  const PythonValue* find(std::string_view key) const;
  // bool(value).
  bool truthy() const;
};

// How many values may still be made: a value takes many times the two bytes of its text, so that the size of a request
// alone does not bound what it takes to read.
struct ValueBudget {
  std::int64_t left = base::limits::kToolValuesMax;
};

// json.loads(text): integers of any length, of equal keys the last value at the first one's place. kDataLoss with the
// byte offset if the text is not JSON or deeper than limits::kJsonDepthMax; kOutOfRange if it has more values, the ones
// inside others counted too, than `budget` has left, which it takes them from.
base::Result<PythonValue> parse_python_json(std::string_view text, ValueBudget& budget);

// With the keys of every dict, however deep, in the order of their code points.
PythonValue with_sorted_keys(PythonValue value);

// json.dumps(value, ensure_ascii=False), appended to `out`; compact: with separators=(',', ':').
enum class JsonSpacing : std::uint8_t { kSpaces, kCompact };
void append_python_json(const PythonValue& value, JsonSpacing spacing, std::string& out);

// str(value): a string as it is, True, None, [1, 'a'], ... Inside lists and dicts, characters that Python would not
// print are left as they are, except ASCII's control characters.
std::string python_str(const PythonValue& value);
// repr() of a float: the shortest decimal that reads back as the same number: 1.0, 1e-05, 1e+16.
std::string python_float(double value);

// str.isspace() of a character.
constexpr bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
// str.strip(): without white space as Unicode has it, at both ends. A view into `text`.
std::string_view python_strip(std::string_view text);
// str.strip(), str.lstrip() and str.rstrip() of newlines alone.
std::string_view strip_newlines(std::string_view text);
std::string_view strip_leading_newlines(std::string_view text);
std::string_view strip_trailing_newlines(std::string_view text);

}  // namespace tessera::text
