#include "tessera/quality/wikitext.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "tessera/quality/data_file.h"
#include "tessera/quality/fake_respondent_testing.h"
#include "tessera/quality/python_space.h"
#include "tessera/text/golden_lines.h"
#include "tessera/text/test_folder.h"

namespace tessera::quality {
namespace {

const std::filesystem::path kData = std::filesystem::path(TESSERA_SOURCE_DIR) / "data" / "evaluation";
constexpr std::size_t kArticles = 10;

std::unique_ptr<Task> wikitext() {
  auto task = wikitext_task().make({.data = kData, .pocket_tasks = {}});
  EXPECT_TRUE(task.has_value()) << task.error().to_string();
  return std::move(*task);
}

TEST(Wikitext, ArticlesWordsAndSpacingAreTheHarness) {
  const auto goldens = text::golden_lines("evaluation/wikitext.jsonl.gz");
  const auto data = read_data_lines(kData / "wikitext2_test.jsonl.gz");
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  const auto articles = wikitext_articles(*data->text(0, "text"));
  ASSERT_EQ(articles.size(), kArticles);
  for (std::size_t i = 0; i < goldens.size(); ++i) {
    const auto& golden = goldens[i];
    const std::string page = i < kArticles ? articles[i] : text::golden_string(golden, "page");
    EXPECT_EQ(count_split_words(page), golden.at("words").to_number<std::size_t>()) << page;
    EXPECT_EQ(page.size(), golden.at("bytes").to_number<std::size_t>()) << page;
    if (i < kArticles) {
      EXPECT_EQ(data_digest(wikitext_detokenize(page)), text::golden_string(golden, "digest")) << i;
    } else {
      EXPECT_EQ(wikitext_detokenize(page), text::golden_string(golden, "text")) << page;
    }
  }
}

TEST(Wikitext, APartHasTheArticlesOfTheWhole) {
  const std::string whole = " \n = A = \n \n one \n = = B = = \n two \n \n = C = \n three \n";
  EXPECT_EQ(wikitext_articles(whole),
            (std::vector<std::string>{" = A = \n \n one \n = = B = = \n two \n ", " = C = \n three \n"}));
  EXPECT_EQ(wikitext_articles(" \n = A = \n \n one \n = = B = = \n two \n "),
            (std::vector<std::string>{" = A = \n \n one \n = = B = = \n two \n "}));
  EXPECT_EQ(wikitext_articles("no title\n= A ="), (std::vector<std::string>{"no title", "= A ="}));
  EXPECT_TRUE(wikitext_articles(" \n ").empty());
  EXPECT_TRUE(wikitext_articles("").empty());
}

TEST(Wikitext, WindowsAreTheHarness) {
  for (const auto& golden : text::golden_lines("evaluation/windows.jsonl.gz")) {
    std::vector<TokenId> tokens(golden.at("length").to_number<std::size_t>());
    std::iota(tokens.begin(), tokens.end(), 100);
    const auto windows = rolling_windows(tokens, 7, golden.at("window").to_number<std::size_t>());
    const auto& expected = golden.at("windows").as_array();
    ASSERT_EQ(windows.size(), expected.size()) << golden;
    for (std::size_t i = 0; i < windows.size(); ++i) {
      std::vector<TokenId> whole;
      for (const auto& part : expected[i].as_array()) {
        for (const auto& token : part.as_array()) whole.push_back(token.to_number<TokenId>());
      }
      EXPECT_EQ(windows[i].tokens, whole) << golden;
      EXPECT_EQ(windows[i].first, expected[i].at(0).as_array().size()) << golden;
    }
  }
}

// A model to which every byte is one of 256 equally likely ones has 8 bits for each byte of what it is given.
TEST(Wikitext, EveryByteIsScoredOnce) {
  const auto task = wikitext();
  const auto data = read_data_lines(kData / "wikitext2_test.jsonl.gz");
  const auto articles = wikitext_articles(*data->text(0, "text"));
  ASSERT_EQ(task->size(), kArticles);
  for (const bool has_bos : {false, true}) {
    for (const std::int64_t context : {0, 100, 4096}) {
      FakeRespondent model;
      model.has_bos = has_bos;
      model.information.context_tokens = context;
      model.on_score = [](std::span<const TokenId>, std::size_t) { return TokenScore{-std::numbers::ln2 * 8, true}; };
      const auto outcome = task->ask(0, model);
      ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
      ASSERT_EQ(outcome->skipped, "");
      const std::string text = wikitext_detokenize(articles[0]);
      const auto size = static_cast<double>(text.size());
      EXPECT_EQ(outcome->scores.at("tokens"), size);
      EXPECT_NEAR(outcome->scores.at("bits"), 8.0 * size, 1e-6 * size);
      EXPECT_NEAR(outcome->scores.at("logprob"), -8.0 * std::numbers::ln2 * size, 1e-6 * size);
      EXPECT_EQ(outcome->scores.at("bytes"), static_cast<double>(articles[0].size()));
      EXPECT_EQ(outcome->scores.at("words"), 1093.0);
      EXPECT_EQ(outcome->question, "0: Robert Boulter");
      EXPECT_EQ(model.scored.front().front(), has_bos ? FakeRespondent::kBos : '\n');
      std::size_t longest = 0;
      for (const auto& window : model.scored) longest = std::max(longest, window.size());
      // With a token left for what the server generates, nothing is longer than the context.
      EXPECT_EQ(longest, context == 0 ? 2047U : static_cast<std::size_t>(context) - 1);
    }
  }
}

TEST(Wikitext, AContextOfScrapsIsSkipped) {
  const auto task = wikitext();
  FakeRespondent model;
  model.information.context_tokens = 8;
  const auto outcome = task->ask(1, model);
  ASSERT_TRUE(outcome.has_value());
  EXPECT_NE(outcome->skipped, "");
  EXPECT_TRUE(outcome->scores.empty());
}

TEST(Wikitext, PassagesAreTheArticlesBeginnings) {
  const auto task = wikitext();
  FakeRespondent model;
  model.has_bos = true;
  const auto passage = task->passage(2, model);
  ASSERT_TRUE(passage.has_value() && passage->has_value());
  EXPECT_EQ((*passage)->prompt.size(), 256U);
  EXPECT_EQ((*passage)->continuation.size(), 256U);
  EXPECT_EQ((*passage)->prompt.front(), FakeRespondent::kBos);
  EXPECT_TRUE(FakeRespondent::text_of((*passage)->prompt).starts_with(" = Kiss You (One Direction song) =\n"));
  model.information.context_tokens = 100;
  const auto small = task->passage(2, model);
  ASSERT_TRUE(small.has_value() && small->has_value());
  EXPECT_EQ((*small)->prompt.size() + (*small)->continuation.size(), 100U);
}

// One log-likelihood by four divisors is one test, not four; and tokens are another unit in another tokenizer.
TEST(Wikitext, OneOfFourReadingsIsCompared) {
  for (const Metric& metric : wikitext_task().info.metrics) {
    EXPECT_EQ(metric.compared, metric.name == "word_perplexity") << metric.name;
  }
}

TEST(Wikitext, WhiteSpaceIsNoText) {
  const text::TestFolder folder;
  folder.write("wikitext2_test.jsonl.gz", "{\"name\":\"x\",\"text\":\" \\n\"}\n");
  const auto task = wikitext_task().make({.data = folder.path(), .pocket_tasks = {}});
  ASSERT_FALSE(task.has_value());
  EXPECT_EQ(task.error().code(), base::StatusCode::kDataLoss);
  EXPECT_NE(task.error().message().find("wikitext2_test.jsonl.gz, line 1"), std::string::npos);
}

}  // namespace
}  // namespace tessera::quality
