#include "serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "progress.h"
#include "signals.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/logging.h"
#include "tessera/ops/kv_conversion.h"
#include "text_files.h"

namespace tessera::app {

namespace {

constexpr std::int64_t kDefaultPoolTokens = 32768;
constexpr request::EngineId kPrefillEngine = 0;  // Also the unified engine's.
constexpr request::EngineId kDecodeEngine = 1;

// What the flags say of one phase's KV, "auto" resolved.
ops::KvFormat kv_format(const ServeOptions& options, request::EngineRole role) {
  const std::string& own =
      role == request::EngineRole::kDecode ? options.decode_kv_cache_dtype : options.prefill_kv_cache_dtype;
  const std::string& wanted = own.empty() ? options.kv_cache_dtype : own;
  return kv_format_of(wanted).value_or(role == request::EngineRole::kDecode ? ops::KvFormat::kF8E4M3
                                                                            : ops::KvFormat::kBF16);
}

// Whether the two pools of a split server can hand over pages, known before anything is loaded.
base::Status check_kv_formats(const ServeOptions& options) {
  if (options.role == "unified") return base::ok_status();
  return ops::check_conversion(kv_format(options, request::EngineRole::kPrefill),
                               kv_format(options, request::EngineRole::kDecode))
      .with_context("--prefill-kv-cache-dtype and --decode-kv-cache-dtype");
}

// A rate that nothing would be swept at is a misunderstanding.
base::Status check_integrity(const ServeOptions& options) {
  const bool compares_bytes = options.kv_integrity != kv_cache::integrity_level_name(kv_cache::IntegrityLevel::kTags);
  if (compares_bytes || !options.kv_sweep_pages_per_second.has_value()) return base::ok_status();
  return base::invalid_argument(
      "--kv-sweep-pages-per-second needs --kv-integrity digest or digest-step: at the level tags the bytes of pages "
      "are compared with nothing");
}

// One part in so many of the memory is not planned with: requests, sockets, tokenizer, and the ops' working memory.
constexpr std::int64_t kUnplannedShare = 16;

// `remaining_bytes` of memory are neither in use nor planned for another engine.
base::Result<engine::EngineConfig> engine_config(const ServeOptions& options, const ops::Backend& backend,
                                                 request::EngineRole role, const base::MachineMemory& memory,
                                                 std::int64_t remaining_bytes) {
  engine::EngineConfig config;
  config.id = role == request::EngineRole::kDecode ? kDecodeEngine : kPrefillEngine;
  config.role = role;
  config.kv_format = kv_format(options, role);
  if (!backend.supports(config.kv_format)) {
    return base::failure(base::invalid_argument(fmt::format("KV format {} is not available on the {} backend",
                                                            ops::kv_format_name(config.kv_format), backend.name())));
  }
  config.page_size = static_cast<std::int32_t>(options.page_size);
  config.running_max = options.max_running_requests;
  config.chunked_prefill_size = options.chunked_prefill_size;
  config.context_tokens_max = options.context_length;
  config.sequences_max = options.max_queued_requests;
  using enum kv_cache::IntegrityLevel;
  for (const kv_cache::IntegrityLevel level : {kTags, kDigest, kDigestStep}) {
    if (options.kv_integrity == kv_cache::integrity_level_name(level)) config.integrity.level = level;
  }
  config.integrity.sweep_pages_per_second =
      options.kv_sweep_pages_per_second.value_or(config.integrity.sweep_pages_per_second);
  if (options.on_integrity_error == "recompute") {
    config.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
  }
  // The two pools of a process share its weights: they are counted once.
  if (role == request::EngineRole::kDecode) config.weight_memory = engine::WeightMemory::kCountedElsewhere;
  const std::int64_t own_pages = role == request::EngineRole::kDecode ? options.decode_pages : options.prefill_pages;
  if (own_pages > 0) {
    config.pages = own_pages;
  } else if (options.max_total_tokens > 0 || options.mem_fraction_static == 0.0) {
    const std::int64_t tokens = options.max_total_tokens > 0 ? options.max_total_tokens : kDefaultPoolTokens;
    config.pages = base::ceil_div(tokens, options.page_size);
  }
  config.memory_budget_bytes = remaining_bytes;
  if (options.mem_fraction_static > 0.0) {
    const double share = role == request::EngineRole::kUnified ? 1.0 : 0.5;
    const double wanted = static_cast<double>(memory.total_bytes) * options.mem_fraction_static * share;
    config.memory_budget_bytes = std::min(remaining_bytes, static_cast<std::int64_t>(wanted));
  }
  return config;
}

base::Result<server::ParserChoice> parser_choice(const ServeOptions& options) {
  server::ParserChoice choice;
  TESSERA_ASSIGN_OR_RETURN(choice.reasoning, server::reasoning_parser_named(options.reasoning_parser));
  TESSERA_ASSIGN_OR_RETURN(choice.tool_calls, server::tool_call_parser_named(options.tool_call_parser));
  return choice;
}

// How long the ends of answers that a drain cut off may take to write.
constexpr std::chrono::seconds kFarewell{5};

}  // namespace

base::Result<std::unique_ptr<Serving>> Serving::start(const ServeOptions& options) {
  auto serving = std::unique_ptr<Serving>(new Serving());
  TESSERA_RETURN_IF_ERROR(check_kv_formats(options));
  TESSERA_RETURN_IF_ERROR(check_integrity(options));
  TESSERA_ASSIGN_OR_RETURN(serving->parsers_, parser_choice(options));
  // Before the weights are loaded, which the plans count.
  TESSERA_ASSIGN_OR_RETURN(serving->memory_, read_memory(options.backend));
  TESSERA_RETURN_IF_ERROR(serving->load(options));
  TESSERA_RETURN_IF_ERROR(serving->make_engines(options));
  TESSERA_RETURN_IF_ERROR(serving->make_server(options));
  TESSERA_RETURN_IF_ERROR(serving->wait_ready());
  return serving;
}

void Serving::drain(std::chrono::seconds timeout) {
  router_->begin_drain();
  http_->begin_drain();
  base::log().info("draining: {} sequences live", router_->live());
  if (http_->wait_drained(timeout)) return;
  // Their clients hear that it was an error: an answer that only stops would look whole.
  base::log().warn("drain timed out: {} sequences are cut off", router_->live());
  router_->end_all(base::unavailable("the server is shutting down"));
  if (!http_->wait_drained(kFarewell)) base::log().warn("some clients did not read to the end");
}

// Subscribers of the router hold parts of the connections, so the sockets stop first and are destroyed last.
void Serving::stop() {
  if (http_ != nullptr) http_->stop();
  if (router_ != nullptr) router_->stop();
  for (auto& engine : engines_) engine->stop();
  http_.reset();
}

base::Status Serving::load(const ServeOptions& options) {
  const std::filesystem::path dir(options.model);
  TESSERA_ASSIGN_OR_RETURN(backend_, make_backend(options.backend));
  base::log().info("backend {}", backend_->name());
  TESSERA_RETURN_IF_ERROR(check_model(options.backend, dir));
  TESSERA_ASSIGN_OR_RETURN(TextFiles text_files, load_text_files(dir, options.chat_format));
  tokenizer_ = std::move(text_files.tokenizer);
  chat_format_ = std::move(text_files.chat_format);
  if (chat_format_ == nullptr) {
    base::log().warn("no chat: {}", text_files.no_chat);
  } else {
    base::log().info("chat format {}", chat_format_->name());
    TESSERA_RETURN_IF_ERROR(server::check_reasoning_parser(*chat_format_, parsers_));
  }
  // Nobody is served yet and loading may take minutes: a signal need not wait for it. The backend's threads exist.
  const TakesSignals interruptible;
  std::optional<Progress> progress;
  if (options.show_progress) progress.emplace("loading weights");
  TESSERA_ASSIGN_OR_RETURN(model_, models::load_model(dir, *backend_, [&](const models::LoadProgress& done) {
                             if (progress.has_value()) progress->update(done.bytes_done, done.bytes_total);
                           }));
  if (progress.has_value()) progress->finish();
  return check_vocabulary(dir, *tokenizer_, model_->config().vocab_size);
}

base::Status Serving::make_engines(const ServeOptions& options) {
  using request::EngineRole;
  const std::vector<EngineRole> roles = options.role == "unified"
                                            ? std::vector{EngineRole::kUnified}
                                            : std::vector{EngineRole::kPrefill, EngineRole::kDecode};
  std::int64_t remaining = memory_.available_bytes - memory_.available_bytes / kUnplannedShare;
  base::log().info("memory: {}; budget {} MiB", memory_.arithmetic, remaining >> 20);
  for (const EngineRole role : roles) {
    TESSERA_ASSIGN_OR_RETURN(const engine::EngineConfig config,
                             engine_config(options, *backend_, role, memory_, std::max<std::int64_t>(1, remaining)));
    engine::EngineParts parts{*model_, *backend_, events_, clock_, nullptr};
    if (role != EngineRole::kUnified) {
      parts.endpoint = transport_.make_endpoint(static_cast<kv_transfer::PeerId>(config.id));
    }
    const std::string_view name = request::engine_role_name(role);
    auto made = engine::Engine::create(config, std::move(parts));
    if (!made.has_value()) return made.error().with_context(fmt::format("{} engine", name));
    remaining -= (*made)->memory_plan().total();
    const request::EngineInfo& info = (*made)->info();
    base::log().info(
        "{} engine: weights {}, KV {}, {} pages of {} tokens ({} tokens), context {}, {} sequences at once\n{}", name,
        info.weight_format, ops::kv_format_name(info.kv_format), info.pages, info.page_size,
        info.pages * info.page_size, info.context_tokens_max, info.running_max, (*made)->memory_plan().to_string());
    engines_.push_back(std::move(*made));
  }
  return base::ok_status();
}

base::Status Serving::make_server(const ServeOptions& options) {
  std::vector<request::EngineEndpoint*> endpoints;
  endpoints.reserve(engines_.size());
  for (const auto& engine : engines_) endpoints.push_back(engine.get());
  router::RouterOptions router_options;
  router_options.live_sequences_max = options.max_queued_requests;
  TESSERA_ASSIGN_OR_RETURN(router_, router::Router::create(router_options, std::move(endpoints), events_, clock_));
  server::ServiceOptions service_options;
  service_options.served_model_name = options.served_model_name;
  if (service_options.served_model_name.empty()) {
    service_options.served_model_name = std::filesystem::weakly_canonical(options.model).filename().string();
  }
  service_options.version = options.version;
  service_options.vocab_size = model_->config().vocab_size;
  service_options.parsers = parsers_;
  if (options.reasoning_field == "reasoning") service_options.reasoning_field = server::ReasoningField::kReasoning;
  if (options.shared_prefix_cache) service_options.prefix_sharing = server::PrefixSharing::kEverybody;
  base::log().info("prefix cache: {}; a failed page check: {}",
                   options.shared_prefix_cache
                       ? "one, shared by everybody (--shared-prefix-cache)"
                       : fmt::format("apart for each of {} tenants", std::max<std::size_t>(1, options.api_keys.size())),
                   options.on_integrity_error);
  service_ =
      std::make_unique<server::Service>(std::move(service_options), *tokenizer_, chat_format_.get(), *router_, clock_);
  for (const auto& engine : engines_) engine->start();
  router_->start();
  server::HttpServerOptions http_options;
  http_options.host = options.host;
  http_options.port = static_cast<std::uint16_t>(options.port);
  http_options.api_keys = options.api_keys;
  http_options.admin_api_key = options.admin_api_key;
  http_options.body_bytes_max = options.request_body_mib << 20;
  TESSERA_ASSIGN_OR_RETURN(http_, server::HttpServer::start(http_options, *service_));
  return base::ok_status();
}

base::Status Serving::wait_ready() {
  for (int i = 0; i < 500; ++i) {
    if (service_->readiness().ok()) return base::ok_status();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return service_->readiness();
}

}  // namespace tessera::app
