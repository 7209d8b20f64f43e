// A regular expression over module names, as `re:` entries of a quantization configuration hold them. It comes from
// outside, so only a subset is taken, in which Python's `re` (whose meaning the format has) and PCRE2 agree, and
// both one match and all matches of a model's names together may take a bounded number of steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/limits.h"
#include "tessera/base/status.h"

namespace tessera::weights {

// What one pass over the names of a model may spend on the patterns of one configuration, and what it has learned so
// far. For one pass and one configuration; one thread.
class PatternBudget {
 public:
  // Whether so many steps are left; if so they are taken.
  bool spend(std::int64_t steps) {
    if (steps > steps_left_) return false;
    steps_left_ -= steps;
    return true;
  }
  // Answers by list and name, of whoever asks (ModuleList).
  std::map<std::pair<const void*, std::string>, bool>& answers() { return answers_; }

 private:
  std::int64_t steps_left_ = base::limits::kModulePatternStepsMax;
  std::map<std::pair<const void*, std::string>, bool> answers_;
};

// The name with all digits whose bit is not in `digits` written as the same one: patterns that tell apart only
// `digits` say the same of all names that become equal so. An expert's number rarely matters.
std::string alike_name(std::string_view name, std::uint32_t digits);

// Immutable; any thread.
class ModulePattern {
 public:
  // Taken: printable ASCII; literals, `.`, classes `[...]`, `* + ? {m,n}` and their lazy forms, `^ $ |`, groups `(...)`
  // and `(?:...)`, lookaheads `(?=...)` and `(?!...)`, and a backslash before punctuation or one of `d D w W s S b B`.
  // Refused: anything else, more than limits::kModulePatternBytesMax bytes, and what PCRE2 cannot compile.
  static base::Result<ModulePattern> compile(std::string_view pattern);

  // Whether a match begins at the name's first character; it need not reach the last (Python's re.match).
  // out_of_range when the answer takes more steps than an honest pattern needs, or than the budget has left.
  base::Result<bool> matches(std::string_view name, PatternBudget& budget) const;

  const std::string& text() const { return text_; }
  // The digits that the pattern tells from others, bit 0 for '0'; perhaps more than it really does.
  std::uint32_t digits_told_apart() const { return digits_; }

 private:
  ModulePattern() = default;
  std::string text_;
  std::uint32_t digits_ = 0;
  std::shared_ptr<const void> code_;  // pcre2_code; shared by copies.
};

}  // namespace tessera::weights
