#include "tessera/server/api_request.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <limits>

#include "tessera/base/limits.h"
#include "tessera/server/chat_fields.h"
#include "tessera/server/json_fields.h"

namespace tessera::server {

namespace json = boost::json;
namespace limits = base::limits;

namespace {

constexpr std::size_t kNameBytesMax = 256;

// What /tokenize takes beside messages only.
constexpr std::string_view kRenderingFields[] = {
    "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs", "add_generation_prompt"};

std::unexpected<ApiError> failed(JsonFields& fields, const base::Status& status) {
  return std::unexpected(bad_request(status.message(), fields.failed_field()));
}

ApiResult<json::value> parse_object(std::string_view body) {
  base::Result<json::value> value = parse_json(body);
  if (!value.has_value()) return std::unexpected(bad_request(value.error().message()));
  if (!value->is_object()) return std::unexpected(bad_request("the body must be a JSON object"));
  return std::move(*value);
}

std::optional<std::vector<std::int32_t>> token_ids(const json::array& array) {
  std::vector<std::int32_t> ids;
  ids.reserve(array.size());
  for (const json::value& value : array) {
    boost::system::error_code error;
    const std::int64_t id = value.is_number() ? value.to_number<std::int64_t>(error) : -1;
    if (error || id < 0 || id > std::numeric_limits<std::int32_t>::max()) return std::nullopt;
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

void read_stop(JsonFields& fields, std::vector<std::string>& stop) {
  const json::value* value = fields.value("stop");
  if (value == nullptr) return;
  const auto add = [&](const json::value& one) {
    if (!one.is_string() || one.get_string().empty()) return fields.fail("stop", "expected a string that is not empty");
    if (one.get_string().size() > static_cast<std::size_t>(limits::kStopStringBytesMax)) {
      return fields.fail("stop", fmt::format("longer than {} bytes", limits::kStopStringBytesMax));
    }
    stop.emplace_back(one.get_string().data(), one.get_string().size());
  };
  if (!value->is_array()) return add(*value);
  const json::array* array = fields.array("stop", static_cast<std::size_t>(limits::kStopStringsMax));
  if (array == nullptr) return;
  for (const json::value& one : *array) add(one);
}

void read_stream_options(JsonFields& fields, GenerationOptions& options) {
  const json::object* object = fields.object("stream_options");
  if (object == nullptr) return;
  JsonFields inner(*object, "stream_options");
  options.include_usage = inner.boolean("include_usage").value_or(false);
  options.continuous_usage = inner.boolean("continuous_usage_stats").value_or(false);
  inner.accept_ignored({"include_obfuscation"});
  fields.adopt(inner);
}

void read_required_precision(JsonFields& fields, GenerationOptions& options) {
  const json::object* object = fields.object("require_precision");
  if (object == nullptr) return;
  JsonFields inner(*object, "require_precision");
  for (const std::string_view name : {"prefill_kv", "decode_kv", "prefill_weights", "decode_weights"}) {
    if (auto wanted = inner.string(name, kNameBytesMax)) options.require_precision.emplace_back(name, *wanted);
  }
  fields.adopt(inner);
}

void read_options(JsonFields& fields, GenerationOptions& options) {
  options.model = fields.string("model", kNameBytesMax).value_or("");
  options.temperature = static_cast<float>(fields.number("temperature", 0.0, 2.0).value_or(1.0));
  options.top_p = static_cast<float>(fields.number("top_p", 0.0, 1.0).value_or(1.0));
  if (options.top_p == 0.0f) fields.fail("top_p", "must be greater than 0");
  // -1 is how some clients spell "all".
  const std::int64_t top_k = fields.integer("top_k", -1, limits::kVocabularyMax).value_or(0);
  options.top_k = top_k < 0 ? 0 : static_cast<std::int32_t>(top_k);
  if (const auto seed =
          fields.integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max())) {
    options.seed = static_cast<std::uint64_t>(*seed);
  }
  options.n = static_cast<std::int32_t>(fields.integer("n", 1, limits::kChoicesMax).value_or(1));
  options.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  options.stream = fields.boolean("stream").value_or(false);
  options.request_id = fields.string("rid", kNameBytesMax).value_or("");
  read_stop(fields, options.stop);
  if (const json::array* ids = fields.array("stop_token_ids", static_cast<std::size_t>(limits::kStopStringsMax))) {
    if (auto parsed = token_ids(*ids)) {
      options.stop_token_ids = std::move(*parsed);
    } else {
      fields.fail("stop_token_ids", "expected token ids");
    }
  }
  read_stream_options(fields, options);
  read_required_precision(fields, options);
  fields.accept_ignored({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"});
  fields.refuse_unless("presence_penalty", 0.0);
  fields.refuse_unless("frequency_penalty", 0.0);
  fields.refuse_unless("repetition_penalty", 1.0);
  fields.refuse_unless("min_p", 0.0);
  fields.refuse_unless("min_tokens", 0);
  fields.refuse_unless("logit_bias", json::object());
}

// One prompt, or several: "a", ["a", "b"], [1, 2], [[1, 2], [3]].
void read_prompts(JsonFields& fields, std::vector<Prompt>& prompts) {
  fields.require("prompt");
  const json::value* value = fields.value("prompt");
  if (value == nullptr) return;
  const auto add = [&](const json::value& one) {
    if (one.is_string()) {
      prompts.emplace_back(std::string(one.get_string().data(), one.get_string().size()));
      return true;
    }
    if (!one.is_array()) return false;
    auto ids = token_ids(one.get_array());
    if (!ids.has_value()) return false;
    prompts.emplace_back(std::move(*ids));
    return true;
  };
  const auto refuse = [&] { fields.fail("prompt", "expected text, token ids, or an array of either"); };
  if (!value->is_array()) {
    if (!add(*value)) refuse();
    return;
  }
  const json::array& array = value->get_array();
  if (array.empty()) return fields.fail("prompt", "must not be empty");
  if (array[0].is_number()) {
    if (!add(*value)) refuse();
    return;
  }
  if (array.size() > 256) return fields.fail("prompt", "at most 256 prompts in one request");
  for (const json::value& one : array) {
    if (!add(one)) return refuse();
  }
}

}  // namespace

ApiResult<ChatRequest> parse_chat_request(std::string_view body) {
  ApiResult<json::value> value = parse_object(body);
  if (!value.has_value()) return std::unexpected(std::move(value.error()));
  JsonFields fields(value->get_object(), "");
  ChatRequest request;
  read_options(fields, request.options);
  fields.require("messages");
  read_conversation(fields, body, request.conversation, request.render);
  const auto old_max = fields.integer("max_tokens", 1, limits::kContextMax);
  const auto new_max = fields.integer("max_completion_tokens", 1, limits::kContextMax);
  if (const auto max = new_max.has_value() ? new_max : old_max) {
    request.options.max_tokens = static_cast<std::int32_t>(*max);
  }
  request.options.logprobs = fields.boolean("logprobs").value_or(false);
  request.options.top_logprobs =
      static_cast<std::int32_t>(fields.integer("top_logprobs", 0, limits::kTopLogprobsMax).value_or(0));
  if (request.options.top_logprobs > 0 && !request.options.logprobs) {
    fields.fail("top_logprobs", "needs logprobs to be true");
  }
  fields.refuse_unless("response_format", json::object{{"type", "text"}});
  fields.refuse_unless("modalities", json::array{"text"});
  const base::Status status = fields.finish();
  if (!status.ok()) return failed(fields, status);
  return request;
}

ApiResult<CompletionRequest> parse_completion_request(std::string_view body) {
  ApiResult<json::value> value = parse_object(body);
  if (!value.has_value()) return std::unexpected(std::move(value.error()));
  JsonFields fields(value->get_object(), "");
  CompletionRequest request;
  read_options(fields, request.options);
  read_prompts(fields, request.prompts);
  request.echo = fields.boolean("echo").value_or(false);
  // Who wants the prompt back may want nothing else.
  if (const auto max = fields.integer("max_tokens", request.echo ? 0 : 1, limits::kContextMax)) {
    request.options.max_tokens = static_cast<std::int32_t>(*max);
  } else {
    request.options.max_tokens = 16;  // OpenAI's default for completions.
  }
  if (const auto count = fields.integer("logprobs", 0, limits::kTopLogprobsMax)) {
    request.options.logprobs = true;
    request.options.top_logprobs = static_cast<std::int32_t>(*count);
  }
  fields.refuse_unless("best_of", 1);
  fields.refuse_unless("suffix", "");
  const base::Status status = fields.finish();
  if (!status.ok()) return failed(fields, status);
  return request;
}

ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body) {
  ApiResult<json::value> value = parse_object(body);
  if (!value.has_value()) return std::unexpected(std::move(value.error()));
  JsonFields fields(value->get_object(), "");
  TokenizeRequest request;
  request.model = fields.string("model", kNameBytesMax).value_or("");
  if (fields.value("prompt") != nullptr) {
    for (const std::string_view name : kRenderingFields) {
      if (fields.value(name) != nullptr) fields.fail(name, "a prompt is not rendered; it goes with messages");
    }
  }
  if (!fields.boolean("add_generation_prompt").value_or(true)) {
    request.render.generation_prompt = text::GenerationPrompt::kOmit;
  }
  text::Conversation conversation;
  read_conversation(fields, body, conversation, request.render);
  const auto prompt = fields.string("prompt", static_cast<std::size_t>(limits::kBodyBytesMax));
  if (prompt.has_value() == !conversation.messages.empty()) {
    fields.fail("prompt", "either prompt or messages is needed");
  } else if (prompt.has_value()) {
    request.input = *prompt;
  } else {
    request.input = std::move(conversation);
  }
  // A rendering has the control tokens that it has.
  const std::optional<bool> special = fields.boolean("add_special_tokens");
  if (!prompt.has_value() && special.value_or(false)) {
    fields.fail("add_special_tokens", "messages are rendered with the model's own control tokens; leave it out");
  }
  if (!special.value_or(true)) request.prompt_prefix = PromptPrefix::kOmit;
  if (fields.boolean("return_token_strs").value_or(false)) request.token_strings = TokenStrings::kReturn;
  const base::Status status = fields.finish();
  if (!status.ok()) return failed(fields, status);
  return request;
}

ApiResult<DetokenizeRequest> parse_detokenize_request(std::string_view body) {
  ApiResult<json::value> value = parse_object(body);
  if (!value.has_value()) return std::unexpected(std::move(value.error()));
  JsonFields fields(value->get_object(), "");
  DetokenizeRequest request;
  request.model = fields.string("model", kNameBytesMax).value_or("");
  fields.require("tokens");
  if (const json::array* ids = fields.array("tokens", static_cast<std::size_t>(limits::kContextMax))) {
    if (auto parsed = token_ids(*ids)) {
      request.tokens = std::move(*parsed);
    } else {
      fields.fail("tokens", "expected token ids");
    }
  }
  const base::Status status = fields.finish();
  if (!status.ok()) return failed(fields, status);
  return request;
}

ApiResult<std::string> parse_abort_request(std::string_view body) {
  ApiResult<json::value> value = parse_object(body);
  if (!value.has_value()) return std::unexpected(std::move(value.error()));
  JsonFields fields(value->get_object(), "");
  std::string rid = fields.string("rid", kNameBytesMax).value_or("");
  const bool all = fields.boolean("abort_all").value_or(false);
  fields.accept_ignored({"finished_reason", "abort_message"});
  if (all == !rid.empty()) fields.fail("rid", "either rid or abort_all is needed");
  const base::Status status = fields.finish();
  if (!status.ok()) return failed(fields, status);
  return rid;
}

}  // namespace tessera::server
