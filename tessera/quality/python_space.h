// White space as Python's str.isspace() and its patterns' \s know it: rules that were published as Python programs
// count words and cut texts by it. It differs from Unicode's White_Space property in U+001C to U+001F.
#pragma once

#include <cstddef>
#include <string_view>

namespace tessera::quality {

bool is_python_space(char32_t code_point);

// Lengths in bytes of the white space that a text begins and ends with. Bytes that are no well-formed UTF-8 are none.
std::size_t leading_space(std::string_view text);
std::size_t trailing_space(std::string_view text);

// str.strip()
std::string_view strip(std::string_view text);

// len(re.split(r"\s+", text)): one more than the runs of white space.
std::size_t count_split_words(std::string_view text);

}  // namespace tessera::quality
