// The bundled model's own tasks: held-out questions that tools/train_pocket/heldout.py made, put and judged as
// tools/train_pocket/evaluate.py puts and judges them, so that what a server answers compares with what the release was
// measured to do (docs/results/pocket/evaluation.json).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "tessera/quality/call_tokens.h"
#include "tessera/quality/code_judge.h"
#include "tessera/quality/pocket_data.h"
#include "tessera/quality/pocket_judge.h"
#include "tessera/quality/sandbox.h"
#include "tessera/quality/task.h"
#include "tessera/quality/tool_judge.h"

namespace tessera::quality {

namespace {

struct PocketTaskKind {
  std::string_view name;
  std::string_view file;    // pocket-<file>.jsonl.gz
  std::int64_t max_tokens;  // Of an answer; of an episode, of each turn. As evaluate.py has them.
  bool by_likelihood;
  bool makes_calls;
  bool runs_code;
  std::string_view about;
};

constexpr std::array kKinds = {
    PocketTaskKind{"pocket-arithmetic", "arithmetic", 420, false, false, false,
                   "word problems in steps or at once; the last \"The answer is N.\" is judged"},
    PocketTaskKind{
        "pocket-choice", "choice", 0, true, false, false,
        "facts about people; of the options the one of the largest likelihood is judged; says nothing of decoding"},
    PocketTaskKind{"pocket-retrieval", "retrieval", 24, false, false, false,
                   "needles in filler of 256 to 4096 tokens; exactly the value"},
    PocketTaskKind{"pocket-tools", "tools", 200, false, true, false,
                   "requests that need one or more tool calls, or none; exactly those calls, in any order"},
    PocketTaskKind{"pocket-episodes", "episodes", 90, false, true, false,
                   "tool calls over several turns and a last answer; every turn must be right"},
    PocketTaskKind{"pocket-trace", "tracing", 260, false, false, false,
                   "small Python programs; the last \"It prints X.\" is judged"},
    PocketTaskKind{"pocket-functions", "functions", 110, false, false, true,
                   "a Python function from words or from tests; all tests, in a sandbox"},
};

TaskInfo info_of(const PocketTaskKind& kind) {
  TaskInfo info;
  info.name = kind.name;
  info.about = kind.about;
  info.metrics = {{.name = "right", .numerator = {}, .denominator = {}}};
  if (kind.makes_calls) {
    info.metrics.push_back(
        {.name = "valid_calls", .kind = MetricKind::kRate, .numerator = "valid_calls", .denominator = "calls"});
  }
  info.by_likelihood = kind.by_likelihood;
  info.limit_by_cell = true;
  info.runs_code = kind.runs_code;
  return info;
}

// Guessing is right once in as many times as there are options.
std::optional<double> chance_of(std::span<const PocketQuestion> questions) {
  double sum = 0.0;
  for (const PocketQuestion& question : questions) {
    if (question.choices.empty()) return std::nullopt;
    sum += 1.0 / static_cast<double>(question.choices.size());
  }
  return questions.empty() ? std::nullopt : std::optional(sum / static_cast<double>(questions.size()));
}

// Notes of an answer's calls: whether it made any, and whether what it made is valid.
void note_calls(const Answer& answer, const PocketQuestion& question, bool calls_expected, Outcome& outcome) {
  if (!calls_expected && !tries_calls(answer)) return;
  outcome.scores["calls"] += 1.0;
  outcome.scores["valid_calls"] += calls_are_valid(answer, question.declared) ? 1.0 : 0.0;
}

class PocketTask : public Task {
 public:
  // The sandbox is there where the task runs code.
  PocketTask(const PocketTaskKind& kind, PocketData data, std::optional<Sandbox> sandbox)
      : kind_(kind), info_(info_of(kind)), data_(std::move(data)), sandbox_(sandbox) {
    info_.chance = chance_of(data_.questions);
  }

  const TaskInfo& info() const override { return info_; }
  std::size_t size() const override { return data_.questions.size(); }
  std::string question_id(std::size_t index) const override { return data_.questions[index].id; }
  std::string cell(std::size_t index) const override { return data_.questions[index].cell; }
  std::string data_digest() const override { return data_.digest; }

  base::Result<Outcome> ask(std::size_t index, Respondent& respondent) const override {
    const PocketQuestion& question = data_.questions[index];
    Outcome outcome{.question = question.id,
                    .cell = question.cell,
                    .scores = {{"right", 0.0}},
                    .expected = shown(expected_text(question)),
                    .answer = {},
                    .skipped = {}};
    if (kind_.makes_calls) outcome.scores.insert({{"calls", 0.0}, {"valid_calls", 0.0}});
    const base::Status asked = ask(question, respondent, outcome);
    if (asked.code() == base::StatusCode::kOutOfRange) {
      outcome.scores.clear();
      outcome.skipped = asked.message();
      return outcome;
    }
    TESSERA_RETURN_IF_ERROR(asked);
    return outcome;
  }

  base::Result<std::optional<Passage>> passage(std::size_t index, Respondent& respondent) const override {
    const PocketQuestion& question = data_.questions[index];
    ChatQuestion put = turn(question, question.messages.size());
    ChatMessage right{.role = "assistant", .content = question.answer};
    switch (question.scoring) {
      case PocketScoring::kNumber:
      case PocketScoring::kTrace:
      case PocketScoring::kCode: {
        // Many texts are right, and the data have none. What this model says where it is right is one of them.
        TESSERA_ASSIGN_OR_RETURN(const Answer answer, respondent.chat(put));
        TESSERA_ASSIGN_OR_RETURN(const bool says_right, is_right(question, answer));
        if (answer.cut_off || !says_right) return std::nullopt;
        right.content = answer.text;
        break;
      }
      case PocketScoring::kCalls:
        right.content.clear();
        for (const MadeCall& call : question.calls) right.calls.push_back(written_call(call, right.calls.size()));
        break;
      case PocketScoring::kEpisode:  // Its last turn, after all results.
        right = put.messages.back();
        put.messages.pop_back();
        break;
      case PocketScoring::kChoice:
      case PocketScoring::kText:
        break;
    }
    TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, respondent.encode_chat(put));
    TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> continuation, answer_tokens(put, prompt, right, respondent));
    if (continuation.empty()) return std::nullopt;
    return Passage{question.id, question.cell, std::move(prompt), std::move(continuation)};
  }

 private:
  // The conversation before message `end`.
  ChatQuestion turn(const PocketQuestion& question, std::size_t end) const {
    return {.messages = {question.messages.begin(), question.messages.begin() + static_cast<std::ptrdiff_t>(end)},
            .tools = question.tools,
            .max_tokens = kind_.max_tokens};
  }

  base::Status ask(const PocketQuestion& question, Respondent& respondent, Outcome& outcome) const {
    if (question.scoring == PocketScoring::kChoice) return ask_choice(question, respondent, outcome);
    if (question.scoring == PocketScoring::kEpisode) return ask_episode(question, respondent, outcome);
    TESSERA_ASSIGN_OR_RETURN(const Answer answer, respondent.chat(turn(question, question.messages.size())));
    outcome.answer = shown(answer);
    TESSERA_ASSIGN_OR_RETURN(const bool right, is_right(question, answer));
    outcome.scores["right"] = right ? 1.0 : 0.0;
    if (kind_.makes_calls) note_calls(answer, question, question.scoring == PocketScoring::kCalls, outcome);
    return {};
  }

  // Turn by turn: it goes on only while every turn was right, and then with the results that those calls get.
  base::Status ask_episode(const PocketQuestion& question, Respondent& respondent, Outcome& outcome) const {
    for (std::size_t i = 0; i < question.messages.size(); ++i) {
      const ChatMessage& expected = question.messages[i];
      if (expected.role != "assistant") continue;
      TESSERA_ASSIGN_OR_RETURN(const Answer answer, respondent.chat(turn(question, i)));
      outcome.answer = shown(answer);
      outcome.expected = shown(Answer{.text = expected.content, .reasoning = {}, .calls = expected.calls});
      if (expected.calls.empty()) {
        if (!says_text(answer, expected.content)) return {};
        continue;
      }
      note_calls(answer, question, true, outcome);
      std::vector<MadeCall> calls;
      calls.reserve(expected.calls.size());
      for (const ToolCall& call : expected.calls) calls.push_back(read_call(call).value());
      if (!makes_calls(answer, calls)) return {};
    }
    outcome.scores["right"] = 1.0;
    return {};
  }

  static base::Status ask_choice(const PocketQuestion& question, Respondent& respondent, Outcome& outcome) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt,
                             respondent.encode_chat({.messages = question.messages, .tools = {}, .max_tokens = 0}));
    double best = -std::numeric_limits<double>::infinity();
    std::string chosen;
    for (const std::string& option : question.choices) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> ended, respondent.encode(option));
      std::vector<TokenId> whole = prompt;
      whole.insert(whole.end(), ended.begin(), ended.end());
      TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenScore> scores, respondent.score(whole, prompt.size()));
      const double sum = std::accumulate(scores.begin(), scores.end(), 0.0,
                                         [](double total, const TokenScore& score) { return total + score.logprob; });
      // Of equal sums evaluate.py takes the option that comes last in the order of texts.
      if (sum > best || (sum == best && option > chosen)) {
        best = sum;
        chosen = option;
      }
    }
    outcome.answer = shown(chosen);
    outcome.scores["right"] = chosen == question.answer ? 1.0 : 0.0;
    return {};
  }

  base::Result<bool> is_right(const PocketQuestion& question, const Answer& answer) const {
    switch (question.scoring) {
      case PocketScoring::kNumber:
        return says_number(answer.text, question.answer);
      case PocketScoring::kTrace:
        return says_printed(answer.text, question.answer);
      case PocketScoring::kCalls:
        return makes_calls(answer, question.calls);
      case PocketScoring::kText:
        return says_text(answer, question.answer);
      case PocketScoring::kCode:
        return passes_tests(sandbox_.value(), answer.text, question.code_tests);
      case PocketScoring::kChoice:
      case PocketScoring::kEpisode:
        break;
    }
    return false;
  }

  static std::string expected_text(const PocketQuestion& question) {
    std::string text = question.answer;
    for (const MadeCall& call : question.calls) text += fmt::format("{}{}", text.empty() ? "" : "\n", shown(call));
    for (const std::string& test : question.code_tests) text += fmt::format("{}{}", text.empty() ? "" : "\n", test);
    return text;
  }

  // Text is encoded as it is, calls as the model's own format marks them up.
  static base::Result<std::vector<TokenId>> answer_tokens(const ChatQuestion& put, std::span<const TokenId> prompt,
                                                          const ChatMessage& right, Respondent& respondent) {
    if (right.calls.empty()) return respondent.encode(right.content);
    return call_tokens(put, prompt, right.calls, respondent);
  }

  PocketTaskKind kind_;
  TaskInfo info_;
  PocketData data_;
  std::optional<Sandbox> sandbox_;
};

base::Status check_scorings(const PocketTaskKind& kind, const PocketData& data) {
  for (const PocketQuestion& question : data.questions) {
    const bool is_choice = question.scoring == PocketScoring::kChoice;
    const bool needs_code = question.scoring == PocketScoring::kCode;
    if (is_choice != kind.by_likelihood || needs_code != kind.runs_code) {
      return base::data_loss(fmt::format("question {} of {} is not scored as that task's are", question.id, kind.name));
    }
  }
  return {};
}

}  // namespace

std::vector<TaskEntry> pocket_tasks() {
  std::vector<TaskEntry> entries;
  entries.reserve(kKinds.size());
  for (const PocketTaskKind& kind : kKinds) {
    const auto make = [kind](const DataFolders& folders) -> base::Result<std::unique_ptr<Task>> {
      TESSERA_ASSIGN_OR_RETURN(PocketData data, read_pocket_data(folders.pocket_tasks, kind.file));
      TESSERA_RETURN_IF_ERROR(check_scorings(kind, data));
      std::optional<Sandbox> sandbox;
      if (kind.runs_code) {
        TESSERA_ASSIGN_OR_RETURN(sandbox, Sandbox::create());
      }
      return std::make_unique<PocketTask>(kind, std::move(data), sandbox);
    };
    entries.push_back({info_of(kind), make});
  }
  return entries;
}

}  // namespace tessera::quality
