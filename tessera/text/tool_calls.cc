#include "tessera/text/tool_calls.h"

#include <algorithm>

#include "tessera/base/limits.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

// An id or a name with some white space around it. What the sink accepts is shorter.
constexpr std::size_t kCallHeaderBytesMax = 2 * base::limits::kToolCallIdBytesMax;

}  // namespace

bool CallHeader::append(std::string_view text) {
  for (const char byte : text) {
    if (!is_white(byte)) {
      one_word_ &= !word_ended_;
      word_begun_ = true;
    } else {
      word_ended_ = word_begun_;
    }
  }
  raw_ += text;
  return one_word_ && raw_.size() <= kCallHeaderBytesMax;
}

std::size_t JsonNesting::scan(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (complete()) return i;
    const char byte = text[i];
    if (!begun_) {
      begun_ = true;
      other_ = byte != '{' && byte != '[';
    }
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (byte == '\\') {
        escaped_ = true;
      } else if (byte == '"') {
        in_string_ = false;
      }
      continue;
    }
    if (byte == '"') {
      in_string_ = true;
    } else if (byte == '{' || byte == '[') {
      ++depth_;
    } else if ((byte == '}' || byte == ']') && depth_ > 0) {
      --depth_;
    }
  }
  return text.size();
}

std::size_t JsonStringDecoder::decode(std::string_view text, std::string& out) {
  std::size_t i = 0;
  while (i < text.size() && !ended_) {
    const char byte = text[i];
    if (escaped_ || hex_digits_ > 0) {
      escape(byte, out);
      ++i;
    } else if (byte == '\\') {
      escaped_ = true;
      ++i;
    } else if (byte == '"') {
      lone_surrogate(out);
      ended_ = true;
      ++i;
    } else {
      lone_surrogate(out);
      const std::size_t end = std::min(text.find_first_of("\\\"", i), text.size());
      out += text.substr(i, end - i);
      i = end;
    }
  }
  return i;
}

void JsonStringDecoder::escape(char byte, std::string& out) {
  if (escaped_) {
    escaped_ = false;
    if (byte == 'u') {
      hex_digits_ = 4;
      unit_ = 0;
      return;
    }
    lone_surrogate(out);
    constexpr std::string_view kEscapes = "bfnrt";
    constexpr std::string_view kMeanings = "\b\f\n\r\t";
    const std::size_t known = kEscapes.find(byte);
    out += known == std::string_view::npos ? byte : kMeanings[known];
    return;
  }
  const char lower = static_cast<char>(byte | 0x20);
  const bool digit = byte >= '0' && byte <= '9';
  if (!digit && (lower < 'a' || lower > 'f')) {  // Not four digits: as far as it came, a character that is unknown.
    hex_digits_ = 0;
    lone_surrogate(out);
    append_utf8(0xFFFD, out);
    std::string_view rest(&byte, 1);
    decode(rest, out);
    return;
  }
  unit_ = unit_ * 16 + static_cast<std::uint32_t>(digit ? byte - '0' : lower - 'a' + 10);
  if (--hex_digits_ == 0) code_unit(unit_, out);
}

void JsonStringDecoder::code_unit(std::uint32_t unit, std::string& out) {
  const bool low = unit >= 0xDC00 && unit < 0xE000;
  if (low && high_surrogate_ != 0) {
    append_utf8(0x10000 + ((high_surrogate_ - 0xD800) << 10) + (unit - 0xDC00), out);
    high_surrogate_ = 0;
    return;
  }
  lone_surrogate(out);
  if (unit >= 0xD800 && unit < 0xDC00) {
    high_surrogate_ = unit;
  } else {
    append_utf8(low ? 0xFFFD : unit, out);
  }
}

void JsonStringDecoder::lone_surrogate(std::string& out) {
  if (high_surrogate_ != 0) append_utf8(0xFFFD, out);
  high_surrogate_ = 0;
}

}  // namespace tessera::text
