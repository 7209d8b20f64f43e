// The alphabet of byte-level BPE: each byte is written as one printable character in a vocabulary file (GPT-2's
// bytes_to_unicode: printable Latin-1 as itself, the other 68 bytes as U+0100 and up in order).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

// The letter of a byte, in UTF-8: 1 or 2 bytes.
std::string byte_letter(unsigned char byte);

// The bytes that a vocabulary entry spells; empty if one of its characters is not a letter of the alphabet.
std::optional<std::string> bytes_of_letters(std::string_view letters);

}  // namespace tessera::text
