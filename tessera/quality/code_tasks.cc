// HumanEval (Chen et al. 2021, "Evaluating Large Language Models Trained on Code"): one greedy completion a problem,
// cut at the paper's stop sequences, run against the problem's tests: pass@1.
#include <fmt/format.h>

#include <boost/json/value.hpp>
#include <cstddef>
#include <utility>

#include "tessera/quality/code_judge.h"
#include "tessera/quality/data_file.h"
#include "tessera/quality/sandbox.h"
#include "tessera/quality/task.h"
#include "tessera/quality/tool_judge.h"

namespace tessera::quality {

namespace {

struct Problem {
  std::string id;
  std::string prompt;
  std::string entry_point;
  std::string canonical_solution;
  std::string test;
};

constexpr std::int64_t kMaxTokens = 512;

TaskInfo human_eval_info() {
  TaskInfo info;
  info.name = "humaneval";
  info.about = "164 Python functions to complete; greedy pass@1: the problem's own tests, in a sandbox";
  info.metrics = {{.name = "right", .numerator = {}, .denominator = {}}};
  info.runs_code = true;
  return info;
}

class HumanEval : public Task {
 public:
  HumanEval(std::vector<Problem> problems, std::string digest, Sandbox sandbox)
      : info_(human_eval_info()), problems_(std::move(problems)), digest_(std::move(digest)), sandbox_(sandbox) {}

  const TaskInfo& info() const override { return info_; }
  std::size_t size() const override { return problems_.size(); }
  std::string question_id(std::size_t index) const override { return problems_[index].id; }
  std::string cell(std::size_t) const override { return ""; }
  std::string data_digest() const override { return digest_; }

  base::Result<Outcome> ask(std::size_t index, Respondent& respondent) const override {
    const Problem& problem = problems_[index];
    Outcome outcome{.question = problem.id,
                    .cell = cell(index),
                    .scores = {},
                    .expected = shown(problem.canonical_solution),
                    .answer = {},
                    .skipped = {}};
    const base::Result<Answer> answer = respondent.complete(
        {.prompt = problem.prompt, .max_tokens = kMaxTokens, .stop = {"\nclass", "\ndef", "\n#", "\nif", "\nprint"}});
    if (!answer.has_value()) {
      if (answer.error().code() != base::StatusCode::kOutOfRange) return base::failure(answer.error());
      outcome.skipped = answer.error().message();
      return outcome;
    }
    outcome.answer = shown(answer->text);
    TESSERA_ASSIGN_OR_RETURN(
        const bool right,
        runs_to_its_end(sandbox_, human_eval_program(problem.prompt, answer->text, problem.test, problem.entry_point)));
    outcome.scores["right"] = right ? 1.0 : 0.0;
    return outcome;
  }

  base::Result<std::optional<Passage>> passage(std::size_t index, Respondent& respondent) const override {
    const Problem& problem = problems_[index];
    TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, respondent.encode_prompt(problem.prompt));
    TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> solution, respondent.encode(problem.canonical_solution));
    return Passage{problem.id, cell(index), std::move(prompt), std::move(solution)};
  }

 private:
  TaskInfo info_;
  std::vector<Problem> problems_;
  std::string digest_;
  Sandbox sandbox_;
};

base::Result<std::unique_ptr<Task>> make_human_eval(const DataFolders& folders) {
  const std::filesystem::path path = folders.data / "humaneval.jsonl.gz";
  TESSERA_ASSIGN_OR_RETURN(const std::string text, read_data_text(path));
  TESSERA_ASSIGN_OR_RETURN(const DataLines data, read_data_lines(path));
  std::vector<Problem> problems;
  problems.reserve(data.lines.size());
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    Problem problem;
    const std::pair<const char*, std::string*> fields[] = {{"task_id", &problem.id},
                                                           {"prompt", &problem.prompt},
                                                           {"entry_point", &problem.entry_point},
                                                           {"canonical_solution", &problem.canonical_solution},
                                                           {"test", &problem.test}};
    for (const auto& [name, field] : fields) {
      const boost::json::value* const value = data.lines[i].if_contains(name);
      if (value == nullptr || !value->is_string() || value->get_string().empty()) {
        return base::failure(data.wrong(i, fmt::format("\"{}\": expected a string that is not empty", name)));
      }
      *field = value->get_string();
    }
    problems.push_back(std::move(problem));
  }
  TESSERA_ASSIGN_OR_RETURN(const Sandbox sandbox, Sandbox::create());
  return std::make_unique<HumanEval>(std::move(problems), data_digest(text), sandbox);
}

}  // namespace

std::vector<TaskEntry> code_tasks() { return {{human_eval_info(), make_human_eval}}; }

}  // namespace tessera::quality
