// The real vocabularies of Kimi K2, GLM-4.5 and Qwen3 over 20,000 strings, against the vendors' own libraries by
// goldens (tests/goldens/README.md). The vocabularies are not in the repository: scripts/vocabularies.sh makes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tessera/text/detokenizer.h"
#include "tessera/text/golden_lines.h"
#include "tessera/text/nfc.h"
#include "tessera/text/tokenizer.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

using ::testing::ElementsAre;

const std::vector<std::string>& varied_texts() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> lines;
    const std::string packed = golden_text("tokenizer/varied.jsonl.gz");
    for (std::size_t begin = 0; begin < packed.size();) {
      const std::size_t end = packed.find('\n', begin);
      lines.emplace_back(boost::json::parse(packed.substr(begin, end - begin)).as_string());
      begin = end + 1;
    }
    return lines;
  }();
  return texts;
}

std::uint64_t hash_of(const std::vector<TokenId>& ids) {
  static_assert(std::endian::native == std::endian::little);
  return XXH64(ids.data(), ids.size() * sizeof(TokenId), 0);
}

class Vocabularies : public ::testing::TestWithParam<const char*> {
 public:
  static std::unique_ptr<Tokenizer> load(const std::string& name) {
    auto tokenizer = Tokenizer::load(std::filesystem::path(TESSERA_SOURCE_DIR) / "build" / "vocabularies" / name);
    EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string()
                                       << "; the command that makes it: scripts/vocabularies.sh";
    return tokenizer.has_value() ? std::move(*tokenizer) : nullptr;
  }
};

// Ids, round trips, and the stream of tokens, in one pass over all strings.
TEST_P(Vocabularies, EncodesAndStreamsVariedStringsAsTheVendor) {
  const std::unique_ptr<Tokenizer> tokenizer = load(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const bool normalizes = std::string_view(GetParam()) == "qwen3";
  const std::string hashes = golden_text("tokenizer/varied_" + std::string(GetParam()) + ".u64");
  ASSERT_EQ(varied_texts().size(), 20'000u);
  ASSERT_EQ(hashes.size(), 20'000 * sizeof(std::uint64_t));
  std::size_t differences = 0;
  for (std::size_t i = 0; i < varied_texts().size(); ++i) {
    const std::string& text = varied_texts()[i];
    const std::vector<TokenId> ids = tokenizer->encode(text);
    ASSERT_LE(tokenizer->tokens_min(text), std::ssize(ids)) << "string " << i;
    std::uint64_t expected = 0;
    std::memcpy(&expected, hashes.data() + i * sizeof(expected), sizeof(expected));
    if (hash_of(ids) != expected && ++differences <= 20) {
      ADD_FAILURE() << "string " << i << " '" << text.substr(0, 200)
                    << "': " << ::testing::PrintToString(ids).substr(0, 500);
    }
    std::string buffer;
    const std::string_view read = normalizes ? to_nfc(text, buffer) : std::string_view(text);
    ASSERT_EQ(tokenizer->decode(ids, SpecialTokens::kSkip) == read, true)
        << "string " << i << ": " << text.substr(0, 200);
    // One token at a time: whole characters only, as soon as they are whole, and together what decode() gives.
    IncrementalDetokenizer detokenizer(*tokenizer);
    std::string streamed;
    std::size_t bytes = 0;
    for (const TokenId id : ids) {
      ASSERT_FALSE(tokenizer->is_added(id)) << text;
      const std::string part = detokenizer.push(id);
      ASSERT_TRUE(is_valid_utf8(part)) << "string " << i;
      streamed += part;
      bytes += tokenizer->token_bytes(id).size();
      ASSERT_LT(bytes - streamed.size(), 4u) << "a whole character is held back in string " << i;
    }
    ASSERT_EQ(streamed == read, true) << "string " << i;
    ASSERT_EQ(detokenizer.flush(), "");
  }
  EXPECT_EQ(differences, 0u);
}
INSTANTIATE_TEST_SUITE_P(Real, Vocabularies, ::testing::Values("kimi_k2", "glm45", "qwen3"),
                         [](const auto& name) { return std::string(name.param); });

// What is known from elsewhere, and the ids that are written out so that a person can see where a difference begins.
TEST(Vocabularies, KimiHanIsAScriptOfItsOwn) {
  const std::unique_ptr<Tokenizer> kimi = Vocabularies::load("kimi_k2");
  ASSERT_NE(kimi, nullptr);
  EXPECT_THAT(kimi->encode("世界世世——I'm CAN'T"), ElementsAre(2243, 123421, 35086, 17172, 32330, 64833));
  EXPECT_THAT(kimi->encode("Hello world"), ElementsAre(19180, 2695));
  EXPECT_THAT(kimi->encode("中文English混合"), ElementsAre(16717, 44372, 13935));
  for (const auto& line : golden_lines("tokenizer/varied_ids.jsonl.gz")) {
    const std::string& text = varied_texts().at(static_cast<std::size_t>(line.at("index").as_int64()));
    EXPECT_EQ(kimi->encode(text), golden_ids(line, "kimi_k2")) << text;
  }
}

TEST(Vocabularies, ControlTokensTypedByAUserOrReturnedByAToolAreText) {
  for (const char* name : {"kimi_k2", "glm45", "qwen3"}) {
    const std::unique_ptr<Tokenizer> tokenizer = Vocabularies::load(name);
    ASSERT_NE(tokenizer, nullptr);
    std::size_t added = 0;
    for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
      if (!tokenizer->is_added(id)) continue;
      ++added;
      const std::string spelling(tokenizer->token_bytes(id));
      EXPECT_EQ(tokenizer->token_id(spelling), id);
      for (const std::string& text : {spelling, "a" + spelling + "\n", "{\"result\": \"" + spelling + "\"}"}) {
        const std::vector<TokenId> ids = tokenizer->encode(text);
        EXPECT_TRUE(std::ranges::none_of(ids, [&](TokenId t) { return tokenizer->is_added(t); })) << text;
        EXPECT_EQ(tokenizer->decode(ids, SpecialTokens::kSkip), text);
      }
    }
    EXPECT_GE(added, 26u) << name;
  }
}

// A letter and its accent in two segments are one character, and one token.
TEST(Vocabularies, QwenNormalizesAcrossSegmentsOfText) {
  const std::unique_ptr<Tokenizer> qwen = Vocabularies::load("qwen3");
  ASSERT_NE(qwen, nullptr);
  const std::vector<Segment> segments = {Segment::of_text("e"), Segment::of_text("\u0301")};
  EXPECT_EQ(qwen->encode(segments), qwen->encode("\u00e9"));
  EXPECT_EQ(qwen->encode(segments).size(), 1u);
  EXPECT_EQ(qwen->tokens_min(segments), 1);
  EXPECT_EQ(qwen->decode(qwen->encode("e\u0301\xFF"), SpecialTokens::kSkip), "\u00e9\uFFFD");
}

TEST(Vocabularies, ControlTokensHaveTheVendorsIds) {
  const std::unique_ptr<Tokenizer> kimi = Vocabularies::load("kimi_k2");
  ASSERT_NE(kimi, nullptr);
  EXPECT_EQ(kimi->vocab_size(), 163840);
  EXPECT_EQ(kimi->token_id("<|im_end|>"), 163586);
  EXPECT_EQ(kimi->token_id("<|im_middle|>"), 163601);
  EXPECT_EQ(kimi->token_id("<|reserved_token_163700|>"), 163700);
  EXPECT_TRUE(kimi->is_special(163700));
  EXPECT_FALSE(kimi->is_special(kimi->token_id("<think>").value()));
  EXPECT_THAT(kimi->eos_ids(), ElementsAre(163585)) << "<|im_end|> is for the chat format to add";
  const std::unique_ptr<Tokenizer> glm = Vocabularies::load("glm45");
  ASSERT_NE(glm, nullptr);
  EXPECT_THAT(glm->encode("Hello world"), ElementsAre(9703, 1879));
  EXPECT_THAT(glm->encode("中文English混合"), ElementsAre(102169, 22515, 101969));
  EXPECT_EQ(glm->token_id("[gMASK]"), 151331);
  EXPECT_EQ(glm->token_id("<|observation|>"), 151338);
  ASSERT_TRUE(glm->token_id("/nothink").has_value());
  EXPECT_FALSE(glm->is_special(*glm->token_id("/nothink")));
}

}  // namespace
}  // namespace tessera::text
