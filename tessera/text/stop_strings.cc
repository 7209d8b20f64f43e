#include "tessera/text/stop_strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/limits.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

// For each prefix of `text`: the length of its longest proper border (prefix that is also a suffix).
std::vector<std::size_t> borders(std::string_view text) {
  std::vector<std::size_t> border(text.size(), 0);
  std::size_t length = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length - 1];
    if (text[i] == text[length]) ++length;
    border[i] = length;
  }
  return border;
}

}  // namespace

base::Result<StopStringMatcher> StopStringMatcher::create(std::span<const std::string> stops) {
  if (stops.size() > static_cast<std::size_t>(base::limits::kStopStringsMax)) {
    return base::failure(base::out_of_range(
        fmt::format("stop: {} strings, expected at most {}", stops.size(), base::limits::kStopStringsMax)));
  }
  StopStringMatcher matcher;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    const std::string& stop = stops[i];
    if (stop.empty()) return base::failure(base::invalid_argument(fmt::format("stop[{}]: is empty", i)));
    if (stop.size() > static_cast<std::size_t>(base::limits::kStopStringBytesMax)) {
      return base::failure(base::out_of_range(
          fmt::format("stop[{}]: {} bytes, expected at most {}", i, stop.size(), base::limits::kStopStringBytesMax)));
    }
    if (!is_valid_utf8(stop)) {
      return base::failure(base::invalid_argument(fmt::format("stop[{}]: is not valid UTF-8", i)));
    }
    matcher.patterns_.push_back({stop, borders(stop)});
  }
  return matcher;
}

std::string StopStringMatcher::push(std::string_view text) {
  if (matched_.has_value() || text.empty()) return {};
  std::string ready = std::move(held_);
  held_.clear();
  std::size_t could_begin = 0;  // The longest end of the text so far that begins a stop string.
  for (const char byte : text) {
    ready.push_back(byte);
    could_begin = 0;
    std::size_t match_bytes = 0;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      while (pattern.matched > 0 && pattern.text[pattern.matched] != byte) {
        pattern.matched = pattern.border[pattern.matched - 1];
      }
      if (pattern.text[pattern.matched] == byte) ++pattern.matched;
      could_begin = std::max(could_begin, pattern.matched);
      if (pattern.matched == pattern.text.size() && pattern.matched > match_bytes) {
        match_bytes = pattern.matched;
        matched_ = i;
      }
    }
    if (matched_.has_value()) {
      ready.erase(ready.size() - match_bytes);
      return ready;
    }
  }
  held_ = ready.substr(ready.size() - could_begin);
  ready.erase(ready.size() - could_begin);
  return ready;
}

std::string StopStringMatcher::flush() { return matched_.has_value() ? std::string() : std::exchange(held_, {}); }

}  // namespace tessera::text
