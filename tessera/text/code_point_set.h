// Sets of Unicode code points, for the character classes of patterns. The Unicode is that of unicode_table.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera::text {

inline constexpr char32_t kCodePointsEnd = 0x110000;

class CodePointSet {
 public:
  CodePointSet() = default;  // Empty.
  // first <= last < kCodePointsEnd.
  static CodePointSet range(char32_t first, char32_t last);
  // By the names that patterns use: L Lu Ll Lt Lm Lo M N P S Han; empty for any other name.
  static std::optional<CodePointSet> property(std::string_view name);
  static CodePointSet white_space();
  // What Rust's char::is_numeric holds for, which the `tokenizers` library's Digits asks.
  static CodePointSet numeric();

  CodePointSet complement() const;
  CodePointSet unite(const CodePointSet& other) const;
  CodePointSet intersect(const CodePointSet& other) const;

  // Ascending; the set holds [edges[0], edges[1]), [edges[2], edges[3]), ...; the last may lack its end, which is then
  // kCodePointsEnd.
  const std::vector<char32_t>& edges() const { return edges_; }
  bool operator==(const CodePointSet&) const = default;

 private:
  // Of the kinds (unicode_table.h) for which `holds` does.
  template <typename Holds>
  static CodePointSet of_kinds(const Holds& holds);
  std::vector<char32_t> edges_;
};

}  // namespace tessera::text
