// The judges are the data set's own solutions (all 164 of HumanEval's are right) and score.py's verdicts on varied
// functions (tools/oracles/make_pocket_code_goldens.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tessera/quality/code_judge.h"
#include "tessera/quality/data_file.h"
#include "tessera/quality/sandbox_fixture.h"
#include "tessera/quality/scripted_respondent.h"
#include "tessera/quality/task.h"

namespace tessera::quality {
namespace {

using ::testing::HasSubstr;
namespace json = boost::json;

std::string text_of(const json::value& value) { return std::string(value.as_string()); }

class CodeTasks : public SandboxFixture {};

TEST_F(CodeTasks, AllOfHumanEvalsOwnSolutionsAreRight) {
  const std::unique_ptr<Task> task = find_task("humaneval").value().make(ScriptedRespondent::folders()).value();
  const DataLines data = read_data_lines(ScriptedRespondent::folders().data / "humaneval.jsonl.gz").value();
  ASSERT_EQ(task->size(), 164U);
  ScriptedRespondent respondent;
  for (std::size_t i = 0; i < task->size(); ++i) {
    const json::object& problem = data.lines[i];
    respondent.on_complete = [&problem](const CompletionQuestion& question) {
      EXPECT_EQ(question.prompt, text_of(problem.at("prompt")));
      EXPECT_EQ(question.stop.size(), 5U);
      return Answer{.text = text_of(problem.at("canonical_solution")), .reasoning = {}, .calls = {}};
    };
    EXPECT_EQ(task->ask(i, respondent).value().scores.at("right"), 1.0) << text_of(problem.at("task_id"));
  }
}

TEST_F(CodeTasks, ChangedSolutionsOfHumanEvalAreWrong) {
  const std::unique_ptr<Task> task = find_task("humaneval").value().make(ScriptedRespondent::folders()).value();
  ScriptedRespondent respondent;
  const auto score = [&](std::size_t index, std::string completion) {
    respondent.on_complete = [&completion](const CompletionQuestion&) {
      return Answer{.text = completion, .reasoning = {}, .calls = {}};
    };
    return task->ask(index, respondent).value().scores.at("right");
  };
  // HumanEval/0: are any two numbers closer than the threshold?
  const std::string right =
      "    return any(abs(a - b) < threshold for i, a in enumerate(numbers) for b in numbers[:i])\n";
  EXPECT_EQ(score(0, right), 1.0);
  EXPECT_EQ(
      score(0, "    return any(abs(a - b) <= 2 * threshold for i, a in enumerate(numbers) for b in numbers[:i])\n"),
      0.0);
  EXPECT_EQ(score(0, ""), 0.0);
  EXPECT_EQ(score(0, "    return None\n"), 0.0);
  // Not wrong answers to the tests, but ways past them.
  EXPECT_EQ(score(0, "    raise SystemExit(0)\n"), 0.0);
  EXPECT_EQ(score(0, "    import os\n    os._exit(0)\n"), 0.0);
  EXPECT_EQ(score(0, "    while True: pass\n"), 0.0);
  EXPECT_EQ(score(0, "    return (\n"), 0.0);
  EXPECT_EQ(score(0, right + "\nprint = None\n"), 1.0);
}

TEST_F(CodeTasks, HumanEvalPassagesAreThePromptAndItsSolution) {
  const std::unique_ptr<Task> task = find_task("humaneval").value().make(ScriptedRespondent::folders()).value();
  const DataLines data = read_data_lines(ScriptedRespondent::folders().data / "humaneval.jsonl.gz").value();
  ScriptedRespondent respondent;
  const Passage passage = task->passage(7, respondent).value().value();
  EXPECT_EQ(passage.prompt, respondent.encode(text_of(data.lines[7].at("prompt"))).value());
  EXPECT_EQ(passage.continuation, respondent.encode(text_of(data.lines[7].at("canonical_solution"))).value());
}

TEST_F(CodeTasks, ErrorsOfTheDataNameTheLine) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "human_eval_error";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "humaneval.jsonl.gz") << R"({"task_id":"HumanEval/0","prompt":3})" << "\n";
  const auto made = find_task("humaneval").value().make({.data = folder, .pocket_tasks = folder});
  EXPECT_THAT(made.error().message(), HasSubstr("humaneval.jsonl.gz, line 1: \"prompt\": expected a string"));
  std::filesystem::remove_all(folder);
}

TEST_F(CodeTasks, FunctionsAreJudgedAsScorePyJudgesThem) {
  const DataLines lines = read_data_lines(std::filesystem::path(TESSERA_SOURCE_DIR) / "tests" / "goldens" / "quality" /
                                          "pocket_code.jsonl.gz")
                              .value();
  std::size_t right = 0;
  for (const json::object& line : lines.lines) {
    const auto tests = json::value_to<std::vector<std::string>>(line.at("tests"));
    const bool passes = passes_tests(*sandbox_, text_of(line.at("text")), tests).value();
    EXPECT_EQ(passes, line.at("right").as_bool()) << line.at("text");
    right += passes ? 1 : 0;
  }
  EXPECT_GT(right, 50U);
  EXPECT_LT(right, lines.lines.size() - 50);
}

TEST_F(CodeTasks, PocketFunctionsRunsItsTests) {
  const std::unique_ptr<Task> task = find_task("pocket-functions").value().make(ScriptedRespondent::folders()).value();
  ASSERT_EQ(task->size(), 2400U);
  ScriptedRespondent respondent;
  std::string says = "```python\ndef apply_item(b):\n    return b - 28\n```";
  respondent.on_chat = [&says](const ChatQuestion& question) {
    EXPECT_EQ(question.max_tokens, 110);
    return Answer{.text = says, .reasoning = {}, .calls = {}};
  };
  EXPECT_EQ(task->ask(0, respondent).value().scores.at("right"), 1.0);
  EXPECT_EQ(task->passage(0, respondent).value().value().continuation, respondent.encode(says).value());
  says = "```python\ndef apply_item(b):\n    return b - 27\n```";
  EXPECT_EQ(task->ask(0, respondent).value().scores.at("right"), 0.0);
  EXPECT_FALSE(task->passage(0, respondent).value().has_value());
}

}  // namespace
}  // namespace tessera::quality
