#include "tessera/quality/pocket_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "tessera/quality/data_file.h"
#include "tessera/text/python_value.h"

namespace tessera::quality {

namespace {

namespace json = boost::json;

// The fields of one line, each with what is said of it when it is missing or of another type.
class Line {
 public:
  Line(const DataLines& data, std::size_t index) : data_(data), index_(index) {}

  const json::object& fields() const { return data_.lines[index_]; }
  base::Status wrong(std::string_view what) const { return data_.wrong(index_, what); }

  base::Result<const json::value*> field(const json::object& of, std::string_view name) const {
    const json::value* const value = of.if_contains(name);
    if (value == nullptr) return base::failure(wrong(fmt::format("there is no field \"{}\"", name)));
    return value;
  }
  base::Result<std::string> string(const json::object& of, std::string_view name) const {
    TESSERA_ASSIGN_OR_RETURN(const json::value* const value, field(of, name));
    if (!value->is_string()) return base::failure(wrong(fmt::format("\"{}\": expected a string", name)));
    return std::string(value->get_string());
  }
  base::Result<std::int64_t> count(const json::object& of, std::string_view name) const {
    TESSERA_ASSIGN_OR_RETURN(const json::value* const value, field(of, name));
    if (!value->is_int64() || value->get_int64() < 0) {
      return base::failure(wrong(fmt::format("\"{}\": expected an integer that is not negative", name)));
    }
    return value->get_int64();
  }
  base::Result<const json::array*> array(const json::object& of, std::string_view name) const {
    TESSERA_ASSIGN_OR_RETURN(const json::value* const value, field(of, name));
    if (!value->is_array()) return base::failure(wrong(fmt::format("\"{}\": expected an array", name)));
    return &value->get_array();
  }
  base::Result<std::vector<std::string>> strings(const json::object& of, std::string_view name) const {
    TESSERA_ASSIGN_OR_RETURN(const json::array* const values, array(of, name));
    std::vector<std::string> texts;
    texts.reserve(values->size());
    for (const json::value& value : *values) {
      if (!value.is_string()) return base::failure(wrong(fmt::format("\"{}\": expected strings", name)));
      texts.emplace_back(value.get_string());
    }
    return texts;
  }

 private:
  const DataLines& data_;
  std::size_t index_;
};

base::Result<MadeCall> read_made(const Line& line, std::string name, const json::value& arguments) {
  text::ValueBudget budget;
  const base::Result<text::PythonValue> value = text::parse_python_json(json::serialize(arguments), budget);
  if (!value.has_value() || !value->is(text::PythonValue::Kind::kDict)) {
    return base::failure(line.wrong(fmt::format("arguments of {}: expected an object", name)));
  }
  return MadeCall{std::move(name), *value};
}

base::Result<ChatMessage> read_message(const Line& line, const json::value& value) {
  if (!value.is_object()) return base::failure(line.wrong("\"messages\": expected objects"));
  const json::object& fields = value.get_object();
  ChatMessage message;
  TESSERA_ASSIGN_OR_RETURN(message.role, line.string(fields, "role"));
  TESSERA_ASSIGN_OR_RETURN(message.content, line.string(fields, "content"));
  if (message.role == "tool") {
    TESSERA_ASSIGN_OR_RETURN(message.tool_call_id, line.string(fields, "tool_call_id"));
    if (fields.contains("name")) {
      TESSERA_ASSIGN_OR_RETURN(message.name, line.string(fields, "name"));
    }
  }
  if (!fields.contains("tool_calls")) return message;
  TESSERA_ASSIGN_OR_RETURN(const json::array* const calls, line.array(fields, "tool_calls"));
  message.calls.reserve(calls->size());
  for (const json::value& call : *calls) {
    if (!call.is_object()) return base::failure(line.wrong("\"tool_calls\": expected objects"));
    TESSERA_ASSIGN_OR_RETURN(std::string name, line.string(call.get_object(), "name"));
    TESSERA_ASSIGN_OR_RETURN(const json::value* const arguments, line.field(call.get_object(), "arguments"));
    TESSERA_ASSIGN_OR_RETURN(const MadeCall made, read_made(line, std::move(name), *arguments));
    ToolCall written = written_call(made, message.calls.size());
    TESSERA_ASSIGN_OR_RETURN(written.id, line.string(call.get_object(), "id"));
    message.calls.push_back(std::move(written));
  }
  return message;
}

// The sentences of the filler files, by name, each read once.
class Fillers {
 public:
  explicit Fillers(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // The texts of both, read already if a question needed them.
  base::Result<std::string> all_texts() {
    std::string all;
    for (const std::string_view name : {"filler_new_draws.txt", "filler_unseen.txt"}) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string>* const sentences, sentences_of(name));
      for (const std::string& sentence : *sentences) all += sentence + "\n";
    }
    return all;
  }

  base::Result<const std::vector<std::string>*> sentences_of(std::string_view name) {
    const auto known = files_.find(name);
    if (known != files_.end()) return &known->second;
    const std::filesystem::path path = folder_ / fmt::format("{}.gz", name);
    TESSERA_ASSIGN_OR_RETURN(const std::string text, read_data_text(path));
    std::vector<std::string> sentences;
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      sentences.emplace_back(line);
    }
    if (sentences.empty())
      return base::failure(base::data_loss(fmt::format("{}: there is no sentence", path.string())));
    return &files_.emplace(std::string(name), std::move(sentences)).first->second;
  }

 private:
  std::filesystem::path folder_;
  std::map<std::string, std::vector<std::string>, std::less<>> files_;
};

// Beyond this many sentences a line does not come from the files that are known.
constexpr std::int64_t kFillerMax = 100'000;

struct Insert {
  std::int64_t before = 0;  // Which sentence of the filler it stands before; the count of them: after the last.
  std::string_view text;
};

base::Result<std::vector<Insert>> read_inserts(const Line& line) {
  TESSERA_ASSIGN_OR_RETURN(const json::array* const values, line.array(line.fields(), "inserts"));
  std::vector<Insert> inserts;
  inserts.reserve(values->size());
  for (const json::value& value : *values) {
    const json::array* const pair = value.if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_int64() || !(*pair)[1].is_string()) {
      return base::failure(line.wrong("\"inserts\": expected pairs of an integer and a string"));
    }
    inserts.push_back({(*pair)[0].get_int64(), (*pair)[1].get_string()});
  }
  return inserts;
}

// The question of a retrieval line: the opening, the long text, what is asked, one a line.
base::Result<std::string> retrieval_text(const Line& line, Fillers& fillers) {
  const json::object& fields = line.fields();
  TESSERA_ASSIGN_OR_RETURN(const std::string before, line.string(fields, "before"));
  TESSERA_ASSIGN_OR_RETURN(const std::string after, line.string(fields, "after"));
  TESSERA_ASSIGN_OR_RETURN(const std::string filler, line.string(fields, "filler"));
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t start, line.count(fields, "filler_start"));
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t count, line.count(fields, "filler_count"));
  if (count > kFillerMax) {
    return base::failure(line.wrong(fmt::format("\"filler_count\": expected at most {}", kFillerMax)));
  }
  if (filler != "filler_new_draws.txt" && filler != "filler_unseen.txt") {
    return base::failure(line.wrong("\"filler\": expected filler_new_draws.txt or filler_unseen.txt"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Insert> inserts, read_inserts(line));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string>* const sentences, fillers.sentences_of(filler));

  std::string text = before + "\n";
  std::size_t inserted = 0;
  bool is_first = true;
  const auto add = [&text, &is_first](std::string_view piece) {
    if (!std::exchange(is_first, false)) text += ' ';
    text += piece;
  };
  for (std::int64_t i = 0; i <= count; ++i) {
    while (inserted < inserts.size() && inserts[inserted].before == i) add(inserts[inserted++].text);
    const std::size_t sentence = (static_cast<std::size_t>(start) + static_cast<std::size_t>(i)) % sentences->size();
    if (i < count) add((*sentences)[sentence]);
  }
  // Then the needle that is asked for may be one of those that no place was found for.
  if (inserted < inserts.size()) return base::failure(line.wrong("\"inserts\": expected ascending places in the text"));
  return text + "\n" + after;
}

base::Status read_answer(const Line& line, PocketQuestion& question) {
  const json::object& fields = line.fields();
  switch (question.scoring) {
    case PocketScoring::kNumber: {
      TESSERA_ASSIGN_OR_RETURN(const json::value* const answer, line.field(fields, "answer"));
      if (!answer->is_int64()) return line.wrong("\"answer\": expected an integer");
      question.answer = fmt::to_string(answer->get_int64());
      return {};
    }
    case PocketScoring::kCalls: {
      TESSERA_ASSIGN_OR_RETURN(const json::array* const answer, line.array(fields, "answer"));
      for (const json::value& value : *answer) {
        const json::array* const pair = value.if_array();
        if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string()) {
          return line.wrong("\"answer\": expected pairs of a tool's name and its arguments");
        }
        TESSERA_ASSIGN_OR_RETURN(MadeCall call, read_made(line, std::string((*pair)[0].get_string()), (*pair)[1]));
        question.calls.push_back(std::move(call));
      }
      return {};
    }
    case PocketScoring::kCode: {
      TESSERA_ASSIGN_OR_RETURN(question.code_tests, line.strings(fields, "answer"));
      return {};
    }
    case PocketScoring::kEpisode:
      return {};
    case PocketScoring::kChoice: {
      TESSERA_ASSIGN_OR_RETURN(question.choices, line.strings(fields, "choices"));
      if (question.choices.empty()) return line.wrong("\"choices\": expected at least one");
      break;
    }
    case PocketScoring::kText:
    case PocketScoring::kTrace:
      break;
  }
  TESSERA_ASSIGN_OR_RETURN(question.answer, line.string(fields, "answer"));
  return {};
}

std::optional<PocketScoring> scoring_of(std::string_view name) {
  using enum PocketScoring;
  static constexpr std::pair<std::string_view, PocketScoring> kNames[] = {
      {"number", kNumber},   {"choice", kChoice}, {"text", kText}, {"calls", kCalls},
      {"episode", kEpisode}, {"trace", kTrace},   {"code", kCode}};
  for (const auto& [known, scoring] : kNames) {
    if (known == name) return scoring;
  }
  return std::nullopt;
}

base::Result<PocketQuestion> read_question(const Line& line, Fillers& fillers) {
  const json::object& fields = line.fields();
  PocketQuestion question;
  TESSERA_ASSIGN_OR_RETURN(question.id, line.string(fields, "id"));
  TESSERA_ASSIGN_OR_RETURN(const std::string split, line.string(fields, "split"));
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t level, line.count(fields, "level"));
  TESSERA_ASSIGN_OR_RETURN(const std::string scoring_name, line.string(fields, "scoring"));
  const std::optional<PocketScoring> scoring = scoring_of(scoring_name);
  if (!scoring.has_value())
    return base::failure(line.wrong(fmt::format("\"scoring\": '{}' is not known", scoring_name)));
  question.scoring = *scoring;
  question.cell = fmt::format("{}/{}", level, split);
  if (fields.contains("filler")) {
    TESSERA_ASSIGN_OR_RETURN(const std::int64_t length, line.count(fields, "length"));
    question.cell += fmt::format("/{}", length);
    TESSERA_ASSIGN_OR_RETURN(std::string text, retrieval_text(line, fillers));
    question.messages.push_back({.role = "user", .content = std::move(text)});
  } else {
    TESSERA_ASSIGN_OR_RETURN(const json::array* const messages, line.array(fields, "messages"));
    question.messages.reserve(messages->size());
    for (const json::value& value : *messages) {
      TESSERA_ASSIGN_OR_RETURN(ChatMessage message, read_message(line, value));
      question.messages.push_back(std::move(message));
    }
  }
  if (question.messages.empty()) return base::failure(line.wrong("\"messages\": expected at least one"));
  if (question.scoring == PocketScoring::kEpisode && question.messages.back().role != "assistant") {
    return base::failure(line.wrong("\"messages\": expected an episode to end in the assistant's turn"));
  }
  if (fields.contains("tools")) {
    TESSERA_ASSIGN_OR_RETURN(const json::array* const tools, line.array(fields, "tools"));
    question.tools = json::serialize(*tools);
    base::Result<std::vector<DeclaredTool>> declared = read_tools(question.tools);
    if (!declared.has_value()) return base::failure(line.wrong(declared.error().message()));
    question.declared = *std::move(declared);
  }
  TESSERA_RETURN_IF_ERROR(read_answer(line, question));
  return question;
}

}  // namespace

ToolCall written_call(const MadeCall& call, std::size_t index) {
  ToolCall written{.id = fmt::format("functions.{}:{}", call.name, index), .name = call.name, .arguments = {}};
  text::append_python_json(call.arguments, text::JsonSpacing::kSpaces, written.arguments);
  return written;
}

base::Result<PocketData> read_pocket_data(const std::filesystem::path& folder, std::string_view task) {
  const std::filesystem::path path = folder / fmt::format("pocket-{}.jsonl.gz", task);
  TESSERA_ASSIGN_OR_RETURN(std::string digested, read_data_text(path));
  TESSERA_ASSIGN_OR_RETURN(const DataLines lines, read_data_lines(path));
  PocketData data;
  Fillers fillers(folder);
  data.questions.reserve(lines.lines.size());
  for (std::size_t i = 0; i < lines.lines.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(PocketQuestion question, read_question(Line(lines, i), fillers));
    data.questions.push_back(std::move(question));
  }
  if (task == "retrieval") {
    TESSERA_ASSIGN_OR_RETURN(const std::string texts, fillers.all_texts());
    digested += texts;
  }
  data.digest = data_digest(digested);
  return data;
}

}  // namespace tessera::quality
