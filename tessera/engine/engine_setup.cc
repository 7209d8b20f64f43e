// How an engine comes to be: the config is checked, every buffer is sized from it and allocated, and what does not fit
// is refused with the arithmetic.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/limits.h"
#include "tessera/engine/engine_loop.h"

namespace tessera::engine {

using request::EngineRole;

namespace {

base::Status check_config(const EngineConfig& config, const EngineParts& parts) {
  const auto in_range = [](std::int64_t value, std::int64_t low, std::int64_t high, const char* what) {
    if (value >= low && value <= high) return base::ok_status();
    return base::invalid_argument(fmt::format("{} is {}; expected {} to {}", what, value, low, high));
  };
  TESSERA_RETURN_IF_ERROR(in_range(config.page_size, 1, 4096, "page size"));
  TESSERA_RETURN_IF_ERROR(in_range(config.pages, 0, (1ll << 31) / config.page_size - 2, "number of KV pages"));
  TESSERA_RETURN_IF_ERROR(in_range(config.memory_budget_bytes, 0, 1ll << 50, "memory budget in bytes"));
  TESSERA_RETURN_IF_ERROR(in_range(config.running_max, 1, 1 << 16, "number of running sequences"));
  TESSERA_RETURN_IF_ERROR(in_range(config.chunked_prefill_size, 1, 1 << 20, "chunked prefill size"));
  TESSERA_RETURN_IF_ERROR(in_range(config.scored_prompt_size, 1, 1 << 20, "scored prompt size"));
  TESSERA_RETURN_IF_ERROR(in_range(config.context_tokens_max, 0, base::limits::kContextMax, "context length"));
  TESSERA_RETURN_IF_ERROR(in_range(config.sequences_max, 1, 1 << 24, "number of sequences"));
  TESSERA_RETURN_IF_ERROR(in_range(config.commands_max, 1, 1 << 24, "number of queued commands"));
  TESSERA_RETURN_IF_ERROR(
      in_range(config.integrity.sweep_pages_per_second, 0, 1 << 24, "number of KV pages swept a second"));
  TESSERA_RETURN_IF_ERROR(in_range(config.handoff.chunk_pages, 1, 4096, "pages of a handoff chunk"));
  TESSERA_RETURN_IF_ERROR(in_range(config.handoff.chunks_per_tick, 1, 1 << 20, "handoff chunks between steps"));
  TESSERA_RETURN_IF_ERROR(in_range(config.handoff.prefill_ahead_max, 1, 1 << 16, "prompts prefilled ahead"));
  TESSERA_RETURN_IF_ERROR(in_range(config.integrity.recomputes_max, 0, 1 << 20, "recomputes of a sequence"));
  TESSERA_RETURN_IF_ERROR(
      in_range(config.integrity.audit_bytes_per_turn, 1, 1ll << 40, "bytes of pages that an audit rewrites in a turn"));
  if (config.pages == 0 && config.memory_budget_bytes == 0) {
    return base::invalid_argument("an engine needs a number of KV pages or a memory budget");
  }
  if (!parts.backend.supports(config.kv_format)) {
    return base::invalid_argument(fmt::format("backend {} does not support KV pages in {}", parts.backend.name(),
                                              ops::kv_format_name(config.kv_format)));
  }
  const bool hands_over = config.role != EngineRole::kUnified;
  if (hands_over != (parts.endpoint != nullptr)) {
    return base::invalid_argument("prefill and decode engines need a transport endpoint, unified engines have none");
  }
  if (hands_over && parts.endpoint->id() != static_cast<kv_transfer::PeerId>(config.id)) {
    return base::invalid_argument("the transport endpoint's number is not the engine's");
  }
  return {};
}

}  // namespace

EngineLoop::EngineLoop(const EngineConfig& config, EngineParts parts, std::shared_ptr<CommandInbox> inbox)
    : config_(config), parts_(std::move(parts)), inbox_(std::move(inbox)), outbox_(config.id, parts_.events) {}

EngineLoop::~EngineLoop() {
  // Peers learn that this one is gone before its memory is.
  sender_.reset();
  receiver_.reset();
  parts_.endpoint.reset();
}

base::Result<std::unique_ptr<EngineLoop>> EngineLoop::create(const EngineConfig& config, EngineParts parts,
                                                             std::shared_ptr<CommandInbox> inbox) {
  TESSERA_RETURN_IF_ERROR(check_config(config, parts).with_context(fmt::format("engine {}", config.id)));
  std::unique_ptr<EngineLoop> loop(new EngineLoop(config, std::move(parts), std::move(inbox)));
  TESSERA_RETURN_IF_ERROR(loop->allocate().with_context(fmt::format("engine {}", config.id)));
  return loop;
}

base::Status EngineLoop::allocate() {
  const models::Model& model = parts_.model;
  const ops::KvLayout layout = model.kv_layout(config_.kv_format, config_.page_size);
  std::int64_t context = model.config().max_position_embeddings;
  if (config_.context_tokens_max > 0) context = std::min(context, config_.context_tokens_max);
  if (config_.pages > 0) context = std::min(context, config_.pages * config_.page_size);
  context = std::min(context, base::limits::kContextMax / config_.page_size * config_.page_size);

  plan_.budget_bytes = config_.memory_budget_bytes;
  const bool counted = config_.weight_memory == WeightMemory::kCounted;
  plan_.lines.push_back({"weights", counted ? model.weight_bytes() : 0,
                         counted ? model.weight_format() : model.weight_format() + ", counted in another engine"});

  stream_ = parts_.backend.make_stream();
  StepLimits limits;
  limits.rows_max = config_.running_max;
  limits.tokens_max = config_.running_max + config_.chunked_prefill_size;
  // A decode engine computes no prompt.
  if (config_.role != EngineRole::kDecode) {
    limits.scored_tokens_max = std::min(config_.scored_prompt_size, config_.chunked_prefill_size);
  }
  limits.pages_per_row_max = base::ceil_div(context, config_.page_size);
  // The page check passes every length that a row's pages hold, so what ops are lent is sized for whole pages.
  limits.context_tokens_max = limits.pages_per_row_max * config_.page_size;
  if (config_.integrity.level >= kv_cache::IntegrityLevel::kDigest) {
    TESSERA_ASSIGN_OR_RETURN(digests_, kv_cache::DigestChecker::create(parts_.backend));
    plan_.lines.push_back({"page digests", digests_->device_bytes(),
                           fmt::format("checks of {} pages at a time", kv_cache::DigestChecker::kPortion)});
  }
  StepRunner::Parts step_parts{parts_.backend, *stream_, model, parts_.clock};
  step_parts.integrity = config_.integrity.level;
  step_parts.digests = digests_.get();
  step_parts.listener = config_.listener;
  step_parts.observer = config_.observer;
  step_parts.make_verifier = parts_.make_verifier;
  TESSERA_ASSIGN_OR_RETURN(runner_, StepRunner::create(step_parts, limits, plan_));

  // The handoff's buffers can only be made once the pool is there; their room is kept free until then.
  std::int64_t reserved = 0;
  if (config_.role != EngineRole::kUnified) {
    // A sender stages all chunks of a tick, a receiver one; the rest is the check of one row, and alignment.
    const std::int64_t chunks = config_.role == EngineRole::kPrefill ? config_.handoff.chunks_per_tick : 1;
    const std::int64_t staged = chunks * config_.handoff.chunk_pages;
    reserved = staged * (layout.page_layer_bytes_max() + 8) + limits.pages_per_row_max * 256 +
               config_.handoff.chunk_pages * config_.page_size * 32 + 65536;
    plan_.lines.push_back(
        {"handoff", reserved, fmt::format("at most: staging for {} pages of one layer, and their check", staged)});
  }
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t pages, plan_page_pool(plan_, layout, config_.pages));
  TESSERA_ASSIGN_OR_RETURN(pool_, kv_cache::PagePool::create(parts_.backend, *stream_, layout, pages));
  cache_ = std::make_unique<kv_cache::PrefixCache>(*pool_, *stream_);
  if (digests_ != nullptr) sweep_.emplace(*pool_, config_.integrity.sweep_pages_per_second, parts_.clock.now());

  info_.id = config_.id;
  info_.role = config_.role;
  info_.weight_format = model.weight_format();
  info_.kv_format = config_.kv_format;
  info_.backend = std::string(parts_.backend.name());
  info_.model_digest = model.digest();
  info_.page_size = config_.page_size;
  info_.pages = pages;
  info_.context_tokens_max = std::min(context, pages * config_.page_size);
  info_.running_max = config_.running_max;
  info_.on_integrity_error = config_.integrity.on_error;
  info_.integrity = config_.integrity.level;
  if (sweep_.has_value()) info_.sweep_pages_per_second = config_.integrity.sweep_pages_per_second;

  kv_cache::PrefixScope scope;
  scope.model_digest =
      config_.handoff.prompt_model_digest.empty() ? model.digest() : config_.handoff.prompt_model_digest;
  scope.format = config_.kv_format;
  scope.provenance =
      config_.role == EngineRole::kDecode ? kv_cache::Provenance::kConverted : kv_cache::Provenance::kPrefill;
  pages_ = std::make_unique<SequencePages>(*pool_, *cache_, *stream_, scope);
  stats_sent_ = audited_ = parts_.clock.now();
  if (config_.role == EngineRole::kUnified) return {};
  TESSERA_RETURN_IF_ERROR(allocate_handoff());
  const std::int64_t used = sender_ != nullptr ? sender_->device_bytes() : receiver_->device_bytes();
  if (used > reserved) {
    return base::internal_error(
        fmt::format("the handoff's buffers take {} bytes; {} were planned for them", used, reserved));
  }
  return {};
}

base::Status EngineLoop::allocate_handoff() {
  const std::string digest =
      config_.handoff.prompt_model_digest.empty() ? parts_.model.digest() : config_.handoff.prompt_model_digest;
  const auto kv_len_max = static_cast<std::int32_t>(info_.context_tokens_max);
  if (config_.role == EngineRole::kPrefill) {
    kv_transfer::SenderOptions options;
    options.model_digest = digest;
    options.kv_len_max = kv_len_max;
    options.chunk_pages = config_.handoff.chunk_pages;
    options.chunks_per_tick = config_.handoff.chunks_per_tick;
    options.handoffs_max = static_cast<std::int32_t>(config_.running_max);
    options.digests = digests_.get();
    options.timeout = config_.handoff.timeout;
    TESSERA_ASSIGN_OR_RETURN(sender_, kv_transfer::Sender::create(parts_.backend, *stream_, *pool_, *parts_.endpoint,
                                                                  parts_.clock, options));
  } else {
    kv_transfer::ReceiverOptions options;
    options.model_digest = digest;
    options.kv_len_max = kv_len_max;
    options.chunk_pages_max = config_.handoff.chunk_pages;
    options.integrity = config_.integrity.level;
    // Offers wait here until there is room, so there may be many more than run at once.
    options.handoffs_max = static_cast<std::int32_t>(std::min<std::int64_t>(config_.sequences_max, 65536));
    options.timeout = config_.handoff.timeout;
    TESSERA_ASSIGN_OR_RETURN(receiver_, kv_transfer::Receiver::create(parts_.backend, *stream_, *pool_,
                                                                      *parts_.endpoint, parts_.clock, options));
  }
  parts_.endpoint->set_wakeup([inbox = inbox_] { inbox->wake(); });
  return {};
}

}  // namespace tessera::engine
