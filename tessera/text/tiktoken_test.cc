#include "tessera/text/tiktoken.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "tessera/text/golden_lines.h"
#include "tessera/text/test_folder.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {
namespace {

using ::testing::ElementsAre;

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t j = 0; j < 3; ++j) {
      bits = (bits << 8) | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) out += j <= count ? kDigits[(bits >> (18 - 6 * j)) & 63u] : '=';
  }
  return out;
}

// 256 bytes and these, in the order of their ranks.
std::string ranks_of(const std::vector<std::string>& tokens) {
  std::string file;
  for (int byte = 0; byte < 256; ++byte) {
    file += base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte) + "\n";
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) file += base64(tokens[i]) + " " + std::to_string(256 + i) + "\n";
  return file;
}

constexpr std::string_view kConfig = R"({"added_tokens_decoder": {
    "258": {"content": "[BOS]", "special": true}, "260": {"content": "<think>", "special": false}}})";

std::unique_ptr<Tokenizer> tokenizer_of(const std::vector<std::string>& tokens) {
  auto tokenizer = Tokenizer::parse_tiktoken(ranks_of(tokens), R"({"added_tokens_decoder": {}})");
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  return std::move(*tokenizer);
}

std::string error_of(std::string_view ranks, std::string_view config = kConfig) {
  const auto tokenizer = Tokenizer::parse_tiktoken(ranks, config);
  return tokenizer.has_value() ? "none" : tokenizer.error().to_string();
}

TEST(Tiktoken, RefusesAddedTokensThatReachBeyondTheirText) {
  for (const std::string flag : {"single_word", "lstrip", "rstrip"}) {
    const auto config = [&](const char* value) {
      return R"({"added_tokens_decoder": {"256": {"content": "<a>", ")" + flag + "\": " + value + "}}}";
    };
    EXPECT_EQ(error_of(ranks_of({}), config("false")), "none");
    EXPECT_EQ(
        error_of(ranks_of({}), config("true")),
        "invalid_argument: tokenizer_config.json: added_tokens_decoder.256." + flag + ": is true, expected false");
  }
}

TEST(Tiktoken, NamesTheReservedIds) {
  const auto tokenizer = Tokenizer::parse_tiktoken(ranks_of({"ab", "abc"}), kConfig);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  EXPECT_EQ((*tokenizer)->vocab_size(), 258 + 256);
  EXPECT_EQ((*tokenizer)->token_id("[BOS]"), 258);
  EXPECT_EQ((*tokenizer)->token_id("<|reserved_token_259|>"), 259);
  EXPECT_EQ((*tokenizer)->token_id("<|reserved_token_513|>"), 513);
  EXPECT_TRUE((*tokenizer)->is_special(259));
  EXPECT_TRUE((*tokenizer)->is_added(260));
  EXPECT_FALSE((*tokenizer)->is_special(260));
  EXPECT_EQ((*tokenizer)->token_bytes(260), "<think>");
  EXPECT_THAT((*tokenizer)->encode("abc"), ElementsAre(257));
  EXPECT_EQ((*tokenizer)->decode((*tokenizer)->encode("<think>[BOS]"), SpecialTokens::kSkip), "<think>[BOS]");
}

// Any two neighbours that make a token may merge, the lowest rank first, the leftmost of equal ones: "bc" is not what
// "abcd" was trained from, and "aaa" comes from "a"+"aa" as well as from "aa"+"a".
TEST(Tiktoken, MergesByTheRankOfTheResult) {
  const auto tokenizer = tokenizer_of({"bc", "bcd", "abc", "aa", "aaa", "aaaa"});
  EXPECT_THAT(tokenizer->encode("abcd"), ElementsAre('a', 257));
  EXPECT_THAT(tokenizer->encode("xabcx"), ElementsAre('x', 258, 'x'));
  EXPECT_THAT(tokenizer->encode("aaaaa"), ElementsAre(259, 260));
  EXPECT_THAT(tokenizer->encode("aaaaaaa"), ElementsAre(261, 260));
  // A word that is a token as a whole is that token, even where merging would not get there.
  EXPECT_THAT(tokenizer_of({"abcd"})->encode("abcd"), ElementsAre(256));
  EXPECT_THAT(tokenizer_of({"abcd"})->encode("abcde"), ElementsAre('a', 'b', 'c', 'd', 'e'));
}

TEST(Tiktoken, RefusesBrokenRankFiles) {
  const std::string good = ranks_of({"ab"});
  const auto with = [&](const std::string& line) { return error_of(good + line, R"({"added_tokens_decoder": {}})"); };
  const std::string at = "invalid_argument: tiktoken.model: line 258: ";
  EXPECT_EQ(with(""), "none");
  EXPECT_EQ(with("\n\n"), "none");
  EXPECT_EQ(with("YWJj 257\r\n"), "none");
  EXPECT_EQ(with("YWJj 257"), "none") << "without a line end";
  EXPECT_EQ(with("YWJj 256\n"), at + "rank 256 appears twice");
  EXPECT_EQ(with("YWI= 257\n"), "invalid_argument: tiktoken.model: the tokens of ranks 256 and 257 are the same");
  EXPECT_EQ(with("YWJj 258\nYWJk 259\n"), "invalid_argument: tiktoken.model: no token has rank 257");
  for (const std::string bad : {"YWJj", "", " 257", "YWJj  257", "YWJj 257 ", "YWJj -1", "YWJj 2e2", "YWJj 0x101",
                                "YWJj 99999999999999999999", "YWJj 259"}) {
    if (bad.empty()) continue;
    EXPECT_THAT(with(bad + "\n"), ::testing::StartsWith(at)) << bad;
  }
  for (const std::string bad : {"YWJ", "YWJ*", "YW=j", "=WJj", "====", "YWJ=", "YQ=", "YR==", "YWJjY==="}) {
    EXPECT_EQ(with(bad + " 257\n"), at + "the token is not base64") << bad;
  }
  EXPECT_EQ(with(base64(std::string(512, 'a')) + " 257\n"), "none");
  EXPECT_EQ(with(base64(std::string(600, 'a')) + " 257\n"), at + "a token of more than 512 bytes");
  EXPECT_EQ(error_of(good.substr(good.find('\n') + 1)), "invalid_argument: tiktoken.model: no token has rank 0");
  EXPECT_EQ(error_of(""), "invalid_argument: tiktoken.model: no token is the byte 00 by itself");
  EXPECT_EQ(error_of(std::string((32 << 20) + 1, '\n')),
            "out_of_range: tiktoken.model: has 33554433 bytes, expected at most 33554432");
  std::string no_bang = good;
  no_bang.replace(no_bang.find("IQ=="), 4, "YWJj");
  EXPECT_EQ(error_of(no_bang), "invalid_argument: tiktoken.model: no token is the byte 21 by itself");
}

TEST(Tiktoken, RefusesBrokenControlTokens) {
  const auto with = [](const std::string& decoder) {
    return error_of(ranks_of({"ab"}), R"({"added_tokens_decoder": )" + decoder + "}");
  };
  const std::string at = "tokenizer_config.json: added_tokens_decoder.";
  EXPECT_EQ(error_of(ranks_of({}), "{}"), "invalid_argument: tokenizer_config.json: added_tokens_decoder: is missing");
  EXPECT_EQ(with(R"({"257": {"content": "x"}})"), "none");
  const std::string range = ": is not an id from 257 to 512, the 256 after the ranks of tiktoken.model";
  for (const std::string id : {"256", "513", "-1", "", "2570", "x"}) {
    EXPECT_EQ(with("{\"" + id + R"(": {"content": "x"}})"), "invalid_argument: " + at + id + range);
  }
  EXPECT_EQ(with(R"({"257": {"content": ""}})"), "invalid_argument: " + at + "257: the content is empty");
  EXPECT_EQ(with(R"({"257": {"special": true}})"), "invalid_argument: " + at + "257.content: is missing");
  EXPECT_EQ(with(R"({"257": {"content": "x"}, "0257": {"content": "y"}})"),
            "invalid_argument: " + at + "0257: the id appears twice");
  EXPECT_EQ(with(R"({"257": {"content": "x"}, "258": {"content": "x"}})"),
            "invalid_argument: " + at + "258: 'x' is also the content of 257");
  EXPECT_EQ(with(R"({"257": {"content": "<|reserved_token_300|>"}})"),
            "invalid_argument: tokenizer_config.json: added_tokens_decoder: '<|reserved_token_300|>' is the content of "
            "257, and the name of 300");
}

TEST(Tiktoken, LoadReportsTheFile) {
  TestFolder folder;
  folder.write("tiktoken.model", ranks_of({"ab"}));
  const auto no_names = Tokenizer::load(folder.path());
  ASSERT_FALSE(no_names.has_value());
  EXPECT_EQ(no_names.error(),
            base::invalid_argument((folder / "tokenizer_config.json").string() +
                                   ": there is no such file: tiktoken.model needs it for the names of the control "
                                   "tokens"));
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder": {"1": {"content": "x"}}})");
  const auto wrong = Tokenizer::load(folder.path());
  ASSERT_FALSE(wrong.has_value());
  EXPECT_THAT(wrong.error().to_string(),
              ::testing::StartsWith("invalid_argument: " + folder.path().string() +
                                    ": tokenizer_config.json: added_tokens_decoder.1: is not an id from 257 to 512"));
}

std::vector<std::size_t> block_sizes(const std::string& text) {
  std::vector<std::string_view> blocks;
  cut_as_tiktoken(text, blocks);
  std::vector<std::size_t> sizes;
  std::string joined;
  for (const std::string_view block : blocks) {
    sizes.push_back(block.size());
    joined += block;
  }
  EXPECT_EQ(joined == text, true);
  return sizes;
}

std::string times(std::size_t count, std::string_view part) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += part;
  return text;
}

TEST(Tiktoken, CutsLongTextsWhereTheVendorDoes) {
  EXPECT_THAT(block_sizes(""), ElementsAre());
  EXPECT_THAT(block_sizes(std::string(25'000, 'a')), ElementsAre(25'000));
  EXPECT_THAT(block_sizes(std::string(25'001, 'a')), ElementsAre(25'000, 1));
  EXPECT_THAT(block_sizes(std::string(50'001, ' ')), ElementsAre(25'000, 25'000, 1));
  // Characters, not bytes; the run begins anew where white space begins or ends.
  EXPECT_THAT(block_sizes(times(25'001, "世")), ElementsAre(75'000, 3));
  EXPECT_THAT(block_sizes("x " + std::string(25'001, 'a')), ElementsAre(25'002, 1));
  EXPECT_THAT(block_sizes(times(200'000, "a ")), ElementsAre(400'000));
  EXPECT_THAT(block_sizes(times(200'000, "a ") + "b"), ElementsAre(400'000, 1));
  // The two cuts together: after 400,000 characters the run is counted anew.
  EXPECT_THAT(block_sizes(times(195'000, "a ") + std::string(30'000, 'b')), ElementsAre(400'000, 20'000));
  // Python counts four control characters as white space, and U+0085, but no zero width space.
  EXPECT_THAT(block_sizes(times(12'500, "\x1c ") + times(25'000, "\u200b")), ElementsAre(100'000));
  EXPECT_THAT(block_sizes(times(25'000, "\x1f") + "\u0085"), ElementsAre(25'000, 2));
}

// The bundled model has both files: two spellings of one tokenizer, of which tiktoken.model knows 224 reserved ids more
// than the model has.
TEST(Tiktoken, TheBundledModelsTwoFilesAgree) {
  const std::filesystem::path model = std::filesystem::path(TESSERA_SOURCE_DIR) / "models" / "tessera-pocket";
  const auto from_json = Tokenizer::load(model);
  ASSERT_TRUE(from_json.has_value()) << from_json.error().to_string();
  TestFolder folder;
  for (const char* name : {"tiktoken.model", "tokenizer_config.json", "config.json", "generation_config.json"}) {
    std::filesystem::copy_file(model / name, folder / name);
  }
  const auto from_ranks = Tokenizer::load(folder.path());
  ASSERT_TRUE(from_ranks.has_value()) << from_ranks.error().to_string();
  const Tokenizer& a = **from_json;
  const Tokenizer& b = **from_ranks;
  ASSERT_EQ(a.vocab_size(), 1024);
  ASSERT_EQ(b.vocab_size(), 992 + 256);
  EXPECT_EQ(a.eos_ids(), b.eos_ids());
  for (TokenId id = 0; id < a.vocab_size(); ++id) {
    EXPECT_EQ(a.token_bytes(id), b.token_bytes(id)) << id;
    EXPECT_EQ(a.is_added(id), b.is_added(id)) << id;
    EXPECT_EQ(a.is_special(id), b.is_special(id)) << id;
    const std::string spelling = a.decode(std::vector{id}, SpecialTokens::kKeep);
    EXPECT_EQ(a.encode(spelling), b.encode(spelling)) << id;
  }
  for (const auto& line : golden_lines("tokenizer/smollm2.jsonl.gz")) {
    const std::string text = golden_string(line, "text");
    ASSERT_LT(text.size(), 25'000u) << "a text that is cut";
    EXPECT_EQ(a.encode(text), b.encode(text)) << text;
  }
}

}  // namespace
}  // namespace tessera::text
