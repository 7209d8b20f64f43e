#include "tessera/quality/pocket_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "tessera/text/python_value.h"

namespace tessera::quality {

namespace {

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }
bool is_word(char byte) {
  return is_digit(byte) || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '_' ||
         static_cast<unsigned char>(byte) >= 0x80;
}

// What stands between `before` and a full stop at the last place where that is one word of `letter`, a minus before it
// or not; empty if it nowhere is.
template <typename Letter>
std::string_view last_between(std::string_view text, std::string_view before, Letter letter) {
  std::string_view last;
  for (std::size_t at = text.find(before); at != std::string_view::npos; at = text.find(before, at + 1)) {
    const std::string_view rest = text.substr(at + before.size());
    const std::size_t sign = rest.starts_with('-') ? 1 : 0;
    std::size_t end = sign;
    while (end < rest.size() && letter(rest[end])) ++end;
    if (end > sign && end < rest.size() && rest[end] == '.') last = rest.substr(0, end);
  }
  return last;
}

// Without leading zeros, and without the sign of zero.
std::string normal_integer(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  text.remove_prefix(std::min(text.find_first_not_of('0'), text.size()));
  if (text.empty()) return "0";
  return fmt::format("{}{}", negative ? "-" : "", text);
}

}  // namespace

bool says_number(std::string_view text, std::string_view expected) {
  const std::string_view found = last_between(text, "The answer is ", is_digit);
  return !found.empty() && normal_integer(found) == normal_integer(expected);
}

bool says_printed(std::string_view text, std::string_view expected) {
  const std::string_view found = last_between(text, "It prints ", is_word);
  return !found.empty() && found == expected;
}

bool says_text(const Answer& answer, std::string_view expected) {
  return answer.calls.empty() && text::python_strip(answer.text) == expected;
}

bool makes_calls(const Answer& answer, std::span<const MadeCall> expected) {
  const std::optional<std::vector<MadeCall>> made = read_calls(answer);
  return made.has_value() && same_calls(*made, expected);
}

bool calls_are_valid(const Answer& answer, std::span<const DeclaredTool> tools) {
  const std::optional<std::vector<MadeCall>> made = read_calls(answer);
  return made.has_value() &&
         std::ranges::all_of(*made, [tools](const MadeCall& call) { return satisfies(tools, call); });
}

bool tries_calls(const Answer& answer) {
  return !answer.calls.empty() || answer.text.find("<|tool_call") != std::string::npos;
}

}  // namespace tessera::quality
