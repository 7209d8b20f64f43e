// Cuts text into pieces at the matches of a regular expression: each match is a piece, and so is what lies between two
// matches (the `tokenizers` library calls this "Isolated").
//
// PCRE2 with its just-in-time compiler. Matching runs with UTF checking off, because checking is linear in the whole
// text for every match: the caller vouches for the text.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::text {

enum class DigitGrouping { kEach, kRuns };

// Immutable: any number of threads at once, each with its own Scratch.
class RegexSplitter {
 public:
  // What a match writes to.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class RegexSplitter;
    struct Buffers;
    std::unique_ptr<Buffers> buffers_;
  };

  // From a pattern in the subset of Oniguruma's language that oniguruma.h describes. Refuses patterns that can match
  // nothing at all.
  static base::Result<RegexSplitter> create(std::string_view oniguruma_pattern);
  // Digits: every character with a numeric property by itself, or runs of them.
  static base::Result<RegexSplitter> create_digits(DigitGrouping grouping);

  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  // Appends the pieces of `text`, which must be valid UTF-8, in order; together they are the text. Should a match
  // exceed PCRE2's limit of 10 million steps (no pattern of a family that is served can), the rest is one piece.
  void split(std::string_view text, Scratch& scratch, std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  explicit RegexSplitter(std::unique_ptr<Code> code);
  static base::Result<RegexSplitter> compile(std::string_view pcre2_pattern);
  std::unique_ptr<Code> code_;
};

}  // namespace tessera::text
