// What clients of a simulated server do: they come, are taken in or refused, and leave.
#include <fmt/format.h>

#include <utility>

#include "tests/simulation/loop_access.h"
#include "tests/simulation/simulation.h"

namespace tessera::simulation {

using fault_injection::LoopAccess;

void Simulation::arrive() {
  const TrafficOptions& options = scenario_.traffic;
  if (!dice_.chance(options.burst_chance)) return;
  for (std::int64_t n = dice_.range(1, options.burst_max); n > 0; --n) {
    if (std::ssize(judge_->live()) < options.live_max) submit(traffic_->next());
  }
}

void Simulation::submit(ClientRequest request) {
  for (request::SamplingParams& sampling : request.choices) {
    request::SequenceSpec spec;
    spec.id = server_->router().next_id();
    spec.tenant = request.tenant;
    spec.prompt = request.prompt;
    spec.sampling = std::move(sampling);
    const request::SequenceId id = spec.id;
    if (std::ssize(spec.prompt) < server_->router().context_tokens_max()) {
      judge_->expect(spec, server_->router().context_tokens_max());
      const bool leaves = dice_.chance(scenario_.traffic.abort_share);
      if (leaves) leaving_.emplace(counts_.turns + dice_.range(0, scenario_.traffic.abort_turns_max), id);
    }
    const base::Status status = server_->router().submit(
        std::move(spec), [this, id](const router::SequenceEvent& event) { judge_->hear(id, event); });
    if (!status.ok()) check_refusal(id, judge_->is_live(id), status);
  }
}

// What does not fit is refused for that; everything else only where there is no room for more.
void Simulation::check_refusal(request::SequenceId id, bool fits, const base::Status& status) {
  const auto& engines = scenario_.server.engines;
  const bool commands_wait = engines.front().config.commands_max < 256 || counts_.restarts > 0;
  const bool full = server_->router().live() >= scenario_.server.router.live_sequences_max || commands_wait;
  const bool right = fits ? status.code() == base::StatusCode::kResourceExhausted && full
                          : status.code() == base::StatusCode::kOutOfRange;
  if (!right) judge_->object(fmt::format("sequence {} is refused: {}", id, status.to_string()));
  if (fits) judge_->refused(id, status);
}

void Simulation::leave() {
  while (!leaving_.empty() && leaving_.begin()->first <= counts_.turns) {
    const request::SequenceId id = leaving_.begin()->second;
    leaving_.erase(leaving_.begin());
    if (judge_->is_live(id)) leave(id);
  }
  if (dice_.chance(scenario_.traffic.abort_share * 0.1)) leave_from_somewhere();
  if (dice_.chance(scenario_.traffic.flush_chance)) {
    trace_->add("flush");
    ++counts_.flushes;
    server_->router().flush_prefix_cache();
  }
}

void Simulation::leave(request::SequenceId id) {
  count_place(id);
  judge_->client_left(id);
  server_->router().abort(id);
}

// Where sequences are seldom, too.
void Simulation::leave_from_somewhere() {
  const auto i = static_cast<std::size_t>(dice_.range(0, std::ssize(step_faults_) - 1));
  const auto state = static_cast<engine::SequenceState>(dice_.range(0, std::ssize(kPlaceNames) - 2));
  if (!there(i)) return;
  for (const auto& [id, sequence] : LoopAccess::table(loop(i))) {
    if (sequence.state != state || !judge_->is_live(id)) continue;
    leave(id);
    return;
  }
}

void Simulation::count_place(request::SequenceId id) {
  const auto place = [&](std::size_t i) {
    const engine::Sequence* sequence = there(i) ? LoopAccess::table(loop(i)).find(id) : nullptr;
    return sequence == nullptr ? kPlaceNames.size() - 1 : static_cast<std::size_t>(sequence->state);
  };
  const Assigned& assigned = assigned_[id];
  ++counts_.left_first[place(assigned.first)];
  if (assigned.decode.has_value()) ++counts_.left_decode[place(*assigned.decode)];
}

}  // namespace tessera::simulation
