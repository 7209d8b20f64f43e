#include "http_respondent.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "terminal_text.h"
#include "tessera/base/logging.h"

namespace tessera::app {

namespace json = boost::json;
using quality::Answer;
using quality::TokenId;
using quality::TokenScore;

namespace {

json::string_view view(std::string_view text) { return {text.data(), text.size()}; }
std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

const json::value* member(const json::value* value, std::string_view name) {
  return value != nullptr && value->is_object() ? value->get_object().if_contains(view(name)) : nullptr;
}

std::string text_of(const json::value* value) {
  return value != nullptr && value->is_string() ? std::string(view(value->get_string())) : std::string();
}

// The first element of an array.
const json::value* front(const json::value* value) {
  return value != nullptr && value->is_array() && !value->get_array().empty() ? &value->get_array()[0] : nullptr;
}

base::Status unexpected(std::string_view path, std::string_view what) {
  return base::unimplemented(fmt::format("{}: the server's answer has no {}", path, what));
}

// An answer that says something else than the API has is nobody's wrong answer.
base::Status malformed(std::string_view path, std::string_view field, std::string_view expected,
                       const json::value* value) {
  return base::data_loss(fmt::format(
      "{}: the server's answer has {} in '{}': expected {}", path,
      value == nullptr ? "nothing" : shown_line(json::serialize(*value), kShownReplyBytes), field, expected));
}

bool is_absent(const json::value* value) { return value == nullptr || value->is_null(); }

// What the server says in an error, whose form is OpenAI's, or flat as some have it, or no JSON at all.
base::Status refusal(std::string_view path, const HttpReply& reply) {
  boost::system::error_code error;
  const json::value body = json::parse(view(reply.body), error);
  const json::value* object = error ? nullptr : member(&body, "error");
  if (object == nullptr && !error) object = &body;
  std::string message = text_of(member(object, "message"));
  if (message.empty()) message = reply.body;
  const std::string what = fmt::format("{}: {}: {}", path, reply.status, shown_line(message, kShownReplyBytes));
  const bool too_long = text_of(member(object, "code")) == "context_length_exceeded" ||
                        (reply.status == 400 && message.find("context length") != std::string::npos);
  if (too_long) return base::out_of_range(what);
  switch (reply.status) {
    case 400:
    case 422:
      return base::invalid_argument(what);
    case 401:
    case 403:
      return base::invalid_argument(what + " (api-key-file names the file of the server's key)");
    case 404:
    case 405:
      return base::unimplemented(what);
    default:
      return base::internal_error(what);
  }
}

base::Result<json::value> read(std::string_view path, const base::Result<HttpReply>& reply) {
  if (!reply.has_value()) return base::failure(reply.error());
  if (reply->status != 200) return base::failure(refusal(path, *reply));
  boost::system::error_code error;
  json::value body = json::parse(view(reply->body), error);
  if (error)
    return base::failure(base::data_loss(fmt::format("{}: the answer is not JSON: {}", path, error.message())));
  return body;
}

constexpr std::string_view kChatPath = "/v1/chat/completions";
constexpr std::string_view kCompletionPath = "/v1/completions";
constexpr std::string_view kTokenizePath = "/tokenize";
constexpr std::string_view kModelsPath = "/v1/models";

json::object message_of(const quality::ChatMessage& message) {
  json::object object;
  object["role"] = message.role;
  object["content"] = message.content;
  if (message.content.empty() && !message.calls.empty()) object["content"] = nullptr;
  if (!message.tool_call_id.empty()) object["tool_call_id"] = message.tool_call_id;
  if (!message.name.empty()) object["name"] = message.name;
  json::array calls;
  calls.reserve(message.calls.size());
  for (const quality::ToolCall& call : message.calls) {
    json::object function;
    function["name"] = call.name;
    function["arguments"] = call.arguments;
    json::object one;
    one["id"] = call.id;
    one["type"] = "function";
    one["function"] = std::move(function);
    calls.push_back(std::move(one));
  }
  if (!calls.empty()) object["tool_calls"] = std::move(calls);
  return object;
}

// The conversation's fields, for an answer or for its tokens.
base::Result<json::object> conversation(const std::string& model, const quality::ChatQuestion& question) {
  json::object body;
  body["model"] = model;
  json::array messages;
  messages.reserve(question.messages.size());
  for (const quality::ChatMessage& message : question.messages) messages.push_back(message_of(message));
  body["messages"] = std::move(messages);
  if (!question.tools.empty()) {
    boost::system::error_code error;
    json::value tools = json::parse(view(question.tools), error);
    if (error) return base::failure(base::invalid_argument("the question's tools are not JSON: " + error.message()));
    body["tools"] = std::move(tools);
  }
  return body;
}

base::Result<std::vector<quality::ToolCall>> calls_of(const json::value* message) {
  std::vector<quality::ToolCall> calls;
  const json::value* array = member(message, "tool_calls");
  if (is_absent(array)) return calls;
  if (!array->is_array()) return base::failure(malformed(kChatPath, "tool_calls", "a list", array));
  calls.reserve(array->get_array().size());
  for (const json::value& call : array->get_array()) {
    const json::value* function = member(&call, "function");
    for (const std::string_view field : {"name", "arguments"}) {
      const json::value* value = member(function, field);
      if (value == nullptr || !value->is_string()) {
        return base::failure(malformed(kChatPath, fmt::format("tool_calls.function.{}", field), "a text", value));
      }
    }
    calls.push_back({.id = text_of(member(&call, "id")),
                     .name = text_of(member(function, "name")),
                     .arguments = text_of(member(function, "arguments"))});
  }
  return calls;
}

// A text, or null, or nothing.
base::Result<std::string> optional_text(const json::value* message, std::string_view field) {
  const json::value* value = member(message, field);
  if (is_absent(value)) return std::string();
  if (!value->is_string()) return base::failure(malformed(kChatPath, field, "a text or null", value));
  return text_of(value);
}

// Whether the answer ended because max_tokens did.
base::Result<bool> is_cut_off(std::string_view path, const json::value* choice) {
  const json::value* reason = member(choice, "finish_reason");
  const std::string text = text_of(reason);
  // Whatever else it is (a filter, an abort), it did not end by itself.
  if (text == "stop" || text == "tool_calls") return false;
  if (text == "length") return true;
  return base::failure(malformed(path, "finish_reason", "stop, length or tool_calls", reason));
}

}  // namespace

base::Result<std::unique_ptr<HttpRespondent>> HttpRespondent::connect(const RespondentOptions& options,
                                                                      const std::atomic<bool>& stop) {
  auto respondent = std::unique_ptr<HttpRespondent>(new HttpRespondent(options, stop));
  TESSERA_RETURN_IF_ERROR(respondent->read_models(options.model));
  return respondent;
}

HttpRespondent::~HttpRespondent() {
  if (http_.retries() == 0) return;
  base::log().warn("{}: {} requests were sent again, because the server was busy or the connection broke", info_.model,
                   http_.retries());
}

base::Status HttpRespondent::read_models(const std::string& wanted) {
  TESSERA_ASSIGN_OR_RETURN(const json::value body, read(kModelsPath, http_.get(kModelsPath)));
  const json::value* models = member(&body, "data");
  if (models == nullptr || !models->is_array()) return unexpected(kModelsPath, "'data'");
  const json::value* chosen = nullptr;
  std::string names;
  for (const json::value& model : models->get_array()) {
    const std::string name = text_of(member(&model, "id"));
    if (name.empty()) return unexpected(kModelsPath, "'id' of a model");
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", name);
    if (name == wanted || (wanted.empty() && models->get_array().size() == 1)) chosen = &model;
  }
  if (models->get_array().empty()) return base::not_found("the server has no models: expected one at least");
  if (chosen == nullptr) {
    names = shown_line(names, kShownReplyBytes);
    return base::not_found(wanted.empty() ? fmt::format("the server has several models, {}: expected model=NAME", names)
                                          : fmt::format("the server has no model '{}'; it has {}", wanted, names));
  }
  info_.model = text_of(member(chosen, "id"));
  if (const json::value* length = member(chosen, "max_model_len"); length != nullptr && length->is_number()) {
    boost::system::error_code error;
    const std::int64_t tokens = length->to_number<std::int64_t>(error);
    if (!error && tokens > 0) info_.context_tokens = tokens;
  }
  const json::value* precision = member(chosen, "precision");
  for (const std::string_view phase : {"prefill", "decode"}) {
    const json::value* part = member(precision, phase);
    if (part == nullptr) continue;
    info_.precision += fmt::format("{}{}={}/{}", info_.precision.empty() ? "" : "; ", phase,
                                   text_of(member(part, "weights")), text_of(member(part, "kv")));
  }
  info_.digest = text_of(member(precision, "checkpoint_digest"));
  scores_alone_ = text_of(member(chosen, "owned_by")) == "tessera";
  return base::ok_status();
}

base::Result<Answer> HttpRespondent::chat(const quality::ChatQuestion& question) {
  TESSERA_ASSIGN_OR_RETURN(json::object body, conversation(info_.model, question));
  body["max_tokens"] = question.max_tokens;
  body["temperature"] = 0;
  TESSERA_ASSIGN_OR_RETURN(const json::value reply, read(kChatPath, http_.post(kChatPath, json::serialize(body))));
  const json::value* choice = front(member(&reply, "choices"));
  const json::value* message = member(choice, "message");
  if (message == nullptr) return base::failure(unexpected(kChatPath, "message"));
  if (!message->is_object()) return base::failure(malformed(kChatPath, "message", "an object", message));
  Answer answer;
  TESSERA_ASSIGN_OR_RETURN(answer.text, optional_text(message, "content"));
  TESSERA_ASSIGN_OR_RETURN(answer.reasoning, optional_text(message, "reasoning_content"));
  if (answer.reasoning.empty()) {
    TESSERA_ASSIGN_OR_RETURN(answer.reasoning, optional_text(message, "reasoning"));
  }
  TESSERA_ASSIGN_OR_RETURN(answer.calls, calls_of(message));
  // Some servers leave it out beside calls; without them it is what was asked for.
  if (member(message, "content") == nullptr && answer.calls.empty()) {
    return base::failure(malformed(kChatPath, "content", "a text or null", nullptr));
  }
  TESSERA_ASSIGN_OR_RETURN(answer.cut_off, is_cut_off(kChatPath, choice));
  return answer;
}

base::Result<Answer> HttpRespondent::complete(const quality::CompletionQuestion& question) {
  json::object body;
  body["model"] = info_.model;
  body["prompt"] = question.prompt;
  body["max_tokens"] = question.max_tokens;
  body["temperature"] = 0;
  if (!question.stop.empty()) body["stop"] = json::array(question.stop.begin(), question.stop.end());
  TESSERA_ASSIGN_OR_RETURN(const json::value reply,
                           read(kCompletionPath, http_.post(kCompletionPath, json::serialize(body))));
  const json::value* choice = front(member(&reply, "choices"));
  const json::value* text = member(choice, "text");
  if (text == nullptr || !text->is_string()) return base::failure(unexpected(kCompletionPath, "text"));
  Answer answer;
  answer.text = text_of(text);
  TESSERA_ASSIGN_OR_RETURN(answer.cut_off, is_cut_off(kCompletionPath, choice));
  return answer;
}

base::Result<std::vector<TokenId>> HttpRespondent::tokenize(const std::string& body) {
  base::Result<json::value> reply = read(kTokenizePath, http_.post(kTokenizePath, body));
  if (!reply.has_value()) {
    if (reply.error().code() != base::StatusCode::kUnimplemented) return base::failure(reply.error());
    return base::failure(reply.error().with_context("this task needs the server's tokenizer"));
  }
  const json::value* tokens = member(&*reply, "tokens");
  if (tokens == nullptr || !tokens->is_array()) return base::failure(unexpected(kTokenizePath, "'tokens'"));
  std::vector<TokenId> ids;
  ids.reserve(tokens->get_array().size());
  for (const json::value& token : tokens->get_array()) {
    boost::system::error_code error;
    const auto id = token.is_number() ? token.to_number<TokenId>(error) : TokenId{-1};
    if (error || id < 0) return base::failure(unexpected(kTokenizePath, "token ids in 'tokens'"));
    ids.push_back(id);
  }
  return ids;
}

base::Result<std::vector<TokenId>> HttpRespondent::encode_prompt(std::string_view text) {
  json::object body;
  body["model"] = info_.model;
  body["prompt"] = view(text);
  return tokenize(json::serialize(body));
}

base::Result<std::vector<TokenId>> HttpRespondent::encode(std::string_view text) {
  json::object body;
  body["model"] = info_.model;
  body["prompt"] = view(text);
  body["add_special_tokens"] = false;
  return tokenize(json::serialize(body));
}

base::Result<std::vector<TokenId>> HttpRespondent::encode_chat(const quality::ChatQuestion& question) {
  TESSERA_ASSIGN_OR_RETURN(json::object body, conversation(info_.model, question));
  body["add_generation_prompt"] = true;
  return tokenize(json::serialize(body));
}

base::Result<std::vector<TokenScore>> HttpRespondent::score(std::span<const TokenId> tokens, std::size_t first) {
  json::object body;
  body["model"] = info_.model;
  json::array prompt;
  prompt.reserve(tokens.size());
  for (const TokenId token : tokens) prompt.push_back(token);
  body["prompt"] = std::move(prompt);
  body["max_tokens"] = scores_alone_ ? 0 : 1;
  body["temperature"] = 0;
  body["echo"] = true;
  body["logprobs"] = 1;
  base::Result<json::value> reply = read(kCompletionPath, http_.post(kCompletionPath, json::serialize(body)));
  const auto lacks = [&](const base::Status& status) {
    return base::failure(status.with_context(
        "this task needs the log-probabilities of given tokens (/v1/completions with echo and logprobs)"));
  };
  if (!reply.has_value()) {
    const base::StatusCode code = reply.error().code();
    const bool refused = code == base::StatusCode::kUnimplemented || code == base::StatusCode::kInvalidArgument;
    return refused ? lacks(reply.error()) : base::failure(reply.error());
  }
  const json::value* logprobs = member(front(member(&*reply, "choices")), "logprobs");
  const json::value* given = member(logprobs, "token_logprobs");
  const json::value* top = member(logprobs, "top_logprobs");
  const auto has_all = [&](const json::value* value) {
    return value != nullptr && value->is_array() && value->get_array().size() >= tokens.size();
  };
  if (!has_all(given) || !has_all(top)) {
    return lacks(unexpected(kCompletionPath, fmt::format("logprobs of all {} tokens", tokens.size())));
  }
  std::vector<TokenScore> scores;
  scores.reserve(tokens.size() - first);
  for (std::size_t i = first; i < tokens.size(); ++i) {
    const json::value& own = given->get_array()[i];
    const json::value& best = top->get_array()[i];
    boost::system::error_code error;
    TokenScore score;
    if (own.is_number()) score.logprob = own.to_number<double>(error);
    // A probability of 1 may be a little more, rounded.
    if (!own.is_number() || error || !(score.logprob <= 1e-3) || !best.is_object()) {
      return lacks(unexpected(kCompletionPath, fmt::format("log-probability of token {}", i)));
    }
    score.is_best = true;
    for (const auto& [text, value] : best.get_object()) {
      const double other = value.is_number() ? value.to_number<double>(error) : 0.0;
      if (!error && other > score.logprob) score.is_best = false;
    }
    scores.push_back(score);
  }
  return scores;
}

}  // namespace tessera::app
