// Tools declared in TypeScript's style, as Kimi K2.5 and later models read them:
//
//   # Tools
//
//   ## functions
//   namespace functions {
//   // What get_weather does.
//   type get_weather = (_: {
//     // Where.
//     // maxLength: 80
//     city: string,
//     // Default: "celsius"
//     unit?: "celsius" | "fahrenheit"
//   }) => any;
//   }
//
// The rules, which the vendor's own encoder (tool_declaration_ts.py of those checkpoints) defines and the goldens of
// tools/oracles/make_chat_goldens.py judge: required fields come first, each kind by name; integer is number; enum and
// anyOf are unions; a list of types is a union of them; $defs are interfaces before the type, "$ref": "#" makes the
// parameters one; additionalProperties is an index signature; descriptions, constraints (sorted by name) and defaults
// are comments.
#pragma once

#include <optional>
#include <string>

#include "tessera/text/python_value.h"

namespace tessera::text {

// `tools`: the list of declarations with sorted keys. Empty if a schema is outside what the encoder understands: the
// checkpoints then declare all tools as JSON.
std::optional<std::string> typescript_tools(const PythonValue& tools);

}  // namespace tessera::text
