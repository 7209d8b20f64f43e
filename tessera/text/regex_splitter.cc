#include "tessera/text/regex_splitter.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "tessera/text/oniguruma.h"
#include "tessera/text/pattern.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

using Sequence = Pattern::Sequence;
using Node = Pattern::Node;
using Bits = std::uint64_t;  // One bit a class, or one an alternative of the pattern.

constexpr std::size_t kBlock = 256;  // Code points of one row of the table.

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// What a character can be, by code point.
class CharacterTable {
 public:
  explicit CharacterTable(const Pattern& pattern);

  Bits ascii(char c) const { return ascii_[static_cast<unsigned char>(c)]; }
  Bits of(char32_t c) const {
    const std::size_t row = rows_[c / kBlock];
    return row < kRowOfOneKind ? kinds_[cells_[row * kBlock + c % kBlock]] : kinds_[row - kRowOfOneKind];
  }
  // Of every kind of character that there is, the classes that hold it.
  const std::vector<Bits>& kinds() const { return kinds_; }

 private:
  static constexpr std::size_t kRowOfOneKind = 1 << 20;  // Rows from here up name their one kind.
  std::vector<Bits> kinds_;
  std::vector<std::uint32_t> rows_;   // By code point / kBlock.
  std::vector<std::uint16_t> cells_;  // kBlock a row: the kind.
  std::array<Bits, 128> ascii_{};
};

CharacterTable::CharacterTable(const Pattern& pattern) : rows_(kCodePointsEnd / kBlock) {
  // Where any class begins or ends: which bits change there.
  std::map<char32_t, Bits> changes = {{0, 0}};
  for (std::size_t i = 0; i < pattern.classes.size(); ++i) {
    for (const char32_t edge : pattern.classes[i].edges()) changes[edge] ^= Bits{1} << i;
  }
  std::map<Bits, std::uint16_t> kind_of;
  std::array<std::uint16_t, kBlock> row{};
  Bits bits = 0;
  auto next = changes.begin();
  for (std::size_t block = 0; block < rows_.size(); ++block) {
    const auto begin = static_cast<char32_t>(block * kBlock);
    if (next == changes.end() || next->first >= begin + kBlock) {
      rows_[block] = static_cast<std::uint32_t>(kRowOfOneKind + kind_of.at(bits));
      continue;
    }
    bool one_kind = true;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const auto c = begin + static_cast<char32_t>(i);
      if (next == changes.end() || next->first != c) {
        row[i] = i == 0 ? kind_of.at(bits) : row[i - 1];
        continue;
      }
      bits ^= next->second;
      ++next;
      const auto [kind, is_new] = kind_of.try_emplace(bits, static_cast<std::uint16_t>(kinds_.size()));
      if (is_new) kinds_.push_back(bits);
      row[i] = kind->second;
      if (i > 0 && row[i] != row[i - 1]) one_kind = false;
    }
    if (one_kind) {
      rows_[block] = static_cast<std::uint32_t>(kRowOfOneKind + row[0]);
    } else {
      rows_[block] = static_cast<std::uint32_t>(cells_.size() / kBlock);
      cells_.insert(cells_.end(), row.begin(), row.end());
    }
  }
  for (std::size_t c = 0; c < ascii_.size(); ++c) ascii_[c] = of(static_cast<char32_t>(c));
}

constexpr Bits kAnything = ~Bits{0};

// The classes with one of which a match of it begins; kAnything if it can match the empty string.
Bits first_classes(std::span<const Node> sequence) {
  Bits first = 0;
  for (const Node& node : sequence) {
    if (node.kind == Pattern::Kind::kClass) {
      first |= Bits{1} << node.class_index;
    } else if (node.kind == Pattern::Kind::kGroup) {
      for (const Sequence& inner : node.choice) first |= first_classes(inner);
    }
    if (!matches_empty(node)) return first;
  }
  return kAnything;
}

// What a match of the sequence needs to know of each of its parts, found once.
struct Compiled {
  struct Part {
    const Node* node = nullptr;
    Bits bit = 0;           // kClass: the class. kGroup: the classes with which one of its alternatives begins.
    Bits next = kAnything;  // The classes with which what follows it in the sequence begins.
    bool is_free = false;   // Nothing after it in the sequence can fail.
    std::vector<Compiled> choice;
  };
  explicit Compiled(const Sequence& sequence);
  std::vector<Part> parts;
};

Compiled::Compiled(const Sequence& sequence) {
  for (const Node& node : sequence) {
    Part& part = parts.emplace_back();
    part.node = &node;
    if (node.kind == Pattern::Kind::kClass) part.bit = Bits{1} << node.class_index;
    for (const Sequence& inner : node.choice) {
      part.bit |= first_classes(inner);
      part.choice.emplace_back(inner);
    }
  }
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].next = first_classes(std::span(sequence).subspan(i + 1));
  for (std::size_t i = parts.size(); i-- > 0;) {
    parts[i].is_free = true;
    const Node& node = *parts[i].node;
    if (node.kind == Pattern::Kind::kLookAhead || node.kind == Pattern::Kind::kNegativeLookAhead ||
        !matches_empty(node)) {
      break;
    }
  }
}

// One attempt to match at one place.
class Attempt {
 public:
  Attempt(const CharacterTable& table, std::string_view text) : table_(&table), end_(text.data() + text.size()) {}

  // The end of the match of `sequence` at `at`, or nullptr.
  const char* match(const Compiled& sequence, const char* at) const { return match(sequence, 0, at, nullptr); }

 private:
  using Part = Compiled::Part;
  // What has to match after a group.
  struct Rest {
    const Compiled* sequence;
    std::size_t index;
    const Rest* after;
  };

  // Of the character at `at`, which is not the end.
  Bits classes(const char* at) const {
    if (is_ascii(*at)) return table_->ascii(*at);
    return table_->of(utf8_code_point({at, utf8_length(*at)}));
  }

  // The length of the character at `at` if it is of the class, or 0.
  std::size_t character(Bits bit, const char* at) const {
    if (at == end_) return 0;
    if (is_ascii(*at)) return (table_->ascii(*at) & bit) != 0 ? 1 : 0;
    const std::size_t length = utf8_length(*at);
    return (table_->of(utf8_code_point({at, length})) & bit) != 0 ? length : 0;
  }

  // The end of at most `count` characters of the class; `count` becomes how many there are.
  const char* characters(Bits bit, const char* at, std::int32_t& count) const {
    std::int32_t found = 0;
    while (found < count) {
      const std::size_t length = character(bit, at);
      if (length == 0) break;
      at += length;
      ++found;
    }
    count = found;
    return at;
  }

  const char* match(const Compiled& sequence, std::size_t index, const char* at, const Rest* after) const {
    for (; index < sequence.parts.size(); ++index) {
      const Part& part = sequence.parts[index];
      const Node& node = *part.node;
      if (node.kind == Pattern::Kind::kGroup) {
        // As a rule an option that is not there.
        if (node.minimum == 0 && (at == end_ || (classes(at) & part.bit) == 0)) continue;
        return group(sequence, index, at, after);
      }
      if (node.kind != Pattern::Kind::kClass) {
        const bool found = std::ranges::any_of(
            part.choice, [&](const Compiled& inner) { return match(inner, 0, at, nullptr) != nullptr; });
        if (found == (node.kind == Pattern::Kind::kNegativeLookAhead)) return nullptr;
        continue;
      }
      if (node.minimum == 1 && node.maximum == 1) {
        const std::size_t length = character(part.bit, at);
        if (length == 0) return nullptr;
        at += length;
        continue;
      }
      if (node.greed == Pattern::Greed::kLazy) return lazy(sequence, index, at, after);
      std::int32_t count = node.maximum;
      const char* const begin = at;
      at = characters(part.bit, at, count);
      if (count < node.minimum) return nullptr;
      // Where nothing can fail any more, the longest match is taken.
      const bool is_final = part.is_free && after == nullptr;
      if (node.greed == Pattern::Greed::kPossessive || count == node.minimum || is_final) continue;
      return give_back(sequence, index, {begin, at}, count, after);
    }
    return after == nullptr ? at : match(*after->sequence, after->index, at, after->after);
  }

  // What follows a greedy repeat that took `count` characters, and has to leave some if that does not match.
  const char* give_back(const Compiled& sequence, std::size_t index, std::string_view taken, std::int32_t count,
                        const Rest* after) const {
    const Part& part = sequence.parts[index];
    const char* at = taken.data() + taken.size();
    while (true) {
      if (part.next == kAnything || (at != end_ && (classes(at) & part.next) != 0)) {
        if (const char* const end = match(sequence, index + 1, at, after); end != nullptr) return end;
      }
      if (count == part.node->minimum) return nullptr;
      --count;
      --at;
      while ((static_cast<unsigned char>(*at) & 0xC0) == 0x80) --at;
    }
  }

  const char* lazy(const Compiled& sequence, std::size_t index, const char* at, const Rest* after) const {
    const Part& part = sequence.parts[index];
    std::int32_t count = part.node->minimum;
    at = characters(part.bit, at, count);
    if (count < part.node->minimum) return nullptr;
    while (true) {
      if (const char* const end = match(sequence, index + 1, at, after); end != nullptr) return end;
      if (count == part.node->maximum) return nullptr;
      const std::size_t length = character(part.bit, at);
      if (length == 0) return nullptr;
      at += length;
      ++count;
    }
  }

  const char* group(const Compiled& sequence, std::size_t index, const char* at, const Rest* after) const {
    const Part& part = sequence.parts[index];
    const Rest rest{&sequence, index + 1, after};
    for (const Compiled& inner : part.choice) {
      if (const char* const end = match(inner, 0, at, &rest); end != nullptr) return end;
    }
    return part.node->minimum == 0 ? match(sequence, index + 1, at, after) : nullptr;
  }

  const CharacterTable* table_;
  const char* end_;
};

}  // namespace

struct RegexSplitter::Code {
  explicit Code(Pattern&& read) : pattern(std::move(read)), table(pattern) {
    std::vector<Bits> first;
    for (const Sequence& sequence : pattern.choice) {
      first.push_back(first_classes(sequence));
      alternatives.emplace_back(sequence);
    }
    const auto begun_by = [&first](Bits classes) {
      Bits begun = 0;
      for (std::size_t i = 0; i < first.size(); ++i) begun |= (first[i] & classes) != 0 ? Bits{1} << i : 0;
      return begun;
    };
    for (const Bits classes : table.kinds()) begun_by_kind.emplace(classes, begun_by(classes));
    for (std::size_t c = 0; c < 128; ++c) begun_by_ascii[c] = begun_by(table.ascii(static_cast<char>(c)));
  }

  // Which alternatives a match may be of that begins with this character.
  Bits begun(const char* at) const {
    if (is_ascii(*at)) return begun_by_ascii[static_cast<unsigned char>(*at)];
    return begun_by_kind.at(table.of(utf8_code_point({at, utf8_length(*at)})));
  }

  Pattern pattern;
  CharacterTable table;
  std::vector<Compiled> alternatives;  // Of the pattern, to whose nodes they point.
  std::array<Bits, 128> begun_by_ascii{};
  std::map<Bits, Bits> begun_by_kind;
};

RegexSplitter::RegexSplitter(std::unique_ptr<Code> code) : code_(std::move(code)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

base::Result<RegexSplitter> RegexSplitter::create(std::string_view oniguruma_pattern) {
  TESSERA_ASSIGN_OR_RETURN(Pattern pattern, parse_oniguruma(oniguruma_pattern));
  return RegexSplitter(std::make_unique<Code>(std::move(pattern)));
}

RegexSplitter RegexSplitter::create_digits(DigitGrouping grouping) {
  Pattern pattern;
  pattern.classes.push_back(CodePointSet::numeric());
  Node digits;
  if (grouping == DigitGrouping::kRuns) digits.maximum = Pattern::kUnbounded;
  pattern.choice.push_back({digits});
  return RegexSplitter(std::make_unique<Code>(std::move(pattern)));
}

void RegexSplitter::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const Attempt attempt(code_->table, text);
  const char* const end = text.data() + text.size();
  const char* unmatched = text.data();  // Up to `at` nothing matches.
  for (const char* at = text.data(); at != end;) {
    const char* match_end = nullptr;
    for (Bits left = code_->begun(at); left != 0 && match_end == nullptr; left &= left - 1) {
      match_end = attempt.match(code_->alternatives[static_cast<std::size_t>(std::countr_zero(left))], at);
    }
    if (match_end == nullptr) {
      at += utf8_length(*at);
      continue;
    }
    if (unmatched != at) pieces.emplace_back(unmatched, at);
    pieces.emplace_back(at, match_end);
    at = unmatched = match_end;
  }
  if (unmatched != end) pieces.emplace_back(unmatched, end);
}

}  // namespace tessera::text
