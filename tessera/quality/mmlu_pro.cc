#include "tessera/quality/mmlu_pro.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/quality/answer_patterns.h"
#include "tessera/quality/asking.h"
#include "tessera/quality/data_file.h"
#include "tessera/quality/likelihood.h"
#include "tessera/quality/python_space.h"

namespace tessera::quality {

namespace {

constexpr std::string_view kLetters = "ABCDEFGHIJ";
constexpr std::size_t kExamples = 5;
constexpr std::int64_t kAnswerTokensMax = 2048;

struct Question {
  std::string id;
  std::string category;
  std::shared_ptr<const std::string> header;
  std::string text;
  std::string right_choice;
  char right = 'A';
};

class MmluPro final : public Task {
 public:
  MmluPro(TaskInfo info, std::vector<Question> questions, std::string digest)
      : info_(std::move(info)), questions_(std::move(questions)), digest_(std::move(digest)) {}

  const TaskInfo& info() const override { return info_; }
  std::size_t size() const override { return questions_.size(); }
  std::string question_id(std::size_t index) const override { return questions_[index].id; }
  std::string cell(std::size_t index) const override { return questions_[index].category; }
  std::string data_digest() const override { return digest_; }

  base::Result<Outcome> ask(std::size_t index, Respondent& respondent) const override {
    const Question& question = questions_[index];
    return ask_or_skip(question.id, question.category, [&](Outcome& outcome) -> base::Status {
      outcome.expected = shown(fmt::format("{}: {}", question.right, question.right_choice));
      TESSERA_ASSIGN_OR_RETURN(
          const Answer answer,
          respondent.complete({.prompt = context(question), .max_tokens = kAnswerTokensMax, .stop = {"Question:"}}));
      outcome.answer = shown(answer.text);
      outcome.scores["exact"] = stated_letter(answer.text) == question.right ? 1.0 : 0.0;
      outcome.scores["flexible"] = any_letter(answer.text) == question.right ? 1.0 : 0.0;
      return base::ok_status();
    });
  }

  // The data have no worked answers to scored questions, so plans are led through the sentence that is asked for.
  base::Result<std::optional<Passage>> passage(std::size_t index, Respondent& respondent) const override {
    const Question& question = questions_[index];
    return passage_or_none(
        question.id, question.category,
        encode_passage(respondent, context(question), fmt::format(" The answer is ({}).", question.right)), respondent);
  }

 private:
  static std::string context(const Question& question) { return *question.header + question.text; }

  TaskInfo info_;
  std::vector<Question> questions_;
  std::string digest_;
};

// A line's question, up to where its reasoning goes on, and its right choice.
base::Result<Question> read_question(const DataLines& data, std::size_t line) {
  Question question;
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t id, data.integer(line, "question_id"));
  question.id = fmt::format("{}", id);
  TESSERA_ASSIGN_OR_RETURN(question.category, data.text(line, "category"));
  TESSERA_ASSIGN_OR_RETURN(const std::string text, data.text(line, "question"));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> choices, data.texts(line, "choices"));
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t right, data.integer(line, "answer"));
  if (choices.size() > kLetters.size() || right < 0 || std::cmp_greater_equal(right, choices.size())) {
    return base::failure(data.wrong(line, fmt::format("'answer' is {}, of {} choices numbered from 0; at most {} are "
                                                      "possible",
                                                      right, choices.size(), kLetters.size())));
  }
  question.right = kLetters[static_cast<std::size_t>(right)];
  question.right_choice = choices[static_cast<std::size_t>(right)];
  question.text = fmt::format("Question:\n{}\nOptions:\n", text);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    question.text += fmt::format("{}. {}\n", kLetters[i], strip(choices[i]));
  }
  question.text += "Answer: Let's think step by step.";
  return question;
}

std::string replace_all(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

// By category, what its questions begin with: what is asked for, and the category's first five examples.
base::Result<std::map<std::string, std::shared_ptr<const std::string>>> read_headers(const DataLines& data) {
  std::map<std::string, std::vector<std::string>> examples;
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const Question question, read_question(data, i));
    TESSERA_ASSIGN_OR_RETURN(const std::string solution, data.text(i, "solution"));
    std::vector<std::string>& of_category = examples[question.category];
    if (of_category.size() == kExamples) continue;
    of_category.push_back(
        fmt::format("{} {}\n\n", question.text, replace_all(solution, "A: Let's think step by step. ", "")));
  }
  std::map<std::string, std::shared_ptr<const std::string>> headers;
  for (const auto& [category, of_category] : examples) {
    if (of_category.size() < kExamples) {
      return base::failure(base::data_loss(fmt::format("{}: expected {} examples of category '{}', got {}",
                                                       data.path.string(), kExamples, category, of_category.size())));
    }
    std::string header = fmt::format(
        "The following are multiple choice questions (with answers) about {}. Think step by step and then finish your "
        "answer with \"the answer is (X)\" where X is the correct letter choice.\n",
        category);
    for (const std::string& example : of_category) header += example;
    headers.emplace(category, std::make_shared<const std::string>(std::move(header)));
  }
  return headers;
}

base::Result<std::unique_ptr<Task>> make_mmlu_pro(TaskInfo info, const DataFolders& folders) {
  TESSERA_ASSIGN_OR_RETURN(const DataLines examples, read_data_lines(folders.data / "mmlu_pro_dev.jsonl.gz"));
  TESSERA_ASSIGN_OR_RETURN(const auto headers, read_headers(examples));
  TESSERA_ASSIGN_OR_RETURN(const DataLines data, read_data_lines(folders.data / "mmlu_pro_sample.jsonl.gz"));
  std::vector<Question> questions;
  questions.reserve(data.lines.size());
  QuestionIds ids;
  double chance = 0.0;
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(Question question, read_question(data, i));
    TESSERA_RETURN_IF_ERROR(ids.add(data, i, question.id));
    const auto header = headers.find(question.category);
    if (header == headers.end()) {
      return base::failure(
          data.wrong(i, fmt::format("category '{}' has no examples in {}", question.category, examples.path.string())));
    }
    question.header = header->second;
    chance += 1.0 / static_cast<double>(data.lines[i].at("choices").as_array().size());
    questions.push_back(std::move(question));
  }
  info.chance = chance / static_cast<double>(questions.size());
  return std::make_unique<MmluPro>(std::move(info), std::move(questions), data_digest(examples.raw + data.raw));
}

}  // namespace

TaskEntry mmlu_pro_task() {
  TaskInfo info;
  info.name = "mmlu-pro";
  info.about =
      "14 fields, up to ten choices, after 5 worked examples: does the reasoning end in \"answer is (X)\" with the "
      "right "
      "X (exact), or in it by any of the authors' patterns (flexible)?";
  info.metrics = {{"exact", MetricKind::kAccuracy, "", ""}, {"flexible", MetricKind::kAccuracy, "", ""}};
  info.chance = 0.1;
  return {info, [info](const DataFolders& folders) { return make_mmlu_pro(info, folders); }};
}

}  // namespace tessera::quality
