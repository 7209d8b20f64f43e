// The patterns of tokenizer.json are Oniguruma's, as the `tokenizers` library runs them. Of that language this is read:
//
//   a literal, \r \n \t, an escaped punctuation mark
//   \s \S                 the White_Space characters
//   \p{L} N M P S Lu Ll Lt Lm Lo, \p{Han}   of the Unicode that the library has; Han is the script, not its extensions.
//                         \P only outside [...]
//   [...] [^...]          of the above and of ranges; as its last part, && and one more [...]: what is in both
//   (...) (?:...) (?=...) (?!...) |          without capturing
//   (?i:...)              around literals and | only; a literal also matches what folds to it (k the Kelvin sign)
//   ? * + {m} {m,} {m,n}  on a single character or class, up to 100; also lazy and possessive ? * +; on a group only ?
//
// Everything else is refused by name, and so are patterns that could take long or match nothing (pattern.h).
#pragma once

#include <string_view>

#include "tessera/base/status.h"
#include "tessera/text/pattern.h"

namespace tessera::text {

// Of a pattern of at most 2048 bytes.
base::Result<Pattern> parse_oniguruma(std::string_view pattern);

}  // namespace tessera::text
