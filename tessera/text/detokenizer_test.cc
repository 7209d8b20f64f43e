#include "tessera/text/detokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tessera/text/golden_lines.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

// All that comes out of a stream, each part checked to be whole characters.
std::string stream(const std::vector<TokenId>& ids, SpecialTokens special) {
  IncrementalDetokenizer detokenizer(smollm2(), special);
  std::string text;
  for (const TokenId id : ids) {
    const std::string part = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(part)) << part;
    text += part;
  }
  return text + detokenizer.flush();
}

TEST(IncrementalDetokenizer, StreamsWhatTheTokenizersLibraryDecodes) {
  for (const auto& line : golden_lines("tokenizer/smollm2_decode.jsonl")) {
    const auto ids = golden_ids(line, "ids");
    EXPECT_EQ(stream(ids, SpecialTokens::kKeep), golden_string(line, "text"));
    EXPECT_EQ(stream(ids, SpecialTokens::kSkip), golden_string(line, "text_without_special"));
  }
}

TEST(IncrementalDetokenizer, StreamsGoldenTexts) {
  for (const auto& line : golden_lines("tokenizer/smollm2.jsonl.gz")) {
    const auto ids = golden_ids(line, "ids");
    EXPECT_EQ(stream(ids, SpecialTokens::kKeep), smollm2().decode(ids, SpecialTokens::kKeep));
  }
}

// Characters that no token holds whole: they arrive when their last byte does, and not before.
TEST(IncrementalDetokenizer, HoldsIncompleteCharactersBack) {
  for (const std::string text :
       {"한글 입력", "👩‍👩‍👧‍👦🏳️‍🌈", "𠮷野家", "ᠮᠣᠩᠭᠣᠯ", "a한b👍c"}) {
    const auto ids = smollm2().encode(text);
    IncrementalDetokenizer detokenizer(smollm2());
    std::string bytes;
    std::string out;
    std::size_t empty = 0;
    for (const TokenId id : ids) {
      bytes += smollm2().token_bytes(id);
      const std::string part = detokenizer.push(id);
      empty += part.empty() ? 1 : 0;
      out += part;
      EXPECT_EQ(out, bytes.substr(0, valid_utf8_prefix(bytes)));
    }
    EXPECT_EQ(out, text);
    EXPECT_EQ(detokenizer.flush(), "");
    EXPECT_GT(empty, 0u) << text << ": no token ended inside a character, so this text tests nothing";
  }
}

TEST(IncrementalDetokenizer, ReplacesWhatCanNoLongerBecomeACharacter) {
  const auto byte = [](char c) { return smollm2().encode(std::string_view(&c, 1)).at(0); };
  IncrementalDetokenizer detokenizer(smollm2());
  EXPECT_EQ(detokenizer.push(byte('\xE4')), "");
  EXPECT_EQ(detokenizer.push(byte('\xB8')), "");
  EXPECT_EQ(detokenizer.push(byte('A')), "\uFFFDA");
  EXPECT_EQ(detokenizer.push(byte('\x80')), "\uFFFD");
  EXPECT_EQ(detokenizer.push(byte('\xF0')), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
  EXPECT_EQ(detokenizer.push(byte('B')), "B") << "after flush it begins anew";
}

TEST(IncrementalDetokenizer, KeepsTheSpecialTokensThatItIsTold) {
  const TokenId start = *smollm2().token_id("<|im_start|>");
  const TokenId end = *smollm2().token_id("<|im_end|>");
  IncrementalDetokenizer detokenizer(smollm2(), SpecialTokens::kSkip, {start});
  EXPECT_EQ(detokenizer.push(start), "<|im_start|>");
  EXPECT_EQ(detokenizer.push(end), "");
}

TEST(IncrementalDetokenizer, AnyTokensStreamAsTheyDecode) {
  EXPECT_TRUE(rc::check("stream equals decode", [] {
    // Half of them from the low ids, where single bytes are; some outside the vocabulary.
    const auto ids = *rc::gen::container<std::vector<TokenId>>(
        rc::gen::oneOf(rc::gen::inRange<TokenId>(-2, 300), rc::gen::inRange<TokenId>(0, 49160)));
    RC_ASSERT(stream(ids, SpecialTokens::kKeep) == smollm2().decode(ids, SpecialTokens::kKeep));
    RC_ASSERT(stream(ids, SpecialTokens::kSkip) == smollm2().decode(ids, SpecialTokens::kSkip));
  }));
}

}  // namespace
}  // namespace tessera::text
