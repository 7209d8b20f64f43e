#include "tessera/quality/python_space.h"

#include "tessera/text/utf8.h"

namespace tessera::quality {

namespace {

// Of the character that a text begins with: its length in bytes, and whether it is white space.
struct First {
  std::size_t length;
  bool is_space;
};

First first_of(std::string_view text) {
  const text::Utf8Unit unit = text::next_utf8_unit(text);
  const bool whole = unit.kind == text::Utf8Unit::Kind::kCharacter;
  return {unit.length, whole && is_python_space(text::utf8_code_point(text))};
}

}  // namespace

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::size_t leading_space(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const First first = first_of(text.substr(length));
    if (!first.is_space) break;
    length += first.length;
  }
  return length;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t start = end - 1;
    // Back to the byte that begins the character: continuation bytes are 10xxxxxx, three of them at most.
    while (start > 0 && end - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
    const First first = first_of(text.substr(start, end - start));
    if (!first.is_space || first.length != end - start) break;
    end = start;
  }
  return text.size() - end;
}

std::string_view strip(std::string_view text) {
  text.remove_suffix(trailing_space(text));
  text.remove_prefix(leading_space(text));
  return text;
}

std::size_t count_split_words(std::string_view text) {
  std::size_t words = 1;
  bool in_space = false;
  while (!text.empty()) {
    const First first = first_of(text);
    if (first.is_space && !in_space) ++words;
    in_space = first.is_space;
    text.remove_prefix(first.length);
  }
  return words;
}

}  // namespace tessera::quality
