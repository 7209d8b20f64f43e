#include "tessera/server/json_writer.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "tessera/text/utf8.h"

namespace tessera::server {

void JsonWriter::separate() {
  if (needs_comma_) out_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::begin_object() {
  separate();
  out_ += '{';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end_object() {
  out_ += '}';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  separate();
  out_ += '[';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end_array() {
  out_ += ']';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  string(name);
  out_ += ':';
  needs_comma_ = false;
  return *this;
}

void JsonWriter::escape(std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out_ += "\\\"";
        break;
      case '\\':
        out_ += "\\\\";
        break;
      case '\n':
        out_ += "\\n";
        break;
      case '\r':
        out_ += "\\r";
        break;
      case '\t':
        out_ += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          constexpr char kHex[] = "0123456789abcdef";
          out_ += "\\u00";
          out_ += kHex[(c >> 4) & 0xf];
          out_ += kHex[c & 0xf];
        } else {
          out_ += c;
        }
    }
  }
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  out_ += '"';
  if (text::is_valid_utf8(text)) {
    escape(text);
  } else {
    text::Utf8Assembler assembler;
    std::string valid;
    assembler.push(text, valid);
    assembler.flush(valid);
    escape(valid);
  }
  out_ += '"';
  return *this;
}

JsonWriter& JsonWriter::integer(std::int64_t value) {
  separate();
  out_ += std::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::number(double value) {
  if (!std::isfinite(value)) return null();
  separate();
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  out_.append(buffer, result.ptr);
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::null() {
  separate();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::integers(std::span<const std::int32_t> values) {
  begin_array();
  for (const std::int32_t value : values) integer(value);
  return end_array();
}

std::string JsonWriter::take() {
  needs_comma_ = false;
  return std::exchange(out_, {});
}

}  // namespace tessera::server
