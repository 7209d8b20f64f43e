// Unicode Normalization Form C, which Qwen's tokenizer puts before everything else.
//
// utf8proc's data and composition (Unicode 15), in linear time for text that is NFC already, as nearly all is, and
// O(n log n) for any other: utf8proc's own ordering of combining marks is quadratic in the length of their run, so that
// one message of nothing else would stop a thread for hours.
//
// The `tokenizers` library, which is what models are used with, has the normalization data of Unicode 9. Characters
// that combine or compose only since then stay as and where they are, here as there.
#pragma once

#include <string>
#include <string_view>

namespace tessera::text {

// NFC of `text`, which must be valid UTF-8: a view of `text` itself if nothing changes, or of `buffer`, which is
// written.
std::string_view to_nfc(std::string_view text, std::string& buffer);

// Whether it is one of those newer characters.
bool is_left_alone_by_nfc(char32_t c);

}  // namespace tessera::text
