#include "tessera/text/code_point_set.h"

#include <algorithm>
#include <array>

#include "tessera/text/unicode_table.h"

namespace tessera::text {
namespace {

constexpr std::uint32_t kCategoryBits = 0x0F;
constexpr std::uint32_t kWhiteSpaceBit = 0x10;
constexpr std::uint32_t kHanBit = 0x20;
constexpr std::uint32_t kNumericBit = 0x40;

// The categories in the order of their numbers, from 1.
constexpr std::array<std::string_view, 9> kCategories = {"Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S"};
constexpr std::uint32_t kLastLetter = 5;

}  // namespace

CodePointSet CodePointSet::range(char32_t first, char32_t last) {
  CodePointSet set;
  set.edges_ = {first, last + 1};
  return set;
}

template <typename Holds>
CodePointSet CodePointSet::of_kinds(const Holds& holds) {
  CodePointSet set;
  bool inside = false;
  for (const std::uint32_t run : kUnicodeRuns) {
    if (holds(run & 0xFFu) == inside) continue;
    inside = !inside;
    set.edges_.push_back(run >> 8);
  }
  return set;
}

std::optional<CodePointSet> CodePointSet::property(std::string_view name) {
  if (name == "Han") return of_kinds([](std::uint32_t kind) { return (kind & kHanBit) != 0; });
  if (name == "L") {
    return of_kinds(
        [](std::uint32_t kind) { return (kind & kCategoryBits) != 0 && (kind & kCategoryBits) <= kLastLetter; });
  }
  const auto* const found = std::ranges::find(kCategories, name);
  if (found == kCategories.end()) return std::nullopt;
  const auto category = static_cast<std::uint32_t>(found - kCategories.begin() + 1);
  return of_kinds([category](std::uint32_t kind) { return (kind & kCategoryBits) == category; });
}

CodePointSet CodePointSet::white_space() {
  return of_kinds([](std::uint32_t kind) { return (kind & kWhiteSpaceBit) != 0; });
}

CodePointSet CodePointSet::numeric() {
  return of_kinds([](std::uint32_t kind) { return (kind & kNumericBit) != 0; });
}

CodePointSet CodePointSet::complement() const {
  CodePointSet set;
  set.edges_ = edges_;
  // The first edge at 0 says that the set begins inside.
  if (!set.edges_.empty() && set.edges_.front() == 0) {
    set.edges_.erase(set.edges_.begin());
  } else {
    set.edges_.insert(set.edges_.begin(), 0);
  }
  if (!set.edges_.empty() && set.edges_.back() == kCodePointsEnd) set.edges_.pop_back();
  return set;
}

CodePointSet CodePointSet::unite(const CodePointSet& other) const {
  CodePointSet set;
  bool in_this = false;
  bool in_other = false;
  std::size_t a = 0;
  std::size_t b = 0;
  while (a < edges_.size() || b < other.edges_.size()) {
    const char32_t at = std::min(a < edges_.size() ? edges_[a] : kCodePointsEnd,
                                 b < other.edges_.size() ? other.edges_[b] : kCodePointsEnd);
    const bool was_in = in_this || in_other;
    if (a < edges_.size() && edges_[a] == at) {
      in_this = !in_this;
      ++a;
    }
    if (b < other.edges_.size() && other.edges_[b] == at) {
      in_other = !in_other;
      ++b;
    }
    if ((in_this || in_other) != was_in) set.edges_.push_back(at);
  }
  if (!set.edges_.empty() && set.edges_.back() == kCodePointsEnd) set.edges_.pop_back();
  return set;
}

CodePointSet CodePointSet::intersect(const CodePointSet& other) const {
  return complement().unite(other.complement()).complement();
}

}  // namespace tessera::text
