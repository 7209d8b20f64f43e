#include "tessera/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <set>
#include <thread>

#include "tessera/text/golden_lines.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  return tokenizer.decode(ids, SpecialTokens::kKeep);
}

// The bytes for which SmolLM2 has no token, by the goldens' README.
bool has_token(unsigned char byte) {
  static const std::set<unsigned char> missing = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1d, 0xc0, 0xc1, 0xf1, 0xf2, 0xf5,
                                                  0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff};
  return !missing.contains(byte);
}

std::string without_missing_bytes(std::string_view text) {
  std::string kept;
  std::ranges::copy_if(text, std::back_inserter(kept), [](char c) { return has_token(static_cast<unsigned char>(c)); });
  return kept;
}

std::string utf8(char32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
  if (c < 0x10000) {
    return {static_cast<char>(0xE0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
  }
  return {static_cast<char>(0xF0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 0x3F)),
          static_cast<char>(0x80 | ((c >> 6) & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
}

// Text of all scripts, with a bias to what tokenizers stumble over.
rc::Gen<std::string> arbitrary_text() {
  const auto character = rc::gen::weightedOneOf<std::string>({
      {6, rc::gen::map(rc::gen::inRange<char32_t>(0x20, 0x7F), utf8)},
      {1, rc::gen::map(rc::gen::inRange<char32_t>(0, 0x20), utf8)},
      {2, rc::gen::element<std::string>(" ", "  ", "\n", "\r\n", "\t", "\u3000", "\u2028", "'s", "'LL", "<|im_end|>")},
      {2, rc::gen::map(rc::gen::inRange<char32_t>(0x80, 0xD800), utf8)},
      {1, rc::gen::map(rc::gen::inRange<char32_t>(0xE000, 0x110000), utf8)},
  });
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(character),
                      [](const std::vector<std::string>& parts) {
                        std::string text;
                        for (const std::string& part : parts) text += part;
                        return text;
                      });
}

TEST(Tokenizer, EncodesAsTheTokenizersLibrary) {
  std::size_t differences = 0;
  for (const auto& line : golden_lines("tokenizer/smollm2.jsonl.gz")) {
    const std::string text = golden_string(line, "text");
    const auto ids = smollm2().encode(text);
    if (ids != golden_ids(line, "ids") && ++differences <= 20) {
      ADD_FAILURE() << "'" << text << "': " << ::testing::PrintToString(ids) << ", expected "
                    << ::testing::PrintToString(golden_ids(line, "ids"));
    }
  }
  EXPECT_EQ(differences, 0u);
}

TEST(Tokenizer, DecodesAsTheTokenizersLibrary) {
  for (const auto& line : golden_lines("tokenizer/smollm2_decode.jsonl")) {
    const auto ids = golden_ids(line, "ids");
    EXPECT_EQ(smollm2().decode(ids, SpecialTokens::kKeep), golden_string(line, "text"));
    EXPECT_EQ(smollm2().decode(ids, SpecialTokens::kSkip), golden_string(line, "text_without_special"));
  }
}

TEST(Tokenizer, DecodingGoldensGivesTheTextBack) {
  for (const auto& line : golden_lines("tokenizer/smollm2.jsonl.gz")) {
    const std::string text = golden_string(line, "text");
    const std::string bytes = without_missing_bytes(text);
    // Where a lead byte is missing, what remains is ill-formed and was replaced.
    if (is_valid_utf8(bytes)) {
      EXPECT_EQ(decode(smollm2(), smollm2().encode(text)), bytes);
    }
  }
}

// Split, merges as arrays, ignore_merges, BOS from the post-processor, an added token that is not special.
TEST(Tokenizer, EncodesWithWhatSmollm2DoesNotUse) {
  const auto tiny = Tokenizer::load(goldens_dir() / "tokenizer" / "tiny");
  ASSERT_TRUE(tiny.has_value()) << tiny.error().to_string();
  EXPECT_THAT((*tiny)->prompt_prefix_ids(), ElementsAre(0));
  EXPECT_THAT((*tiny)->eos_ids(), IsEmpty());
  for (const auto& line : golden_lines("tokenizer/tiny.jsonl.gz")) {
    const std::string text = golden_string(line, "text");
    std::vector<TokenId> ids = (*tiny)->encode(text);
    EXPECT_EQ(ids, golden_ids(line, "ids")) << text;
    ids.insert(ids.begin(), (*tiny)->prompt_prefix_ids().begin(), (*tiny)->prompt_prefix_ids().end());
    EXPECT_EQ(ids, golden_ids(line, "prompt_ids")) << text;
  }
  // <think> is added without being special: user text never becomes it, and decoding never leaves it out.
  const auto think = (*tiny)->token_id("<think>");
  ASSERT_TRUE(think.has_value());
  EXPECT_TRUE((*tiny)->is_added(*think));
  EXPECT_FALSE((*tiny)->is_special(*think));
  EXPECT_THAT((*tiny)->encode("<think>"), ::testing::Not(::testing::Contains(*think)));
  EXPECT_EQ((*tiny)->decode(std::vector{0, *think, 1}, SpecialTokens::kSkip), "<think>");
  EXPECT_EQ((*tiny)->decode(std::vector{0, *think, 1}, SpecialTokens::kKeep), "<s><think><|end|>");
}

TEST(Tokenizer, KnowsItsVocabulary) {
  const Tokenizer& tokenizer = smollm2();
  EXPECT_EQ(tokenizer.vocab_size(), 49152);
  EXPECT_THAT(tokenizer.eos_ids(), ElementsAre(2));
  EXPECT_THAT(tokenizer.prompt_prefix_ids(), IsEmpty());
  EXPECT_EQ(tokenizer.token_id("<|im_start|>"), 1);
  EXPECT_EQ(tokenizer.token_id("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer.token_id("Hello"), std::nullopt) << "an ordinary token is not a control token";
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_TRUE(tokenizer.is_special(16));
  EXPECT_FALSE(tokenizer.is_special(17));
  EXPECT_EQ(tokenizer.token_bytes(2), "<|im_end|>");
  EXPECT_EQ(tokenizer.token_bytes(7042), " Paris");
  for (const TokenId outside : {-1, 49152, std::numeric_limits<TokenId>::min(), std::numeric_limits<TokenId>::max()}) {
    EXPECT_FALSE(tokenizer.contains(outside));
    EXPECT_FALSE(tokenizer.is_added(outside));
    EXPECT_FALSE(tokenizer.is_special(outside));
    EXPECT_EQ(tokenizer.token_bytes(outside), "");
  }
  EXPECT_EQ(decode(tokenizer, {-1, 7042, 49152}), " Paris");
}

TEST(Tokenizer, UserTextNeverBecomesAControlToken) {
  const Tokenizer& tokenizer = smollm2();
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_added(id)) continue;
    const std::string spelling(tokenizer.token_bytes(id));
    for (const std::string& text : {spelling, "a" + spelling + "b", spelling + spelling, " " + spelling + "\n"}) {
      const auto ids = tokenizer.encode(text);
      EXPECT_TRUE(std::ranges::none_of(ids, [&](TokenId t) { return tokenizer.is_added(t); })) << text;
      EXPECT_EQ(decode(tokenizer, ids), text);
    }
  }
  EXPECT_TRUE(rc::check("no text encodes to an added token", [&] {
    const auto ids = tokenizer.encode(*arbitrary_text());
    RC_ASSERT(std::ranges::none_of(ids, [&](TokenId t) { return tokenizer.is_added(t); }));
  }));
}

TEST(Tokenizer, DecodingGivesEveryTextBack) {
  EXPECT_TRUE(rc::check("decode(encode(x)) is x but for bytes without a token", [] {
    const std::string text = *arbitrary_text();
    const auto ids = smollm2().encode(text);
    std::string bytes;
    for (const TokenId id : ids) bytes += smollm2().token_bytes(id);
    RC_ASSERT(bytes == without_missing_bytes(text));
    if (bytes == text) RC_ASSERT(decode(smollm2(), ids) == text);
  }));
}

TEST(Tokenizer, TakesAnyBytes) {
  const Tokenizer& tokenizer = smollm2();
  // Each run of ill-formed bytes is a word of its own.
  auto expected = tokenizer.encode("Hello");
  const TokenId continuation = tokenizer.encode("\x80").at(0);
  expected.push_back(continuation);
  for (const TokenId id : tokenizer.encode(" world")) expected.push_back(id);
  EXPECT_EQ(tokenizer.encode("Hello\x80 world"), expected);
  EXPECT_EQ(tokenizer.token_bytes(continuation), "\x80");
  // Truncated, overlong, surrogate, beyond U+10FFFF, and bytes for which there is no token at all.
  for (const std::string_view text : {"\xE4\xB8", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF\xFE", "\xF0"}) {
    std::string bytes;
    for (const TokenId id : tokenizer.encode(text)) bytes += tokenizer.token_bytes(id);
    EXPECT_EQ(bytes, without_missing_bytes(text));
  }
  EXPECT_TRUE(rc::check("bytes come back", [&] {
    const auto bytes = *rc::gen::container<std::string>(rc::gen::arbitrary<char>());
    std::string back;
    for (const TokenId id : tokenizer.encode(bytes)) back += tokenizer.token_bytes(id);
    RC_ASSERT(back == without_missing_bytes(bytes));
  }));
}

// The bound is below every encoding that the library's goldens and arbitrary texts have, and it is reached.
TEST(Tokenizer, NoEncodingHasFewerTokensThanTheBound) {
  const Tokenizer& tokenizer = smollm2();
  std::string_view longest;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_added(id) && tokenizer.token_bytes(id).size() > longest.size())
      longest = tokenizer.token_bytes(id);
  }
  EXPECT_EQ(tokenizer.longest_token_bytes(), std::ssize(longest));
  EXPECT_EQ(tokenizer.encode(longest).size(), 1u);
  EXPECT_EQ(tokenizer.tokens_min(longest), 1);
  EXPECT_EQ(tokenizer.tokens_min(std::string(longest) + "a"), 2);
  EXPECT_EQ(tokenizer.tokens_min(""), 0);
  // Bytes without a token are dropped, however many there are.
  EXPECT_TRUE(tokenizer.encode(std::string(10'000, '\x04')).empty());
  EXPECT_EQ(tokenizer.tokens_min(std::string(10'000, '\x04')), 0);
  for (const auto& line : golden_lines("tokenizer/smollm2.jsonl.gz")) {
    EXPECT_LE(tokenizer.tokens_min(golden_string(line, "text")), std::ssize(golden_ids(line, "ids")));
  }
  EXPECT_TRUE(rc::check("below every encoding", [&] {
    const std::string text =
        *rc::gen::oneOf(arbitrary_text(), rc::gen::container<std::string>(rc::gen::arbitrary<char>()));
    RC_ASSERT(tokenizer.tokens_min(text) <= std::ssize(tokenizer.encode(text)));
    const std::vector<Segment> segments = {Segment::of_token(1), Segment::of_text(text), Segment::of_text(text)};
    RC_ASSERT(tokenizer.tokens_min(segments) <= std::ssize(tokenizer.encode(segments)));
    RC_ASSERT(tokenizer.tokens_min(segments) >= 1 + tokenizer.tokens_min(text));
  }));
}

TEST(Tokenizer, SegmentsPutControlTokensWhereTheyAreAsked) {
  const Tokenizer& tokenizer = smollm2();
  const std::vector<Segment> segments = {Segment::of_token(1), Segment::of_text("user\nHel"),
                                         Segment::of_text("lo<|im_end|>"), Segment::of_token(2),
                                         Segment::of_text("\n")};
  std::vector<TokenId> expected = {1};
  // Adjacent texts are one text: "Hel" and "lo" make one word.
  for (const TokenId id : tokenizer.encode("user\nHello<|im_end|>")) expected.push_back(id);
  expected.push_back(2);
  for (const TokenId id : tokenizer.encode("\n")) expected.push_back(id);
  EXPECT_EQ(tokenizer.encode(segments), expected);
  EXPECT_THAT(tokenizer.encode(std::span<const Segment>()), IsEmpty());
}

TEST(TokenizerDeathTest, ASegmentWithATokenOutsideTheVocabularyIsAProgrammersError) {
  const std::vector<Segment> segments = {Segment::of_token(49152)};
  EXPECT_DEATH(static_cast<void>(smollm2().encode(segments)), "49152");
}

// A quadratic algorithm would take hours on these; the test's own time limit is what fails then.
TEST(Tokenizer, LongWordsAreNearLinear) {
  const Tokenizer& tokenizer = smollm2();
  constexpr std::size_t kBytes = 1 << 18;
  std::string alphabet;
  for (std::size_t i = 0; i < kBytes; ++i) alphabet.push_back(static_cast<char>('a' + (i * i + i / 7) % 26));
  std::string lines;
  while (lines.size() < kBytes) lines += " \n";
  std::string han;
  while (han.size() < kBytes) han += "世";
  const std::array texts = {std::string(1 << 20, 'a'),
                            std::string(kBytes, ' '),
                            std::string(kBytes, '\n'),
                            std::string(kBytes, '='),
                            std::string(kBytes, '7'),
                            std::string(kBytes, '\x80'),
                            alphabet,
                            lines,
                            std::move(han),
                            std::string(kBytes, ' ') + "x"};
  for (const std::string& text : texts) {
    std::string bytes;
    bytes.reserve(text.size());
    for (const TokenId id : tokenizer.encode(text)) bytes += tokenizer.token_bytes(id);
    EXPECT_EQ(bytes == text, true) << text.substr(0, 10);
  }
}

TEST(Tokenizer, ManyThreadsEncodeAtOnce) {
  const std::string text =
      "It's 12 o'clock — 世界, CAN'T you see?\n\n  <|im_end|> 한글 👩‍👩‍👧‍👦";
  const auto expected = smollm2().encode(text);
  std::array<int, 4> wrong{};
  {
    std::vector<std::jthread> threads;
    for (int& count : wrong) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) count += smollm2().encode(text) == expected ? 0 : 1;
      });
    }
  }
  EXPECT_THAT(wrong, ::testing::Each(0));
}

}  // namespace
}  // namespace tessera::text
