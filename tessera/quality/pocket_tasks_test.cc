// The judge of the rules is tools/train_pocket/score.py, of the prompts its chat.py and tokenizer.py, of how a question
// is put evaluate.py, all through goldens of tools/oracles; the counts are those of heldout.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/quality/data_file.h"
#include "tessera/quality/pocket_data.h"
#include "tessera/quality/pocket_judge.h"
#include "tessera/quality/scripted_respondent.h"
#include "tessera/quality/task.h"

namespace tessera::quality {
namespace {

using ::testing::HasSubstr;
namespace json = boost::json;

std::filesystem::path golden(std::string_view name) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests" / "goldens" / "quality" / name;
}

std::string text_of(const json::value& value) { return std::string(value.as_string()); }

std::unique_ptr<Task> load(std::string_view name) {
  return find_task(name).value().make(ScriptedRespondent::folders()).value();
}

std::size_t index_of(const Task& task, std::string_view id) {
  for (std::size_t i = 0; i < task.size(); ++i) {
    if (task.question_id(i) == id) return i;
  }
  ADD_FAILURE() << "there is no question " << id;
  return 0;
}

Answer api_answer(const json::object& line) {
  Answer answer{.text = text_of(line.at("text")), .reasoning = {}, .calls = {}};
  for (const json::value& call : line.at("calls").as_array()) {
    answer.calls.push_back({.id = {}, .name = text_of(call.at(0)), .arguments = text_of(call.at(1))});
  }
  return answer;
}

std::vector<MadeCall> made_calls(const json::array& calls) {
  std::vector<MadeCall> made;
  for (const json::value& call : calls) {
    made.push_back(*read_call({.id = {}, .name = text_of(call.at(0)), .arguments = json::serialize(call.at(1))}));
  }
  return made;
}

TEST(PocketJudge, AgreesWithScorePy) {
  const DataLines lines = read_data_lines(golden("pocket_judge.jsonl.gz")).value();
  std::map<std::string, std::array<int, 2>> verdicts;
  int valid = 0;
  for (const json::object& line : lines.lines) {
    const std::string scoring = text_of(line.at("scoring"));
    const Answer answer = api_answer(line);
    const json::value& expected = line.at("answer");
    const bool right = scoring == "number"  ? says_number(answer.text, std::to_string(expected.as_int64()))
                       : scoring == "trace" ? says_printed(answer.text, text_of(expected))
                       : scoring == "text"  ? says_text(answer, text_of(expected))
                                            : makes_calls(answer, made_calls(expected.as_array()));
    EXPECT_EQ(right, line.at("right").as_bool()) << json::serialize(line);
    ++verdicts[scoring][right ? 1 : 0];
    if (!line.contains("tools")) continue;
    const std::vector<DeclaredTool> tools = read_tools(json::serialize(line.at("tools"))).value();
    EXPECT_EQ(calls_are_valid(answer, tools), line.at("valid").as_bool()) << json::serialize(line);
    valid += calls_are_valid(answer, tools) ? 1 : 0;
  }
  for (const std::string scoring : {"number", "trace", "text", "calls"}) {
    EXPECT_GT(verdicts[scoring][0], 20) << scoring;
    EXPECT_GT(verdicts[scoring][1], 20) << scoring;
  }
  EXPECT_GT(valid, 100);
}

TEST(PocketJudge, AnAnswerThatWasCutOffHasNoWholeCalls) {
  Answer answer{.text = {}, .reasoning = {}, .calls = {{.id = {}, .name = "f", .arguments = "{}"}}};
  const std::vector<MadeCall> expected = {*read_call(answer.calls[0])};
  EXPECT_TRUE(makes_calls(answer, expected));
  answer.cut_off = true;
  EXPECT_FALSE(makes_calls(answer, expected));
}

// heldout.py writes 200 questions a cell, 40 for retrieval, half as many of the levels beyond training.
TEST(PocketTasks, ReadAllQuestionsOfTheRelease) {
  const std::map<std::string, std::pair<std::size_t, std::size_t>> counts = {
      {"pocket-arithmetic", {3600, 20}}, {"pocket-choice", {3200, 18}},   {"pocket-retrieval", {2200, 60}},
      {"pocket-tools", {2600, 14}},      {"pocket-episodes", {3200, 18}}, {"pocket-trace", {2600, 14}},
  };
  for (const auto& [name, count] : counts) {
    const std::unique_ptr<Task> task = load(name);
    std::set<std::string> ids;
    std::set<std::string> cells;
    for (std::size_t i = 0; i < task->size(); ++i) {
      ids.insert(task->question_id(i));
      cells.insert(task->cell(i));
    }
    EXPECT_EQ(task->size(), count.first) << name;
    EXPECT_EQ(ids.size(), task->size()) << name;
    EXPECT_EQ(cells.size(), count.second) << name;
    EXPECT_EQ(task->data_digest().size(), 16U) << name;
  }
  EXPECT_EQ(load("pocket-retrieval")->cell(0), "1/new_draws/256");
  EXPECT_NEAR(load("pocket-choice")->info().chance.value(), (400 * 0.5 + 2800 * 0.25) / 3200, 1e-12);
}

TEST(PocketTasks, PromptsAndAnswersAreTheTokensThatTrainingMakes) {
  std::map<std::string, json::object> expected;
  DataLines lines = read_data_lines(golden("pocket_prompts.jsonl.gz")).value();
  for (json::object& line : lines.lines) {
    expected.emplace(text_of(line.at("id")), std::move(line));
  }
  ScriptedRespondent respondent;
  ChatQuestion asked;
  respondent.on_chat = [&asked](const ChatQuestion& question) {
    asked = question;
    return Answer{};
  };
  std::size_t passages = 0;
  for (const std::string name : {"pocket-choice", "pocket-retrieval", "pocket-tools", "pocket-episodes"}) {
    const std::unique_ptr<Task> task = load(name);
    for (std::size_t i = 0; i < task->size(); ++i) {
      const auto line = expected.find(task->question_id(i));
      if (line == expected.end()) continue;
      const std::optional<Passage> passage = task->passage(i, respondent).value();
      ASSERT_TRUE(passage.has_value()) << line->first;
      EXPECT_EQ(passage->prompt, json::value_to<std::vector<TokenId>>(line->second.at("prompt"))) << line->first;
      EXPECT_EQ(passage->continuation, json::value_to<std::vector<TokenId>>(line->second.at("answer"))) << line->first;
      EXPECT_EQ(passage->cell, task->cell(i));
      ++passages;
    }
  }
  EXPECT_GT(passages, 240U);
  // Of those whose right answer the data do not have, the prompt.
  for (const std::string name : {"pocket-arithmetic", "pocket-trace"}) {
    const std::unique_ptr<Task> task = load(name);
    for (std::size_t i = 0; i < task->size(); ++i) {
      const auto line = expected.find(task->question_id(i));
      if (line == expected.end()) continue;
      EXPECT_EQ(task->ask(i, respondent).value().scores.at("right"), 0.0);
      EXPECT_EQ(respondent.encode_chat(asked).value(), json::value_to<std::vector<TokenId>>(line->second.at("prompt")))
          << line->first;
    }
  }
}

TEST(PocketTasks, WhereManyTextsAreRightTheModelsOwnIsThePassage) {
  ScriptedRespondent respondent;
  const std::unique_ptr<Task> task = load("pocket-arithmetic");  // Its first question's answer is 9.
  std::vector<ChatQuestion> asked;
  std::string says = "16 - 7 = 9. The answer is 9.";
  respondent.on_chat = [&](const ChatQuestion& question) {
    asked.push_back(question);
    return Answer{.text = says, .reasoning = {}, .calls = {}};
  };
  const std::optional<Passage> passage = task->passage(0, respondent).value();
  ASSERT_TRUE(passage.has_value());
  EXPECT_EQ(passage->prompt, respondent.encode_chat(asked[0]).value());
  EXPECT_EQ(passage->continuation, respondent.encode(says).value());
  EXPECT_EQ(asked[0].max_tokens, 420);
  says = "The answer is 8.";
  EXPECT_FALSE(task->passage(0, respondent).value().has_value());
}

TEST(PocketTasks, ChoiceTakesTheOptionOfTheLargestSum) {
  ScriptedRespondent respondent;
  const std::unique_ptr<Task> task = load("pocket-choice");
  // The first question: "farmer" or "guard", and "guard" is right.
  const std::vector<TokenId> guard = respondent.encode("guard").value();
  double guard_logprob = -1.0;
  respondent.on_score = [&](std::span<const TokenId> tokens, std::size_t first) {
    const std::span<const TokenId> ended = tokens.subspan(first);
    const bool is_guard = std::ranges::equal(ended, guard);
    const double each = (is_guard ? guard_logprob : -2.0) / static_cast<double>(ended.size());
    return std::vector<TokenScore>(ended.size(), TokenScore{each, false});
  };
  EXPECT_EQ(task->ask(0, respondent).value().scores.at("right"), 1.0);
  guard_logprob = -3.0;
  const Outcome wrong = task->ask(0, respondent).value();
  EXPECT_EQ(wrong.scores.at("right"), 0.0);
  EXPECT_EQ(wrong.answer, "farmer");
  EXPECT_EQ(wrong.expected, "guard");
}

// Answers an episode rightly up to turn `wrong_at`, where it says `wrong`.
Outcome episode(const Task& task, std::size_t index, ScriptedRespondent& respondent, const PocketQuestion& question,
                std::size_t wrong_at, const Answer& wrong, std::size_t& turns) {
  turns = 0;
  respondent.on_chat = [&](const ChatQuestion& asked) {
    EXPECT_EQ(asked.max_tokens, 90);
    const ChatMessage& right = question.messages[asked.messages.size()];
    EXPECT_EQ(right.role, "assistant");
    return turns++ == wrong_at ? wrong : Answer{.text = right.content, .reasoning = {}, .calls = right.calls};
  };
  return task.ask(index, respondent).value();
}

TEST(PocketTasks, EpisodeGoesOnWhileEveryTurnIsRight) {
  ScriptedRespondent respondent;
  const std::unique_ptr<Task> task = load("pocket-episodes");
  const PocketData data = read_pocket_data(ScriptedRespondent::folders().pocket_tasks, "episodes").value();
  const std::size_t index = index_of(*task, "episodes/3/unseen/0");
  const PocketQuestion& question = data.questions[index];
  std::size_t turns = 0;
  const Outcome right = episode(*task, index, respondent, question, 99, {}, turns);
  EXPECT_EQ(right.scores, (std::map<std::string, double>{{"right", 1}, {"calls", 3}, {"valid_calls", 3}}));
  EXPECT_EQ(turns, 4U);

  Answer undeclared{.text = {}, .reasoning = {}, .calls = {{.id = {}, .name = "no_such_tool", .arguments = "{}"}}};
  const Outcome wrong = episode(*task, index, respondent, question, 1, undeclared, turns);
  EXPECT_EQ(wrong.scores, (std::map<std::string, double>{{"right", 0}, {"calls", 2}, {"valid_calls", 1}}));
  EXPECT_EQ(turns, 2U);
  EXPECT_THAT(wrong.answer, HasSubstr("no_such_tool({})"));

  const Answer text{.text = "Done.", .reasoning = {}, .calls = {}};
  EXPECT_EQ(episode(*task, index, respondent, question, 3, text, turns).scores,
            (std::map<std::string, double>{{"right", 0}, {"calls", 3}, {"valid_calls", 3}}));
}

TEST(PocketTasks, WhatDoesNotFitIsSkippedAndOtherFailuresEndIt) {
  ScriptedRespondent respondent;
  const std::unique_ptr<Task> task = load("pocket-tools");
  respondent.on_chat = [](const ChatQuestion&) { return base::failure(base::out_of_range("9000 of 8192 tokens")); };
  const Outcome skipped = task->ask(0, respondent).value();
  EXPECT_EQ(skipped.skipped, "9000 of 8192 tokens");
  EXPECT_TRUE(skipped.scores.empty());
  respondent.on_chat = [](const ChatQuestion&) { return base::failure(base::unavailable("gone")); };
  EXPECT_EQ(task->ask(0, respondent).error().message(), "gone");
}

// The one line of a file pocket-<task>.jsonl.gz, which need not be packed.
std::string read_error(std::string_view task, std::string_view line) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "pocket_data_error";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / ("pocket-" + std::string(task) + ".jsonl.gz")) << line << "\n";
  std::ofstream(folder / "filler_unseen.txt.gz") << "One.\nTwo.\n";
  const base::Result<PocketData> data = read_pocket_data(folder, task);
  std::filesystem::remove_all(folder);
  return data.has_value() ? "" : data.error().message();
}

TEST(PocketData, ErrorsNameTheLineAndTheField) {
  const std::string head = R"({"id":"a/1/unseen/0","level":1,"split":"unseen",)";
  const std::string said = R"("messages":[{"role":"user","content":"x"}],)";
  EXPECT_THAT(read_error("tools", R"({"id":1})"), HasSubstr("line 1: \"id\": expected a string"));
  EXPECT_THAT(read_error("tools", head + R"("scoring":"luck"})"), HasSubstr("'luck' is not known"));
  EXPECT_THAT(read_error("tools", head + R"("scoring":"text","messages":[]})"), HasSubstr("expected at least one"));
  EXPECT_THAT(read_error("tools", head + said + R"("scoring":"number","answer":"9"})"),
              HasSubstr("\"answer\": expected an integer"));
  EXPECT_THAT(read_error("tools", head + said + R"("scoring":"calls","answer":[["f"]]})"), HasSubstr("expected pairs"));
  EXPECT_THAT(read_error("tools", head + said + R"("scoring":"calls","answer":[["f",[1]]]})"),
              HasSubstr("arguments of f: expected an object"));
  EXPECT_THAT(read_error("tools", head + said + R"("scoring":"text","answer":"x","tools":[{"function":{}}]})"),
              HasSubstr("tools[0].function.name"));
  EXPECT_THAT(read_error("episodes", head + said + R"("scoring":"episode"})"),
              HasSubstr("end in the assistant's turn"));
  const std::string found = head + R"("scoring":"text","answer":"x","length":9,"before":"b","after":"a",)"
                                   R"("filler":"filler_unseen.txt","filler_start":1,)";
  EXPECT_EQ(read_error("tools", found + R"("filler_count":3,"inserts":[[0,"i"],[3,"j"]]})"), "");
  EXPECT_THAT(read_error("tools", found + R"("filler_count":3,"inserts":[[4,"i"]]})"), HasSubstr("ascending places"));
  EXPECT_THAT(read_error("tools", found + R"("filler_count":-1,"inserts":[]})"), HasSubstr("\"filler_count\""));
  EXPECT_THAT(read_error("tools", found + R"("filler_count":999999999999,"inserts":[]})"), HasSubstr("at most"));
}

}  // namespace
}  // namespace tessera::quality
