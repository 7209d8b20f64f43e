// Where the values of a JSON text stand in it, for what has to be read from the text itself: the parser of bodies
// rounds numbers. Texts given here have been parsed before, so they are known to be valid.
#pragma once

#include <string_view>
#include <vector>

namespace tessera::server {

// The text of the member `name` of an object: of several the last, which is the one that the parser keeps. Empty if
// there is none.
std::string_view member_source(std::string_view object, std::string_view name);

// The texts of an array's values.
std::vector<std::string_view> element_sources(std::string_view array);

}  // namespace tessera::server
