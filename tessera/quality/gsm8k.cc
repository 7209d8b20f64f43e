#include "tessera/quality/gsm8k.h"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/quality/answer_patterns.h"
#include "tessera/quality/asking.h"
#include "tessera/quality/data_file.h"
#include "tessera/quality/likelihood.h"

namespace tessera::quality {

namespace {

constexpr std::size_t kExamples = 5;
constexpr std::int64_t kAnswerTokensMax = 256;

struct Question {
  std::string text;      // "Question: ...\nAnswer:"
  std::string solution;  // As upstream has it: the working, then "#### " and the number.
  std::string number;
};

class Gsm8k final : public Task {
 public:
  Gsm8k(TaskInfo info, std::string header, std::vector<Question> questions, std::string digest)
      : info_(std::move(info)),
        header_(std::move(header)),
        questions_(std::move(questions)),
        digest_(std::move(digest)) {}

  const TaskInfo& info() const override { return info_; }
  std::size_t size() const override { return questions_.size(); }
  std::string question_id(std::size_t index) const override { return fmt::format("{}", index); }
  std::string cell(std::size_t) const override { return {}; }
  std::string data_digest() const override { return digest_; }

  base::Result<Outcome> ask(std::size_t index, Respondent& respondent) const override {
    const Question& question = questions_[index];
    return ask_or_skip(question_id(index), cell(index), [&](Outcome& outcome) -> base::Status {
      outcome.expected = question.number;
      TESSERA_ASSIGN_OR_RETURN(const Answer answer, respondent.complete({.prompt = header_ + question.text,
                                                                         .max_tokens = kAnswerTokensMax,
                                                                         .stop = {"Question:", "</s>", "<|im_end|>"}}));
      outcome.answer = shown(answer.text);
      outcome.scores["exact"] = same_number(strict_number(answer.text), question.number) ? 1.0 : 0.0;
      outcome.scores["flexible"] = same_number(flexible_number(answer.text), question.number) ? 1.0 : 0.0;
      return base::ok_status();
    });
  }

  base::Result<std::optional<Passage>> passage(std::size_t index, Respondent& respondent) const override {
    const Question& question = questions_[index];
    return passage_or_none(question_id(index), cell(index),
                           encode_passage(respondent, header_ + question.text, " " + question.solution), respondent);
  }

 private:
  TaskInfo info_;
  std::string header_;
  std::vector<Question> questions_;
  std::string digest_;
};

base::Result<Question> read_question(const DataLines& data, std::size_t line) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, data.text(line, "question"));
  TESSERA_ASSIGN_OR_RETURN(const std::string working, data.text(line, "solution"));
  TESSERA_ASSIGN_OR_RETURN(std::string number, data.text(line, "answer"));
  if (number.empty() || flexible_number(number) != number) {
    return base::failure(data.wrong(line, fmt::format("expected 'answer' to be a number, got '{}'", number)));
  }
  return Question{fmt::format("Question: {}\nAnswer:", text), fmt::format("{}\n#### {}", working, number),
                  std::move(number)};
}

base::Result<std::unique_ptr<Task>> make_gsm8k(const TaskInfo& info, const DataFolders& folders) {
  TESSERA_ASSIGN_OR_RETURN(const DataLines examples, read_data_lines(folders.data / "gsm8k_fewshot.jsonl.gz"));
  if (examples.lines.size() < kExamples) {
    return base::failure(base::data_loss(fmt::format("{}: expected {} examples or more, got {}", examples.path.string(),
                                                     kExamples, examples.lines.size())));
  }
  std::string header;
  for (std::size_t i = 0; i < kExamples; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const Question example, read_question(examples, i));
    header += fmt::format("{} {}\n\n", example.text, example.solution);
  }
  TESSERA_ASSIGN_OR_RETURN(const DataLines data, read_data_lines(folders.data / "gsm8k_test.jsonl.gz"));
  std::vector<Question> questions;
  questions.reserve(data.lines.size());
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(Question question, read_question(data, i));
    questions.push_back(std::move(question));
  }
  return std::make_unique<Gsm8k>(info, std::move(header), std::move(questions), data_digest(examples.raw + data.raw));
}

}  // namespace

TaskEntry gsm8k_task() {
  TaskInfo info;
  info.name = "gsm8k";
  info.about =
      "school arithmetic in words, after 5 worked examples: is the number after \"####\" right (exact), or the last "
      "number at all (flexible)?";
  info.metrics = {{"exact", MetricKind::kAccuracy, "", ""}, {"flexible", MetricKind::kAccuracy, "", ""}};
  return {info, [info](const DataFolders& folders) { return make_gsm8k(info, folders); }};
}

}  // namespace tessera::quality
