// What others wrote, made fit for a terminal: models and servers may say anything, and a terminal obeys what it is
// shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::app {

enum class Lines : std::uint8_t {
  kMany,  // Line ends and tabs stay.
  kOne,   // They are escaped too: the text stands within a line of ours.
};

// Control characters (C0, DEL, C1) as JSON's escapes, so that what was JSON stays JSON: "\u001b". The rest as it is.
// `text` is UTF-8, of whole characters.
std::string terminal_text(std::string_view text, Lines lines);

// What is shown, within a line of ours, of bytes that somebody else sent, whatever they are: bytes_max of them at most,
// ended by "[...]" where there are more, what is not UTF-8 replaced, control characters escaped.
std::string shown_line(std::string_view bytes, std::size_t bytes_max);

}  // namespace tessera::app
