// UTF-8 as the detokenizer and the tokenizer need it: where a text is valid, and turning a stream of arbitrary bytes
// into valid UTF-8 without waiting for its end.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::text {

// What a text begins with.
struct Utf8Unit {
  enum class Kind {
    kCharacter,   // A well-formed character.
    kIncomplete,  // The text is a proper prefix of a well-formed character.
    kIllFormed,   // A maximal subpart of an ill-formed sequence: what one U+FFFD replaces.
  };
  Kind kind;
  std::size_t length;  // In bytes; at least 1.
};
// `bytes` must not be empty.
Utf8Unit next_utf8_unit(std::string_view bytes);

// Length in bytes of the longest prefix of `bytes` that is well-formed UTF-8 (Unicode 15, table 3-7: no overlong forms,
// no surrogates, nothing above U+10FFFF).
std::size_t valid_utf8_prefix(std::string_view bytes);

inline bool is_valid_utf8(std::string_view bytes) { return valid_utf8_prefix(bytes) == bytes.size(); }

// Length of the longest prefix of `text` that has at most `bytes_max` bytes and ends between two characters. Of text
// that is not well-formed it may end anywhere, but is never longer.
std::size_t utf8_prefix_within(std::string_view text, std::size_t bytes_max);

// The code point of the well-formed character that `text` begins with.
inline char32_t utf8_code_point(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const auto bits = [&byte](std::size_t i) { return byte(i) & 0x3Fu; };
  const char32_t first = byte(0);
  if (first < 0x80) return first;
  if (first < 0xE0) return ((first & 0x1Fu) << 6) | bits(1);
  if (first < 0xF0) return ((first & 0x0Fu) << 12) | (bits(1) << 6) | bits(2);
  return ((first & 0x07u) << 18) | (bits(1) << 12) | (bits(2) << 6) | bits(3);
}

// The length of the well-formed character that begins with this byte.
inline std::size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Appends a code point that is no surrogate.
void append_utf8(char32_t code_point, std::string& out);

// Turns bytes that arrive in pieces into well-formed UTF-8. A character that is not complete yet is held back; every
// maximal subpart of an ill-formed sequence becomes one U+FFFD (Unicode 15, section 3.9, "U+FFFD Substitution of
// Maximal Subparts"; Rust's String::from_utf8_lossy does the same). What comes out does not depend on how the bytes
// were cut into pieces. One thread at a time.
class Utf8Assembler {
 public:
  // Appends to `out` what `bytes` completes.
  void push(std::string_view bytes, std::string& out);
  // The end of the bytes: appends U+FFFD if a character was left incomplete. The assembler is then as new.
  void flush(std::string& out);

 private:
  std::string pending_;  // A proper prefix of a well-formed character: at most 3 bytes.
};

}  // namespace tessera::text
