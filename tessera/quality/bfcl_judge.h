// The rules of the Berkeley Function Calling Leaderboard for single turns in Python: what bfcl_eval's ast_checker
// (gorilla.cs.berkeley.edu, package bfcl_eval 2026.3.23) takes for right. Its peculiarities are kept, since results are
// compared with published ones; they are said at the functions.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/quality/respondent.h"
#include "tessera/quality/tool_judge.h"
#include "tessera/text/python_value.h"

namespace tessera::quality {

enum class BfclCategory : std::uint8_t { kSimple, kMultiple, kParallel, kIrrelevance };
// "simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"; empty for another.
std::optional<BfclCategory> bfcl_category(std::string_view name);

// Whether the calls are right. `functions`: a list of {"name", "parameters"}, types named as BFCL names them.
// `answers`: for each expected call {function: {argument: [accepted values]}}, where "" means that the argument may be
// left out. Types must agree (5.0 is no integer, 5 is a float); strings are compared without case and without spaces
// and ,./-_*^; parallel calls may come in any order. Where the checker itself would stop with an exception, the answer
// is wrong.
bool bfcl_calls_are_right(BfclCategory category, const text::PythonValue& functions, const text::PythonValue& answers,
                          std::span<const MadeCall> calls);

// One right answer: of the accepted values the first, without what may be left out. In the order of `answers`.
std::vector<MadeCall> bfcl_right_calls(const text::PythonValue& functions, const text::PythonValue& answers);

// The functions as the API takes tools, their schemas in JSON Schema's names of types.
text::PythonValue bfcl_tools(const text::PythonValue& functions);

}  // namespace tessera::quality
