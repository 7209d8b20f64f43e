// Tokens to text, one at a time, for streaming. The concatenation of everything that push() and flush() return equals
// Tokenizer::decode() of the same ids, and each returned part is valid UTF-8 by itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/text/tokenizer.h"
#include "tessera/text/utf8.h"

namespace tessera::text {

// One per sequence; one thread at a time. The tokenizer must outlive it.
class IncrementalDetokenizer {
 public:
  // The special tokens in `kept` are not skipped: the markers that an OutputParser looks for.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::kSkip,
                                  std::vector<TokenId> kept = {})
      : tokenizer_(&tokenizer), special_(special), kept_(std::move(kept)) {}

  // The characters that this token completes; often none (a token can be the first byte of an emoji), and U+FFFD where
  // this token shows that what was held back can never be a character.
  std::string push(TokenId token);
  // The end of the sequence: U+FFFD if an incomplete character was held back. The detokenizer is then as new.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_;
  std::vector<TokenId> kept_;  // A few.
  Utf8Assembler assembler_;
};

}  // namespace tessera::text
