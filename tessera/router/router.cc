#include "tessera/router/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/logging.h"
#include "tessera/router/live_sequence.h"
#include "tessera/router/prefix_estimate.h"

namespace tessera::router {

using request::EngineRole;
using request::SequenceId;

namespace {

// Pages whose prefixes are remembered for each engine.
constexpr std::size_t kEstimatedPagesMax = 1 << 17;
// How long a terminal event waits for what should have come before it.
constexpr base::Nanoseconds kTerminalGrace = std::chrono::seconds(1);
// Events handled before subscribers hear of them.
constexpr std::int64_t kEventsPerPump = 4096;
// The number of no engine: an event that only wakes the router's thread.
constexpr request::EngineId kWakeup = -1;

bool takes_prompts(EngineRole role) { return role != EngineRole::kDecode; }

}  // namespace

// Everything behind the lock. Functions named *_locked want it held.
struct Router::State {
  struct EngineState {
    request::EngineEndpoint* endpoint = nullptr;
    request::EngineStats stats;
    base::Nanoseconds seen{0};  // Its latest event.
    PrefixEstimate prefixes{kEstimatedPagesMax};
    std::int64_t resident_tokens = 0;  // Of live sequences that will decode there.
    // Commands its queue had no room for; only of live sequences and aborts, so bounded by them.
    std::deque<request::EngineCommand> unsent;
  };
  struct Delivery {
    std::shared_ptr<const Subscriber> subscriber;
    SequenceEvent event;
  };
  enum class Mode : std::uint8_t { kServing, kDraining, kStopped };

  State(const RouterOptions& options_in, request::EngineEventQueue& events_in, const base::Clock& clock_in)
      : options(options_in), events(events_in), clock(clock_in), last_progress(clock_in.now()) {}

  const RouterOptions options;
  request::EngineEventQueue& events;
  const base::Clock& clock;
  std::int64_t context_tokens_max = 0;
  std::atomic<SequenceId> last_id{0};

  mutable std::mutex mutex;
  Mode mode = Mode::kServing;
  std::vector<EngineState> engines;
  std::unordered_map<SequenceId, LiveSequence> live;
  std::vector<SequenceId> ending;  // Live ones with a terminal event.
  RouterSnapshot counts;
  base::Nanoseconds last_progress;

  std::optional<std::size_t> engine_index(request::EngineId id) const {
    for (std::size_t i = 0; i < engines.size(); ++i) {
      if (engines[i].endpoint->info().id == id) return i;
    }
    return std::nullopt;
  }

  std::vector<std::size_t> first_engines_locked(const request::SequenceSpec& spec) const;
  std::optional<std::size_t> decode_engine_locked(const request::SequenceSpec& spec) const;
  static std::int64_t footprint(const LiveSequence& sequence) {
    return std::ssize(sequence.spec.prompt) + sequence.next_index + 1;
  }
  void send_locked(std::size_t engine, request::EngineCommand command);
  void send_unsent_locked();
  void abort_everywhere_locked(const LiveSequence& sequence, SequenceId id);
  void assign_locked(LiveSequence& sequence, std::size_t first, std::optional<std::size_t> decode);
  void unassign_locked(LiveSequence& sequence);

  void handle_locked(request::EngineEvent event, std::vector<Delivery>& deliveries);
  void handle_failed_locked(std::size_t engine, LiveSequence& sequence, request::SequenceFailed failed);
  void restart_if_released_locked(LiveSequence& sequence);
  void end_locked(LiveSequence& sequence, SequenceEvent terminal);
  void deliver_endings_locked(std::vector<Delivery>& deliveries);
  void count_terminal_locked(const SequenceEvent& terminal);
  void wake() { (void)events.try_push({kWakeup, request::EngineStats{}}); }
};

// ---- Choosing engines ----

// Engines that may take the prompt, the one with the least to compute before it first: what is in flight there, and
// what of this prompt is not cached there.
std::vector<std::size_t> Router::State::first_engines_locked(const request::SequenceSpec& spec) const {
  std::vector<std::pair<std::int64_t, std::size_t>> costs;
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const request::EngineInfo& info = engines[i].endpoint->info();
    if (!takes_prompts(info.role)) continue;
    if (hashes.empty()) hashes = prefix_hashes(spec.tenant, spec.prompt, info.page_size);
    const std::int64_t uncached = std::ssize(spec.prompt) - engines[i].prefixes.match(hashes) * info.page_size;
    std::int64_t in_flight = 0;
    for (const auto& [id, sequence] : live) {
      if (sequence.first_engine == i && sequence.next_index == 0) in_flight += std::ssize(sequence.spec.prompt);
    }
    costs.emplace_back(in_flight + uncached, i);
  }
  std::ranges::sort(costs);
  std::vector<std::size_t> order;
  for (const auto& [cost, index] : costs) order.push_back(index);
  return order;
}

// The decode engine with the fewest resident tokens among those with room for the sequence, or among all.
std::optional<std::size_t> Router::State::decode_engine_locked(const request::SequenceSpec& spec) const {
  std::optional<std::size_t> best;
  bool best_has_room = false;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const request::EngineInfo& info = engines[i].endpoint->info();
    if (info.role != EngineRole::kDecode) continue;
    const std::int64_t after = engines[i].resident_tokens + std::ssize(spec.prompt) + 1;
    const bool has_room = after <= info.pages * info.page_size;
    const bool better = !best.has_value() || (has_room && !best_has_room) ||
                        (has_room == best_has_room && engines[i].resident_tokens < engines[*best].resident_tokens);
    if (better) {
      best = i;
      best_has_room = has_room;
    }
  }
  return best;
}

void Router::State::assign_locked(LiveSequence& sequence, std::size_t first, std::optional<std::size_t> decode) {
  sequence.begin_round(first, decode);
  engines[decode.value_or(first)].resident_tokens += footprint(sequence);
}

void Router::State::unassign_locked(LiveSequence& sequence) {
  // What assign added, and a token for each that was told since.
  std::int64_t& resident = engines[sequence.decode_engine.value_or(sequence.first_engine)].resident_tokens;
  resident = std::max<std::int64_t>(0, resident - footprint(sequence));
}

// ---- Commands ----

void Router::State::send_locked(std::size_t engine, request::EngineCommand command) {
  EngineState& state = engines[engine];
  // Nothing overtakes what waits already: an abort must come after its start.
  if (!state.unsent.empty() || !state.endpoint->try_send(command)) state.unsent.push_back(std::move(command));
}

void Router::State::send_unsent_locked() {
  for (EngineState& engine : engines) {
    while (!engine.unsent.empty() && engine.endpoint->try_send(engine.unsent.front())) engine.unsent.pop_front();
  }
}

void Router::State::abort_everywhere_locked(const LiveSequence& sequence, SequenceId id) {
  send_locked(sequence.first_engine, request::AbortSequence{id});
  if (sequence.decode_engine.has_value()) send_locked(*sequence.decode_engine, request::AbortSequence{id});
}

// ---- Events ----

void Router::State::handle_locked(request::EngineEvent event, std::vector<Delivery>& deliveries) {
  const std::optional<std::size_t> engine = engine_index(event.engine);
  if (!engine.has_value()) return;  // A wakeup.
  engines[*engine].seen = clock.now();
  if (auto* stats = std::get_if<request::EngineStats>(&event.body)) {
    request::EngineStats& last = engines[*engine].stats;
    // Long prompts advance without a token.
    if (stats->prompt_tokens != last.prompt_tokens) last_progress = clock.now();
    last = *stats;
    return;
  }
  const SequenceId id = std::visit(
      []<typename T>(const T& body) -> SequenceId {
        if constexpr (requires { body.id; }) return body.id;
        return 0;
      },
      event.body);
  const auto found = live.find(id);
  if (found == live.end()) return;  // It ended; what its engines still say does not matter.
  LiveSequence& sequence = found->second;
  last_progress = clock.now();
  const bool from_decode = sequence.decode_engine == engine;
  if (from_decode) sequence.decode_seen = true;
  if (auto* token = std::get_if<request::TokenEvent>(&event.body)) {
    if (sequence.terminal.has_value() && std::holds_alternative<request::SequenceFailed>(*sequence.terminal)) return;
    std::vector<SequenceEvent> told;
    sequence.take_token(std::move(*token), told);
    engines[sequence.decode_engine.value_or(sequence.first_engine)].resident_tokens += std::ssize(told);
    counts.generated_tokens += std::ssize(told);
    for (SequenceEvent& one : told) deliveries.push_back({sequence.subscriber, std::move(one)});
  } else if (auto* finished = std::get_if<request::SequenceFinished>(&event.body)) {
    add_report(sequence.report, finished->report);
    // A prefill engine that finishes a sequence hands nothing over.
    if (!from_decode) sequence.released = true;
    end_locked(sequence, std::move(*finished));
  } else if (auto* failed = std::get_if<request::SequenceFailed>(&event.body)) {
    handle_failed_locked(*engine, sequence, std::move(*failed));
  } else if (auto* preempted = std::get_if<request::SequencePreempted>(&event.body)) {
    add_report(sequence.report, preempted->report);
    sequence.restart = std::move(preempted->generated);
    restart_if_released_locked(sequence);
  } else if (auto* handed_over = std::get_if<request::SequenceHandedOver>(&event.body)) {
    add_report(sequence.report, handed_over->report);
    sequence.released = true;
    restart_if_released_locked(sequence);
  }
}

void Router::State::handle_failed_locked(std::size_t engine, LiveSequence& sequence, request::SequenceFailed failed) {
  add_report(sequence.report, failed.report);
  const bool from_prefill = sequence.decode_engine.has_value() && sequence.first_engine == engine;
  if (from_prefill) sequence.released = true;
  if (from_prefill && sequence.decode_seen) {
    // The decode engine has it; only prefill did not hear so.
    base::log().warn("sequence {}: engine {} gave up a handoff that had arrived: {}", failed.id,
                     engines[engine].endpoint->info().id, failed.status.to_string());
    restart_if_released_locked(sequence);
    return;
  }
  abort_everywhere_locked(sequence, failed.id);
  end_locked(sequence, std::move(failed));
}

void Router::State::restart_if_released_locked(LiveSequence& sequence) {
  if (!sequence.restart.has_value() || sequence.terminal.has_value()) return;
  if (sequence.decode_engine.has_value() && !sequence.released) return;
  std::vector<std::int32_t> generated = std::move(*sequence.restart);
  unassign_locked(sequence);
  assign_locked(sequence, first_engines_locked(sequence.spec).front(), decode_engine_locked(sequence.spec));
  ++counts.restarts;
  request::StartSequence start{sequence.spec, std::move(generated), -1};
  if (sequence.decode_engine.has_value()) start.decode_engine = engines[*sequence.decode_engine].endpoint->info().id;
  send_locked(sequence.first_engine, std::move(start));
}

// The first end counts; a failure is told without waiting for anything.
void Router::State::end_locked(LiveSequence& sequence, SequenceEvent terminal) {
  if (sequence.terminal.has_value()) return;
  if (std::holds_alternative<request::SequenceFailed>(terminal)) {
    sequence.early.clear();
    sequence.released = true;
  }
  sequence.terminal = std::move(terminal);
  sequence.terminal_since = clock.now();
  ending.push_back(sequence.spec.id);
}

void Router::State::deliver_endings_locked(std::vector<Delivery>& deliveries) {
  std::erase_if(ending, [&](SequenceId id) {
    LiveSequence& sequence = live.at(id);
    if (!sequence.complete()) {
      if (clock.now() - sequence.terminal_since < kTerminalGrace) return false;
      if (!sequence.early.empty()) {
        sequence.terminal = request::SequenceFailed{id, base::internal_error("tokens of the request were lost"), {}};
      }
    }
    SequenceEvent terminal = std::move(*sequence.terminal);
    sequence.report.generated_tokens = sequence.next_index;
    sequence.report.prefill_kv = engines[sequence.first_engine].endpoint->info().kv_format;
    sequence.report.decode_kv =
        engines[sequence.decode_engine.value_or(sequence.first_engine)].endpoint->info().kv_format;
    if (auto* finished = std::get_if<request::SequenceFinished>(&terminal)) finished->report = sequence.report;
    if (auto* failed = std::get_if<request::SequenceFailed>(&terminal)) failed->report = sequence.report;
    count_terminal_locked(terminal);
    deliveries.push_back({sequence.subscriber, std::move(terminal)});
    unassign_locked(sequence);
    live.erase(id);
    return true;
  });
}

void Router::State::count_terminal_locked(const SequenceEvent& terminal) {
  if (const auto* finished = std::get_if<request::SequenceFinished>(&terminal)) {
    ++(finished->reason == request::FinishReason::kStop ? counts.finished_stop : counts.finished_length);
    return;
  }
  const base::StatusCode code = std::get<request::SequenceFailed>(terminal).status.code();
  if (code == base::StatusCode::kCancelled) {
    ++counts.cancelled;
    return;
  }
  ++counts.failed;
  if (code == base::StatusCode::kCorruption) ++counts.corrupted;
}

// ---- The interface ----

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
  std::optional<request::EngineEvent> event = state_->events.pop_for(timeout);
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
    for (auto& [id, sequence] : state_->live) {
      if (sequence.terminal.has_value()) continue;
      state_->abort_everywhere_locked(sequence, id);
      state_->end_locked(sequence, request::SequenceFailed{id, base::unavailable("the server is stopping"), {}});
    }
    for (auto& [id, sequence] : state_->live) sequence.released = true;
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
  if (spec.id == 0 || state.live.contains(spec.id) || spec.prompt.empty() || spec.sampling.max_tokens < 1) {
    return refuse(base::invalid_argument("a sequence needs a new id, a prompt and at least one token to generate"));
  }
  const std::int64_t room = state.context_tokens_max - std::ssize(spec.prompt);
  if (room < 1) {
    return refuse(base::out_of_range(
        fmt::format("the prompt has {} tokens; with at least one to generate, at most {} fit the context",
                    spec.prompt.size(), state.context_tokens_max)));
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
    request::StartSequence start{sequence.spec, {}, -1};
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

void Router::flush_prefix_cache() {
  std::lock_guard lock(state_->mutex);
  for (std::size_t i = 0; i < state_->engines.size(); ++i) {
    state_->engines[i].prefixes.clear();
    state_->send_locked(i, request::FlushPrefixCache{});
  }
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
