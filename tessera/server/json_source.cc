#include "tessera/server/json_source.h"

#include <algorithm>
#include <boost/json/parse.hpp>

namespace tessera::server {
namespace {

constexpr std::string_view kWhite = " \t\r\n";

// Walks over a valid JSON text.
class Walk {
 public:
  explicit Walk(std::string_view text) : text_(text) { skip_white(); }

  // Whether the next character is `c`, which is then passed.
  bool pass(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    skip_white();
    return true;
  }

  // The text of the next value, which is passed.
  std::string_view value() {
    const std::size_t begin = at_;
    std::size_t depth = 0;
    do {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      if (c == '"') {
        skip_string();
      } else if (c == '{' || c == '[') {
        ++depth;
        ++at_;
      } else if (c == '}' || c == ']') {
        --depth;
        ++at_;
      } else {
        // Inside a value the rest is passed piece by piece; a value by itself is a number or a word.
        at_ = std::min(text_.find_first_of(depth > 0 ? "\"{}[]" : ",}] \t\r\n", at_), text_.size());
      }
    } while (depth > 0 && at_ < text_.size());
    const std::string_view value = text_.substr(begin, at_ - begin);
    skip_white();
    return value;
  }

 private:
  void skip_white() { at_ = std::min(text_.find_first_not_of(kWhite, at_), text_.size()); }
  void skip_string() {
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      at_ = text_[at_] == '\\' ? at_ + 2 : std::min(text_.find_first_of("\"\\", at_), text_.size());
    }
    at_ = std::min(at_ + 1, text_.size());
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// Whether the text of a string says `name`, however it is written.
bool says(std::string_view source, std::string_view name) {
  if (source.find('\\') == std::string_view::npos) return source.substr(1, source.size() - 2) == name;
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(boost::json::string_view(source.data(), source.size()), error);
  return !error && value.is_string() && std::string_view(value.get_string()) == name;
}

}  // namespace

std::string_view member_source(std::string_view object, std::string_view name) {
  std::string_view found;
  Walk walk(object);
  if (!walk.pass('{') || walk.pass('}')) return found;
  do {
    const bool is_named = says(walk.value(), name);
    if (!walk.pass(':')) return {};
    const std::string_view value = walk.value();
    if (is_named) found = value;
  } while (walk.pass(','));
  return found;
}

std::vector<std::string_view> element_sources(std::string_view array) {
  std::vector<std::string_view> sources;
  Walk walk(array);
  if (!walk.pass('[') || walk.pass(']')) return sources;
  do {
    sources.push_back(walk.value());
  } while (walk.pass(','));
  return sources;
}

}  // namespace tessera::server
