#include "tessera/router/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/ops/kv_conversion.h"
#include "tessera/router/router_state.h"

namespace tessera::router {

namespace {

// Events handled before subscribers hear of them.
constexpr std::int64_t kEventsPerPump = 4096;

}  // namespace

base::Result<std::unique_ptr<Router>> Router::create(const RouterOptions& options,
                                                     std::vector<request::EngineEndpoint*> engines,
                                                     request::EngineEventQueue& events, const base::Clock& clock) {
  auto state = std::make_unique<State>(options, events, clock);
  std::int64_t unified = 0;
  std::int64_t prefill = 0;
  std::int64_t decode = 0;
  for (request::EngineEndpoint* endpoint : engines) {
    const request::EngineInfo& info = endpoint->info();
    if (state->engine_index(info.id).has_value() || info.id < 0) {
      return base::failure(
          base::invalid_argument(fmt::format("two engines with the number {}, or a negative one", info.id)));
    }
    if (info.page_size != engines.front()->info().page_size) {
      return base::failure(base::invalid_argument(
          fmt::format("engine {} has pages of {} tokens, engine {} of {}; expected the same", info.id, info.page_size,
                      engines.front()->info().id, engines.front()->info().page_size)));
    }
    ++(info.role == EngineRole::kUnified ? unified : info.role == EngineRole::kPrefill ? prefill : decode);
    state->context_tokens_max =
        state->engines.empty() ? info.context_tokens_max : std::min(state->context_tokens_max, info.context_tokens_max);
    State::EngineState engine;
    engine.endpoint = endpoint;
    engine.seen = clock.now();
    state->engines.push_back(std::move(engine));
  }
  const bool all_unified = unified > 0 && prefill == 0 && decode == 0;
  const bool all_split = unified == 0 && prefill > 0 && decode > 0;
  if (!all_unified && !all_split) {
    return base::failure(base::invalid_argument(
        fmt::format("a router needs unified engines only, or prefill and decode engines; it was given {} unified, {} "
                    "prefill and {} decode",
                    unified, prefill, decode)));
  }
  for (const request::EngineEndpoint* from : engines) {
    for (const request::EngineEndpoint* to : engines) {
      if (from->info().role != EngineRole::kPrefill || to->info().role != EngineRole::kDecode) continue;
      TESSERA_RETURN_IF_ERROR(
          ops::check_conversion(from->info().kv_format, to->info().kv_format)
              .with_context(fmt::format("prefill engine {} and decode engine {}", from->info().id, to->info().id)));
    }
  }
  return std::unique_ptr<Router>(new Router(std::move(state)));
}

Router::Router(std::unique_ptr<State> state) : state_(std::move(state)) {}

Router::~Router() { stop(); }

void Router::start() {
  TESSERA_CHECK(!thread_.joinable(), "a router is started once");
  thread_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const std::int64_t handled = pump(std::chrono::milliseconds(100));
      if (handled == 0 && state_->events.closed()) break;
    }
  });
}

std::int64_t Router::pump(base::Nanoseconds timeout) {
  {
    std::lock_guard lock(state_->mutex);
    state_->send_unsent_locked();
    bool waits = !state_->ending.empty();
    for (const State::EngineState& engine : state_->engines) waits |= !engine.unsent.empty();
    if (waits) timeout = std::min<base::Nanoseconds>(timeout, std::chrono::milliseconds(2));
  }
  std::int64_t handled = 0;
  std::vector<State::Delivery> deliveries;
  // Who must not wait does not give the processor away either.
  std::optional<request::EngineEvent> event =
      timeout > base::Nanoseconds(0) ? state_->events.pop_for(timeout) : state_->events.try_pop();
  {
    std::lock_guard lock(state_->mutex);
    while (event.has_value()) {
      ++handled;
      state_->handle_locked(std::move(*event), deliveries);
      if (handled >= kEventsPerPump) break;
      event = state_->events.try_pop();
    }
    state_->deliver_endings_locked(deliveries);
  }
  for (State::Delivery& delivery : deliveries) (*delivery.subscriber)(std::move(delivery.event));
  return handled;
}

void Router::stop() {
  {
    std::lock_guard lock(state_->mutex);
    state_->mode = State::Mode::kStopped;
  }
  thread_.request_stop();
  state_->wake();
  if (thread_.joinable()) thread_.join();
  std::vector<State::Delivery> deliveries;
  {
    std::lock_guard lock(state_->mutex);
    state_->end_all_locked(base::unavailable("the server is stopping"));
    // Nothing more will come: what ended already is told too.
    for (auto& [id, sequence] : state_->live) {
      sequence.released = true;
      sequence.early.clear();
    }
    state_->deliver_endings_locked(deliveries);
  }
  for (State::Delivery& delivery : deliveries) (*delivery.subscriber)(std::move(delivery.event));
}

request::SequenceId Router::next_id() { return ++state_->last_id; }

base::Status Router::submit(request::SequenceSpec spec, Subscriber subscriber) {
  std::lock_guard lock(state_->mutex);
  State& state = *state_;
  const auto refuse = [&](base::Status status) {
    ++state.counts.refused;
    return status;
  };
  if (state.mode != State::Mode::kServing) {
    return refuse(
        base::unavailable(state.mode == State::Mode::kDraining ? "the server is draining" : "the server is stopping"));
  }
  if (spec.id == 0 || state.live.contains(spec.id) || spec.prompt.empty() || spec.sampling.max_tokens < 0) {
    return refuse(base::invalid_argument("a sequence needs a new id, a prompt and a number of tokens to generate"));
  }
  const std::int64_t room = state.context_tokens_max - std::ssize(spec.prompt);
  const std::int64_t needed = std::min(spec.sampling.max_tokens, 1);
  if (room < needed) {
    return refuse(
        base::out_of_range(fmt::format("the prompt has {} tokens; with at least {} to generate, at most {} "
                                       "fit the context",
                                       spec.prompt.size(), needed, state.context_tokens_max)));
  }
  if (std::ssize(state.live) >= state.options.live_sequences_max) {
    return refuse(base::resource_exhausted("too many requests are being served; try again later"));
  }
  // Both engines of a pair then end the sequence at the same token.
  spec.sampling.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(spec.sampling.max_tokens, room));

  const SequenceId id = spec.id;
  const std::optional<std::size_t> decode = state.decode_engine_locked(spec);
  const std::vector<std::size_t> candidates = state.first_engines_locked(spec);
  if (state.live.empty()) state.last_progress = state.clock.now();
  LiveSequence& sequence = state.live[id];
  sequence.spec = std::move(spec);
  sequence.subscriber = std::make_shared<const Subscriber>(std::move(subscriber));
  for (const std::size_t first : candidates) {
    if (!state.engines[first].unsent.empty()) continue;
    request::StartSequence start{sequence.spec, {}, -1, 0};
    if (decode.has_value()) start.decode_engine = state.engines[*decode].endpoint->info().id;
    state.assign_locked(sequence, first, decode);
    if (state.engines[first].endpoint->try_send(std::move(start))) {
      state.engines[first].prefixes.remember(
          prefix_hashes(sequence.spec.tenant, sequence.spec.prompt, state.engines[first].endpoint->info().page_size));
      ++state.counts.submitted;
      state.counts.prompt_tokens += std::ssize(sequence.spec.prompt);
      return {};
    }
    state.unassign_locked(sequence);
  }
  state.live.erase(id);
  return refuse(base::resource_exhausted("every engine's queue is full; try again later"));
}

void Router::abort(request::SequenceId id) {
  {
    std::lock_guard lock(state_->mutex);
    const auto found = state_->live.find(id);
    if (found == state_->live.end()) return;
    LiveSequence& sequence = found->second;
    state_->abort_everywhere_locked(sequence, id);
    state_->end_locked(sequence, request::SequenceFailed{id, {base::StatusCode::kCancelled, "cancelled"}, {}});
  }
  state_->wake();
}

void Router::end_all(const base::Status& status) {
  {
    std::lock_guard lock(state_->mutex);
    state_->end_all_locked(status);
  }
  state_->wake();
}

void Router::flush_prefix_cache() {
  std::lock_guard lock(state_->mutex);
  for (std::size_t i = 0; i < state_->engines.size(); ++i) {
    state_->engines[i].prefixes.clear();
    state_->send_locked(i, request::FlushPrefixCache{});
  }
}

void Router::audit_quarantined_pages() {
  std::lock_guard lock(state_->mutex);
  for (std::size_t i = 0; i < state_->engines.size(); ++i) state_->send_locked(i, request::AuditQuarantinedPages{});
}

void Router::begin_drain() {
  std::lock_guard lock(state_->mutex);
  if (state_->mode == State::Mode::kServing) state_->mode = State::Mode::kDraining;
}

std::int64_t Router::live() const {
  std::lock_guard lock(state_->mutex);
  return std::ssize(state_->live);
}

base::Status Router::readiness() const {
  std::lock_guard lock(state_->mutex);
  const State& state = *state_;
  if (state.mode != State::Mode::kServing) return base::unavailable("draining");
  const base::Nanoseconds now = state.clock.now();
  for (const State::EngineState& engine : state.engines) {
    if (engine.stats.device_failed) {
      return base::unavailable(fmt::format("the device of engine {} has failed", engine.endpoint->info().id));
    }
    if (now - engine.seen > state.options.silent_after) {
      return base::unavailable(fmt::format("engine {} is silent", engine.endpoint->info().id));
    }
  }
  if (!state.live.empty() && now - state.last_progress > state.options.stall_after) {
    return base::unavailable("there is work and no token advanced in time");
  }
  return {};
}

RouterSnapshot Router::snapshot() const {
  std::lock_guard lock(state_->mutex);
  RouterSnapshot snapshot = state_->counts;
  snapshot.live = std::ssize(state_->live);
  for (const State::EngineState& engine : state_->engines) {
    snapshot.engines.push_back({engine.endpoint->info(), engine.stats});
  }
  return snapshot;
}

std::vector<request::EngineInfo> Router::engines() const {
  std::vector<request::EngineInfo> infos;
  for (const State::EngineState& engine : state_->engines) infos.push_back(engine.endpoint->info());
  return infos;
}

std::int64_t Router::context_tokens_max() const { return state_->context_tokens_max; }

}  // namespace tessera::router
