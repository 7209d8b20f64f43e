#include "tessera/router/router_state.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "tessera/base/logging.h"

namespace tessera::router {

namespace {

// How long a terminal event waits for what should have come before it.
constexpr base::Nanoseconds kTerminalGrace = std::chrono::seconds(1);

bool takes_prompts(EngineRole role) { return role != EngineRole::kDecode; }

}  // namespace

// ---- Choosing engines ----

// Engines that may take the prompt, the one with the least to compute before it first: what is in flight there, and
// what of this prompt is not cached there. One that has ended is asked last, for its answer.
std::vector<std::size_t> Router::State::first_engines_locked(const request::SequenceSpec& spec) const {
  std::vector<std::tuple<bool, std::int64_t, std::size_t>> costs;
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const request::EngineInfo& info = engines[i].endpoint->info();
    if (!takes_prompts(info.role)) continue;
    if (hashes.empty()) hashes = prefix_hashes(spec.tenant, spec.prompt, info.page_size);
    // Who scores a prompt computes all of it.
    const bool scored = spec.sampling.prompt_logprobs.has_value();
    const std::int64_t cached = scored ? 0 : engines[i].prefixes.match(hashes) * info.page_size;
    const std::int64_t uncached = std::ssize(spec.prompt) - cached;
    std::int64_t in_flight = 0;
    for (const auto& [id, sequence] : live) {
      if (sequence.first_engine == i && sequence.next_index == 0) in_flight += std::ssize(sequence.spec.prompt);
    }
    costs.emplace_back(engines[i].stats.device_failed, in_flight + uncached, i);
  }
  std::ranges::sort(costs);
  std::vector<std::size_t> order;
  order.reserve(costs.size());
  for (const auto& [ended, cost, index] : costs) order.push_back(index);
  return order;
}

// The decode engine with the fewest resident tokens among those with room for the sequence, or among all that have not
// ended, or among all.
std::optional<std::size_t> Router::State::decode_engine_locked(const request::SequenceSpec& spec) const {
  std::optional<std::size_t> best;
  std::tuple<bool, bool, std::int64_t> best_rank;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const request::EngineInfo& info = engines[i].endpoint->info();
    if (info.role != EngineRole::kDecode) continue;
    const std::int64_t after = engines[i].resident_tokens + std::ssize(spec.prompt) + 1;
    const bool full = after > info.pages * info.page_size;
    const std::tuple rank{engines[i].stats.device_failed, full, engines[i].resident_tokens};
    if (!best.has_value() || rank < best_rank) {
      best = i;
      best_rank = rank;
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
  } else if (auto* logprobs = std::get_if<request::PromptLogprobsEvent>(&event.body)) {
    if (sequence.terminal.has_value()) return;
    if (auto told = sequence.take_prompt_logprobs(std::move(*logprobs))) {
      deliveries.push_back({sequence.subscriber, std::move(*told)});
    }
  } else if (auto* finished = std::get_if<request::SequenceFinished>(&event.body)) {
    add_report(sequence.report, finished->report);
    // A prefill engine that finishes a sequence hands nothing over.
    if (!from_decode) sequence.released = true;
    end_locked(sequence, *finished);
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
  if (sequence.terminal.has_value() && std::holds_alternative<request::SequenceFailed>(*sequence.terminal)) return;
  const bool from_prefill = sequence.decode_engine.has_value() && sequence.first_engine == engine;
  if (from_prefill) sequence.released = true;
  // What prefill emitted may be wrong: whoever computes on from it ends, too.
  const bool corrupted = failed.status.code() == base::StatusCode::kCorruption;
  if (from_prefill && sequence.decode_seen && !corrupted) {
    // The decode engine has it; only prefill did not hear so.
    base::log().warn("sequence {}: engine {} gave up a handoff that had arrived: {}", failed.id,
                     engines[engine].endpoint->info().id, failed.status.to_string());
    restart_if_released_locked(sequence);
    return;
  }
  abort_everywhere_locked(sequence, failed.id);
  // Also when the decode engine has finished, which nobody was told yet.
  if (corrupted && sequence.terminal.has_value()) {
    sequence.terminal = std::move(failed);
    sequence.early.clear();
    return;
  }
  end_locked(sequence, std::move(failed));
}

void Router::State::restart_if_released_locked(LiveSequence& sequence) {
  if (!sequence.restart.has_value() || sequence.terminal.has_value()) return;
  if (sequence.decode_engine.has_value() && !sequence.released) return;
  std::vector<std::int32_t> generated = std::move(*sequence.restart);
  unassign_locked(sequence);
  assign_locked(sequence, first_engines_locked(sequence.spec).front(), decode_engine_locked(sequence.spec));
  ++counts.restarts;
  request::StartSequence start{sequence.spec, std::move(generated), -1, sequence.report.integrity_recomputes};
  if (sequence.decode_engine.has_value()) start.decode_engine = engines[*sequence.decode_engine].endpoint->info().id;
  send_locked(sequence.first_engine, std::move(start));
}

// The first end counts; a failure is told without waiting for anything.
void Router::State::end_all_locked(const base::Status& status) {
  for (auto& [id, sequence] : live) {
    if (sequence.terminal.has_value()) continue;
    abort_everywhere_locked(sequence, id);
    end_locked(sequence, request::SequenceFailed{id, status, {}});
  }
}

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
    if (std::holds_alternative<request::SequenceFinished>(*sequence.terminal) && sequence.lacks_prompt_logprobs()) {
      sequence.terminal =
          request::SequenceFailed{id, base::internal_error("log-probabilities of the prompt were lost"), {}};
    }
    // Whoever still holds something of it lets go: a prefill engine that never heard how its handoff ended.
    if (sequence.decode_engine.has_value() && !sequence.released) {
      send_locked(sequence.first_engine, request::AbortSequence{id});
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

}  // namespace tessera::router
