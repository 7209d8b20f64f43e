// tokenizer.json from outside, or, where the input holds a zero byte, tiktoken.model before it and
// tokenizer_config.json after it. Whatever is accepted must encode any text to ordinary tokens of its vocabulary, and
// decode them to valid UTF-8, the same at once and token by token.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/text/detokenizer.h"
#include "tessera/text/tokenizer.h"
#include "tessera/text/utf8.h"

namespace {

using namespace tessera::text;

void check_encoding(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<TokenId> ids = tokenizer.encode(text);
  // Normalization makes a text longer: by three times at most (Unicode Standard Annex 15, 9.2).
  TESSERA_CHECK(ids.size() <= 3 * text.size());
  IncrementalDetokenizer detokenizer(tokenizer, SpecialTokens::kKeep);
  std::string streamed;
  std::size_t bytes = 0;
  for (const TokenId id : ids) {
    TESSERA_CHECK(tokenizer.contains(id) && !tokenizer.is_added(id) && !tokenizer.is_special(id));
    bytes += tokenizer.token_bytes(id).size();
    streamed += detokenizer.push(id);
  }
  streamed += detokenizer.flush();
  TESSERA_CHECK(bytes <= 3 * text.size());
  TESSERA_CHECK(tokenizer.tokens_min(text) <= static_cast<std::int64_t>(ids.size()));
  TESSERA_CHECK(is_valid_utf8(streamed));
  TESSERA_CHECK(streamed == tokenizer.decode(ids, SpecialTokens::kKeep));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = file.find('\0');
  const auto tokenizer = zero == std::string_view::npos
                             ? Tokenizer::parse(file)
                             : Tokenizer::parse_tiktoken(file.substr(0, zero), file.substr(zero + 1));
  if (!tokenizer.has_value()) {
    TESSERA_CHECK(!tokenizer.error().message().empty());
    return 0;
  }
  check_encoding(**tokenizer,
                 "Hello world, it's 12 o'clock\r\n\t\xE4\xB8\x96\xE7\x95\x8C \xF0\x9F\x98\x80\xFF\x80<|end|>");
  // The file as a text: its own tokens, markers and pattern are all in it.
  check_encoding(**tokenizer, file.substr(0, 4096));
  std::vector<TokenId> all;
  for (TokenId id = 0; id < std::min((*tokenizer)->vocab_size(), 1000); ++id) all.push_back(id);
  TESSERA_CHECK(is_valid_utf8((*tokenizer)->decode(all, SpecialTokens::kSkip)));
  return 0;
}
