// The judge is the leaderboard's own checker (tools/oracles/make_bfcl_goldens.py): what it says of right and changed
// calls of every question.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tessera/quality/bfcl_judge.h"
#include "tessera/quality/data_file.h"
#include "tessera/quality/scripted_respondent.h"
#include "tessera/quality/task.h"

namespace tessera::quality {
namespace {

using ::testing::HasSubstr;
namespace json = boost::json;

std::string text_of(const json::value& value) { return std::string(value.as_string()); }

std::unique_ptr<Task> load() { return find_task("bfcl").value().make(ScriptedRespondent::folders()).value(); }

text::PythonValue python(std::string_view text) {
  text::ValueBudget budget;
  return text::parse_python_json(text, budget).value();
}

TEST(Bfcl, AgreesWithTheLeaderboardsChecker) {
  const std::unique_ptr<Task> task = load();
  ASSERT_EQ(task->size(), 1240U);
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < task->size(); ++i) index.emplace(task->question_id(i), i);
  const DataLines lines =
      read_data_lines(std::filesystem::path(TESSERA_SOURCE_DIR) / "tests" / "goldens" / "quality" / "bfcl.jsonl.gz")
          .value();
  std::map<std::string, std::map<bool, int>> verdicts;
  ScriptedRespondent respondent;
  for (const json::object& line : lines.lines) {
    Answer answer;
    for (const json::value& call : line.at("calls").as_array()) {
      answer.calls.push_back({.id = {}, .name = text_of(call.at(0)), .arguments = json::serialize(call.at(1))});
    }
    respondent.on_chat = [&answer](const ChatQuestion&) { return answer; };
    const std::size_t question = index.at(text_of(line.at("id")));
    const bool right = task->ask(question, respondent).value().scores.at("right") == 1.0;
    EXPECT_EQ(right, line.at("right").as_bool()) << json::serialize(line);
    ++verdicts[task->cell(question)][right];
  }
  for (const std::string cell : {"simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"}) {
    EXPECT_GT(verdicts[cell][false], 10) << cell;
    EXPECT_GT(verdicts[cell][true], 10) << cell;
  }
}

TEST(Bfcl, OwnRightCallsAreRightAndSatisfyTheirSchemas) {
  const std::unique_ptr<Task> task = load();
  const DataLines data = read_data_lines(ScriptedRespondent::folders().data / "bfcl_single_turn.jsonl.gz").value();
  ScriptedRespondent respondent;
  std::size_t wrong_schemas = 0;
  for (std::size_t i = 0; i < task->size(); ++i) {
    Answer answer;
    const json::object& line = data.lines[i];
    const std::vector<MadeCall> right =
        bfcl_right_calls(python(json::serialize(line.at("functions"))), python(json::serialize(line.at("answer"))));
    for (const MadeCall& call : right) {
      ToolCall written{.id = {}, .name = call.name, .arguments = {}};
      text::append_python_json(call.arguments, text::JsonSpacing::kCompact, written.arguments);
      answer.calls.push_back(std::move(written));
    }
    respondent.on_chat = [&answer](const ChatQuestion&) { return answer; };
    const Outcome outcome = task->ask(i, respondent).value();
    EXPECT_EQ(outcome.scores.at("right"), 1.0) << outcome.question << " " << outcome.answer;
    EXPECT_EQ(outcome.scores.at("parsed_calls"), outcome.scores.at("calls"));
    if (outcome.scores.at("valid_calls") != outcome.scores.at("calls")) ++wrong_schemas;
  }
  // Upstream's own: in parallel_multiple_21 names of variables where arrays are declared, in parallel_multiple_94 a
  // list of other items than declared.
  EXPECT_EQ(wrong_schemas, 2U);
}

TEST(Bfcl, ToolsAreDeclaredInJsonSchema) {
  const text::PythonValue functions = python(
      R"([{"name":"a.b","description":"d","parameters":{"type":"dict","properties":{"type":{"type":"float"},)"
      R"("x":{"type":"any","description":"y"},"t":{"type":"tuple","items":{"type":"dict","properties":)"
      R"({"items":{"type":"float"}}}},"s":{"type":"string","enum":["dict"],"default":"float"}},"required":["type"]}}])");
  std::string tools;
  text::append_python_json(bfcl_tools(functions), text::JsonSpacing::kCompact, tools);
  EXPECT_EQ(
      tools,
      R"([{"type":"function","function":{"name":"a.b","description":"d","parameters":{"type":"object","properties":)"
      R"({"type":{"type":"number"},"x":{"description":"y"},"t":{"type":"array","items":{"type":"object","properties":)"
      R"({"items":{"type":"number"}}}},"s":{"type":"string","enum":["dict"],"default":"float"}},"required":["type"]}}}])");
  const std::unique_ptr<Task> task = load();
  ScriptedRespondent respondent;
  const std::set<std::string> known = {"object", "number", "array", "string", "integer", "boolean"};
  const std::function<void(const json::object&)> check = [&](const json::object& schema) {
    if (schema.contains("type")) {
      EXPECT_TRUE(known.contains(text_of(schema.at("type")))) << schema;
    }
    if (schema.contains("items")) check(schema.at("items").as_object());
    if (!schema.contains("properties")) return;
    for (const auto& property : schema.at("properties").as_object()) check(property.value().as_object());
  };
  respondent.on_chat = [&](const ChatQuestion& question) {
    const json::value tools_of = json::parse(question.tools);
    for (const json::value& tool : tools_of.as_array()) {
      EXPECT_EQ(text_of(tool.at("type")), "function");
      check(tool.at("function").at("parameters").as_object());
    }
    return Answer{};
  };
  for (std::size_t i = 0; i < task->size(); ++i) EXPECT_TRUE(task->ask(i, respondent).has_value());
}

TEST(Bfcl, AnIntegerThatNoFloatHoldsIsWrong) {
  const text::PythonValue functions =
      python(R"([{"name":"f","parameters":{"type":"dict","properties":{"x":{"type":"float"}},"required":["x"]}}])");
  const text::PythonValue answers = python(R"([{"f":{"x":[0.0]}}])");
  const auto right = [&](const std::string& x) {
    const std::vector<MadeCall> calls{{"f", python(R"({"x":)" + x + "}")}};
    return bfcl_calls_are_right(BfclCategory::kSimple, functions, answers, calls);
  };
  EXPECT_TRUE(right("0"));
  EXPECT_FALSE(right("1"));
  // Python: OverflowError, int too large to convert to float.
  EXPECT_FALSE(right("1" + std::string(309, '0')));
  EXPECT_FALSE(right("-1" + std::string(309, '0')));
}

TEST(Bfcl, CountsCallsThatParseAndThatSatisfyTheirSchema) {
  const std::unique_ptr<Task> task = load();  // Its first question: the area of a triangle, base 10 and height 5.
  ScriptedRespondent respondent;
  std::vector<std::string> arguments;
  respondent.on_chat = [&arguments](const ChatQuestion& question) {
    EXPECT_EQ(question.messages.size(), 1U);
    Answer answer;
    for (const std::string& text : arguments)
      answer.calls.push_back({.id = {}, .name = "calculate_triangle_area", .arguments = text});
    return answer;
  };
  const auto scores = [&](std::vector<std::string> made) {
    arguments = std::move(made);
    const Outcome outcome = task->ask(0, respondent).value();
    const auto& of = outcome.scores;
    return std::vector<double>{of.at("right"), of.at("calls"), of.at("parsed_calls"), of.at("valid_calls")};
  };
  EXPECT_EQ(scores({R"({"base":10,"height":5})"}), (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(scores({R"({"base":10,"height":5.0})"}), (std::vector<double>{0, 1, 1, 0}));
  EXPECT_EQ(scores({R"({"base":10,"height":5)"}), (std::vector<double>{0, 1, 0, 0}));
  EXPECT_EQ(scores({R"({"base":10,"height":5})", "[]"}), (std::vector<double>{0, 2, 1, 1}));
  EXPECT_EQ(scores({}), (std::vector<double>{0, 0, 0, 0}));
}

TEST(Bfcl, PassagesAreTheRightCallsInTheModelsOwnFormat) {
  const std::unique_ptr<Task> task = load();
  ScriptedRespondent respondent;
  const Passage passage = task->passage(0, respondent).value().value();
  // Kimi's marks, by their ids in the bundled model's vocabulary, around the call that the data accept.
  std::vector<TokenId> expected = {1003, 1005};
  const auto add = [&](std::string_view text) {
    const std::vector<TokenId> tokens = respondent.encode(text).value();
    expected.insert(expected.end(), tokens.begin(), tokens.end());
  };
  add("functions.calculate_triangle_area:0");
  expected.push_back(1006);
  add(R"({"base": 10, "height": 5})");
  expected.insert(expected.end(), {1007, 1004});
  EXPECT_EQ(passage.continuation, expected);
  std::size_t none = 0;
  for (std::size_t i = 0; i < task->size(); ++i) {
    if (!task->passage(i, respondent).value().has_value()) ++none;
  }
  EXPECT_EQ(none, 240U);  // Of irrelevance: nothing is to be called.
}

TEST(Bfcl, ErrorsOfTheDataNameTheLine) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "bfcl_error";
  std::filesystem::create_directories(folder);
  const auto error = [&folder](std::string_view line) {
    std::ofstream(folder / "bfcl_single_turn.jsonl.gz") << line << "\n";
    return find_task("bfcl").value().make({.data = folder, .pocket_tasks = folder}).error().message();
  };
  const std::string head = R"({"id":"a","category":"multiple","messages":[{"role":"user","content":"x"}],)";
  EXPECT_THAT(error(R"({"id":"a","category":"luck"})"), HasSubstr("line 1: \"category\": 'luck' is not known"));
  EXPECT_THAT(error(head + R"("functions":{}})"), HasSubstr("\"functions\": expected an array"));
  EXPECT_THAT(error(head + R"("functions":[{}],"answer":[]})"), HasSubstr("tools[0].function.name"));
  EXPECT_THAT(error(head + R"("functions":[{"name":"f","parameters":{}}],"answer":[{"g":{}}]})"),
              HasSubstr("expected calls of the functions"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera::quality
