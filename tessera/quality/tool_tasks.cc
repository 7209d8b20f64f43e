// The Berkeley Function Calling Leaderboard's single-turn questions in Python, asked through the API's own tool calls.
#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <utility>

#include "tessera/quality/bfcl_judge.h"
#include "tessera/quality/call_tokens.h"
#include "tessera/quality/data_file.h"
#include "tessera/quality/pocket_data.h"
#include "tessera/quality/task.h"
#include "tessera/quality/tool_judge.h"
#include "tessera/text/python_value.h"

namespace tessera::quality {

namespace {

namespace json = boost::json;

struct BfclQuestion {
  std::string id;
  std::string cell;
  BfclCategory category = BfclCategory::kSimple;
  std::vector<ChatMessage> messages;
  text::PythonValue functions;
  text::PythonValue answers;
  std::string tools;  // The functions as the API takes them.
  std::vector<DeclaredTool> declared;
};

constexpr std::int64_t kMaxTokens = 1024;

TaskInfo bfcl_info() {
  TaskInfo info;
  info.name = "bfcl";
  info.about = "BFCL v4, single turns in Python: one, several or no tool calls; the leaderboard's AST rules";
  info.metrics = {
      {.name = "right", .numerator = {}, .denominator = {}},
      {.name = "parsed", .kind = MetricKind::kRate, .numerator = "parsed_calls", .denominator = "calls"},
      {.name = "schema", .kind = MetricKind::kRate, .numerator = "valid_calls", .denominator = "calls"},
  };
  info.limit_by_cell = true;
  return info;
}

class Bfcl : public Task {
 public:
  Bfcl(std::vector<BfclQuestion> questions, std::string digest)
      : info_(bfcl_info()), questions_(std::move(questions)), digest_(std::move(digest)) {}

  const TaskInfo& info() const override { return info_; }
  std::size_t size() const override { return questions_.size(); }
  std::string question_id(std::size_t index) const override { return questions_[index].id; }
  std::string cell(std::size_t index) const override { return questions_[index].cell; }
  std::string data_digest() const override { return digest_; }

  base::Result<Outcome> ask(std::size_t index, Respondent& respondent) const override {
    const BfclQuestion& question = questions_[index];
    Outcome outcome{
        .question = question.id, .cell = question.cell, .scores = {}, .expected = {}, .answer = {}, .skipped = {}};
    for (const MadeCall& call : bfcl_right_calls(question.functions, question.answers)) {
      outcome.expected += fmt::format("{}{}", outcome.expected.empty() ? "" : "\n", shown(call));
    }
    outcome.expected = shown(outcome.expected);
    const base::Result<Answer> answer = respondent.chat(put(question));
    if (!answer.has_value()) {
      if (answer.error().code() != base::StatusCode::kOutOfRange) return base::failure(answer.error());
      outcome.skipped = answer.error().message();
      return outcome;
    }
    outcome.answer = shown(*answer);
    std::vector<MadeCall> calls;
    calls.reserve(answer->calls.size());
    double valid = 0.0;
    for (const ToolCall& made : answer->calls) {
      std::optional<MadeCall> call = read_call(made);
      if (!call.has_value()) continue;
      valid += satisfies(question.declared, *call) ? 1.0 : 0.0;
      calls.push_back(*std::move(call));
    }
    const bool all_parsed = calls.size() == answer->calls.size();
    outcome.scores = {{"right", is_right(question, calls, all_parsed) ? 1.0 : 0.0},
                      {"calls", static_cast<double>(answer->calls.size())},
                      {"parsed_calls", static_cast<double>(calls.size())},
                      {"valid_calls", valid}};
    return outcome;
  }

  base::Result<std::optional<Passage>> passage(std::size_t index, Respondent& respondent) const override {
    const BfclQuestion& question = questions_[index];
    const std::vector<MadeCall> right = bfcl_right_calls(question.functions, question.answers);
    if (right.empty()) return std::nullopt;
    std::vector<ToolCall> calls;
    calls.reserve(right.size());
    for (const MadeCall& call : right) calls.push_back(written_call(call, calls.size()));
    const ChatQuestion asked = put(question);
    TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, respondent.encode_chat(asked));
    TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, call_tokens(asked, prompt, calls, respondent));
    if (tokens.empty()) return std::nullopt;
    return Passage{question.id, question.cell, std::move(prompt), std::move(tokens)};
  }

 private:
  static ChatQuestion put(const BfclQuestion& question) {
    return {.messages = question.messages, .tools = question.tools, .max_tokens = kMaxTokens};
  }

  // An answer of which one call cannot be read counts as one without calls, as the leaderboard counts it: wrong where
  // calls are expected, and right where none are.
  static bool is_right(const BfclQuestion& question, std::span<const MadeCall> calls, bool all_parsed) {
    if (!all_parsed) return question.category == BfclCategory::kIrrelevance;
    return bfcl_calls_are_right(question.category, question.functions, question.answers, calls);
  }

  TaskInfo info_;
  std::vector<BfclQuestion> questions_;
  std::string digest_;
};

base::Result<text::PythonValue> python_list(const DataLines& data, std::size_t index, std::string_view name) {
  const json::value* const field = data.lines[index].if_contains(name);
  if (field == nullptr || !field->is_array()) {
    return base::failure(data.wrong(index, fmt::format("\"{}\": expected an array", name)));
  }
  text::ValueBudget budget;
  base::Result<text::PythonValue> list = text::parse_python_json(json::serialize(*field), budget);
  if (!list.has_value())
    return base::failure(data.wrong(index, fmt::format("\"{}\": {}", name, list.error().message())));
  return list;
}

base::Result<std::string> string_of(const DataLines& data, std::size_t index, const json::object& fields,
                                    std::string_view name) {
  const json::value* const field = fields.if_contains(name);
  if (field == nullptr || !field->is_string()) {
    return base::failure(data.wrong(index, fmt::format("\"{}\": expected a string", name)));
  }
  return std::string(field->get_string());
}

base::Result<BfclQuestion> read_question(const DataLines& data, std::size_t index) {
  const json::object& line = data.lines[index];
  BfclQuestion question;
  TESSERA_ASSIGN_OR_RETURN(question.id, string_of(data, index, line, "id"));
  TESSERA_ASSIGN_OR_RETURN(question.cell, string_of(data, index, line, "category"));
  const std::optional<BfclCategory> category = bfcl_category(question.cell);
  if (!category.has_value()) {
    return base::failure(data.wrong(index, fmt::format("\"category\": '{}' is not known", question.cell)));
  }
  question.category = *category;
  const json::value* const messages = line.if_contains("messages");
  if (messages == nullptr || !messages->is_array() || messages->get_array().empty()) {
    return base::failure(data.wrong(index, "\"messages\": expected at least one"));
  }
  for (const json::value& message : messages->get_array()) {
    if (!message.is_object()) return base::failure(data.wrong(index, "\"messages\": expected objects"));
    ChatMessage read;
    TESSERA_ASSIGN_OR_RETURN(read.role, string_of(data, index, message.get_object(), "role"));
    TESSERA_ASSIGN_OR_RETURN(read.content, string_of(data, index, message.get_object(), "content"));
    question.messages.push_back(std::move(read));
  }
  TESSERA_ASSIGN_OR_RETURN(question.functions, python_list(data, index, "functions"));
  TESSERA_ASSIGN_OR_RETURN(question.answers, python_list(data, index, "answer"));
  text::append_python_json(bfcl_tools(question.functions), text::JsonSpacing::kSpaces, question.tools);
  base::Result<std::vector<DeclaredTool>> declared = read_tools(question.tools);
  if (!declared.has_value()) return base::failure(data.wrong(index, declared.error().message()));
  question.declared = *std::move(declared);
  const bool is_irrelevance = question.category == BfclCategory::kIrrelevance;
  if (is_irrelevance != bfcl_right_calls(question.functions, question.answers).empty()) {
    return base::failure(data.wrong(index, "\"answer\": expected calls of the functions, and none for irrelevance"));
  }
  return question;
}

base::Result<std::unique_ptr<Task>> make_bfcl(const DataFolders& folders) {
  const std::filesystem::path path = folders.data / "bfcl_single_turn.jsonl.gz";
  TESSERA_ASSIGN_OR_RETURN(const std::string text, read_data_text(path));
  TESSERA_ASSIGN_OR_RETURN(const DataLines data, read_data_lines(path));
  std::vector<BfclQuestion> questions;
  questions.reserve(data.lines.size());
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(BfclQuestion question, read_question(data, i));
    questions.push_back(std::move(question));
  }
  return std::make_unique<Bfcl>(std::move(questions), data_digest(text));
}

}  // namespace

std::vector<TaskEntry> tool_tasks() { return {{bfcl_info(), make_bfcl}}; }

}  // namespace tessera::quality
