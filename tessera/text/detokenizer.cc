#include "tessera/text/detokenizer.h"

#include <algorithm>

namespace tessera::text {

std::string IncrementalDetokenizer::push(TokenId token) {
  std::string text;
  const bool skip = special_ == SpecialTokens::kSkip && tokenizer_->is_special(token) &&
                    std::ranges::find(kept_, token) == kept_.end();
  if (skip) return text;
  assembler_.push(tokenizer_->token_bytes(token), text);
  return text;
}

std::string IncrementalDetokenizer::flush() {
  std::string text;
  assembler_.flush(text);
  return text;
}

}  // namespace tessera::text
