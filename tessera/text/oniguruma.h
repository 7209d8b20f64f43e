// The patterns of tokenizer.json are Oniguruma's, as the `tokenizers` library runs them; we run PCRE2. The two agree on
// most of the language and differ silently on the rest, so only a subset is accepted, and translated:
//
//   a literal, \r \n \t, an escaped punctuation mark     the same
//   \s \S                 the White_Space characters by name: PCRE2 adds U+180E
//   \p{L} N M P S Lu Ll Lt Lm Lo, \p{Han}                the property, and what Unicode 15 and 16 added to it, which
//                         PCRE2 10.42 does not know yet; Han as the script, not its extensions. \P only outside [...]
//   [...] [^...]          of the above and of ranges; no nesting, no &&
//   (...) (?:...) (?=...) (?!...) |                      the same, without capturing
//   (?i:...)              around literals and | only
//   ? * + {m} {m,} {m,n}  on a single character or class, up to 100; also lazy and possessive ? * +; on a group only ?
//
// Everything else is refused by name. So a pattern takes polynomial time at worst and a stack that the pattern bounds.
#pragma once

#include <string>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::text {

// The PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP) of an Oniguruma pattern of at most 2048 bytes of valid UTF-8.
base::Result<std::string> translate_oniguruma(std::string_view pattern);

// A character class of what Rust's char::is_numeric holds for, which the library's Digits pre-tokenizer uses.
std::string numeric_class();

}  // namespace tessera::text
