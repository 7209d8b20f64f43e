#include "tessera/quality/runner.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX's.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "tessera/quality/comparison.h"
#include "tessera/quality/journal_lines.h"

namespace tessera::quality {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model that knows the number in a question, unless it divides by `blind`; every call is counted.
class FakeRespondent : public Respondent {
 public:
  struct Behaviour {
    int blind = 3;
    std::string precision = "bf16";
    std::string digest = "d1";
    std::function<base::Status(std::string_view)> before = {};  // What happens first when a question is asked.
    bool scores = true;
  };
  FakeRespondent(const Behaviour& behaviour, std::atomic<int>& asked) : behaviour_(behaviour), asked_(asked) {
    info_ = {.model = "fake", .precision = behaviour.precision, .digest = behaviour.digest, .context_tokens = 64};
  }
  const RespondentInfo& info() const override { return info_; }
  base::Result<Answer> chat(const ChatQuestion& question) override {
    const std::string& text = question.messages.at(0).content;
    if (behaviour_.before) TESSERA_RETURN_IF_ERROR(behaviour_.before(text));
    ++asked_;
    Answer answer;
    answer.text = std::stoi(text) % behaviour_.blind == 0 ? "?" : text;
    return answer;
  }
  base::Result<Answer> complete(const CompletionQuestion&) override { return base::failure(base::unimplemented("")); }
  base::Result<std::vector<TokenId>> encode_prompt(std::string_view text) override { return encode(text); }
  base::Result<std::vector<TokenId>> encode(std::string_view text) override {
    return std::vector<TokenId>(text.begin(), text.end());
  }
  base::Result<std::vector<TokenId>> encode_chat(const ChatQuestion& question) override {
    return encode(question.messages.at(0).content);
  }
  base::Result<std::vector<TokenScore>> score(std::span<const TokenId> tokens, std::size_t first) override {
    if (!behaviour_.scores) return base::failure(base::unimplemented("this server scores nothing"));
    return std::vector<TokenScore>(tokens.size() - first);
  }

 private:
  const Behaviour& behaviour_;
  std::atomic<int>& asked_;
  RespondentInfo info_;
};

// Asks for each number from 0 to size - 1; the cells are its last digit, or its tens where limits go by cell.
class FakeTask : public Task {
 public:
  FakeTask(std::string name, std::size_t size, bool by_cell = false) : size_(size) {
    info_.name = std::move(name);
    info_.metrics = {{.name = "right", .kind = MetricKind::kAccuracy, .numerator = {}, .denominator = {}}};
    info_.limit_by_cell = by_cell;
  }
  const TaskInfo& info() const override { return info_; }
  std::size_t size() const override { return size_; }
  std::string question_id(std::size_t index) const override { return fmt::format("{}/{}", info_.name, index); }
  std::string cell(std::size_t index) const override { return fmt::format("ends in {}", index % 10); }
  std::string data_digest() const override { return "da7a"; }
  base::Result<Outcome> ask(std::size_t index, Respondent& respondent) const override {
    const std::string text = fmt::format("{}", index);
    const base::Result<Answer> answer = respondent.chat({.messages = {{"user", text}}, .tools = {}, .max_tokens = 4});
    Outcome outcome;
    if (!answer.has_value() && answer.error().code() == base::StatusCode::kOutOfRange) {
      outcome.skipped = "too long";
      return outcome;
    }
    if (!answer.has_value()) return base::failure(answer.error());
    outcome.scores = {{"right", answer->text == text ? 1.0 : 0.0}, {"third", 1.0 / 3.0}};
    outcome.expected = text;
    outcome.answer = answer->text;
    return outcome;
  }
  base::Result<std::optional<Passage>> passage(std::size_t index, Respondent& respondent) const override {
    if (index % 4 == 3) return std::nullopt;
    TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, respondent.encode("ab"));
    return Passage{
        .question = {}, .cell = {}, .prompt = std::move(prompt), .continuation = {static_cast<TokenId>(index % 2), 0}};
  }
  void needs_scores() { info_.by_likelihood = true; }

 private:
  TaskInfo info_;
  std::size_t size_;
};

// Two tokens. What it gives for one of them depends on the position, and for every plan on `tilt`.
class FakeSource : public DistributionSource {
 public:
  FakeSource(double tilt, std::int64_t vocab_size = 2, std::size_t prompt_max = 100)
      : tilt_(tilt), vocab_size_(vocab_size), prompt_max_(prompt_max) {
    info_.model = "fake";
  }
  const RespondentInfo& info() const override { return info_; }
  std::int64_t vocab_size() const override { return vocab_size_; }
  double probability(std::size_t position) const { return 0.5 + tilt_ / static_cast<double>(position + 2); }
  base::Status distributions(std::span<const Passage> passages, const DistributionSink& sink) override {
    passages_max = std::max(passages_max, passages.size());
    for (const Passage& passage : passages) {
      if (passage.prompt.size() > prompt_max_) return base::out_of_range("passage " + passage.question);
    }
    // Last first: no order is promised.
    for (std::size_t i = passages.size(); i-- > 0;) {
      for (std::size_t at = passages[i].continuation.size(); at-- > 0;) {
        const auto p = static_cast<float>(probability(at));
        const float logprobs[] = {std::log(p), std::log1p(-p)};
        sink(i, at, logprobs);
      }
    }
    return base::ok_status();
  }
  std::size_t passages_max = 0;

 private:
  RespondentInfo info_;
  double tilt_;
  std::int64_t vocab_size_;
  std::size_t prompt_max_;
};

class Watcher : public RunWatcher {
 public:
  void asking(std::string_view plan, const TaskInfo& task, std::size_t total) override {
    events.push_back(fmt::format("{} {} {}", plan, task.name, total));
  }
  void answered(const Outcome&, bool was_found) override { ++(was_found ? found : fresh); }
  void comparing(std::size_t total, std::size_t was_found) override {
    events.push_back(fmt::format("distances {} {}", total, was_found));
  }
  void compared() override { ++passages; }
  void done() override {}
  std::vector<std::string> events;
  int found = 0;
  int fresh = 0;
  int passages = 0;
};

class RunnerTest : public testing::Test {
 protected:
  RunnerTest() {
    std::string pattern = testing::TempDir() + "runner_test.XXXXXX";
    folder_ = mkdtemp(pattern.data());
    options_.version = "1";
    options_.concurrency = 4;
    add_plan("reference", behaviours_[0], 0.0);
    add_plan("other", behaviours_[1], 0.25);
    behaviours_[1].blind = 5;
  }
  ~RunnerTest() override { std::filesystem::remove_all(folder_); }

  void add_plan(std::string name, FakeRespondent::Behaviour& behaviour, double tilt) {
    PlanUnderTest plan{.name = std::move(name), .description = "fake", .start = {}};
    plan.start = [this, &behaviour]() -> base::Result<std::unique_ptr<Respondent>> {
      ++started_;
      return std::make_unique<FakeRespondent>(behaviour, asked_);
    };
    plan.open_distributions = [tilt]() -> base::Result<std::unique_ptr<DistributionSource>> {
      return std::make_unique<FakeSource>(tilt);
    };
    plans_.push_back(std::move(plan));
  }
  std::vector<ChosenTask> tasks() const {
    std::vector<std::unique_ptr<Task>> made;
    made.push_back(std::make_unique<FakeTask>("small", 9));
    made.push_back(std::make_unique<FakeTask>("large", 40));
    auto chosen = choose_questions(std::move(made), options_);
    EXPECT_TRUE(chosen.has_value()) << chosen.error().message();
    return std::move(*chosen);
  }
  base::Result<Evaluation> run(Journal* journal = nullptr) {
    stop_ = false;
    asked_ = started_ = 0;
    watcher_ = {};
    return run_evaluation(plans_, tasks(), options_, journal, watcher_, stop_);
  }
  // Everything of it that a report is made of, as text.
  static std::string text(const Evaluation& evaluation) {
    std::string all;
    for (std::size_t plan = 0; plan < evaluation.plans.size(); ++plan) {
      all += evaluation.plans[plan].name + respondent_line(plan, evaluation.plans[plan].respondent) + "\n";
      for (const TaskOutcomes& task : evaluation.tasks) {
        for (const Outcome& one : task.by_plan[plan]) all += outcome_line(plan, task.task.name, one) + "\n";
      }
    }
    for (const TaskDistances& task : evaluation.distances) {
      for (const PassageDistances& one : task.passages) all += distances_line(task.plan, task.task, one) + "\n";
    }
    return all;
  }

  std::filesystem::path folder_;
  RunOptions options_;
  FakeRespondent::Behaviour behaviours_[2];
  std::vector<PlanUnderTest> plans_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> asked_ = 0;
  std::atomic<int> started_ = 0;
  Watcher watcher_;
};

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
    made.push_back(std::make_unique<FakeTask>("task", size, by_cell));
    return choose_questions(std::move(made), options_);
  };
  options_.limit = 2;
  EXPECT_THAT((*choose(40, true))[0].questions, ElementsAre(7, 8, 17, 18));
  options_.cells = {"ends in 1", "level 9"};
  EXPECT_THAT(choose(40, true).error().message(),
              HasSubstr("'level 9' is in none of the tasks; they have 'ends in 0'"));
  options_.cells = {"ends in 9"};
  std::vector<std::unique_ptr<Task>> made;
  made.push_back(std::make_unique<FakeTask>("small", 9));
  made.push_back(std::make_unique<FakeTask>("large", 40));
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
    for (FakeRespondent::Behaviour& behaviour : behaviours_) {
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
    for (FakeRespondent::Behaviour& behaviour : behaviours_) behaviour.before = {};
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

TEST_F(RunnerTest, ComparesAPlanThatAnswersNothing) {
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

TEST_F(RunnerTest, ProbesScoresBeforeItAsksAnything) {
  behaviours_[0].scores = false;
  std::vector<ChosenTask> chosen = tasks();
  auto likelihood = std::make_unique<FakeTask>("likely", 3);
  likelihood->needs_scores();
  chosen.push_back({std::move(likelihood), {0, 1, 2}});
  const auto evaluation = run_evaluation(plans_, chosen, options_, nullptr, watcher_, stop_);
  EXPECT_EQ(evaluation.error().message(), "plan 'reference': this server scores nothing");
  EXPECT_EQ(asked_, 0);
}

double divergence(double p, double q) { return p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q)); }

TEST_F(RunnerTest, ComparesDistributions) {
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
    const FakeSource reference(0.0);
    const FakeSource other(distances.plan == 1 ? 0.25 : -0.5);
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
  std::vector<PassageToCompare> passages;
  for (std::size_t i = 0; i < 100; ++i) {
    passages.push_back({.passage = {.question = fmt::format("{}", i),
                                    .cell = {},
                                    .prompt = std::vector<TokenId>(i == 40 || i == 99 ? 9 : 3, 1),
                                    .continuation = {0, 1}},
                        .wanted = {true, true, i % 2 == 0}});
  }
  FakeSource reference(0.0);
  FakeSource other(0.1);
  FakeSource third(0.2, 2, 5);
  DistributionSource* const sources[] = {&reference, &other, &third};
  std::set<std::pair<std::size_t, std::size_t>> seen;
  std::vector<std::size_t> left_out;
  const std::atomic<bool> stop = false;
  const base::Status status = compare_sources(
      sources, passages,
      [&](std::size_t passage, std::size_t source, PassageDistances distances) {
        EXPECT_TRUE(seen.emplace(passage, source).second);
        EXPECT_EQ(distances.question, fmt::format("{}", passage));
        return base::ok_status();
      },
      [&](std::size_t passage) { left_out.push_back(passage); }, stop);
  ASSERT_TRUE(status.ok()) << status.message();
  // The third does not want 99, so that it fits everybody who does.
  EXPECT_THAT(left_out, ElementsAre(40));
  EXPECT_EQ(seen.size(), 99u + 49u);
  EXPECT_EQ(reference.passages_max, kBlockPassagesMax);
}

TEST(ComparisonTest, EndsWithItsReasons) {
  const std::vector<PassageToCompare> passages = {
      {.passage = {.question = "q", .cell = {}, .prompt = {1}, .continuation = {0}}, .wanted = {true, true}}};
  FakeSource two(0.0);
  FakeSource three(0.0, 3);
  std::atomic<bool> stop = false;
  const auto sink = [](std::size_t, std::size_t, PassageDistances) { return base::unavailable("the disk is full"); };
  const auto compare = [&](DistributionSource& other) {
    DistributionSource* const sources[] = {&two, &other};
    return compare_sources(sources, passages, sink, [](std::size_t) {}, stop);
  };
  EXPECT_THAT(compare(three).message(), HasSubstr("fake has 2 tokens in its vocabulary and fake has 3"));
  EXPECT_EQ(compare(two).message(), "the disk is full");
  stop = true;
  EXPECT_EQ(compare(two).code(), base::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tessera::quality
