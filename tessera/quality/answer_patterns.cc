#include "tessera/quality/answer_patterns.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tessera/quality/python_space.h"
#include "tessera/text/code_point_set.h"
#include "tessera/text/utf8.h"

namespace tessera::quality {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_strict(char c) { return is_digit(c) || c == '.' || c == ','; }
bool is_flexible(char c) { return is_strict(c) || c == '$'; }
bool is_letter(char c) { return c >= 'A' && c <= 'J'; }

// How many characters `holds` holds for, from `start` on.
template <typename Holds>
std::size_t run(std::string_view text, std::size_t start, const Holds& holds) {
  std::size_t length = 0;
  while (start + length < text.size() && holds(text[start + length])) ++length;
  return length;
}

// Without what the comparison of numbers ignores.
std::string bare_number(std::string_view number) {
  std::string bare(number);
  std::erase(bare, ',');
  std::erase(bare, '$');
  constexpr std::string_view kMark = "#### ";
  if (const std::size_t at = bare.rfind(kMark); at != std::string::npos) bare.erase(0, at + kMark.size());
  if (bare.ends_with('.')) bare.pop_back();
  std::ranges::transform(bare, bare.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return bare;
}

// What Python's \w matches: letters, numbers and the underscore.
bool is_word(char32_t c) {
  static const std::vector<char32_t> kEdges =
      text::CodePointSet::property("L")->unite(*text::CodePointSet::property("N")).edges();
  const auto after = std::ranges::upper_bound(kEdges, c);
  return c == '_' || (after - kEdges.begin()) % 2 == 1;
}

// Whether there is a word's edge between text[at - 1] and text[at], text[at] being a letter.
bool word_begins(std::string_view text, std::size_t at) {
  if (at == 0) return true;
  std::size_t start = at - 1;
  while (start > 0 && at - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
  const std::string_view before = text.substr(start, at - start);
  return text::valid_utf8_prefix(before) != before.size() || !is_word(text::utf8_code_point(before));
}

bool word_ends(std::string_view text, std::size_t at) {
  const std::string_view after = text.substr(at);
  if (after.empty() || text::next_utf8_unit(after).kind != text::Utf8Unit::Kind::kCharacter) return true;
  return !is_word(text::utf8_code_point(after));
}

// `[aA]nswer:\s*([A-J])`, of the first line in which it begins the last of those that begin there: what a greedy `.*`
// before it leaves.
std::optional<char> letter_after_colon(std::string_view text) {
  constexpr std::string_view kWord = "nswer:";
  std::optional<char> found;
  std::size_t line_of_found = 0;
  for (std::size_t at = text.find(kWord); at != std::string_view::npos; at = text.find(kWord, at + 1)) {
    if (at == 0 || (text[at - 1] != 'a' && text[at - 1] != 'A')) continue;
    const std::size_t end_of_line = text.rfind('\n', at);
    const std::size_t line = end_of_line == std::string_view::npos ? 0 : end_of_line + 1;
    if (found.has_value() && line != line_of_found) break;
    const std::size_t letter = at + kWord.size() + leading_space(text.substr(at + kWord.size()));
    if (letter >= text.size() || !is_letter(text[letter])) continue;
    found = text[letter];
    line_of_found = line;
  }
  return found;
}

}  // namespace

std::string strict_number(std::string_view text) {
  constexpr std::string_view kMark = "#### ";
  for (std::size_t at = text.find(kMark); at != std::string_view::npos; at = text.find(kMark, at + 1)) {
    const std::size_t start = at + kMark.size();
    const std::size_t sign = start < text.size() && text[start] == '-' ? 1 : 0;
    const std::size_t length = run(text, start + sign, is_strict);
    if (length > 0) return std::string(text.substr(start, sign + length));
  }
  return std::string(kNoAnswer);
}

std::string flexible_number(std::string_view text) {
  std::string_view last = kNoAnswer;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t sign = text[at] == '-' ? 1 : 0;
    const std::size_t many = run(text, at + sign, is_flexible);
    // One character alone counts only if it is a digit.
    const std::size_t length = many >= 2 || (many == 1 && is_digit(text[at + sign])) ? sign + many : 0;
    if (length > 0) last = text.substr(at, length);
    at += std::max<std::size_t>(length, 1);
  }
  return std::string(last);
}

bool same_number(std::string_view answer, std::string_view expected) {
  return bare_number(answer) == bare_number(expected);
}

std::optional<char> stated_letter(std::string_view text) {
  constexpr std::string_view kWords = "answer is ";
  for (std::size_t at = text.find(kWords); at != std::string_view::npos; at = text.find(kWords, at + 1)) {
    std::size_t letter = at + kWords.size();
    if (letter < text.size() && text[letter] == '(') ++letter;
    if (letter < text.size() && is_letter(text[letter])) return text[letter];
  }
  return std::nullopt;
}

std::optional<char> any_letter(std::string_view text) {
  if (const std::optional<char> letter = stated_letter(text)) return letter;
  if (const std::optional<char> letter = letter_after_colon(text)) return letter;
  for (std::size_t at = text.size(); at-- > 0;) {
    if (is_letter(text[at]) && word_begins(text, at) && word_ends(text, at + 1)) return text[at];
  }
  return std::nullopt;
}

}  // namespace tessera::quality
