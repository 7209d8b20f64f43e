#include "tessera/quality/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <set>

#include "tessera/quality/runner_fixture.h"

namespace tessera::quality {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunnerTest : public RunnerFixture {};

TEST_F(RunnerTest, AsksEveryPlanEveryQuestionOnce) {
  const auto evaluation = run();
  ASSERT_TRUE(evaluation.has_value()) << evaluation.error().message();
  EXPECT_EQ(asked_, 2 * (9 + 40));
  EXPECT_EQ(started_, 2);
  EXPECT_EQ(watcher_.fresh, 2 * (9 + 40));
  EXPECT_THAT(watcher_.events,
              ElementsAre("reference small 9", "reference large 40", "other small 9", "other large 40"));
  ASSERT_EQ(evaluation->tasks.size(), 2u);
  EXPECT_EQ(evaluation->tasks[1].questions, 40);
  EXPECT_EQ(evaluation->tasks[1].data_digest, "da7a");
  for (std::size_t plan = 0; plan < 2; ++plan) {
    const std::vector<Outcome>& outcomes = evaluation->tasks[1].by_plan[plan];
    ASSERT_EQ(outcomes.size(), 40u);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      EXPECT_EQ(outcomes[i].question, fmt::format("large/{}", i));
      EXPECT_EQ(outcomes[i].cell, fmt::format("ends in {}", i % 10));
      EXPECT_EQ(outcomes[i].scores.at("right"), i % (plan == 0 ? 3 : 5) == 0 ? 0.0 : 1.0);
    }
  }
  EXPECT_EQ(evaluation->plans[1].respondent.digest, "d1");
  options_.concurrency = 1;
  EXPECT_EQ(text(*run()), text(*evaluation));
}

TEST_F(RunnerTest, ChoosesByLimitAndCell) {
  options_.limit = 4;
  EXPECT_THAT(tasks()[1].questions, ElementsAre(0, 10, 20, 30));
  options_.cells = {"ends in 7", "ends in 8"};
  EXPECT_THAT(tasks()[1].questions, ElementsAre(7, 17, 27, 37));
  options_.limit = 0;
  EXPECT_THAT(tasks()[0].questions, ElementsAre(7, 8));
  const auto choose = [&](std::size_t size, bool by_cell) {
    std::vector<std::unique_ptr<Task>> made;
    made.push_back(std::make_unique<NumberTask>("task", size, by_cell));
    return choose_questions(std::move(made), options_);
  };
  options_.limit = 2;
  EXPECT_THAT((*choose(40, true))[0].questions, ElementsAre(7, 8, 17, 18));
  options_.cells = {"ends in 1", "level 9"};
  EXPECT_THAT(choose(40, true).error().message(),
              HasSubstr("'level 9' is in none of the tasks; they have 'ends in 0'"));
  options_.cells = {"ends in 9"};
  std::vector<std::unique_ptr<Task>> made;
  made.push_back(std::make_unique<NumberTask>("small", 9));
  made.push_back(std::make_unique<NumberTask>("large", 40));
  EXPECT_THAT(choose_questions(std::move(made), options_).error().message(),
              HasSubstr("task small: it has no question in these cells"));
}

// Cut off after any number of answers, an evaluation that goes on asks what is missing and says the same.
TEST_F(RunnerTest, GoesOnWhereItWas) {
  options_.distances = true;
  const auto whole = run();
  ASSERT_TRUE(whole.has_value()) << whole.error().message();
  const auto chosen = tasks();
  const EvaluationIdentity identity = evaluation_identity(plans_, chosen, options_);
  for (const int answers : {0, 1, 5, 9, 30, 48, 49, 60, 97, 98}) {
    SCOPED_TRACE(answers);
    const auto path = folder_ / "journal";
    std::atomic<int> left = answers;
    for (NumberRespondent::Behaviour& behaviour : behaviours_) {
      behaviour.before = [&](std::string_view) -> base::Status {
        if (--left >= 0) return base::ok_status();
        stop_ = true;
        return {base::StatusCode::kCancelled, "interrupted"};
      };
    }
    int kept = 0;
    {
      const auto journal = Journal::create(path, identity);
      ASSERT_TRUE(journal.has_value());
      const auto cut = run(journal->get());
      ASSERT_EQ(cut.has_value(), answers >= 98);
      if (!cut.has_value()) {
        EXPECT_EQ(cut.error().code(), base::StatusCode::kCancelled);
      }
      kept = watcher_.fresh;
      EXPECT_EQ(kept, answers);
    }
    for (NumberRespondent::Behaviour& behaviour : behaviours_) behaviour.before = {};
    const auto journal = Journal::resume(path, identity);
    ASSERT_TRUE(journal.has_value()) << journal.error().message();
    const auto resumed = run(journal->get());
    ASSERT_TRUE(resumed.has_value()) << resumed.error().message();
    EXPECT_EQ(asked_, 98 - kept);
    EXPECT_EQ(watcher_.found, kept);
    EXPECT_EQ(text(*resumed), text(*whole));
    if (answers == 98) {
      EXPECT_EQ(watcher_.events.back(), "distances 37 37");
    }
  }
}

TEST_F(RunnerTest, EndsAtTheFirstErrorAndNamesIt) {
  std::mutex asking;
  std::set<std::string> asked;
  behaviours_[1].before = [&](std::string_view text) {
    const std::lock_guard lock(asking);
    asked.emplace(text);
    return text == "7" ? base::internal_error("/v1/chat/completions: 500: broken") : base::ok_status();
  };
  const auto evaluation = run();
  ASSERT_FALSE(evaluation.has_value());
  EXPECT_EQ(evaluation.error().message(),
            "plan 'other': task small, question small/7: /v1/chat/completions: 500: broken");
  // Others may have been under way, but no task after it is begun.
  EXPECT_LE(asked.size(), 9u);
  EXPECT_TRUE(stop_);
}

TEST_F(RunnerTest, SkipsAreOutcomes) {
  behaviours_[0].before = [](std::string_view text) {
    return text == "4" ? base::out_of_range("too long") : base::ok_status();
  };
  options_.distances = true;
  const auto evaluation = run();
  ASSERT_TRUE(evaluation.has_value()) << evaluation.error().message();
  EXPECT_EQ(evaluation->tasks[0].by_plan[0][4].skipped, "too long");
  EXPECT_EQ(evaluation->tasks[0].by_plan[0][4].question, "small/4");
  EXPECT_TRUE(evaluation->tasks[0].by_plan[0][4].scores.empty());
  for (const PassageDistances& passage : evaluation->distances[0].passages) EXPECT_NE(passage.question, "small/4");
}

TEST_F(RunnerTest, RefusesAChangedCheckpoint) {
  const EvaluationIdentity identity = evaluation_identity(plans_, tasks(), options_);
  const auto path = folder_ / "journal";
  ASSERT_FALSE([&] {
    const auto journal = Journal::create(path, identity);
    behaviours_[0].before = [](std::string_view text) {
      return text == "20" ? base::internal_error("broken") : base::ok_status();
    };
    return run(journal->get()).has_value();
  }());
  behaviours_[0].digest = "d2";
  const auto journal = Journal::resume(path, identity);
  EXPECT_THAT(run(journal->get()).error().message(),
              HasSubstr("plan 'reference': the journal is of the checkpoint digest 'd1' and there is 'd2' now"));
  EXPECT_EQ(asked_, 0);
}

// Of two plans of one folder, what is complete in the journal and what is asked now are of one checkpoint.
TEST_F(RunnerTest, RefusesPlansOfTwoCheckpoints) {
  plans_[0].checkpoint = plans_[1].checkpoint = "models/fake";
  const EvaluationIdentity identity = evaluation_identity(plans_, tasks(), options_);
  const auto path = folder_ / "journal";
  ASSERT_FALSE([&] {
    const auto journal = Journal::create(path, identity);
    behaviours_[1].before = [](std::string_view) { return base::internal_error("broken"); };
    return run(journal->get()).has_value();
  }());
  behaviours_[1].before = {};
  {
    // As a journal has it whose second plan was not reached.
    std::string kept;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with(R"({"plan":1)")) kept += line + "\n";
    }
    file.close();
    std::ofstream(path) << kept;
  }
  behaviours_[1].digest = "d2";
  {
    const auto journal = Journal::resume(path, identity);
    ASSERT_TRUE(journal.has_value()) << journal.error().message();
    EXPECT_THAT(run(journal->get()).error().message(),
                HasSubstr("plan 'other': the checkpoint in models/fake has digest d2, and had d1 when plan 'reference' "
                          "was evaluated: expected the same for both"));
    EXPECT_EQ(asked_, 0);
  }
  plans_[1].checkpoint = "models/another";
  const auto journal = Journal::resume(path, identity);
  EXPECT_TRUE(run(journal->get()).has_value());
}

TEST_F(RunnerTest, RefusesAnotherContext) {
  const EvaluationIdentity identity = evaluation_identity(plans_, tasks(), options_);
  const auto path = folder_ / "journal";
  {
    const auto journal = Journal::create(path, identity);
    behaviours_[0].before = [](std::string_view text) {
      return text == "20" ? base::internal_error("broken") : base::ok_status();
    };
    ASSERT_FALSE(run(journal->get()).has_value());
  }
  behaviours_[0].context = 128;
  const auto journal = Journal::resume(path, identity);
  EXPECT_THAT(run(journal->get()).error().message(),
              HasSubstr("plan 'reference': the journal is of the context, in tokens, '64' and there is '128' now"));
  EXPECT_EQ(asked_, 0);
}

TEST_F(RunnerTest, ProbesScoresBeforeItAsksAnything) {
  behaviours_[0].scores = false;
  std::vector<ChosenTask> chosen = tasks();
  auto likelihood = std::make_unique<NumberTask>("likely", 3);
  likelihood->needs_scores();
  chosen.push_back({std::move(likelihood), {0, 1, 2}});
  const auto evaluation = run_evaluation(plans_, chosen, options_, nullptr, watcher_, stop_);
  EXPECT_EQ(evaluation.error().message(), "plan 'reference': this server scores nothing");
  EXPECT_EQ(asked_, 0);
}

}  // namespace
}  // namespace tessera::quality
