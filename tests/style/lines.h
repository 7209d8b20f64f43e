// Text cut into lines and words, for the rules of style.
#pragma once

#include <string_view>
#include <vector>

namespace tessera::style {

inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

inline std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

inline bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Whether `word` stands in `line` with no letter, digit or underscore directly before or after it.
inline bool has_word(std::string_view line, std::string_view word) {
  for (std::size_t at = line.find(word); at != std::string_view::npos; at = line.find(word, at + 1)) {
    const std::size_t after = at + word.size();
    if ((at == 0 || !is_word_character(line[at - 1])) && (after == line.size() || !is_word_character(line[after]))) {
      return true;
    }
  }
  return false;
}

// What an #include line names, without its quotes or angle brackets; empty for other lines.
inline std::string_view included_header(std::string_view line) {
  line = trimmed(line);
  if (!line.starts_with('#')) return {};
  line = trimmed(line.substr(1));
  if (!line.starts_with("include")) return {};
  line = trimmed(line.substr(7));
  if (line.size() < 2 || (line[0] != '"' && line[0] != '<')) return {};
  const std::size_t end = line.find(line[0] == '"' ? '"' : '>', 1);
  return end == std::string_view::npos ? std::string_view{} : line.substr(1, end - 1);
}

}  // namespace tessera::style
