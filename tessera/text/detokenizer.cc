#include "tessera/text/detokenizer.h"

namespace tessera::text {

std::string IncrementalDetokenizer::push(TokenId token) {
  std::string text;
  if (special_ == SpecialTokens::kSkip && tokenizer_->is_special(token)) return text;
  assembler_.push(tokenizer_->token_bytes(token), text);
  return text;
}

std::string IncrementalDetokenizer::flush() {
  std::string text;
  assembler_.flush(text);
  return text;
}

}  // namespace tessera::text
