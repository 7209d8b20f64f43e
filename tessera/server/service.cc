#include "tessera/server/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/limits.h"
#include "tessera/server/json_writer.h"

namespace tessera::server {

namespace {

// The one tenant of a shared prefix cache; those of keys have other names.
constexpr std::string_view kSharedTenant = "shared";

// Strings that name an id: visible ASCII only, so that logs and headers stay clean.
bool is_clean_id(std::string_view id) {
  return id.size() <= 128 &&
         std::ranges::all_of(id, [](char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\'; });
}

// The field of the request that a chat format's refusal is about, which its message begins with (chat_format.h).
std::string rendering_param(std::string_view refusal) {
  const std::string_view field = refusal.substr(0, refusal.find_first_of(":["));
  if (field == "tools" || field == "reasoning_effort") return std::string(field);
  if (field == "thinking" || field == "preserve_thinking") return "chat_template_kwargs";
  return "messages";
}

}  // namespace

Service::Service(ServiceOptions options, const text::Tokenizer& tokenizer, const text::ChatFormat* chat_format,
                 router::Router& router, const base::Clock& clock)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      chat_format_(chat_format),
      router_(router),
      clock_(clock),
      started_(clock.unix_seconds()),
      metrics_(options_.served_model_name),
      random_(std::random_device{}()) {
  for (const request::EngineInfo& engine : router_.engines()) {
    precision_.digest = engine.model_digest;
    if (engine.role != request::EngineRole::kDecode) {
      precision_.prefill_weights = engine.weight_format;
      precision_.prefill_kv = ops::kv_format_name(engine.kv_format);
    }
    if (engine.role != request::EngineRole::kPrefill) {
      precision_.decode_weights = engine.weight_format;
      precision_.decode_kv = ops::kv_format_name(engine.kv_format);
    }
  }
}

std::uint64_t Service::random_number() {
  std::lock_guard lock(mutex_);
  return random_();
}

std::string Service::new_call_id() { return fmt::format("call_{:016x}{:08x}", random_number(), random_number() >> 32); }

std::optional<ApiError> Service::check_model(const std::string& name) const {
  if (name.empty() || name == options_.served_model_name) return std::nullopt;
  return ApiError{
      404, "invalid_request_error", "model_not_found", "model",
      fmt::format("the model '{}' does not exist here; this server serves '{}'", name, options_.served_model_name)};
}

std::optional<ApiError> Service::check_precision(const GenerationOptions& options) const {
  for (const auto& [field, wanted] : options.require_precision) {
    const std::string& have = field == "prefill_kv"        ? precision_.prefill_kv
                              : field == "decode_kv"       ? precision_.decode_kv
                              : field == "prefill_weights" ? precision_.prefill_weights
                                                           : precision_.decode_weights;
    if (have != wanted) {
      return bad_request(fmt::format("'require_precision.{}': this server has {}, not '{}'", field, have, wanted),
                         "require_precision", "precision_not_available");
    }
  }
  return std::nullopt;
}

std::vector<std::int32_t> Service::stop_ids(const GenerationOptions& options, GenerationKind kind) const {
  std::vector<std::int32_t> ids = options.stop_token_ids;
  const std::vector<text::TokenId>& model_ids =
      kind == GenerationKind::kChat && chat_format_ != nullptr ? chat_format_->stop_token_ids() : tokenizer_.eos_ids();
  if (!options.ignore_eos) ids.insert(ids.end(), model_ids.begin(), model_ids.end());
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

ApiResult<Generation> Service::begin(GenerationKind kind, GenerationOptions options, const std::string& request_id) {
  if (auto error = check_model(options.model)) return std::unexpected(std::move(*error));
  if (auto error = check_precision(options)) return std::unexpected(std::move(*error));
  Generation generation;
  generation.kind = kind;
  if (!request_id.empty()) options.request_id = request_id;
  if (!is_clean_id(options.request_id)) {
    return std::unexpected(bad_request("request ids are at most 128 visible ASCII characters", "rid"));
  }
  generation.id = fmt::format("{}-{:016x}", kind == GenerationKind::kChat ? "chatcmpl" : "cmpl", random_number());
  if (options.request_id.empty()) options.request_id = generation.id;
  if (!options.seed.has_value()) options.seed = random_number();
  generation.created = clock_.unix_seconds();
  generation.model = options_.served_model_name;
  generation.options = std::move(options);
  return generation;
}

std::optional<ApiError> Service::check_length(std::int64_t tokens_min, std::int64_t room,
                                              const std::string& param) const {
  if (tokens_min <= room) return std::nullopt;
  return bad_request(
      fmt::format("'{}': the text is too long: no token stands for more than {} bytes, so that it has at "
                  "least {} tokens; this server has room for {}",
                  param, tokenizer_.longest_token_bytes(), tokens_min, room),
      param, "context_length_exceeded");
}

std::int64_t Service::prompt_room(const GenerationOptions& options) const {
  return router_.context_tokens_max() - (options.max_tokens == 0 ? 0 : 1);
}

std::optional<ApiError> Service::add_prompt(Generation& generation, const std::vector<std::int32_t>& prompt,
                                            const std::optional<std::string>& echo, const std::string& tenant) {
  const std::int64_t context = router_.context_tokens_max();
  const std::int64_t length = static_cast<std::int64_t>(prompt.size());
  if (prompt.empty()) return bad_request("'prompt': gives no tokens", "prompt");
  GenerationOptions& options = generation.options;
  const std::int64_t room = prompt_room(options);
  if (length > room) {
    const std::string_view generating = room < context ? "with at least one to generate " : "";
    return bad_request(fmt::format("the prompt has {} tokens; {}this server has room for {}", length, generating, room),
                       generation.kind == GenerationKind::kChat ? "messages" : "prompt", "context_length_exceeded");
  }
  const bool scored = echo.has_value() && options.logprobs;
  if (scored) {
    generation.prompt_logprobs += options.n * length * (1 + options.top_logprobs);
    if (generation.prompt_logprobs > base::limits::kPromptLogprobsMax) {
      return bad_request(fmt::format("'echo': with 'logprobs' one answer has at most {} log-probabilities of prompt "
                                     "tokens, alternatives included, over all choices; send fewer prompts at a time",
                                     base::limits::kPromptLogprobsMax),
                         "echo");
    }
  }
  // Without a limit of the client's, the context is the limit.
  const std::int64_t max_tokens = options.max_tokens.has_value() ? *options.max_tokens : context - length;
  if (length + max_tokens > context) {
    return bad_request(fmt::format("the prompt has {} tokens and {} are to be generated; this server has room for {} "
                                   "together",
                                   length, max_tokens, context),
                       "max_tokens", "context_length_exceeded");
  }
  generation.tenant = tenant;
  generation.prompt_tokens += length;
  const std::vector<std::int32_t> stops = stop_ids(options, generation.kind);
  for (std::int32_t i = 0; i < options.n; ++i) {
    request::SequenceSpec spec;
    spec.id = router_.next_id();
    spec.request_id = options.request_id;
    spec.tenant = options_.prefix_sharing == PrefixSharing::kEverybody ? std::string(kSharedTenant) : tenant;
    spec.prompt = prompt;
    spec.sampling.temperature = options.temperature;
    spec.sampling.top_p = options.top_p;
    spec.sampling.top_k = options.top_k;
    spec.sampling.seed = *options.seed + static_cast<std::uint64_t>(i);
    spec.sampling.max_tokens = static_cast<std::int32_t>(max_tokens);
    spec.sampling.ignore_eos = false;  // Already done: `stops` lacks the model's own then.
    spec.sampling.stop_token_ids = stops;
    spec.sampling.logprobs = options.logprobs;
    spec.sampling.top_logprobs = options.top_logprobs;
    if (scored) spec.sampling.prompt_logprobs = options.top_logprobs;
    generation.sequences.push_back(std::move(spec));
    generation.echo.push_back(echo.value_or(""));
  }
  return std::nullopt;
}

ApiResult<std::vector<std::int32_t>> Service::render(const text::Conversation& conversation,
                                                     const text::RenderOptions& options, std::int64_t room) const {
  if (chat_format_ == nullptr) {
    return std::unexpected(bad_request("this model has no chat format; use /v1/completions", "messages"));
  }
  const base::Result<std::vector<text::Segment>> segments = chat_format_->render(conversation, options);
  if (!segments.has_value()) {
    const std::string& message = segments.error().message();
    return std::unexpected(bad_request(message, rendering_param(message)));
  }
  if (auto error = check_length(tokenizer_.tokens_min(*segments), room, "messages")) {
    return std::unexpected(std::move(*error));
  }
  return tokenizer_.encode(*segments);
}

ApiResult<Generation> Service::prepare_chat(ChatRequest request, const std::string& request_id,
                                            const std::string& tenant) {
  ApiResult<Generation> generation = begin(GenerationKind::kChat, std::move(request.options), request_id);
  if (!generation.has_value()) return generation;
  const std::int64_t room = router_.context_tokens_max() - 1;
  const ApiResult<std::vector<std::int32_t>> prompt = render(request.conversation, request.render, room);
  if (!prompt.has_value()) return std::unexpected(prompt.error());
  if (auto error = add_prompt(*generation, *prompt, std::nullopt, tenant)) return std::unexpected(std::move(*error));
  generation->syntax = choose_syntax(chat_format_->output_syntax(request.render), options_.parsers);
  generation->tools = std::move(request.conversation.tools);
  generation->reasoning_field = options_.reasoning_field;
  return generation;
}

ApiResult<Generation> Service::prepare_completion(CompletionRequest request, const std::string& request_id,
                                                  const std::string& tenant) {
  ApiResult<Generation> generation = begin(GenerationKind::kCompletion, std::move(request.options), request_id);
  if (!generation.has_value()) return generation;
  if (static_cast<std::int64_t>(request.prompts.size()) * generation->options.n > 256) {
    return std::unexpected(bad_request("more than 256 choices (prompts times n) in one request", "n"));
  }
  const std::int64_t room = prompt_room(generation->options);
  for (const Prompt& prompt : request.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    if (text == nullptr) continue;
    if (auto error = check_length(tokenizer_.tokens_min(*text), room, "prompt")) {
      return std::unexpected(std::move(*error));
    }
  }
  for (const Prompt& prompt : request.prompts) {
    std::vector<std::int32_t> ids;
    std::optional<std::string> echo;
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      ids = tokenizer_.prompt_prefix_ids();
      const std::vector<text::TokenId> pieces = tokenizer_.encode(*text);
      ids.insert(ids.end(), pieces.begin(), pieces.end());
      if (request.echo) echo = *text;
      // A text that the tokenizer normalizes is not what its tokens stand for, and it is their places that are told.
      if (request.echo && generation->options.logprobs) echo = tokenizer_.decode(ids, text::SpecialTokens::kSkip);
    } else {
      ids = std::get<std::vector<std::int32_t>>(prompt);
      for (const std::int32_t id : ids) {
        if (id >= options_.vocab_size) {
          return std::unexpected(bad_request(
              fmt::format("'prompt': token id {} is outside the vocabulary of {}", id, options_.vocab_size), "prompt"));
        }
      }
      if (request.echo) echo = tokenizer_.decode(ids, text::SpecialTokens::kSkip);
    }
    if (auto error = add_prompt(*generation, ids, echo, tenant)) {
      return std::unexpected(std::move(*error));
    }
  }
  return generation;
}

std::optional<ApiError> Service::start(const Generation& generation,
                                       const std::function<void(std::size_t, router::SequenceEvent)>& subscriber) {
  {
    std::lock_guard lock(mutex_);
    for (const request::SequenceSpec& spec : generation.sequences) {
      live_by_request_id_.emplace(spec.request_id, Live{spec.id, generation.tenant});
    }
  }
  for (std::size_t i = 0; i < generation.sequences.size(); ++i) {
    const base::Status status = router_.submit(
        generation.sequences[i], [subscriber, i](router::SequenceEvent event) { subscriber(i, std::move(event)); });
    if (!status.ok()) {
      for (std::size_t j = 0; j < i; ++j) router_.abort(generation.sequences[j].id);
      finished(generation);
      return from_status(status);
    }
  }
  return std::nullopt;
}

bool Service::take_prompt_logprobs(const Generation& generation) {
  std::lock_guard lock(mutex_);
  if (live_prompt_logprobs_ + generation.prompt_logprobs > base::limits::kPromptLogprobsLiveMax) return false;
  live_prompt_logprobs_ += generation.prompt_logprobs;
  return true;
}

void Service::give_back_prompt_logprobs(const Generation& generation) {
  std::lock_guard lock(mutex_);
  live_prompt_logprobs_ -= generation.prompt_logprobs;
}

void Service::abort_choice(const Generation& generation, std::size_t choice) {
  router_.abort(generation.sequences[choice].id);
}

void Service::finished(const Generation& generation) {
  std::lock_guard lock(mutex_);
  for (const request::SequenceSpec& spec : generation.sequences) {
    auto [begin, end] = live_by_request_id_.equal_range(spec.request_id);
    for (auto it = begin; it != end; ++it) {
      if (it->second.id == spec.id) {
        live_by_request_id_.erase(it);
        break;
      }
    }
  }
}

std::int64_t Service::abort_by_request_id(const std::string& request_id, const std::string& tenant) {
  std::vector<request::SequenceId> ids;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, live] : live_by_request_id_) {
      if (live.tenant == tenant && (request_id.empty() || key == request_id)) ids.push_back(live.id);
    }
  }
  for (const request::SequenceId id : ids) router_.abort(id);
  return static_cast<std::int64_t>(ids.size());
}

ApiResult<std::string> Service::tokenize(const TokenizeRequest& request) const {
  if (auto error = check_model(request.model)) return std::unexpected(std::move(*error));
  const std::int64_t room = router_.context_tokens_max();
  std::vector<text::TokenId> ids;
  if (const auto* text = std::get_if<std::string>(&request.input)) {
    if (auto error = check_length(tokenizer_.tokens_min(*text), room, "prompt")) {
      return std::unexpected(std::move(*error));
    }
    if (request.prompt_prefix == PromptPrefix::kAdd) ids = tokenizer_.prompt_prefix_ids();
    const std::vector<text::TokenId> pieces = tokenizer_.encode(*text);
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  } else {
    ApiResult<std::vector<std::int32_t>> rendered =
        render(std::get<text::Conversation>(request.input), request.render, room);
    if (!rendered.has_value()) return std::unexpected(std::move(rendered.error()));
    ids = std::move(*rendered);
  }
  JsonWriter json;
  json.begin_object().key("count").integer(static_cast<std::int64_t>(ids.size()));
  json.key("max_model_len").integer(router_.context_tokens_max()).key("tokens").integers(ids);
  if (request.token_strings == TokenStrings::kReturn) {
    json.key("token_strs").begin_array();
    for (const text::TokenId id : ids) json.string(tokenizer_.decode({&id, 1}, text::SpecialTokens::kKeep));
    json.end_array();
  }
  json.end_object();
  return json.take();
}

ApiResult<std::string> Service::detokenize(const DetokenizeRequest& request) const {
  if (auto error = check_model(request.model)) return std::unexpected(std::move(*error));
  for (const std::int32_t id : request.tokens) {
    if (!tokenizer_.contains(id)) {
      return std::unexpected(bad_request(fmt::format("'tokens': {} is not in the vocabulary", id), "tokens"));
    }
  }
  JsonWriter json;
  json.begin_object().key("prompt").string(tokenizer_.decode(request.tokens, text::SpecialTokens::kKeep)).end_object();
  return json.take();
}

namespace {

void write_phase(JsonWriter& json, std::string_view name, const std::string& weights, const std::string& kv) {
  json.key(name).begin_object().key("weights").string(weights).key("kv").string(kv);
  json.end_object();
}

}  // namespace

ApiResult<std::string> Service::model_json(std::string_view id) const {
  if (auto error = check_model(std::string(id))) return std::unexpected(std::move(*error));
  JsonWriter json;
  json.begin_object().key("id").string(options_.served_model_name).key("object").string("model");
  json.key("created").integer(started_).key("owned_by").string("tessera");
  json.key("max_model_len").integer(router_.context_tokens_max());
  json.key("precision").begin_object();
  write_phase(json, "prefill", precision_.prefill_weights, precision_.prefill_kv);
  write_phase(json, "decode", precision_.decode_weights, precision_.decode_kv);
  json.key("checkpoint_digest").string(precision_.digest).end_object().end_object();
  return json.take();
}

std::string Service::models_json() const {
  return "{\"object\":\"list\",\"data\":[" + *model_json(options_.served_model_name) + "]}";
}

std::string Service::version_json() const {
  JsonWriter json;
  json.begin_object().key("version").string(options_.version).end_object();
  return json.take();
}

std::string Service::precision_header() const {
  return fmt::format("prefill={}/{}; decode={}/{}; digest={}", precision_.prefill_weights, precision_.prefill_kv,
                     precision_.decode_weights, precision_.decode_kv, precision_.digest);
}

std::string Service::server_info_json() const {
  const router::RouterSnapshot snapshot = router_.snapshot();
  JsonWriter json;
  json.begin_object().key("version").string(options_.version).key("served_model_name");
  json.string(options_.served_model_name).key("max_model_len").integer(router_.context_tokens_max());
  if (chat_format_ != nullptr) {
    const text::OutputSyntax syntax = choose_syntax(chat_format_->output_syntax({}), options_.parsers);
    json.key("chat_format").string(chat_format_->name());
    json.key("reasoning_parser").string(reasoning_parser_name(syntax.reasoning));
    json.key("tool_call_parser").string(tool_call_parser_name(syntax.tool_calls));
  }
  json.key("shared_prefix_cache").boolean(options_.prefix_sharing == PrefixSharing::kEverybody);
  json.key("engines").begin_array();
  for (const auto& [info, stats] : snapshot.engines) {
    json.begin_object().key("id").integer(info.id).key("role").string(request::engine_role_name(info.role));
    json.key("backend").string(info.backend).key("weights").string(info.weight_format);
    json.key("kv").string(ops::kv_format_name(info.kv_format)).key("page_size").integer(info.page_size);
    json.key("pages").integer(info.pages).key("context_tokens_max").integer(info.context_tokens_max);
    json.key("kv_integrity").string(kv_cache::integrity_level_name(info.integrity));
    json.key("kv_sweep_pages_per_second").integer(info.sweep_pages_per_second);
    json.key("running_max").integer(info.running_max).key("running").integer(stats.running);
    json.key("waiting").integer(stats.waiting).key("pages_free").integer(stats.pages_free);
    json.key("pages_leased").integer(stats.pages_leased).key("pages_cached").integer(stats.pages_cached);
    json.key("pages_quarantined").integer(stats.pages_quarantined);
    json.key("on_integrity_error").string(kv_cache::on_integrity_error_name(info.on_integrity_error));
    json.key("device_failed").boolean(stats.device_failed).key("check_failures").integer(stats.check_failures);
    json.key("integrity_recomputes").integer(stats.integrity_recomputes).end_object();
  }
  json.end_array().end_object();
  return json.take();
}

std::string Service::metrics_text() const { return metrics_.serialize(router_.snapshot()); }

}  // namespace tessera::server
