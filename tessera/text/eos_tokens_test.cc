#include "tessera/text/eos_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tessera/text/golden_lines.h"
#include "tessera/text/test_folder.h"

namespace tessera::text {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;

class EosTokens : public ::testing::Test {
 protected:
  std::vector<TokenId> ids() {
    const auto ids = read_eos_ids(dir_.path(), smollm2());
    EXPECT_TRUE(ids.has_value()) << ids.error().to_string();
    return ids.value_or(std::vector<TokenId>{-1});
  }
  std::string error() {
    const auto ids = read_eos_ids(dir_.path(), smollm2());
    return ids.has_value() ? "none" : ids.error().to_string();
  }
  TestFolder dir_;
};

TEST_F(EosTokens, OfAFolderThatNamesNoneAreNone) {
  EXPECT_THAT(ids(), IsEmpty());
  dir_.write("config.json", R"({"eos_token_id": null, "text_config": {}})");
  EXPECT_THAT(ids(), IsEmpty());
}

// A token that one file forgot still stops the model.
TEST_F(EosTokens, AreWhatAnyFileNames) {
  dir_.write("config.json", R"({"eos_token_id": 5, "text_config": {"eos_token_id": [4, 5]}})");
  dir_.write("generation_config.json", R"({"eos_token_id": [7, 0]})");
  dir_.write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_THAT(ids(), ElementsAre(0, 2, 4, 5, 7));
  dir_.write("tokenizer_config.json", R"({"eos_token": {"content": "<|im_start|>", "lstrip": false}})");
  EXPECT_THAT(ids(), ElementsAre(0, 1, 4, 5, 7));
}

TEST_F(EosTokens, MustBeInTheVocabulary) {
  for (const char* id : {"-1", "49152", "1e3", "\"2\"", "[2, 4294967298]", "true"}) {
    dir_.write("config.json", std::string(R"({"eos_token_id": )") + id + "}");
    EXPECT_EQ(error(), "invalid_argument: " + (dir_ / "config.json").string() +
                           ": eos_token_id: is not the id of a token of the vocabulary")
        << id;
  }
  dir_.write("config.json", "{}");
  dir_.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_THAT(error(), EndsWith("tokenizer_config.json: eos_token: '</s>' is not one of the tokenizer's added_tokens"));
}

TEST_F(EosTokens, BrokenFilesAreRefused) {
  dir_.write("generation_config.json", "{");
  EXPECT_THAT(error(), ::testing::StartsWith("data_loss: " + (dir_ / "generation_config.json").string()));
  dir_.write("generation_config.json", "[]");
  EXPECT_THAT(error(), EndsWith("is an array, expected an object"));
  dir_.write("generation_config.json", "{}");
  dir_.write("config.json", R"({"text_config": 1})");
  EXPECT_THAT(error(), EndsWith("config.json: text_config: is a number, expected an object"));
}

TEST_F(EosTokens, NoMoreThanTheLimit) {
  std::string ids = "2";
  for (int i = 1; i < 64; ++i) ids += ", 2";
  dir_.write("generation_config.json", "{\"eos_token_id\": [" + ids + "]}");
  EXPECT_EQ(error(), "none");
  dir_.write("generation_config.json", "{\"eos_token_id\": [" + ids + ", 2]}");
  EXPECT_THAT(error(), EndsWith("generation_config.json: eos_token_id: 65 tokens, expected at most 64"));
}

TEST_F(EosTokens, LoadReportsTheFile) {
  const auto missing = Tokenizer::load(dir_.path());
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error(), base::not_found((dir_ / "tokenizer.json").string() + ": there is no such file"));
  dir_.write("tokenizer.json", "{}");
  const auto broken = Tokenizer::load(dir_.path());
  ASSERT_FALSE(broken.has_value());
  EXPECT_EQ(broken.error(), base::invalid_argument((dir_ / "tokenizer.json").string() + ": decoder: is missing"));
}

}  // namespace
}  // namespace tessera::text
