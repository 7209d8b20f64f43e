// Kimi's tokenizer files: tiktoken.model (a line a token: its bytes in base64, a space, its rank, which is its id) and,
// in tokenizer_config.json, the control tokens above them.
//
// Merging is tiktoken's: any two neighbours whose bytes together are a token may become it, the one of lowest rank
// first, and a word that is a token as a whole is that token. The pre-tokenizer is Kimi's, which is not in any file.
#pragma once

#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/text/vocabulary.h"

namespace tessera::text {

// `ranks` is the text of tiktoken.model: every rank from 0 to their number less one once, in any order; every byte a
// token by itself. `tokenizer_config` is that of tokenizer_config.json, whose added_tokens_decoder names some of the
// 256 ids that follow; the others are <|reserved_token_ID|>, special, as the vendor's own tokenizer calls them.
base::Result<Vocabulary> parse_tiktoken(std::string_view ranks, std::string_view tokenizer_config);

// Appends the blocks that the vendor's tokenizer cuts a text into before it matches anything: of at most 400,000
// characters, and within these wherever 25,000 characters in a row are white space, or none are, and another follows.
// `text` must be valid UTF-8.
void cut_as_tiktoken(std::string_view text, std::vector<std::string_view>& blocks);

}  // namespace tessera::text
