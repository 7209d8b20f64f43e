#include "decode_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <ranges>
#include <utility>
#include <variant>

namespace tessera::bench {

DecodeEngine::DecodeEngine(const engine::EngineConfig& config, const base::Clock& clock)
    : config_(config),
      clock_(clock),
      events_(1 << 16),
      inbox_(std::make_shared<engine::CommandInbox>(static_cast<std::size_t>(config.commands_max))) {}

base::Result<std::unique_ptr<DecodeEngine>> DecodeEngine::create(const engine::EngineConfig& config,
                                                                 const models::Model& model, ops::Backend& backend,
                                                                 const base::Clock& clock) {
  std::unique_ptr<DecodeEngine> made(new DecodeEngine(config, clock));
  engine::EngineParts parts{model, backend, made->events_, clock, nullptr, {}};
  parts.make_verifier = [&checking = made->checking_](ops::Backend& on, const kv_cache::VerifierLimits& limits) {
    return MeasuredVerifier::create(on, limits, checking);
  };
  TESSERA_ASSIGN_OR_RETURN(made->loop_, engine::EngineLoop::create(config, std::move(parts), made->inbox_));
  return made;
}

base::Status DecodeEngine::send(request::EngineCommand command) {
  if (inbox_->try_push(std::move(command))) return base::ok_status();
  return base::resource_exhausted("the engine takes no more commands");
}

base::Status DecodeEngine::turn() {
  tokens_in_turn_ = 0;
  loop_->turn();
  while (const std::optional<request::EngineEvent> event = events_.try_pop()) {
    if (const auto* token = std::get_if<request::TokenEvent>(&event->body)) {
      ++lengths_[token->id];
      ++tokens_in_turn_;
    } else if (const auto* failed = std::get_if<request::SequenceFailed>(&event->body)) {
      return failed->status.with_context(fmt::format("sequence {}", failed->id));
    } else if (!std::holds_alternative<request::EngineStats>(event->body)) {
      return base::internal_error("a sequence ended before it was told to");
    }
  }
  return base::ok_status();
}

base::Result<ContextRange> DecodeEngine::fill(std::int64_t context,
                                              const std::function<void(std::int64_t ready)>& progress) {
  checking_ = Checking::kOn;
  const std::int64_t batch = config_.running_max;
  // One prompt is filled in a step, during which those before it decode: earlier ones begin with less.
  for (std::int64_t i = 0; i < batch; ++i) {
    request::StartSequence start;
    start.spec.id = ++last_id_;
    start.spec.request_id = fmt::format("bench-{}", start.spec.id);
    start.spec.tenant = start.spec.request_id;  // A prefix cache of its own, so that all pages are private.
    start.spec.prompt.assign(static_cast<std::size_t>(context - (batch - 1 - i)), 0);
    start.spec.sampling.temperature = 0.0f;
    start.spec.sampling.max_tokens = std::numeric_limits<std::int32_t>::max();
    start.spec.sampling.ignore_eos = true;
    lengths_[start.spec.id] = std::ssize(start.spec.prompt);
    TESSERA_RETURN_IF_ERROR(send(std::move(start)));
  }
  std::int64_t ready = 0;
  for (std::int64_t turns = 0; ready < batch; ++turns) {
    if (turns > 1000 * batch) return base::failure(base::internal_error("the engine does not get to decoding"));
    TESSERA_RETURN_IF_ERROR(turn());
    if (tokens_in_turn_ > ready) progress(ready = tokens_in_turn_);
  }
  if (loop_->stats().preemptions > 0) return base::failure(base::internal_error("the pool is too small for the batch"));
  const auto [least, most] = std::ranges::minmax(lengths_ | std::views::values);
  return ContextRange{least, most};
}

base::Result<StepSample> DecodeEngine::step(Checking checking) {
  checking_ = checking;
  const request::EngineStats before = loop_->stats();
  const base::Nanoseconds start = clock_.now();
  TESSERA_RETURN_IF_ERROR(turn());
  const base::Nanoseconds end = clock_.now();
  const request::EngineStats after = loop_->stats();
  if (tokens_in_turn_ != config_.running_max || after.steps != before.steps + 1) {
    return base::failure(
        base::internal_error(fmt::format("{} steps gave {} tokens; expected one step and {}",
                                         after.steps - before.steps, tokens_in_turn_, config_.running_max)));
  }
  return StepSample{static_cast<double>((end - start).count()) * 1e-6,
                    static_cast<double>(after.step_ns - before.step_ns),
                    static_cast<double>(after.check_ns - before.check_ns)};
}

base::Status DecodeEngine::clear() {
  for (const auto& [id, length] : lengths_) TESSERA_RETURN_IF_ERROR(send(request::AbortSequence{id}));
  lengths_.clear();
  TESSERA_RETURN_IF_ERROR(turn());
  TESSERA_RETURN_IF_ERROR(send(request::FlushPrefixCache{}));
  TESSERA_RETURN_IF_ERROR(turn());
  const request::EngineStats stats = loop_->stats();
  if (stats.pages_free == stats.pages_total) return base::ok_status();
  return base::internal_error(
      fmt::format("{} of {} pages are free after the end of every sequence", stats.pages_free, stats.pages_total));
}

}  // namespace tessera::bench
