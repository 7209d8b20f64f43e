#include "tessera/quality/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tessera/quality/runner_fixture.h"

namespace tessera::quality {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DistancesOfPlansTest : public RunnerFixture {};

// Cut off between any two calls of sources, it keeps what was measured, and constants are of the same passages again.
TEST_F(DistancesOfPlansTest, GoesOnBetweenDistances) {
  options_.distances = true;
  add_plan("third", behaviours_[0], -0.5);
  const auto whole = run();
  ASSERT_TRUE(whole.has_value()) << whole.error().message();
  const EvaluationIdentity identity = evaluation_identity(plans_, tasks(), options_);
  const auto path = folder_ / "journal";
  // 37 passages are two blocks, and each of the three plans is asked once for each.
  for (const int calls : {0, 1, 2, 3, 5}) {
    SCOPED_TRACE(calls);
    int left = calls;
    before_block_ = [&]() -> base::Status {
      if (--left >= 0) return base::ok_status();
      return {base::StatusCode::kCancelled, "interrupted"};
    };
    EXPECT_EQ(run(Journal::create(path, identity)->get()).error().code(), base::StatusCode::kCancelled);
    before_block_ = {};
    const auto journal = Journal::resume(path, identity);
    ASSERT_TRUE(journal.has_value()) << journal.error().message();
    std::size_t kept = 0;
    for (const auto& [of, distances] : (*journal)->found().distances) kept += distances.size();
    const std::map<int, std::size_t> measured = {{0, 0}, {1, 0}, {2, 32}, {3, 64}, {5, 69}};
    EXPECT_EQ(kept, measured.at(calls));
    const auto resumed = run(journal->get());
    ASSERT_TRUE(resumed.has_value()) << resumed.error().message();
    EXPECT_EQ(asked_, 0);
    EXPECT_EQ(text(*resumed), text(*whole));
  }
}

TEST_F(DistancesOfPlansTest, ComparesAPlanThatAnswersNothing) {
  options_.distances = true;
  plans_[1].start = {};
  plans_[1].answers_nothing = "simulated";
  const auto path = folder_ / "journal";
  const EvaluationIdentity identity = evaluation_identity(plans_, tasks(), options_);
  const auto whole = run(Journal::create(path, identity)->get());
  ASSERT_TRUE(whole.has_value()) << whole.error().message();
  EXPECT_EQ(asked_, 9 + 40);
  for (const Outcome& outcome : whole->tasks[1].by_plan[1]) {
    EXPECT_EQ(outcome.skipped, "simulated");
    EXPECT_TRUE(outcome.scores.empty());
  }
  EXPECT_EQ(whole->tasks[1].by_plan[1].back().question, "large/39");
  ASSERT_EQ(whole->distances.size(), 2u);
  EXPECT_EQ(whole->distances[1].plan, 1u);
  EXPECT_EQ(whole->plans[1].respondent.model, "fake");
  const auto resumed = run(Journal::resume(path, identity)->get());
  ASSERT_TRUE(resumed.has_value()) << resumed.error().message();
  EXPECT_EQ(text(*resumed), text(*whole));

  std::swap(plans_[0], plans_[1]);
  EXPECT_THAT(run().error().message(), HasSubstr("plan 'other': simulated; expected the first plan to answer"));
}

double divergence(double p, double q) { return p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q)); }

TEST_F(DistancesOfPlansTest, ComparesDistributions) {
  options_.distances = true;
  add_plan("third", behaviours_[0], -0.5);
  const auto evaluation = run();
  ASSERT_TRUE(evaluation.has_value()) << evaluation.error().message();
  // 7 of 9 and 30 of 40 questions have a passage.
  EXPECT_EQ(watcher_.events.back(), "distances 37 0");
  EXPECT_EQ(watcher_.passages, 37);
  ASSERT_EQ(evaluation->distances.size(), 4u);
  for (const TaskDistances& distances : evaluation->distances) {
    ASSERT_TRUE(distances.plan == 1 || distances.plan == 2);
    ASSERT_EQ(distances.passages.size(), distances.task == "small" ? 7u : 30u);
    TwoTokenSource reference(0.0);
    TwoTokenSource other(distances.plan == 1 ? 0.25 : -0.5);
    reference.prepared = other.prepared = 37;
    for (const PassageDistances& passage : distances.passages) {
      ASSERT_EQ(passage.positions.size(), 2u);
      for (std::size_t at = 0; at < 2; ++at) {
        EXPECT_EQ(passage.positions[at].position, static_cast<int>(at));
        EXPECT_NEAR(passage.positions[at].kl, divergence(reference.probability(at), other.probability(at)), 1e-6);
      }
    }
    EXPECT_EQ(distances.passages[3].question, distances.task + "/4");
    EXPECT_EQ(distances.passages[3].cell, "ends in 4");
  }
}

TEST(ComparisonTest, LeavesOutWhatIsTooLongAndGoesByBlocks) {
  std::vector<Passage> passages;
  WantedDistances wanted;
  for (std::size_t i = 0; i < 100; ++i) {
    passages.push_back({.question = fmt::format("{}", i),
                        .cell = {},
                        .prompt = std::vector<TokenId>(i == 40 || i == 99 ? 4 : 3, 1),
                        .continuation = {0, 1}});
    wanted.push_back({true, i != 7, i % 2 == 0});
  }
  TwoTokenSource reference(0.0);
  TwoTokenSource other(0.1);
  TwoTokenSource third(0.2, 2, 5);
  DistributionSource* const sources[] = {&reference, &other, &third};
  std::set<std::pair<std::size_t, std::size_t>> seen;
  std::vector<std::size_t> left_out;
  const std::atomic<bool> stop = false;
  const base::Status status = compare_sources(
      sources, passages, wanted,
      [&](std::size_t passage, std::size_t source, const PassageDistances& distances) {
        EXPECT_TRUE(seen.emplace(passage, source).second);
        EXPECT_EQ(distances.question, fmt::format("{}", passage));
        return base::ok_status();
      },
      [&](std::size_t passage) { left_out.push_back(passage); }, stop);
  ASSERT_TRUE(status.ok()) << status.message();
  // All are compared over the same passages, although the distances of the third are not wanted of 99.
  EXPECT_THAT(left_out, ElementsAre(40, 99));
  EXPECT_EQ(seen.size(), 97u + 49u);
  EXPECT_EQ(reference.passages_max, kBlockPassagesMax);
  EXPECT_EQ(reference.prepared, 100u);
  EXPECT_EQ(third.prepared, 100u);
}

TEST(ComparisonTest, EndsWithItsReasons) {
  const std::vector<Passage> passages = {{.question = "q", .cell = {}, .prompt = {1}, .continuation = {0}}};
  const WantedDistances wanted(1, {true, true});
  TwoTokenSource two(0.0);
  TwoTokenSource three(0.0, 3);
  std::atomic<bool> stop = false;
  const auto sink = [](std::size_t, std::size_t, const PassageDistances&) {
    return base::unavailable("the disk is full");
  };
  const auto compare = [&](DistributionSource& other) {
    DistributionSource* const sources[] = {&two, &other};
    two.prepared = 0;
    return compare_sources(sources, passages, wanted, sink, [](std::size_t) {}, stop);
  };
  EXPECT_THAT(compare(three).message(), HasSubstr("fake has 2 tokens in its vocabulary and fake has 3"));
  TwoTokenSource other(0.1);
  EXPECT_EQ(compare(other).message(), "the disk is full");
  stop = true;
  EXPECT_EQ(compare(other).code(), base::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tessera::quality
