#include "tessera/quality/likelihood.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tessera/quality/fake_respondent_testing.h"
#include "tessera/text/golden_lines.h"

namespace tessera::quality {
namespace {

// Encodes as SmolLM2 does.
class SmolLm2 : public FakeRespondent {
 public:
  base::Result<std::vector<TokenId>> encode_prompt(std::string_view text) override {
    return text::smollm2().encode(text);
  }
};

TEST(Likelihood, CutsPairsAsTheHarness) {
  SmolLm2 model;
  int moved = 0;
  for (const auto& line : text::golden_lines("evaluation/pairs.jsonl.gz")) {
    const std::string context = text::golden_string(line, "context");
    const std::string continuation = text::golden_string(line, "continuation");
    const auto passage = encode_passage(model, context, continuation);
    ASSERT_TRUE(passage.has_value()) << passage.error().to_string();
    EXPECT_EQ(passage->prompt, text::golden_ids(line, "context_ids")) << line;
    EXPECT_EQ(passage->continuation, text::golden_ids(line, "continuation_ids")) << line;
    moved += context.ends_with(' ') || context.ends_with('\n') ? 1 : 0;
  }
  EXPECT_GT(moved, 50);
}

TEST(Likelihood, BosBelongsToTheContext) {
  FakeRespondent model;
  model.has_bos = true;
  const auto passage = encode_passage(model, "ab", "c");
  ASSERT_TRUE(passage.has_value());
  EXPECT_EQ(passage->prompt, (std::vector<TokenId>{FakeRespondent::kBos, 'a', 'b'}));
  EXPECT_EQ(passage->continuation, (std::vector<TokenId>{'c'}));
}

TEST(Likelihood, SumsScoresAndSeesWhetherEachWasBest) {
  FakeRespondent model;
  model.on_score = [](std::span<const TokenId> tokens, std::size_t at) {
    return TokenScore{-static_cast<double>(tokens[at] - 'a'), tokens[at] != 'e'};
  };
  const auto scores = likelihoods(model, "xy", std::vector<std::string>{"bcd", "be"});
  ASSERT_TRUE(scores.has_value());
  EXPECT_EQ((*scores)[0].logprob, -6.0);
  EXPECT_EQ((*scores)[0].tokens, 3U);
  EXPECT_TRUE((*scores)[0].is_greedy);
  EXPECT_EQ((*scores)[1].logprob, -5.0);
  EXPECT_FALSE((*scores)[1].is_greedy);
}

TEST(Likelihood, RefusesWhatHasNothingToScore) {
  FakeRespondent model;
  const auto none = encode_passage(model, "", "c");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), base::StatusCode::kInvalidArgument);
}

TEST(Likelihood, ANumberOfScoresThatIsNotTheTokensIsAFailure) {
  class Short : public FakeRespondent {
   public:
    base::Result<std::vector<TokenScore>> score(std::span<const TokenId>, std::size_t) override {
      return std::vector<TokenScore>(1);
    }
  };
  Short model;
  const auto result = likelihoods(model, "xy", std::vector<std::string>{"bcd"});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), base::StatusCode::kInternal);
}

}  // namespace
}  // namespace tessera::quality
