// Questions with given answers of which the likeliest counts: MMLU and ARC, as lm-evaluation-harness puts and judges
// them (tasks mmlu, arc_easy and arc_challenge).
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/quality/asking.h"
#include "tessera/quality/choice_scores.h"
#include "tessera/quality/data_file.h"
#include "tessera/quality/likelihood.h"
#include "tessera/quality/mmlu_pro.h"
#include "tessera/quality/python_space.h"
#include "tessera/quality/task.h"

namespace tessera::quality {

namespace {

constexpr std::string_view kLetters = "ABCD";
constexpr std::size_t kMmluExamples = 5;

struct Question {
  std::string id;
  std::string cell;
  std::shared_ptr<const std::string> header;  // What its subject's questions begin with.
  std::string text;
  std::vector<std::string> choices;  // As they are scored, but for the space before each.
  std::size_t right = 0;
};

class ChoiceTask final : public Task {
 public:
  ChoiceTask(TaskInfo info, std::vector<Question> questions, std::string digest)
      : info_(std::move(info)), questions_(std::move(questions)), digest_(std::move(digest)) {
    double chance = 0.0;
    for (const Question& question : questions_) chance += 1.0 / static_cast<double>(question.choices.size());
    info_.chance = chance / static_cast<double>(questions_.size());
  }

  const TaskInfo& info() const override { return info_; }
  std::size_t size() const override { return questions_.size(); }
  std::string question_id(std::size_t index) const override { return questions_[index].id; }
  std::string cell(std::size_t index) const override { return questions_[index].cell; }
  std::string data_digest() const override { return digest_; }

  base::Result<Outcome> ask(std::size_t index, Respondent& respondent) const override {
    const Question& question = questions_[index];
    return ask_or_skip(question.id, question.cell, [&](Outcome& outcome) -> base::Status {
      outcome.expected = shown(question.choices[question.right]);
      std::vector<std::string> continuations;
      continuations.reserve(question.choices.size());
      for (const std::string& choice : question.choices) continuations.push_back(" " + choice);
      TESSERA_ASSIGN_OR_RETURN(const std::vector<Likelihood> scores,
                               likelihoods(respondent, context(question), continuations));
      std::vector<double> logprobs;
      logprobs.reserve(scores.size());
      for (const Likelihood& score : scores) logprobs.push_back(score.logprob);
      const std::size_t chosen = likeliest(logprobs);
      const std::size_t chosen_by_length = likeliest_by_length(logprobs, question.choices);
      for (const Metric& metric : info_.metrics) {
        const std::size_t by_metric = metric.name == "acc_norm" ? chosen_by_length : chosen;
        outcome.scores[metric.name] = by_metric == question.right ? 1.0 : 0.0;
      }
      outcome.answer = shown(question.choices[info_.metrics.front().name == "acc_norm" ? chosen_by_length : chosen]);
      return base::ok_status();
    });
  }

  base::Result<std::optional<Passage>> passage(std::size_t index, Respondent& respondent) const override {
    const Question& question = questions_[index];
    return passage_or_none(question.id, question.cell,
                           encode_passage(respondent, context(question), " " + question.choices[question.right]),
                           respondent);
  }

 private:
  static std::string context(const Question& question) {
    return question.header == nullptr ? question.text : *question.header + question.text;
  }

  TaskInfo info_;
  std::vector<Question> questions_;
  std::string digest_;
};

base::Result<std::size_t> right_choice(const DataLines& data, std::size_t line, std::size_t choices) {
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t right, data.integer(line, "answer"));
  if (right < 0 || std::cmp_greater_equal(right, choices)) {
    return base::failure(
        data.wrong(line, fmt::format("'answer' is {}, of {} choices numbered from 0", right, choices)));
  }
  return static_cast<std::size_t>(right);
}

// One question of MMLU, up to where its letter follows.
base::Result<std::string> mmlu_text(const DataLines& data, std::size_t line) {
  TESSERA_ASSIGN_OR_RETURN(const std::string question, data.text(line, "question"));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> choices, data.texts(line, "choices"));
  if (choices.size() != kLetters.size()) {
    return base::failure(data.wrong(line, fmt::format("expected four 'choices', got {}", choices.size())));
  }
  std::string text(strip(question));
  for (std::size_t i = 0; i < choices.size(); ++i) text += fmt::format("\n{}. {}", kLetters[i], choices[i]);
  return text + "\nAnswer:";
}

// By subject, what its questions begin with: a line that names it, and its first five examples with their letters.
base::Result<std::map<std::string, std::shared_ptr<const std::string>>> mmlu_headers(const DataLines& data) {
  std::map<std::string, std::vector<std::string>> examples;
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::string subject, data.text(i, "subject"));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, mmlu_text(data, i));
    TESSERA_ASSIGN_OR_RETURN(const std::size_t right, right_choice(data, i, kLetters.size()));
    std::vector<std::string>& of_subject = examples[subject];
    if (of_subject.size() < kMmluExamples) of_subject.push_back(fmt::format("{} {}\n\n", text, kLetters[right]));
  }
  std::map<std::string, std::shared_ptr<const std::string>> headers;
  for (const auto& [subject, of_subject] : examples) {
    if (of_subject.size() < kMmluExamples) {
      return base::failure(base::data_loss(fmt::format("{}: expected {} examples of subject '{}', got {}",
                                                       data.path.string(), kMmluExamples, subject, of_subject.size())));
    }
    std::string name = subject;
    std::ranges::replace(name, '_', ' ');
    std::string header = fmt::format("The following are multiple choice questions (with answers) about {}.\n\n", name);
    for (const std::string& example : of_subject) header += example;
    headers.emplace(subject, std::make_shared<const std::string>(std::move(header)));
  }
  return headers;
}

// A question's number in its subject's full file: what a part of the file says, else its place among the lines.
base::Result<std::int64_t> mmlu_number(const DataLines& data, std::size_t line, std::int64_t lines_before) {
  if (!data.lines[line].contains("index")) return lines_before;
  return data.integer(line, "index");
}

base::Result<std::unique_ptr<Task>> make_mmlu(const TaskInfo& info, const DataFolders& folders) {
  TESSERA_ASSIGN_OR_RETURN(const DataLines examples, read_data_lines(folders.data / "mmlu_dev.jsonl.gz"));
  TESSERA_ASSIGN_OR_RETURN(const auto headers, mmlu_headers(examples));
  TESSERA_ASSIGN_OR_RETURN(const DataLines data, read_data_lines(folders.data / "mmlu_test.jsonl.gz"));
  std::map<std::string, std::int64_t> lines_of_subject;
  std::vector<Question> questions;
  questions.reserve(data.lines.size());
  QuestionIds ids;
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    Question question;
    TESSERA_ASSIGN_OR_RETURN(question.cell, data.text(i, "subject"));
    const auto header = headers.find(question.cell);
    if (header == headers.end()) {
      return base::failure(
          data.wrong(i, fmt::format("subject '{}' has no examples in {}", question.cell, examples.path.string())));
    }
    question.header = header->second;
    TESSERA_ASSIGN_OR_RETURN(question.text, mmlu_text(data, i));
    TESSERA_ASSIGN_OR_RETURN(question.right, right_choice(data, i, kLetters.size()));
    for (const char letter : kLetters) question.choices.emplace_back(1, letter);
    TESSERA_ASSIGN_OR_RETURN(const std::int64_t number, mmlu_number(data, i, lines_of_subject[question.cell]++));
    question.id = fmt::format("{}/{}", question.cell, number);
    TESSERA_RETURN_IF_ERROR(ids.add(data, i, question.id));
    questions.push_back(std::move(question));
  }
  return std::make_unique<ChoiceTask>(info, std::move(questions), data_digest(examples.raw + data.raw));
}

base::Result<std::unique_ptr<Task>> make_arc(const TaskInfo& info, const std::filesystem::path& path) {
  TESSERA_ASSIGN_OR_RETURN(const DataLines data, read_data_lines(path));
  std::vector<Question> questions;
  questions.reserve(data.lines.size());
  QuestionIds ids;
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    Question question;
    TESSERA_ASSIGN_OR_RETURN(question.id, data.text(i, "id"));
    TESSERA_RETURN_IF_ERROR(ids.add(data, i, question.id));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, data.text(i, "question"));
    question.text = fmt::format("Question: {}\nAnswer:", text);
    TESSERA_ASSIGN_OR_RETURN(question.choices, data.texts(i, "choices"));
    if (question.choices.size() < 2 || std::ranges::find(question.choices, "") != question.choices.end()) {
      return base::failure(data.wrong(i, "expected two or more 'choices', none of them empty"));
    }
    TESSERA_ASSIGN_OR_RETURN(question.right, right_choice(data, i, question.choices.size()));
    questions.push_back(std::move(question));
  }
  return std::make_unique<ChoiceTask>(info, std::move(questions), data_digest(data.raw));
}

TaskInfo choice_info(std::string name, std::string about, const std::vector<std::string>& metrics) {
  TaskInfo info;
  info.name = std::move(name);
  info.about = std::move(about);
  for (const std::string& metric : metrics) info.metrics.push_back({metric, MetricKind::kAccuracy, "", ""});
  info.chance = 0.25;
  info.by_likelihood = true;
  return info;
}

TaskEntry arc_task(const TaskInfo& info, std::string file) {
  return {info,
          [info, file = std::move(file)](const DataFolders& folders) { return make_arc(info, folders.data / file); }};
}

}  // namespace

std::vector<TaskEntry> choice_tasks() {
  const TaskInfo mmlu = choice_info(
      "mmlu",
      "57 subjects, four choices, after 5 examples of the subject: is the right letter the likeliest? Says nothing of "
      "decoding",
      {"acc"});
  std::vector<TaskEntry> tasks;
  tasks.push_back({mmlu, [mmlu](const DataFolders& folders) { return make_mmlu(mmlu, folders); }});
  tasks.push_back(mmlu_pro_task());
  tasks.push_back(arc_task(
      choice_info("arc-easy",
                  "school science, choices as texts, no examples: is the right one the likeliest (acc), or so by its "
                  "length (acc_norm)? Says nothing of decoding",
                  {"acc", "acc_norm"}),
      "arc_easy_test.jsonl.gz"));
  tasks.push_back(arc_task(
      choice_info(
          "arc-challenge",
          "harder school science, as arc-easy: is the right choice the likeliest by its length (acc_norm), or at "
          "all (acc)? Says nothing of decoding",
          {"acc_norm", "acc"}),
      "arc_challenge_test.jsonl.gz"));
  return tasks;
}

}  // namespace tessera::quality
