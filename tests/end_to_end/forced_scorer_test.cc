// Distributions from engines that are led through a text, against the same model stepped by hand without an engine
// (tests/support/sequence_runner, which smollm2_logits_test and tiny_families_test hold to transformers): the same
// numbers, for GQA and for latent attention, with both pools and with one.
#include "forced_scorer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forced_recording.h"
#include "model_shelf.h"
#include "tests/support/sanitized.h"
#include "tests/support/sequence_runner.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace tessera {
namespace {

using app::PlanSpec;
using models::RowPhase;
using quality::Passage;
using test_support::SequenceRunner;
using test_support::WantedLogits;

using Distribution = std::vector<float>;
using Distributions = std::vector<std::vector<Distribution>>;  // [passage][position]

const std::string kPocket = std::string(TESSERA_SOURCE_DIR) + "/models/tessera-pocket";

PlanSpec unified(const std::string& model, ops::KvFormat format = ops::KvFormat::kBF16) {
  PlanSpec plan;
  plan.name = "unified";
  plan.model = model;
  plan.split = false;
  plan.prefill_kv = plan.decode_kv = format;
  return plan;
}

PlanSpec split(const std::string& model, ops::KvFormat decode = ops::KvFormat::kF8E4M3) {
  PlanSpec plan;
  plan.name = "split";
  plan.model = model;
  plan.decode_kv = decode;
  return plan;
}

// Drawn texts whose ends lie at and around the borders of pages (64 tokens) and of chunks. A stop token is among the
// continuations' tokens, and the first prompt begins others, so that they find its pages in the prefix cache.
std::vector<Passage> make_passages(std::int32_t vocab_size, std::int32_t stop_token) {
  std::mt19937 random(20261130);
  std::uniform_int_distribution<std::int32_t> token(0, vocab_size - 1);
  const auto draw = [&](std::size_t count) {
    std::vector<std::int32_t> tokens(count);
    std::ranges::generate(tokens, [&] { return token(random); });
    return tokens;
  };
  std::vector<Passage> passages;
  for (const auto& [prompt, continuation] :
       std::vector<std::pair<std::size_t, std::size_t>>{{130, 9}, {1, 1}, {64, 70}, {65, 2}, {7, 1}, {128, 5}}) {
    passages.push_back({"question " + std::to_string(passages.size()), "", draw(prompt), draw(continuation)});
  }
  passages[0].continuation[2] = stop_token;
  passages[2].continuation[0] = stop_token;
  std::ranges::copy(passages[0].prompt | std::views::take(65), passages[3].prompt.begin());
  std::ranges::copy(passages[0].prompt | std::views::take(128), passages[5].prompt.begin());
  return passages;
}

Distributions ask(quality::DistributionSource& source, const std::vector<Passage>& passages) {
  Distributions all;
  all.reserve(passages.size());
  for (const Passage& passage : passages) all.emplace_back(passage.continuation.size());
  const base::Status status =
      source.distributions(passages, [&](std::size_t passage, std::size_t position, std::span<const float> logprobs) {
        Distribution& at = all.at(passage).at(position);
        EXPECT_TRUE(at.empty()) << "passage " << passage << ", position " << position << " came twice";
        at.assign(logprobs.begin(), logprobs.end());
      });
  EXPECT_TRUE(status.ok()) << status.to_string();
  for (const auto& positions : all) {
    for (const Distribution& distribution : positions) {
      EXPECT_EQ(std::ssize(distribution), source.vocab_size());
    }
  }
  return all;
}

Distributions ask(const PlanSpec& plan, const std::vector<Passage>& passages, app::ModelShelf& shelf) {
  auto source = app::make_forced_scorer(plan, &shelf);
  EXPECT_TRUE(source.has_value()) << source.error().to_string();
  return source.has_value() ? ask(**source, passages) : Distributions();
}

Distribution log_softmax(std::span<const float> logits) {
  long double sum = 0.0L;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
  Distribution result;
  result.reserve(logits.size());
  for (const float logit : logits) result.push_back(static_cast<float>(logit - std::log(sum)));
  return result;
}

// The passages stepped by hand: the prompt in one piece into BF16 pages, and the continuation token by token, after
// conversion into pages of the decode format where that is another one.
Distributions by_hand(const PlanSpec& plan, const std::vector<Passage>& passages, app::ModelShelf& shelf) {
  const auto shelved = shelf.take(plan.model, plan.backend);
  EXPECT_TRUE(shelved.has_value());
  const models::Model& model = *(*shelved)->model;
  const auto options = [](ops::KvFormat format) {
    return test_support::RunnerOptions{.kv_format = format, .rows = 1, .tokens_max = 256, .context_max = 256};
  };
  SequenceRunner prefill(model, *(*shelved)->backend, options(plan.prefill_kv));
  SequenceRunner decode(model, *(*shelved)->backend, options(plan.decode_kv));
  Distributions all;
  for (const Passage& passage : passages) {
    std::vector<Distribution>& positions = all.emplace_back();
    positions.push_back(log_softmax(prefill.step(passage.prompt, WantedLogits::kLastOfEachRow)));
    SequenceRunner& runner = plan.split ? decode : prefill;
    if (plan.split) decode.take_over(prefill, 0, 0);
    for (std::size_t i = 0; i + 1 < passage.continuation.size(); ++i) {
      const std::vector<float> logits =
          runner.step(std::span(&passage.continuation[i], 1), WantedLogits::kLastOfEachRow, 0, RowPhase::kGenerated);
      positions.push_back(log_softmax(logits));
    }
    prefill.reset(0);
    if (plan.split) decode.reset(0);
  }
  return all;
}

double divergence(const Distribution& p, const Distribution& q) {
  double sum = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += std::exp(double{p[i]}) * (double{p[i]} - double{q[i]});
  return sum;
}

// The logarithms are summed in another way, so they agree to about a unit of the last place of the largest of them.
void expect_same(const Distributions& got, const Distributions& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t p = 0; p < got.size(); ++p) {
    ASSERT_EQ(got[p].size(), expected[p].size());
    for (std::size_t i = 0; i < got[p].size(); ++i) {
      ASSERT_EQ(got[p][i].size(), expected[p][i].size()) << "passage " << p << ", position " << i;
      float worst = 0.0f;
      for (std::size_t t = 0; t < got[p][i].size(); ++t) {
        worst = std::max(worst, std::abs(got[p][i][t] - expected[p][i][t]));
      }
      EXPECT_LE(worst, 4e-6f) << "passage " << p << ", position " << i;
    }
  }
}

class ForcedScorer : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "pocket") {
      dir_ = kPocket;
      passages_ = make_passages(1024, 994);
    } else {
      ASSERT_TRUE(test_support::write_tiny_llama(folder_.path(), {}).ok());
      dir_ = folder_.path().string();
      passages_ = make_passages(256, 2);
    }
  }
  std::string dir_;
  std::vector<Passage> passages_;
  app::ModelShelf shelf_;
  test_support::TemporaryFolder folder_{"forced_scorer"};
};

TEST_P(ForcedScorer, GivesWhatTheModelGivesWithoutAnEngine) {
  const auto shelved = shelf_.take(dir_, {});
  ASSERT_TRUE(shelved.has_value()) << shelved.error().to_string();
  for (const PlanSpec& plan : {unified(dir_), split(dir_), split(dir_, ops::KvFormat::kBF16)}) {
    SCOPED_TRACE(app::describe(plan));
    expect_same(ask(plan, passages_, shelf_), by_hand(plan, passages_, shelf_));
  }
}

TEST_P(ForcedScorer, NeitherCompanyNorChunksNorCachedPagesChangeABit) {
  const auto shelved = shelf_.take(dir_, {});
  for (const PlanSpec& plan : {unified(dir_), split(dir_)}) {
    SCOPED_TRACE(app::describe(plan));
    auto source = app::make_forced_scorer(plan, &shelf_);
    ASSERT_TRUE(source.has_value()) << source.error().to_string();
    const Distributions together = ask(**source, passages_);
    // Again, with the prompts' pages cached now.
    EXPECT_EQ(ask(**source, passages_), together);
    for (const auto& [batch, chunk] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 512}, {3, 17}, {64, 64}}) {
      PlanSpec other = plan;
      other.batch = batch;
      other.chunk = chunk;
      EXPECT_EQ(ask(other, passages_, shelf_), together) << "batch " << batch << ", chunk " << chunk;
    }
    auto alone = app::make_forced_scorer(plan, &shelf_);
    ASSERT_TRUE(alone.has_value());
    for (std::size_t i = 0; i < passages_.size(); ++i) {
      EXPECT_EQ(ask(**alone, {passages_[i]}).at(0), together[i]) << "passage " << i;
    }
  }
}

TEST_P(ForcedScorer, ProbabilitiesSumToOne) {
  const Distributions all = ask(split(dir_), passages_, shelf_);
  for (const auto& positions : all) {
    for (const Distribution& distribution : positions) {
      double sum = 0.0;
      for (const float logprob : distribution) sum += std::exp(double{logprob});
      EXPECT_NEAR(sum, 1.0, 1e-6);
    }
  }
}

TEST_P(ForcedScorer, Fp8PagesTouchWhatDecodeReadsAndNothingElse) {
  const auto shelved = shelf_.take(dir_, {});
  const Distributions bf16 = ask(split(dir_, ops::KvFormat::kBF16), passages_, shelf_);
  const Distributions fp8 = ask(split(dir_), passages_, shelf_);
  EXPECT_EQ(ask(unified(dir_), passages_, shelf_), bf16) << "BF16 pages that were only moved";
  double sum = 0.0;
  std::int64_t positions = 0;
  for (std::size_t p = 0; p < passages_.size(); ++p) {
    EXPECT_EQ(fp8[p][0], bf16[p][0]) << "the first position is prefill's";
    for (std::size_t i = 1; i < fp8[p].size(); ++i, ++positions) {
      EXPECT_NE(fp8[p][i], bf16[p][i]) << "passage " << p << ", position " << i;
      sum += divergence(bf16[p][i], fp8[p][i]);
    }
  }
  const double mean = sum / static_cast<double>(positions);
  std::printf("%s, drawn tokens: KL divergence of fp8_e4m3 pages from bf16 ones: mean %.2e nats over %lld positions\n",
              GetParam().c_str(), mean, static_cast<long long>(positions));
  EXPECT_GT(mean, 0.0);
  // Far above what was seen, far below what a lost scale gives.
  EXPECT_LT(mean, 0.1);
}

// The bundled model takes minutes under a sanitizer, and goes the same ways through the scorer.
INSTANTIATE_TEST_SUITE_P(Models, ForcedScorer,
                         testing::ValuesIn(tests::kSanitized ? std::vector<std::string>{"llama"}
                                                             : std::vector<std::string>{"pocket", "llama"}),
                         [](const auto& parameter) { return parameter.param; });

TEST(ForcedScorerErrors, NameThePassage) {
  app::ModelShelf shelf;
  test_support::TemporaryFolder folder("forced_scorer");
  ASSERT_TRUE(test_support::write_tiny_llama(folder.path(), {.max_position_embeddings = 128}).ok());
  auto source = app::make_forced_scorer(split(folder.path().string()), &shelf);
  ASSERT_TRUE(source.has_value()) << source.error().to_string();
  EXPECT_EQ((*source)->vocab_size(), 256);
  EXPECT_EQ((*source)->info().context_tokens, 128);
  EXPECT_EQ((*source)->info().model, folder.path().filename().string());
  EXPECT_EQ((*source)->info().precision, "prefill=bf16/bf16; decode=bf16/fp8_e4m3");
  std::int64_t calls = 0;
  const auto ask_for = [&](Passage passage) {
    const Passage good{"good", "", {1}, {2}};
    return (*source)->distributions(std::vector{good, std::move(passage)}, [&](auto...) { ++calls; });
  };
  const auto tokens = [](std::size_t count) { return std::vector<std::int32_t>(count, 7); };

  const base::Status too_long = ask_for({"long", "", tokens(100), tokens(29)});
  EXPECT_EQ(too_long.code(), base::StatusCode::kOutOfRange);
  EXPECT_NE(too_long.message().find("passage 'long' has 129 tokens"), std::string::npos) << too_long.message();
  EXPECT_NE(too_long.message().find("128"), std::string::npos) << too_long.message();
  for (const Passage& wrong : {Passage{"wrong", "", {}, {1}}, Passage{"wrong", "", {1}, {}},
                               Passage{"wrong", "", {256}, {1}}, Passage{"wrong", "", {1}, {-1}}}) {
    const base::Status status = ask_for(wrong);
    EXPECT_EQ(status.code(), base::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("passage 'wrong'"), std::string::npos) << status.message();
  }
  EXPECT_EQ(calls, 0) << "something was computed before all passages were looked at";
  // The longest that fits; and wrong questions end nothing.
  EXPECT_TRUE(ask_for({"full", "", tokens(100), tokens(28)}).ok());
  EXPECT_EQ(calls, 1 + 28);
}

TEST(ForcedScorerErrors, EndsWithinAStepWhenItIsToldTo) {
  test_support::TemporaryFolder folder("forced_scorer");
  ASSERT_TRUE(test_support::write_tiny_llama(folder.path(), {.max_position_embeddings = 128}).ok());
  std::atomic<bool> stop = false;
  PlanSpec plan = unified(folder.path().string());
  plan.batch = 1;
  auto source = app::make_forced_scorer(plan, nullptr, &stop);
  ASSERT_TRUE(source.has_value()) << source.error().to_string();
  const std::vector<Passage> passages(3, {"q", "", {1, 2, 3}, {4, 5}});
  std::int64_t calls = 0;
  const base::Status status = (*source)->distributions(passages, [&](auto...) {
    ++calls;
    stop = true;
  });
  EXPECT_EQ(status.code(), base::StatusCode::kCancelled) << status.to_string();
  EXPECT_GE(calls, 1);
  EXPECT_LT(calls, 6);
}

TEST(ForcedScorerErrors, NameThePlan) {
  const auto missing = app::make_forced_scorer(unified("/nowhere/at/all"));
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message().find("plan 'unified'"), std::string::npos) << missing.error().message();
  EXPECT_NE(missing.error().message().find("/nowhere/at/all"), std::string::npos) << missing.error().message();

  PlanSpec backwards = split(kPocket, ops::KvFormat::kBF16);
  backwards.prefill_kv = ops::KvFormat::kF8E4M3;
  const auto refused = app::make_forced_scorer(backwards);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("no conversion from fp8_e4m3 to bf16"), std::string::npos)
      << refused.error().message();
}

TEST(ModelShelf, SharesWhatIsInUse) {
  app::ModelShelf shelf;
  test_support::TemporaryFolder folder("forced_scorer");
  ASSERT_TRUE(test_support::write_tiny_llama(folder.path(), {}).ok());
  auto first = shelf.take(folder.path(), {});
  ASSERT_TRUE(first.has_value());
  auto same = shelf.take(folder.path() / "." / "", {});
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(*first, *same);
  auto other_backend = shelf.take(folder.path(), {.name = "reference"});
  ASSERT_TRUE(other_backend.has_value());
  EXPECT_NE(*first, *other_backend);

  const std::weak_ptr<app::ShelvedModel> watched = *first;
  first->reset();
  EXPECT_FALSE(watched.expired());
  same->reset();
  EXPECT_TRUE(watched.expired()) << "the shelf itself keeps a model";
  EXPECT_TRUE(shelf.take(folder.path(), {}).has_value());
}

// scipy.special.log_softmax (1.14.1) of the same numbers.
TEST(LogProbabilities, AreThoseOfScipy) {
  const auto of = [](std::vector<float> logits) {
    std::vector<float> logprobs(logits.size());
    const base::Status status = app::log_probabilities(logits, logprobs);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return logprobs;
  };
  const std::vector<float> ordinary = of({1.0f, 2.0f, 3.0f, -4.5f});
  const std::vector<double> expected_ordinary = {-2.407973831148148, -1.407973831148148, -0.407973831148148,
                                                 -7.907973831148148};
  const std::vector<float> large = of({30000.0f, 30001.0f, -30000.0f});
  const std::vector<double> expected_large = {-1.3132616875182228, -0.31326168751822286, -60001.313261687515};
  for (std::size_t i = 0; i < ordinary.size(); ++i) EXPECT_FLOAT_EQ(ordinary[i], expected_ordinary[i]);
  for (std::size_t i = 0; i < large.size(); ++i) EXPECT_FLOAT_EQ(large[i], expected_large[i]);

  std::vector<float> out(2);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float strange : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    const base::Status status = app::log_probabilities(std::vector{0.0f, strange}, out);
    EXPECT_EQ(status.code(), base::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("token 1"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tessera
