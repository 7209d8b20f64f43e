// Judging tool calls: what a model called, whether that is JSON of the declared schema, and whether two calls mean the
// same. Values are compared as Python compares them (1 == 1.0 == True, the order of keys is nothing), because the
// judges that these rules come from (tools/train_pocket/score.py, BFCL's checker) are Python.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/quality/asking.h"
#include "tessera/quality/respondent.h"
#include "tessera/text/python_value.h"

namespace tessera::quality {

struct MadeCall {
  std::string name;
  text::PythonValue arguments;  // A dict.
};

// The call with its arguments read; empty when they are no JSON object.
std::optional<MadeCall> read_call(const ToolCall& call);

// All calls of an answer that holds nothing else; empty when there is no call, one whose arguments are no JSON object,
// text beside the calls, or when the answer was cut off.
std::optional<std::vector<MadeCall>> read_calls(const Answer& answer);

// Python's a == b. NaN does not occur in JSON. Integers are compared in all their digits, an integer and a float as
// doubles.
bool python_equal(const text::PythonValue& a, const text::PythonValue& b);

// The same calls, each as often, in any order.
bool same_calls(std::span<const MadeCall> made, std::span<const MadeCall> expected);

// The tools that a question declares, as the API writes them: [{"type": "function", "function": {"name",
// "parameters"}}].
struct DeclaredTool {
  std::string name;
  text::PythonValue parameters;  // A schema of type object.
};
// invalid_argument names the place in `tools`.
base::Result<std::vector<DeclaredTool>> read_tools(std::string_view tools);

// Whether the value satisfies the schema, as far as "type", "enum", "properties", "required" and "items" say; other
// keywords are not looked at. Stricter than JSON Schema in two things, both as score.py has them: a key that
// "properties" does not name is wrong, and 5.0 is no integer. BFCL's names of types ("dict", "float", "tuple", "any")
// mean what they mean there.
bool satisfies(const text::PythonValue& schema, const text::PythonValue& value);
// Names a declared tool and satisfies its schema.
bool satisfies(std::span<const DeclaredTool> tools, const MadeCall& call);

// An answer for people: its text and its calls, one a line, cut as asking.h cuts texts.
std::string shown(const Answer& answer);
// `name({"key": value})`
std::string shown(const MadeCall& call);

}  // namespace tessera::quality
