// Writing strings of JSON.
#pragma once

#include <string>
#include <string_view>

namespace tessera::text {

// Appends `text` as the inside of a JSON string: quotes, backslashes and control characters escaped, the rest as it is
// (what Python's json module writes with ensure_ascii=False).
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace tessera::text
