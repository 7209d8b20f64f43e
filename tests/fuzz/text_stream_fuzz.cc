// A user's text and a model's tokens, any bytes at all, through encoding, incremental decoding and stop strings.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/text/byte_level.h"
#include "tessera/text/detokenizer.h"
#include "tessera/text/stop_strings.h"
#include "tessera/text/tokenizer.h"
#include "tessera/text/utf8.h"

namespace {

using namespace tessera::text;

constexpr TokenId kEnd = 256;

// Every byte, some merges, SmolLM2's pre-tokenizer.
std::unique_ptr<Tokenizer> make_tokenizer() {
  std::string vocab;
  std::string merges;
  const auto quoted = [](const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out + "\"";
  };
  for (int byte = 0; byte < 256; ++byte) {
    vocab += quoted(byte_letter(static_cast<unsigned char>(byte))) + ":" + std::to_string(byte) + ",";
  }
  int next = kEnd + 1;
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{{"a", "a"},
                                                                                    {"aa", "aa"},
                                                                                    {"t", "h"},
                                                                                    {"h", "e"},
                                                                                    {"th", "e"},
                                                                                    {"Ġ", "t"},
                                                                                    {"Ġt", "he"},
                                                                                    {"Ġ", "Ġ"},
                                                                                    {"ĠĠ", "ĠĠ"},
                                                                                    {"ä", "¸"},
                                                                                    {"ä¸", "ĸ"},
                                                                                    {"ð", "Ł"},
                                                                                    {"ðŁ", "ĺ"},
                                                                                    {"<", "|"},
                                                                                    {"|", ">"},
                                                                                    {"Ċ", "Ċ"}}) {
    vocab += quoted(left + right) + ":" + std::to_string(next++) + ",";
    merges += quoted(left + " " + right) + ",";
  }
  vocab.pop_back();
  merges.pop_back();
  auto tokenizer = Tokenizer::parse(
      R"({"added_tokens": [{"id": 256, "content": "<|end|>", "special": true}], "decoder": {"type": "ByteLevel"},
          "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
                            {"type": "ByteLevel", "add_prefix_space": false}]},
          "model": {"type": "BPE", "vocab": {)" +
      vocab + R"(}, "merges": [)" + merges + "]}}");
  TESSERA_CHECK(tokenizer.has_value(), tokenizer.has_value() ? "" : tokenizer.error().to_string());
  return std::move(*tokenizer);
}

void check_stop_strings(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  auto matcher = StopStringMatcher::create(stops);
  if (!matcher.has_value()) return;
  std::string whole;
  std::string sent;
  for (const std::string& piece : pieces) {
    whole += piece;
    const std::string part = matcher->push(piece);
    TESSERA_CHECK(is_valid_utf8(part));
    sent += part;
  }
  sent += matcher->flush();
  TESSERA_CHECK(whole.starts_with(sent));
  for (const std::string& stop : stops) TESSERA_CHECK(sent.find(stop) == std::string::npos);
  if (matcher->matched().has_value()) {
    TESSERA_CHECK(std::string_view(whole).substr(sent.size()).starts_with(stops[*matcher->matched()]));
  } else {
    TESSERA_CHECK(sent == whole);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer();
  FuzzedDataProvider input(data, size);
  std::vector<std::string> stops;
  for (int i = input.ConsumeIntegralInRange(0, 3); i > 0; --i) stops.push_back(input.ConsumeRandomLengthString(8));
  const std::string text = input.ConsumeRemainingBytesAsString();

  const std::vector<TokenId> ids = tokenizer->encode(text);
  IncrementalDetokenizer detokenizer(*tokenizer);
  std::string bytes;
  std::string streamed;
  std::vector<std::string> pieces;
  for (const TokenId id : ids) {
    TESSERA_CHECK(id != kEnd);
    bytes += tokenizer->token_bytes(id);
    pieces.push_back(detokenizer.push(id));
    streamed += pieces.back();
  }
  pieces.push_back(detokenizer.flush());
  streamed += pieces.back();
  TESSERA_CHECK(bytes == text);
  TESSERA_CHECK(streamed == tokenizer->decode(ids, SpecialTokens::kSkip));
  if (is_valid_utf8(text)) TESSERA_CHECK(streamed == text);
  check_stop_strings(stops, pieces);
  return 0;
}
