// Cuts text into pieces at the matches of a regular expression: each match is a piece, and so is what lies between two
// matches (the `tokenizers` library calls this "Isolated").
//
// The patterns of tokenizers are small: a few alternatives of a few character classes each. So they are run directly,
// by trying each alternative where a match may begin, with one table look-up a character. There is no limit of steps or
// stack that a text could run into: pattern.h refuses the patterns that could take long, and what calls itself is as
// deep as the pattern, whatever the text.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::text {

enum class DigitGrouping { kEach, kRuns };

// Immutable: any number of threads at once.
class RegexSplitter {
 public:
  // From a pattern in the subset of Oniguruma's language that oniguruma.h describes.
  static base::Result<RegexSplitter> create(std::string_view oniguruma_pattern);
  // Digits: every character with a numeric property by itself, or runs of them.
  static RegexSplitter create_digits(DigitGrouping grouping);

  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  // Appends the pieces of `text`, which must be valid UTF-8, in order; together they are the text.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  explicit RegexSplitter(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace tessera::text
