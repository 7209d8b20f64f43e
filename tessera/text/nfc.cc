#include "tessera/text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Characters that are the same in NFC, combining class 0, and compose with nothing before them: normalizing can begin
// anew at each. Not all of these, but what most text is written in. (Quick_Check=Yes of UAX #15, contiguous stretches.)
constexpr std::array kInert = {
    Range{0x0, 0x2FF},       Range{0x38E, 0x3FF},   Range{0x400, 0x482},   Range{0x48A, 0x590},
    Range{0x5D0, 0x5F4},     Range{0x620, 0x64A},   Range{0x904, 0x939},   Range{0xE01, 0xE33},
    Range{0xE40, 0xE47},     Range{0x1E00, 0x1EFF}, Range{0x2010, 0x20CF}, Range{0x2190, 0x2328},
    Range{0x232B, 0x2ADB},   Range{0x3001, 0x3029}, Range{0x3030, 0x3098}, Range{0x309B, 0x31FF},
    Range{0x3400, 0x4DBF},   Range{0x4E00, 0x9FFF}, Range{0xA000, 0xA66E}, Range{0xAC00, 0xD7A3},
    Range{0xE000, 0xF8FF},   Range{0xFE0E, 0xFE0F}, Range{0xFF00, 0xFFEF}, Range{0x1F000, 0x1FAFF},
    Range{0x20000, 0x2F7FF},
};

// What utf8proc knows a combining class or a composition of and the library does not (see the header), found by asking
// both about every code point.
constexpr std::array kNewer = {
    Range{0x7FD, 0x7FD},     Range{0x898, 0x89F},     Range{0x8CA, 0x8D3},     Range{0x9FE, 0x9FE},
    Range{0xC3C, 0xC3C},     Range{0xD3B, 0xD3C},     Range{0xEBA, 0xEBA},     Range{0x1715, 0x1715},
    Range{0x1ABF, 0x1ACE},   Range{0x1DF6, 0x1DFA},   Range{0xA82C, 0xA82C},   Range{0x10D24, 0x10D27},
    Range{0x10EAB, 0x10EAC}, Range{0x10EFD, 0x10EFF}, Range{0x10F46, 0x10F50}, Range{0x10F82, 0x10F85},
    Range{0x11070, 0x11070}, Range{0x1133B, 0x1133B}, Range{0x1145E, 0x1145E}, Range{0x11839, 0x1183A},
    Range{0x11930, 0x11930}, Range{0x11938, 0x11938}, Range{0x1193D, 0x1193E}, Range{0x11943, 0x11943},
    Range{0x119E0, 0x119E0}, Range{0x11A34, 0x11A34}, Range{0x11A47, 0x11A47}, Range{0x11A99, 0x11A99},
    Range{0x11D42, 0x11D42}, Range{0x11D44, 0x11D45}, Range{0x11D97, 0x11D97}, Range{0x11F41, 0x11F42},
    Range{0x16FF0, 0x16FF1}, Range{0x1E08F, 0x1E08F}, Range{0x1E130, 0x1E136}, Range{0x1E2AE, 0x1E2AE},
    Range{0x1E2EC, 0x1E2EF}, Range{0x1E4EC, 0x1E4EF}};

template <std::size_t kCount>
bool holds(const std::array<Range, kCount>& ranges, char32_t c) {
  const auto* const range = std::ranges::lower_bound(ranges, c, {}, &Range::last);
  return range != ranges.end() && c >= range->first;
}

bool is_inert(char32_t c) { return c <= kInert.front().last || holds(kInert, c); }

// Normalizes text without an inert character, or with one at its beginning only.
class Normalizer {
 public:
  void append(std::string_view text, std::string& out) {
    decompose(text);
    order();
    const utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(points_.data(), static_cast<utf8proc_ssize_t>(points_.size()),
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    TESSERA_CHECK(composed >= 0, "utf8proc composes any code points");
    for (utf8proc_ssize_t i = 0; i < composed; ++i) append_utf8(static_cast<char32_t>(points_[i]), out);
  }

 private:
  static constexpr std::size_t kDecomposedMax = 8;  // The canonical decomposition of a character has at most 4.

  void decompose(std::string_view text) {
    points_.clear();
    for (std::size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
      std::array<utf8proc_int32_t, kDecomposedMax> parts{};
      const utf8proc_ssize_t count = utf8proc_decompose_char(
          static_cast<utf8proc_int32_t>(utf8_code_point(text.substr(at))), parts.data(), parts.size(),
          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), nullptr);
      TESSERA_CHECK(count > 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
                    "utf8proc decomposes a character");
      points_.insert(points_.end(), parts.begin(), parts.begin() + count);
    }
  }

  // Canonical ordering: each run of marks by combining class, equal ones as they were.
  void order() {
    const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
    for (auto begin = points_.begin(); begin != points_.end();) {
      if (combining_class(*begin) == 0) {
        ++begin;
        continue;
      }
      const auto end = std::find_if(begin, points_.end(), [&](utf8proc_int32_t c) { return combining_class(c) == 0; });
      keys_.clear();
      for (auto mark = begin; mark != end; ++mark) {
        keys_.push_back((static_cast<std::uint64_t>(combining_class(*mark)) << 56) |
                        (static_cast<std::uint64_t>(mark - begin) << 24) | static_cast<std::uint64_t>(*mark));
      }
      std::ranges::sort(keys_);
      std::ranges::transform(keys_, begin,
                             [](std::uint64_t key) { return static_cast<utf8proc_int32_t>(key & 0xFFFFFFu); });
      begin = end;
    }
  }

  std::vector<utf8proc_int32_t> points_;
  std::vector<std::uint64_t> keys_;  // Of a run of marks: class << 56 | place in the run << 24 | code point.
};

}  // namespace

bool is_left_alone_by_nfc(char32_t c) { return holds(kNewer, c); }

std::string_view to_nfc(std::string_view text, std::string& buffer) {
  Normalizer normalizer;
  buffer.clear();
  std::size_t copied = 0;  // What of the text is in the buffer.
  std::size_t last = 0;    // The character before `at`, if it may change with what follows, or `at`.
  const auto begins_anew = [text](std::size_t at) {
    const char32_t c = utf8_code_point(text.substr(at));
    return is_inert(c) || is_left_alone_by_nfc(c);
  };
  for (std::size_t at = 0; at < text.size();) {
    if (const char32_t c = utf8_code_point(text.substr(at)); is_inert(c)) {
      last = at;
      at += utf8_length(text[at]);
      continue;
    } else if (is_left_alone_by_nfc(c)) {
      at += utf8_length(text[at]);
      last = at;
      continue;
    }
    // What is not inert may change together with the inert character before it, and up to the next one.
    std::size_t end = at;
    while (end < text.size() && !begins_anew(end)) end += utf8_length(text[end]);
    buffer += text.substr(copied, last - copied);
    normalizer.append(text.substr(last, end - last), buffer);
    copied = last = at = end;
  }
  if (copied == 0) return text;
  buffer += text.substr(copied);
  return buffer;
}

}  // namespace tessera::text
