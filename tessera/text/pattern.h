// A regular expression, read: what oniguruma.h makes of a pattern and regex_splitter.h runs.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/text/code_point_set.h"

namespace tessera::text {

struct Pattern {
  struct Node;
  using Sequence = std::vector<Node>;    // All of it, in order.
  using Choice = std::vector<Sequence>;  // The first that leads to a match of the whole.
  enum class Kind : std::uint8_t { kClass, kGroup, kLookAhead, kNegativeLookAhead };
  enum class Greed : std::uint8_t { kGreedy, kLazy, kPossessive };
  static constexpr std::int32_t kUnbounded = std::numeric_limits<std::int32_t>::max();

  struct Node {
    Kind kind = Kind::kClass;
    Greed greed = Greed::kGreedy;
    std::uint8_t class_index = 0;  // kClass: one character of classes[class_index], ...
    std::int32_t minimum = 1;      // ... so many times; a group 0 or 1 times.
    std::int32_t maximum = 1;
    Choice choice;  // Of the others.
  };

  static constexpr std::size_t kClassesMax = 64;
  static constexpr std::size_t kAlternativesMax = 64;  // Of the whole pattern.

  std::vector<CodePointSet> classes;  // At most kClassesMax, each once.
  Choice choice;                      // At most kAlternativesMax.
};

// Whether it can match the empty string.
bool matches_empty(const Pattern::Node& node);
bool matches_empty(const Pattern::Sequence& sequence);
bool matches_empty(const Pattern::Choice& choice);

// Refuses a pattern that can match the empty string, and one for which an attempt to match at one place may take more
// than linear time in the text: in no alternative may two unbounded repeats stand before something that can fail, and
// bounded repeats, options and alternatives may not multiply to more than some thousand ways. Patterns of tokenizers
// have one such repeat at most, and some ten ways.
base::Status check_linear(const Pattern& pattern);

}  // namespace tessera::text
