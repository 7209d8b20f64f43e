// Prompts, continuations and judgement of the public tasks. What the prompts must be, lm-evaluation-harness has
// rendered over the same data (tools/oracles/make_evaluation_goldens.py).
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/quality/data_file.h"
#include "tessera/quality/fake_respondent_testing.h"
#include "tessera/quality/task.h"
#include "tessera/text/golden_lines.h"
#include "tessera/text/test_folder.h"

namespace tessera::quality {
namespace {

const std::filesystem::path kData = std::filesystem::path(TESSERA_SOURCE_DIR) / "data" / "evaluation";

std::unique_ptr<Task> make(const std::string& name, const std::filesystem::path& data = kData) {
  auto entry = find_task(name);
  EXPECT_TRUE(entry.has_value()) << entry.error().to_string();
  auto task = entry->make({.data = data, .pocket_tasks = {}});
  EXPECT_TRUE(task.has_value()) << task.error().to_string();
  return std::move(*task);
}

std::string error_of(const std::string& name, const std::filesystem::path& data) {
  const auto task = find_task(name)->make({.data = data, .pocket_tasks = {}});
  return task.has_value() ? "" : task.error().to_string();
}

// Of every text the same likelihood.
TokenScore indifferent(std::span<const TokenId>, std::size_t) { return {-1.0, false}; }

TEST(PublicTasks, PromptsAreTheHarness) {
  std::map<std::string, std::unique_ptr<Task>> tasks;
  std::map<std::string, int> seen;
  for (const auto& golden : text::golden_lines("evaluation/prompts.jsonl.gz")) {
    const std::string name = text::golden_string(golden, "task");
    if (!tasks.contains(name)) tasks[name] = make(name);
    const Task& task = *tasks[name];
    const auto line = golden.at("line").to_number<std::size_t>();
    ASSERT_EQ(task.question_id(line), text::golden_string(golden, "id"));
    FakeRespondent model;
    model.on_score = indifferent;
    model.on_complete = [](const CompletionQuestion&) -> base::Result<Answer> { return Answer{}; };
    const auto outcome = task.ask(line, model);
    ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
    std::string context;
    std::vector<std::string> continuations;
    if (task.info().by_likelihood) {
      const auto size = golden.at("bytes").to_number<std::size_t>();
      continuations.reserve(model.scored.size());
      for (const auto& tokens : model.scored) {
        const std::string text = FakeRespondent::text_of(tokens);
        context = text.substr(0, size);
        continuations.push_back(text.substr(size));
      }
    } else {
      ASSERT_EQ(model.completions.size(), 1U);
      context = model.completions.front().prompt;
    }
    if (golden.contains("context")) {
      EXPECT_EQ(context, text::golden_string(golden, "context"));
    }
    EXPECT_EQ(context.size(), golden.at("bytes").to_number<std::size_t>()) << golden;
    EXPECT_EQ(data_digest(context), text::golden_string(golden, "digest")) << context;
    std::vector<std::string> expected;
    expected.reserve(golden.at("continuations").as_array().size());
    for (const auto& text : golden.at("continuations").as_array()) expected.emplace_back(text.as_string());
    EXPECT_EQ(continuations, expected);
    ++seen[name];
  }
  EXPECT_EQ(seen.size(), 5U);
}

TEST(PublicTasks, GenerationEndsWhereTheHarnessEndsIt) {
  FakeRespondent model;
  model.on_complete = [](const CompletionQuestion&) -> base::Result<Answer> { return Answer{}; };
  ASSERT_TRUE(make("gsm8k")->ask(0, model).has_value());
  ASSERT_TRUE(make("mmlu-pro")->ask(0, model).has_value());
  EXPECT_EQ(model.completions[0].stop, (std::vector<std::string>{"Question:", "</s>", "<|im_end|>"}));
  EXPECT_EQ(model.completions[0].max_tokens, 256);
  EXPECT_EQ(model.completions[1].stop, (std::vector<std::string>{"Question:"}));
  EXPECT_EQ(model.completions[1].max_tokens, 2048);
}

TEST(PublicTasks, EveryQuestionHasAnIdAndAGoldPassage) {
  const std::map<std::string, std::size_t> sizes = {
      {"mmlu", 1140}, {"mmlu-pro", 500}, {"arc-easy", 2376}, {"arc-challenge", 1172}, {"gsm8k", 1319}};
  const std::map<std::string, std::size_t> cells = {
      {"mmlu", 57}, {"mmlu-pro", 14}, {"arc-easy", 1}, {"arc-challenge", 1}, {"gsm8k", 1}};
  for (const auto& [name, size] : sizes) {
    const auto task = make(name);
    EXPECT_EQ(task->size(), size);
    EXPECT_EQ(task->data_digest().size(), 16U);
    std::set<std::string> ids;
    std::set<std::string> cells_seen;
    for (std::size_t i = 0; i < task->size(); ++i) {
      ids.insert(task->question_id(i));
      cells_seen.insert(task->cell(i));
    }
    EXPECT_EQ(ids.size(), size) << name;
    EXPECT_EQ(cells_seen.size(), cells.at(name)) << name;
    FakeRespondent model;
    const auto passage = task->passage(5, model);
    ASSERT_TRUE(passage.has_value() && passage->has_value()) << name;
    EXPECT_EQ((*passage)->question, task->question_id(5));
    EXPECT_EQ((*passage)->cell, task->cell(5));
    EXPECT_GT((*passage)->prompt.size(), 0U);
    EXPECT_EQ((*passage)->continuation.front(), ' ');
    // One that does not fit the model is left out.
    model.information.context_tokens = 8;
    const auto none = task->passage(5, model);
    ASSERT_TRUE(none.has_value());
    EXPECT_FALSE(none->has_value());
  }
}

TEST(PublicTasks, ChancesAreThoseOfTheChoices) {
  EXPECT_DOUBLE_EQ(*make("mmlu")->info().chance, 0.25);
  EXPECT_NEAR(*make("arc-easy")->info().chance, 0.25, 0.001);
  EXPECT_NEAR(*make("mmlu-pro")->info().chance, 0.11, 0.01);
}

// Likes the bytes of one text, each as much, and no others.
struct Likes {
  std::string text;
  TokenScore operator()(std::span<const TokenId> tokens, std::size_t at) const {
    const std::string before = FakeRespondent::text_of(tokens.first(at));
    const std::size_t start = before.rfind("Answer:") + 7;
    const std::string so_far = FakeRespondent::text_of(tokens.subspan(start, at + 1 - start));
    return {text.starts_with(so_far) ? -0.1 : -3.0, true};
  }
};

TEST(PublicTasks, TheLikeliestChoiceIsTheAnswer) {
  const text::TestFolder folder;
  folder.write("arc_easy_test.jsonl.gz",
               R"({"id":"a","question":"Q?","choices":["no","a long right answer","yes"],"answer":1})"
               "\n");
  const auto task = make("arc-easy", folder.path());
  FakeRespondent model;
  model.on_score = Likes{" a long right answer"};
  auto outcome = task->ask(0, model);
  ASSERT_TRUE(outcome.has_value());
  // 20 bytes at -0.1 against 3 at -0.1 and -3: both readings choose it.
  EXPECT_EQ(outcome->scores, (std::map<std::string, double>{{"acc", 1.0}, {"acc_norm", 1.0}}));
  EXPECT_EQ(outcome->answer, "a long right answer");
  // At -1 a byte "no" is the likeliest (-3), and the long one by its length (-20 / 19 against -3 / 2).
  model.on_score = indifferent;
  outcome = task->ask(0, model);
  EXPECT_EQ(outcome->scores, (std::map<std::string, double>{{"acc", 0.0}, {"acc_norm", 1.0}}));
  EXPECT_EQ(outcome->expected, "a long right answer");
  EXPECT_EQ(outcome->answer, "no");
}

TEST(PublicTasks, GeneratedAnswersAreJudgedByBothReadings) {
  const auto gsm8k = make("gsm8k");  // The first answer is 18.
  const auto mmlu_pro = make("mmlu-pro");
  FakeRespondent model;
  std::string text;
  model.on_complete = [&](const CompletionQuestion&) -> base::Result<Answer> {
    return Answer{.text = text, .reasoning = {}, .calls = {}};
  };
  const auto scores = [&](const Task& task, const std::string& answer) {
    text = answer;
    const auto outcome = task.ask(0, model);
    EXPECT_TRUE(outcome.has_value());
    return std::pair(outcome->scores.at("exact"), outcome->scores.at("flexible"));
  };
  EXPECT_EQ(scores(*gsm8k, " 9 * 2 = 18\n#### 18"), std::pair(1.0, 1.0));
  EXPECT_EQ(scores(*gsm8k, " She makes $18."), std::pair(0.0, 1.0));
  EXPECT_EQ(scores(*gsm8k, "#### 18 and so on, 5 times"), std::pair(1.0, 0.0));
  EXPECT_EQ(scores(*gsm8k, ""), std::pair(0.0, 0.0));
  const std::string right(
      1, text::golden_string(read_data_lines(kData / "mmlu_pro_sample.jsonl.gz")->lines[0], "category") == "business"
             ? 'A' + static_cast<char>(*read_data_lines(kData / "mmlu_pro_sample.jsonl.gz")->integer(0, "answer"))
             : '?');
  EXPECT_EQ(scores(*mmlu_pro, "so the answer is (" + right + ")."), std::pair(1.0, 1.0));
  EXPECT_EQ(scores(*mmlu_pro, "Answer: " + right), std::pair(0.0, 1.0));
  EXPECT_EQ(scores(*mmlu_pro, "the answer is (J)."), std::pair(0.0, 0.0));
}

TEST(PublicTasks, WhatDoesNotFitIsSkippedAndAFailureIsNot) {
  for (const std::string name : {"mmlu", "gsm8k"}) {
    const auto task = make(name);
    FakeRespondent model;
    model.information.context_tokens = 50;
    auto outcome = task->ask(0, model);
    ASSERT_TRUE(outcome.has_value());
    EXPECT_NE(outcome->skipped, "");
    EXPECT_TRUE(outcome->scores.empty());
  }
  const auto task = make("gsm8k");
  FakeRespondent model;
  model.on_complete = [](const CompletionQuestion&) -> base::Result<Answer> {
    return base::failure(base::unavailable("the server is gone"));
  };
  const auto outcome = task->ask(7, model);
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().to_string(), "unavailable: question 7: the server is gone");
}

// A part of MMLU says which question of the subject each is; in the whole, which says nothing, they are counted.
TEST(PublicTasks, AQuestionHasTheSameIdInAPartAndInTheWhole) {
  const text::TestFolder folder;
  std::filesystem::copy(kData / "mmlu_dev.jsonl.gz", folder / "mmlu_dev.jsonl.gz");
  const std::string rest = R"(","question":"?","choices":["1","2","3","4"],"answer":2})";
  std::string lines;
  for (const std::string subject : {"anatomy", "anatomy", "virology", "anatomy"}) {
    lines.append(R"({"subject":")").append(subject).append(rest).append("\n");
  }
  folder.write("mmlu_test.jsonl.gz", lines);
  const auto task = make("mmlu", folder.path());
  EXPECT_EQ(task->question_id(0), "anatomy/0");
  EXPECT_EQ(task->question_id(2), "virology/0");
  EXPECT_EQ(task->question_id(3), "anatomy/2");
  EXPECT_EQ(make("mmlu")->question_id(21), "anatomy/6");
}

TEST(PublicTasks, BadDataAreRefusedByFileAndLine) {
  const text::TestFolder folder;
  EXPECT_NE(error_of("arc-easy", folder.path()).find("arc_easy_test.jsonl.gz: there is no such file"),
            std::string::npos);
  const std::string good = R"({"id":"a","question":"Q?","choices":["1","2"],"answer":1})";
  const std::map<std::string, std::string> wrong = {
      {good + "\n" + good + "\n", "line 2: question 'a' was on line 1 already"},
      {good + "\n{\"id\":\"b\"}\n", "line 2: expected 'question' to be a string"},
      {R"({"id":"b","question":"Q?","choices":["1",2],"answer":1})",
       "line 1: expected 'choices' to be a list of strings"},
      {R"({"id":"b","question":"Q?","choices":"12","answer":1})", "line 1: expected 'choices' to be a list of strings"},
      {R"({"id":"b","question":"Q?","choices":["1"],"answer":0})", "line 1: expected two or more 'choices'"},
      {R"({"id":"b","question":"Q?","choices":["1",""],"answer":0})", "line 1: expected two or more 'choices'"},
      {R"({"id":"b","question":"Q?","choices":["1","2"],"answer":2})", "line 1: 'answer' is 2, of 2 choices"},
      {R"({"id":"b","question":"Q?","choices":["1","2"],"answer":-1})", "line 1: 'answer' is -1"},
      {R"({"id":"b","question":"Q?","choices":["1","2"],"answer":"B"})", "line 1: expected 'answer' to be an integer"},
      {good + "\n[1]\n", "line 2: expected an object"},
      {good + "\n\n", "line 2: "},
      {"", "holds no line"},
  };
  for (const auto& [text, message] : wrong) {
    folder.write("arc_easy_test.jsonl.gz", text);
    const std::string error = error_of("arc-easy", folder.path());
    EXPECT_TRUE(error.starts_with("data_loss: ")) << error;
    EXPECT_NE(error.find("arc_easy_test.jsonl.gz"), std::string::npos) << error;
    EXPECT_NE(error.find(message), std::string::npos) << error << " for " << text;
  }
  // Examples that lack, or a field without any.
  folder.write("mmlu_dev.jsonl.gz", R"({"subject":"x","question":"?","choices":["1","2","3","4"],"answer":2})");
  EXPECT_NE(error_of("mmlu", folder.path()).find("expected 5 examples of subject 'x', got 1"), std::string::npos);
  std::filesystem::copy(kData / "mmlu_pro_dev.jsonl.gz", folder / "mmlu_pro_dev.jsonl.gz");
  folder.write("mmlu_pro_sample.jsonl.gz",
               R"({"question_id":1,"category":"poetry","question":"?","choices":["1","2"],"answer":1})");
  EXPECT_NE(error_of("mmlu-pro", folder.path()).find("line 1: category 'poetry' has no examples"), std::string::npos);
  std::filesystem::copy(kData / "gsm8k_fewshot.jsonl.gz", folder / "gsm8k_fewshot.jsonl.gz");
  folder.write("gsm8k_test.jsonl.gz", R"({"question":"?","solution":"x","answer":"many"})");
  EXPECT_NE(error_of("gsm8k", folder.path()).find("line 1: expected 'answer' to be a number, got 'many'"),
            std::string::npos);
}

TEST(PublicTasks, APackedFileThatIsCutOffIsRefused) {
  const text::TestFolder folder;
  std::filesystem::copy(kData / "arc_easy_test.jsonl.gz", folder / "arc_easy_test.jsonl.gz");
  std::filesystem::resize_file(folder / "arc_easy_test.jsonl.gz", 150'000);
  const std::string error = error_of("arc-easy", folder.path());
  EXPECT_TRUE(error.starts_with("data_loss: ")) << error;
  EXPECT_NE(error.find("arc_easy_test.jsonl.gz"), std::string::npos) << error;
}

TEST(PublicTasks, EachSaysWhatItAsks) {
  std::set<std::string> names;
  for (const TaskEntry& entry : task_list()) {
    names.insert(entry.info.name);
    EXPECT_GE(entry.info.about.size(), 30U) << entry.info.name;
    EXPECT_FALSE(entry.info.metrics.empty()) << entry.info.name;
  }
  for (const std::string name : {"mmlu", "mmlu-pro", "arc-easy", "arc-challenge", "gsm8k", "needle", "wikitext-2"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  const auto none = find_task("gsm9k");
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message().find("mmlu-pro"), std::string::npos);
}

}  // namespace
}  // namespace tessera::quality
