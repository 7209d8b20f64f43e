#include "terminal_text.h"

#include <fmt/format.h>

#include "tessera/text/utf8.h"

namespace tessera::app {

namespace {

unsigned byte_at(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}

}  // namespace

std::string terminal_text(std::string_view text, Lines lines) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    const unsigned byte = byte_at(text, at);
    const unsigned next = byte_at(text, at + 1);
    const bool is_line_control = byte == '\n' || byte == '\t';
    if (is_line_control && lines == Lines::kOne) {
      out += byte == '\n' ? "\\n" : "\\t";
    } else if ((byte < 0x20 && !is_line_control) || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else if (byte == 0xC2 && next >= 0x80 && next <= 0x9f) {  // C1: U+0080 to U+009F.
      out += fmt::format("\\u{:04x}", next);
      ++at;
    } else {
      out += text[at];
    }
  }
  return out;
}

std::string shown_line(std::string_view bytes, std::size_t bytes_max) {
  const std::string_view kept = bytes.substr(0, text::utf8_prefix_within(bytes, bytes_max));
  std::string whole;
  text::Utf8Assembler assembler;
  assembler.push(kept, whole);
  assembler.flush(whole);
  return terminal_text(whole, Lines::kOne) + (kept.size() < bytes.size() ? " [...]" : "");
}

}  // namespace tessera::app
