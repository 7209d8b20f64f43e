// A regular expression over module names, as `re:` entries of a quantization configuration hold them. It comes from
// outside, so only a subset is taken, in which Python's `re` (whose meaning the format has) and PCRE2 agree, and a
// match may take a bounded number of steps. Immutable; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::weights {

class ModulePattern {
 public:
  // Taken: printable ASCII; literals, `.`, classes `[...]`, `* + ? {m,n}` and their lazy forms, `^ $ |`, groups `(...)`
  // and `(?:...)`, lookaheads `(?=...)` and `(?!...)`, and a backslash before punctuation or one of `d D w W s S b B`.
  // Refused: anything else, more than limits::kModulePatternBytesMax bytes, and what PCRE2 cannot compile.
  static base::Result<ModulePattern> compile(std::string_view pattern);

  // Whether a match begins at the name's first character; it need not reach the last (Python's re.match).
  // out_of_range when the answer takes more steps than an honest pattern needs.
  base::Result<bool> matches(std::string_view name) const;

  const std::string& text() const { return text_; }

 private:
  ModulePattern() = default;
  std::string text_;
  std::shared_ptr<const void> code_;  // pcre2_code; shared by copies.
};

}  // namespace tessera::weights
