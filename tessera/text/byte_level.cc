#include "tessera/text/byte_level.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::text {
namespace {

constexpr std::size_t kLettersEnd = 256 + 68;  // One past the largest letter's code point.

constexpr bool is_own_letter(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<std::uint16_t, 256> letter{};          // Code point of a byte.
  std::array<std::int16_t, kLettersEnd> byte_of{};  // Byte of a code point, or -1.
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte_of.fill(-1);
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned letter = is_own_letter(byte) ? byte : next++;
    alphabet.letter[byte] = static_cast<std::uint16_t>(letter);
    alphabet.byte_of[letter] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string byte_letter(unsigned char byte) {
  const unsigned letter = kAlphabet.letter[byte];
  if (letter < 0x80) return std::string(1, static_cast<char>(letter));
  return {static_cast<char>(0xC0 | (letter >> 6)), static_cast<char>(0x80 | (letter & 0x3F))};
}

std::optional<std::string> bytes_of_letters(std::string_view letters) {
  std::string bytes;
  bytes.reserve(letters.size());
  for (std::size_t i = 0; i < letters.size(); ++i) {
    unsigned letter = static_cast<unsigned char>(letters[i]);
    if (letter >= 0x80) {
      // Every letter is below U+0800: two bytes.
      if (letter < 0xC2 || letter > 0xDF || i + 1 == letters.size()) return std::nullopt;
      letter = ((letter & 0x1Fu) << 6) | (static_cast<unsigned char>(letters[++i]) & 0x3Fu);
    }
    if (letter >= kLettersEnd || kAlphabet.byte_of[letter] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[letter]));
  }
  return bytes;
}

}  // namespace tessera::text
