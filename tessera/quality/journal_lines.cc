#include "tessera/quality/journal_lines.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/limits.h"

namespace tessera::quality {

namespace json = boost::json;

namespace {

constexpr std::string_view kJournalKey = "tessera_evaluation_journal";
constexpr std::int64_t kJournalFormat = 1;

json::string_view view(std::string_view text) { return {text.data(), text.size()}; }

// Numbers are written as text, with as many digits as bring back the same bits: JSON parsers may be off by one of the
// last place, and an evaluation that was resumed must say the same as one that was not.
std::string number_text(double value) { return fmt::format("{}", value); }

bool read_number(std::string_view text, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

bool read_number(std::string_view text, std::int32_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

base::Status damaged(std::string_view what) { return base::data_loss(std::string(what)); }

// The fields of a line; the first that is missing or of another kind fails all.
class Fields {
 public:
  explicit Fields(const json::object& object) : object_(object) {}

  std::string text(std::string_view name) {
    const json::value* value = object_.if_contains(view(name));
    if (value == nullptr || !value->is_string()) {
      fail(name, "a text");
      return {};
    }
    return std::string(value->get_string());
  }
  std::int64_t integer(std::string_view name) {
    const json::value* value = object_.if_contains(view(name));
    boost::system::error_code error;
    const std::int64_t number = value != nullptr && value->is_number() ? value->to_number<std::int64_t>(error) : -1;
    if (error || number < 0) fail(name, "a whole number");
    return number;
  }
  const json::object* object(std::string_view name) {
    const json::value* value = object_.if_contains(view(name));
    return value != nullptr && value->is_object() ? &value->get_object() : nullptr;
  }
  const json::array* array(std::string_view name) {
    const json::value* value = object_.if_contains(view(name));
    if (value != nullptr && value->is_array()) return &value->get_array();
    fail(name, "a list");
    return nullptr;
  }
  void fail(std::string_view name, std::string_view expected) {
    if (!failure_.has_value()) failure_ = damaged(fmt::format("'{}': expected {}", name, expected));
  }
  base::Status status() const { return failure_.value_or(base::ok_status()); }

 private:
  const json::object& object_;
  std::optional<base::Status> failure_;
};

std::string position_text(const PositionDistance& at) {
  return fmt::format("{} {} {} {} {} {} {} {}", at.position, at.kl, at.same_best ? 1 : 0, at.rank_overlap,
                     at.reference_best, at.other_best, at.reference_logprob, at.other_logprob);
}

bool read_position(std::string_view text, PositionDistance& at) {
  std::vector<std::string_view> words;
  words.reserve(8);
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size() == text.size() ? word.size() : word.size() + 1);
    words.push_back(word);
  }
  if (words.size() != 8 || (words[2] != "0" && words[2] != "1")) return false;
  at.same_best = words[2] == "1";
  return read_number(words[0], at.position) && read_number(words[1], at.kl) && read_number(words[3], at.rank_overlap) &&
         read_number(words[4], at.reference_best) && read_number(words[5], at.other_best) &&
         read_number(words[6], at.reference_logprob) && read_number(words[7], at.other_logprob);
}

base::Result<RespondentInfo> read_respondent(const json::object& object) {
  Fields fields(object);
  RespondentInfo info;
  info.model = fields.text("model");
  info.precision = fields.text("precision");
  info.digest = fields.text("digest");
  info.context_tokens = fields.integer("context_tokens");
  TESSERA_RETURN_IF_ERROR(fields.status());
  return info;
}

base::Result<Outcome> read_outcome(const json::object& object) {
  Fields fields(object);
  Outcome outcome;
  outcome.question = fields.text("question");
  outcome.cell = fields.text("cell");
  outcome.expected = fields.text("expected");
  outcome.answer = fields.text("answer");
  outcome.skipped = fields.text("skipped");
  const json::object* scores = fields.object("scores");
  if (scores == nullptr) {
    fields.fail("scores", "an object");
  } else {
    for (const auto& [name, value] : *scores) {
      double score = 0.0;
      if (!value.is_string() || !read_number(value.get_string(), score)) fields.fail("scores", "numbers as texts");
      outcome.scores.emplace(name, score);
    }
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  return outcome;
}

base::Result<PassageDistances> read_distances(const json::object& object) {
  Fields fields(object);
  PassageDistances distances;
  distances.question = fields.text("question");
  distances.cell = fields.text("cell");
  if (const json::array* positions = fields.array("positions"); positions != nullptr) {
    distances.positions.reserve(positions->size());
    for (const json::value& value : *positions) {
      PositionDistance& at = distances.positions.emplace_back();
      if (!value.is_string() || !read_position(value.get_string(), at)) {
        fields.fail("positions", "texts of eight numbers");
      }
    }
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  return distances;
}

}  // namespace

std::string header_line(const EvaluationIdentity& identity) {
  json::object values;
  for (const auto& [name, value] : identity) values[view(name)] = view(value);
  return json::serialize(json::object{{view(kJournalKey), kJournalFormat}, {"evaluation", std::move(values)}});
}

bool may_begin_header(std::string_view bytes) {
  const std::string opening = fmt::format("{{\"{}\":", kJournalKey);
  return bytes.starts_with(opening) || opening.starts_with(bytes);
}

std::string respondent_line(std::size_t plan, const RespondentInfo& respondent) {
  return json::serialize(json::object{{"plan", plan},
                                      {"respondent",
                                       {{"model", respondent.model},
                                        {"precision", respondent.precision},
                                        {"digest", respondent.digest},
                                        {"context_tokens", respondent.context_tokens}}}});
}

std::string outcome_line(std::size_t plan, std::string_view task, const Outcome& outcome) {
  json::object scores;
  for (const auto& [name, value] : outcome.scores) scores[view(name)] = number_text(value);
  return json::serialize(json::object{{"plan", plan},
                                      {"task", view(task)},
                                      {"outcome",
                                       {{"question", outcome.question},
                                        {"cell", outcome.cell},
                                        {"scores", std::move(scores)},
                                        {"expected", outcome.expected},
                                        {"answer", outcome.answer},
                                        {"skipped", outcome.skipped}}}});
}

std::string distances_line(std::size_t plan, std::string_view task, const PassageDistances& distances) {
  json::array positions;
  positions.reserve(distances.positions.size());
  for (const PositionDistance& at : distances.positions) positions.emplace_back(position_text(at));
  return json::serialize(json::object{
      {"plan", plan},
      {"task", view(task)},
      {"distances",
       {{"question", distances.question}, {"cell", distances.cell}, {"positions", std::move(positions)}}}});
}

base::Result<json::object> parse_line(std::string_view line) {
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(base::limits::kJsonDepthMax);
  options.allow_invalid_utf8 = true;
  boost::system::error_code error;
  json::value value = json::parse(view(line), error, {}, options);
  if (error) return base::failure(damaged(error.message()));
  if (!value.is_object()) return base::failure(damaged("expected an object"));
  return std::move(value.as_object());
}

base::Status check_header(const json::object& line, const EvaluationIdentity& identity) {
  Fields fields(line);
  const json::object* values = fields.object("evaluation");
  if (!line.contains(view(kJournalKey)) || values == nullptr) return damaged("not the journal of an evaluation");
  if (const std::int64_t format = fields.integer(kJournalKey); format != kJournalFormat) {
    return base::invalid_argument(
        fmt::format("it is of format {}; expected {}: another version wrote it", format, kJournalFormat));
  }
  std::map<std::string, std::string> there;
  for (const auto& [name, value] : *values) {
    if (!value.is_string()) return damaged(fmt::format("'{}': expected a text", std::string(name)));
    there.emplace(name, value.get_string());
  }
  std::string differences;
  const auto differs = [&](std::string_view name, std::string_view journal, std::string_view now) {
    differences += fmt::format("\n  {}: {} in the journal, {} now", name, journal, now);
  };
  for (const auto& [name, value] : identity) {
    const auto at = there.find(name);
    if (at == there.end()) {
      differs(name, "nothing", fmt::format("'{}'", value));
      continue;
    }
    if (at->second != value) differs(name, fmt::format("'{}'", at->second), fmt::format("'{}'", value));
    there.erase(at);
  }
  for (const auto& [name, value] : there) differs(name, fmt::format("'{}'", value), "nothing");
  if (differences.empty()) return base::ok_status();
  return base::invalid_argument("it belongs to another evaluation:" + differences);
}

base::Status take_line(const json::object& line, JournalContents& contents) {
  Fields fields(line);
  const auto plan = static_cast<std::size_t>(fields.integer("plan"));
  if (const json::object* respondent = fields.object("respondent"); respondent != nullptr) {
    TESSERA_RETURN_IF_ERROR(fields.status());
    TESSERA_ASSIGN_OR_RETURN(contents.respondents[plan], read_respondent(*respondent));
    return base::ok_status();
  }
  PlanTask key{plan, fields.text("task")};
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (const json::object* object = fields.object("outcome"); object != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(Outcome outcome, read_outcome(*object));
    std::string question = outcome.question;
    contents.outcomes[std::move(key)].insert_or_assign(std::move(question), std::move(outcome));
    return base::ok_status();
  }
  if (const json::object* object = fields.object("distances"); object != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(PassageDistances distances, read_distances(*object));
    std::string question = distances.question;
    contents.distances[std::move(key)].insert_or_assign(std::move(question), std::move(distances));
    return base::ok_status();
  }
  return damaged("expected a respondent, an outcome or distances");
}

}  // namespace tessera::quality
