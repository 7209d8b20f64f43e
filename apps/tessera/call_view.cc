#include "call_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string_view>

namespace tessera::app {

namespace json = boost::json;

namespace {

constexpr std::size_t kIndent = 2;
constexpr std::size_t kWidthMin = 20;

// Model text that did not come out of a JSON string.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

// Objects and arrays that are not empty get a line for each element; the rest is JSON.
void pretty(const json::value& value, std::size_t depth, std::string& out) {
  const std::string inner(kIndent * (depth + 1), ' ');
  const auto close = [&](char bracket) {
    out += '\n';
    out.append(kIndent * depth, ' ');
    out += bracket;
  };
  if (value.is_object() && !value.get_object().empty()) {
    out += '{';
    std::string_view separator = "\n";
    for (const auto& field : value.get_object()) {
      out += separator;
      out += inner;
      out += json::serialize(json::string(field.key()));
      out += ": ";
      pretty(field.value(), depth + 1, out);
      separator = ",\n";
    }
    close('}');
  } else if (value.is_array() && !value.get_array().empty()) {
    out += '[';
    std::string_view separator = "\n";
    for (const json::value& element : value.get_array()) {
      out += separator;
      out += inner;
      pretty(element, depth + 1, out);
      separator = ",\n";
    }
    close(']');
  } else {
    out += json::serialize(value);
  }
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
  const json::value arguments = json::parse(call.arguments, error);
  std::string text(kIndent, ' ');
  if (error) {
    text += escaped(call.arguments);
  } else {
    pretty(arguments, 1, text);
  }
  std::string out;
  append_wrapped("call " + escaped(call.name), width, out);
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    append_wrapped(std::string_view(text).substr(at, end - at), width, out);
    at = end + 1;
  }
  return out;
}

}  // namespace tessera::app
