// What the runner meets in its tests: models, tasks and sources of distributions that know what to say.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX's.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/quality/journal_lines.h"
#include "tessera/quality/runner.h"

namespace tessera::quality {

// A model that knows the number in a question, unless it divides by `blind`; every call is counted.
class NumberRespondent : public Respondent {
 public:
  struct Behaviour {
    int blind = 3;
    std::string precision = "bf16";
    std::string digest = "d1";
    std::int64_t context = 64;
    std::function<base::Status(std::string_view)> before = {};  // What happens first when a question is asked.
    bool scores = true;
  };
  NumberRespondent(const Behaviour& behaviour, std::atomic<int>& asked) : behaviour_(behaviour), asked_(asked) {
    info_ = {.model = "fake",
             .precision = behaviour.precision,
             .digest = behaviour.digest,
             .context_tokens = behaviour.context};
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
class NumberTask : public Task {
 public:
  NumberTask(std::string name, std::size_t size, bool by_cell = false) : size_(size) {
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

// Two tokens. What it gives for one of them depends on the position, for every plan on `tilt`, and on how many passages
// it was prepared with.
class TwoTokenSource : public DistributionSource {
 public:
  explicit TwoTokenSource(double tilt, std::int64_t vocab_size = 2, std::int64_t context_tokens = 100)
      : tilt_(tilt), vocab_size_(vocab_size) {
    info_.model = "fake";
    info_.context_tokens = context_tokens;
  }
  const RespondentInfo& info() const override { return info_; }
  std::int64_t vocab_size() const override { return vocab_size_; }
  double probability(std::size_t position) const {
    return 0.5 + tilt_ / (static_cast<double>(position + 2) + static_cast<double>(prepared) / 100.0);
  }
  base::Status prepare(std::span<const Passage> passages) override {
    EXPECT_EQ(prepared, 0u);
    prepared = passages.size();
    return base::ok_status();
  }
  base::Status distributions(std::span<const Passage> passages, const DistributionSink& sink) override {
    EXPECT_GT(prepared, 0u);
    if (before) TESSERA_RETURN_IF_ERROR(before());
    passages_max = std::max(passages_max, passages.size());
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
  std::function<base::Status()> before = {};  // What happens first when it is asked.
  std::size_t passages_max = 0;
  std::size_t prepared = 0;

 private:
  RespondentInfo info_;
  double tilt_;
  std::int64_t vocab_size_;
};

class CountingWatcher : public RunWatcher {
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

// Two plans that are asked two tasks.
class RunnerFixture : public testing::Test {
 protected:
  RunnerFixture() {
    std::string pattern = testing::TempDir() + "runner_test.XXXXXX";
    folder_ = mkdtemp(pattern.data());
    options_.version = "1";
    options_.concurrency = 4;
    add_plan("reference", behaviours_[0], 0.0);
    add_plan("other", behaviours_[1], 0.25);
    behaviours_[1].blind = 5;
  }
  ~RunnerFixture() override { std::filesystem::remove_all(folder_); }

  void add_plan(std::string name, NumberRespondent::Behaviour& behaviour, double tilt) {
    PlanUnderTest plan{.name = std::move(name), .description = "fake", .start = {}};
    plan.start = [this, &behaviour]() -> base::Result<std::unique_ptr<Respondent>> {
      ++started_;
      return std::make_unique<NumberRespondent>(behaviour, asked_);
    };
    plan.open_distributions = [this, tilt]() -> base::Result<std::unique_ptr<DistributionSource>> {
      auto source = std::make_unique<TwoTokenSource>(tilt);
      source->before = before_block_;
      return source;
    };
    plans_.push_back(std::move(plan));
  }
  std::vector<ChosenTask> tasks() const {
    std::vector<std::unique_ptr<Task>> made;
    made.push_back(std::make_unique<NumberTask>("small", 9));
    made.push_back(std::make_unique<NumberTask>("large", 40));
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
  NumberRespondent::Behaviour behaviours_[2];
  std::vector<PlanUnderTest> plans_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> asked_ = 0;
  std::atomic<int> started_ = 0;
  std::function<base::Status()> before_block_ = {};  // Of every source.
  CountingWatcher watcher_;
};

}  // namespace tessera::quality
