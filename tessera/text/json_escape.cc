#include "tessera/text/json_escape.h"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>

namespace tessera::text {

void append_json_escaped(std::string_view text, std::string& out) {
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char byte = text[i];
    if (byte != '"' && byte != '\\' && static_cast<unsigned char>(byte) >= 0x20) continue;
    out += text.substr(plain, i - plain);
    plain = i + 1;
    constexpr std::string_view kMeanings = "\b\f\n\r\t\"\\";
    constexpr std::string_view kEscapes = "bfnrt\"\\";
    const std::size_t known = kMeanings.find(byte);
    if (known != std::string_view::npos) {
      out += '\\';
      out += kEscapes[known];
    } else {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned char>(byte));
    }
  }
  out += text.substr(plain);
}

}  // namespace tessera::text
