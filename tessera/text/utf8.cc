#include "tessera/text/utf8.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

namespace tessera::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What may follow a first byte: Unicode 15, table 3-7. Third and fourth bytes are always 80..BF.
struct Lead {
  std::size_t length;  // Of the whole character; 0 if no character begins with this byte.
  unsigned char second_min;
  unsigned char second_max;
};

constexpr Lead lead(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Unit next_utf8_unit(std::string_view bytes) {
  const Lead first = lead(static_cast<unsigned char>(bytes[0]));
  if (first.length == 0) return {Utf8Unit::Kind::kIllFormed, 1};
  for (std::size_t i = 1; i < first.length; ++i) {
    if (i == bytes.size()) return {Utf8Unit::Kind::kIncomplete, i};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char low = i == 1 ? first.second_min : 0x80;
    const unsigned char high = i == 1 ? first.second_max : 0xBF;
    if (byte < low || byte > high) return {Utf8Unit::Kind::kIllFormed, i};
  }
  return {Utf8Unit::Kind::kCharacter, first.length};
}

std::size_t valid_utf8_prefix(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    // ASCII, eight bytes at a time.
    std::uint64_t word = 0;
    if (at + sizeof(word) <= bytes.size()) {
      std::memcpy(&word, bytes.data() + at, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const Utf8Unit unit = next_utf8_unit(bytes.substr(at));
    if (unit.kind != Utf8Unit::Kind::kCharacter) break;
    at += unit.length;
  }
  return at;
}

std::size_t utf8_prefix_within(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text.size();
  // The byte after a cut between characters continues none; a character has at most three that do.
  std::size_t cut = bytes_max;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return cut;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto tail = [code_point](int shift) { return static_cast<char>(0x80u | ((code_point >> shift) & 0x3Fu)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += {static_cast<char>(0xC0u | (code_point >> 6)), tail(0)};
  } else if (code_point < 0x10000) {
    out += {static_cast<char>(0xE0u | (code_point >> 12)), tail(6), tail(0)};
  } else {
    out += {static_cast<char>(0xF0u | (code_point >> 18)), tail(12), tail(6), tail(0)};
  }
}

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::move(pending_);
    joined += bytes;
    bytes = joined;
    pending_.clear();
  }
  while (!bytes.empty()) {
    const std::size_t valid = valid_utf8_prefix(bytes);
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const Utf8Unit unit = next_utf8_unit(bytes);
    if (unit.kind == Utf8Unit::Kind::kIncomplete) {
      pending_ = bytes;
      return;
    }
    out += kReplacement;
    bytes.remove_prefix(unit.length);
  }
}

void Utf8Assembler::flush(std::string& out) {
  if (!pending_.empty()) out += kReplacement;
  pending_.clear();
}

}  // namespace tessera::text
