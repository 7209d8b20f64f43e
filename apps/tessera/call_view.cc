#include "call_view.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string_view>

#include "terminal_text.h"

namespace tessera::app {

namespace json = boost::json;

namespace {

constexpr std::size_t kIndent = 2;
constexpr std::size_t kWidthMin = 20;

// JSON text, which is valid, laid out anew: objects and arrays that are not empty get a line for each element. All else
// stays as the model wrote it: its numbers would not survive being read.
std::string indented(std::string_view source) {
  constexpr std::string_view kSpace = " \t\r\n";
  std::string out;
  std::size_t depth = 1;
  const auto new_line = [&] {
    out += '\n';
    out.append(kIndent * depth, ' ');
  };
  out.append(kIndent * depth, ' ');
  for (std::size_t at = 0; at < source.size(); ++at) {
    const char c = source[at];
    if (kSpace.find(c) != std::string_view::npos) continue;
    if (c == '"') {
      std::size_t end = at + 1;
      while (source[end] != '"') end += source[end] == '\\' ? 2 : 1;
      out += source.substr(at, end + 1 - at);
      at = end;
    } else if (c == '{' || c == '[') {
      out += c;
      const std::size_t next = source.find_first_not_of(kSpace, at + 1);
      if (source[next] == '}' || source[next] == ']') {
        out += source[next];
        at = next;
        continue;
      }
      ++depth;
      new_line();
    } else if (c == '}' || c == ']') {
      --depth;
      new_line();
      out += c;
    } else if (c == ',') {
      out += c;
      new_line();
    } else {
      out += c;
      if (c == ':') out += ' ';
    }
  }
  return out;
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Breaks a line into rows of `width` characters at most; those after the first are indented deeper than it.
void append_wrapped(std::string_view line, std::size_t width, std::string& out) {
  const std::size_t own = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t hanging = std::min(own + 2 * kIndent, width / 2);
  std::size_t column = 0;
  for (const char c : line) {
    if (column >= width && !continues_character(c)) {
      out += '\n';
      out.append(hanging, ' ');
      column = hanging;
    }
    out += c;
    if (!continues_character(c)) ++column;
  }
  out += '\n';
}

}  // namespace

std::string call_view(const Call& call, std::size_t width) {
  width = std::max(width, kWidthMin);
  boost::system::error_code error;
  json::parse(call.arguments, error);
  const std::string text = error ? std::string(kIndent, ' ') + terminal_text(call.arguments, Lines::kOne)
                                 : terminal_text(indented(call.arguments), Lines::kMany);
  std::string out;
  append_wrapped("call " + terminal_text(call.name, Lines::kOne), width, out);
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    append_wrapped(std::string_view(text).substr(at, end - at), width, out);
    at = end + 1;
  }
  return out;
}

}  // namespace tessera::app
