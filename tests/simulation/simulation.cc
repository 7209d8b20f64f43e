#include "tests/simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tests/simulation/loop_access.h"
#include "tests/support/fault_access.h"

namespace tessera::simulation {

using fault_injection::Access;
using fault_injection::LoopAccess;
using request::EngineRole;

namespace {

// Turns in which a server without work must have come to rest: many timeouts.
constexpr int kDrainTurnsMax = 200'000;
constexpr double kWireFaultRate = 0.02;

}  // namespace

namespace {

// The way to a peer, which says when there was no room on it.
class CountingEndpoint final : public kv_transfer::Endpoint {
 public:
  CountingEndpoint(std::unique_ptr<kv_transfer::Endpoint> endpoint, std::int64_t& refused)
      : endpoint_(std::move(endpoint)), refused_(refused) {}
  kv_transfer::PeerId id() const override { return endpoint_->id(); }
  std::int64_t message_bytes_max() const override { return endpoint_->message_bytes_max(); }
  kv_transfer::SendResult try_send(kv_transfer::PeerId to, std::vector<std::byte>&& message) override {
    const kv_transfer::SendResult result = endpoint_->try_send(to, std::move(message));
    if (result == kv_transfer::SendResult::kFull) ++refused_;
    return result;
  }
  std::optional<kv_transfer::Envelope> poll() override { return endpoint_->poll(); }
  bool reachable(kv_transfer::PeerId peer) const override { return endpoint_->reachable(peer); }
  void set_wakeup(std::function<void()> wakeup) override { endpoint_->set_wakeup(std::move(wakeup)); }

 private:
  const std::unique_ptr<kv_transfer::Endpoint> endpoint_;
  std::int64_t& refused_;
};

}  // namespace

Simulation::Simulation(const SimulationOptions& options)
    : Simulation(options, [&] {
        Dice dice(options.seed);
        return make_scenario(dice, options.choices);
      }()) {}

Simulation::Simulation(const SimulationOptions& options, Scenario scenario)
    : options_(options),
      dice_(base::mix64(options.seed)),
      scenario_(std::move(scenario)),
      backend_(backends::cpu::make_reference_backend()),
      stream_(backend_->make_stream()) {
  auto& engines = scenario_.server.engines;
  const bool split = engines.front().config.role != EngineRole::kUnified;
  trace_ = std::make_unique<Trace>(clock_, options.printing);
  const engine::EngineConfig& first = engines.front().config;
  const Judge::Rules rules{.flavors = {.prompt = 1, .generated = split ? 2u : 1u},
                           .page_size = first.page_size,
                           .on_error = options.on_error,
                           .recomputes_max = first.integrity.recomputes_max};
  judge_ = std::make_unique<Judge>(*backend_, rules, clock_, *trace_);
  for (std::size_t i = 0; i < engines.size(); ++i) {
    auto& engine = engines[i];
    const StepFaults::Options step_options{.faults = options.choices.faults,
                                           .level = first.integrity.level,
                                           .sweep = sweep_time(engine.config, scenario_.turn),
                                           .sent_at_once = scenario_.server.loopback.bytes_in_flight_max ==
                                                           kv_transfer::LoopbackOptions().bytes_in_flight_max};
    step_faults_.push_back(std::make_unique<StepFaults>(step_options, clock_, *judge_, *trace_, dice_.split()));
    StepFaults* const step_faults = step_faults_.back().get();
    engine.config.observer = step_faults;
    engine.before_forward = [step_faults] { step_faults->before_forward(); };
    engine.on_command = [this, i](const request::EngineCommand& command) { take_command(i, command); };
    engine.config.integrity.on_error = options.on_error;
  }
  scenario_.server.wrap_endpoint = [this](std::unique_ptr<kv_transfer::Endpoint> endpoint) {
    return std::make_unique<CountingEndpoint>(std::move(endpoint), messages_refused_);
  };
  server_ = std::make_unique<test_support::OracleServer>(scenario_.server, *backend_, clock_);
  traffic_ = std::make_unique<Traffic>(scenario_.traffic, first.page_size, first.chunked_prefill_size, dice_.split());
  const auto sends = [&engines](kv_transfer::PeerId peer) {
    return std::ranges::any_of(engines, [&](const auto& engine) {
      return engine.config.role == EngineRole::kPrefill && static_cast<kv_transfer::PeerId>(engine.config.id) == peer;
    });
  };
  wire_ = std::make_unique<Wire>(
      Wire::Options{.turn = scenario_.turn,
                    .latency_turns_max = scenario_.latency_turns_max,
                    .fault_rate = options.choices.faults.has(FaultKind::kTransport) ? kWireFaultRate : 0.0,
                    .handoff_timeout = first.handoff.timeout,
                    .sends = sends,
                    .sent = [this](kv_transfer::PeerId peer, request::SequenceId id, std::int64_t page,
                                   std::int64_t pages) { sent(peer, id, page, pages); },
                    .committing = [this](kv_transfer::PeerId peer, request::SequenceId id) { commits(peer, id); },
                    .session_disturbed = [this](kv_transfer::PeerId sender,
                                                kv_transfer::PeerId receiver) { session_disturbed(sender, receiver); }},
      server_->transport(), clock_, *judge_, *trace_, dice_.split());
  paused_until_.assign(engines.size(), 0);
  empty_until_.assign(engines.size(), 0);
  allocation_armed_.assign(engines.size(), false);
}

Simulation::~Simulation() {
  server_->transport().set_filter({});
  // The router tells what lives that the server stops: nobody listens any more.
  server_->stop();
}

std::int64_t Simulation::steps() const {
  std::int64_t sum = 0;
  for (const auto& faults : step_faults_) sum += faults->counts().steps;
  return sum;
}

void Simulation::run_steps(std::int64_t steps) {
  while (this->steps() < steps && !complaint().has_value()) {
    arrive();
    leave();
    break_something();
    turn();
  }
}

void Simulation::run_for(base::Nanoseconds duration) {
  const base::Nanoseconds end = clock_.now() + duration;
  while (clock_.now() < end && !complaint().has_value()) {
    arrive();
    leave();
    break_something();
    turn();
  }
}

void Simulation::fail_allocation(std::size_t i, std::int64_t n) { Access::fail_nth_allocation(pool(i), n); }

bool Simulation::allocation_failed(std::size_t i) { return Access::allocations_until_failure(pool(i)) == 0; }

void Simulation::turn() {
  ++counts_.turns;
  seat_engines();
  wire_->deliver();
  bool moved = turn_engines();
  // Before clients hear of what that led to.
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
    if (!there(i)) continue;
    const kv_cache::PageCounts pages = pool(i).counts();
    if (pages.quarantined > pool(i).awaiting_fence()) {
      for (const request::SequenceId id : judge_->live()) {
        const Assigned& assigned = assigned_[id];
        if (assigned.first == i || assigned.decode == i) judge_->pages_left(id, pages.total - pages.quarantined);
      }
    }
    if (!options_.choices.faults.empty()) rewrite_quarantined(i);
    step_faults_[i]->between_turns(loop(i));
  }
  moved |= server_->router().pump(base::Nanoseconds(0)) > 0;
  check_pools();
  judge_->check_stall(scenario_.stall_after, scenario_.starves_after);
  clock_.advance(scenario_.turn);
  if (!moved) skip_idle_time();
}

// In an order that changes; an engine may be busy elsewhere for a while.
bool Simulation::turn_engines() {
  std::vector<std::size_t> order(step_faults_.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[static_cast<std::size_t>(dice_.range(0, static_cast<std::int64_t>(i)))]);
  }
  bool moved = false;
  for (const std::size_t i : order) {
    if (!there(i) || counts_.turns < paused_until_[i]) {
      moved = true;
      continue;
    }
    step_faults_[i]->before_turn(loop(i));
    moved |= loop(i).turn() == engine::Turn::kMoved;
    step_faults_[i]->after_turn(loop(i));
    if (allocation_armed_[i] && allocation_failed(i)) {
      allocation_armed_[i] = false;
      ++counts_.allocations_failed;
      trace_->add("no page");
    }
    if (scenario_.pause_turns_max > 0 && dice_.chance(0.01)) {
      paused_until_[i] = counts_.turns + dice_.range(1, scenario_.pause_turns_max);
    }
  }
  return moved;
}

std::optional<std::size_t> Simulation::index_of(request::EngineId id) const {
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
    if (scenario_.server.engines[i].config.id == id) return i;
  }
  return std::nullopt;
}

void Simulation::sent(kv_transfer::PeerId peer, request::SequenceId id, std::int64_t first, std::int64_t count) {
  const auto i = index_of(static_cast<request::EngineId>(peer));
  if (i.has_value() && there(*i)) step_faults_[*i]->sends(loop(*i), id, first, count);
}

void Simulation::commits(kv_transfer::PeerId peer, request::SequenceId id) {
  const auto i = index_of(static_cast<request::EngineId>(peer));
  if (i.has_value() && there(*i)) step_faults_[*i]->commits(loop(*i), id);
}

// Nothing can happen before this: time passes at once.
void Simulation::skip_idle_time() {
  base::Nanoseconds wait = std::chrono::milliseconds(500);
  for (std::size_t i = 0; i < step_faults_.size(); ++i) wait = std::min(wait, loop(i).idle_time());
  if (const auto arrival = wire_->next_arrival()) wait = std::min(wait, *arrival - clock_.now());
  if (wait > scenario_.turn) clock_.advance(wait - scenario_.turn);
}

// ---- Faults that are not a step's or a message's ----

void Simulation::break_something() {
  const auto engine = [&] { return static_cast<std::size_t>(dice_.range(0, std::ssize(step_faults_) - 1)); };
  if (options_.choices.faults.has(FaultKind::kAllocations) && dice_.chance(0.05)) {
    const std::size_t i = engine();
    if (!there(i)) return;
    if (!allocation_armed_[i]) Access::fail_nth_allocation(pool(i), dice_.range(1, 6));
    allocation_armed_[i] = true;
  }
  if (options_.choices.faults.has(FaultKind::kRestarts) && dice_.chance(0.002)) end_engine(engine());
}

// The operator's part.
void Simulation::rewrite_quarantined(std::size_t i) {
  const kv_cache::PageCounts counts = pool(i).counts();
  const bool due = scenario_.rewrites_at_once ? counts.quarantined > pool(i).awaiting_fence()
                                              : 8 * counts.quarantined >= counts.total && dice_.chance(0.2);
  if (!due) return;
  const kv_cache::QuarantineAudit audit = pool(i).audit_quarantined(*stream_);
  counts_.rewritten += audit.freed;
  trace_->add("quarantine", static_cast<std::uint64_t>(audit.freed), static_cast<std::uint64_t>(audit.kept));
}

// It ends as a process does that is killed. Whoever looks after engines ends what was lost with it, and nothing else;
// another one takes its place some turns later, so that its peers and the router meet an empty place.
void Simulation::end_engine(std::size_t i) {
  if (!there(i)) return;
  trace_->add("engine ends", i);
  ++counts_.restarts;
  count_engine(counts_, i);
  std::vector<request::SequenceId> lost;
  for (const request::SequenceId id : judge_->live()) {
    const Assigned& assigned = assigned_[id];
    if (assigned.first != i && assigned.decode != i) {
      ++counts_.spared_in_restarts;
    } else if (loses(id, i)) {
      lost.push_back(id);
    } else {
      ++counts_.spared_in_restarts;
    }
  }
  server_->end_engine(i);
  step_faults_[i]->forget();
  allocation_armed_[i] = false;
  empty_until_[i] = counts_.turns + dice_.range(0, 60);
  counts_.lost_in_restarts += std::ssize(lost);
  for (const request::SequenceId id : lost) {
    judge_->may_be_lost(id);
    server_->router().abort(id);
  }
}

// Whether a sequence that was sent to the engine needs it. One that was handed over does not.
bool Simulation::loses(request::SequenceId id, std::size_t i) {
  const Assigned& assigned = assigned_[id];
  if (assigned.decode == i || !assigned.decode.has_value() || !there(*assigned.decode)) return true;
  const engine::Sequence* there_now = LoopAccess::table(loop(*assigned.decode)).find(id);
  const bool arrived = there_now != nullptr && there_now->state == engine::SequenceState::kComputing;
  return !arrived || LoopAccess::table(loop(i)).find(id) != nullptr || !LoopAccess::has_said_all(loop(i));
}

void Simulation::seat_engines() {
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
    if (there(i) || counts_.turns < empty_until_[i]) continue;
    trace_->add("engine begins", i);
    server_->restart_engine(i);
  }
}

// The router sends a sequence somewhere. Where nobody is, or through a session that was disturbed, it may be lost.
void Simulation::take_command(std::size_t i, const request::EngineCommand& command) {
  const auto* start = std::get_if<request::StartSequence>(&command);
  if (start == nullptr) return;
  const request::SequenceId id = start->spec.id;
  const Assigned assigned{i, index_of(start->decode_engine)};
  assigned_[id] = assigned;
  if (!assigned.decode.has_value()) return;
  const auto disturbed = disturbed_pairs_.find({assigned.first, *assigned.decode});
  const bool session_lost = disturbed != disturbed_pairs_.end() && clock_.now() < disturbed->second;
  if (!there(*assigned.decode) || session_lost) judge_->may_be_lost(id);
}

void Simulation::session_disturbed(kv_transfer::PeerId sender, kv_transfer::PeerId receiver) {
  const auto first = index_of(static_cast<request::EngineId>(sender));
  const auto decode = index_of(static_cast<request::EngineId>(receiver));
  if (!first.has_value() || !decode.has_value()) return;
  disturbed_pairs_[{*first, *decode}] =
      clock_.now() + 2 * scenario_.server.engines[*first].config.handoff.timeout + std::chrono::seconds(1);
  for (const request::SequenceId id : judge_->live()) {
    const Assigned& assigned = assigned_[id];
    if (assigned.first == *first && assigned.decode == decode) judge_->may_be_lost(id);
  }
}

// ---- What must hold after every turn ----

void Simulation::check_pools() {
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
    if (!there(i)) continue;
    const kv_cache::PageCounts counts = pool(i).counts();
    if (counts.free + counts.leased + counts.cached + counts.quarantined != counts.total) {
      judge_->object(fmt::format("engine {}: pages are lost", i));
    }
    if (pool(i).double_frees() != 0) judge_->object(fmt::format("engine {}: a page was freed twice", i));
    trace_->add("pages", static_cast<std::uint64_t>(counts.free), static_cast<std::uint64_t>(counts.cached),
                static_cast<std::uint64_t>(counts.quarantined));
    if ((counts_.turns + static_cast<std::int64_t>(i)) % scenario_.audit_every_turns == 0) audit(i);
  }
}

void Simulation::audit(std::size_t i) {
  for (const auto& [id, sequence] : LoopAccess::table(loop(i))) judge_->engine_has(id, sequence.generated);
  // What was damaged on the device differs from the host's until the page's life ends.
  if (step_faults_[i]->damaged()) return;
  ++counts_.audits;
  if (const base::Status status = loop(i).audit(); !status.ok()) {
    judge_->object(fmt::format("engine {}: {}", i, status.to_string()));
  }
}

void Simulation::drain() {
  if (complaint().has_value()) return;
  empty_until_.assign(empty_until_.size(), 0);
  seat_engines();
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
    step_faults_[i]->end();
    Access::fail_nth_allocation(pool(i), 0);
    allocation_armed_[i] = false;
  }
  wire_->end_faults();
  scenario_.pause_turns_max = 0;
  paused_until_.assign(paused_until_.size(), 0);
  const auto busy = [&] {
    bool any = server_->router().live() > 0 || wire_->next_arrival().has_value();
    for (std::size_t i = 0; i < step_faults_.size(); ++i) any |= loop(i).live() > 0;
    return any;
  };
  for (int turns = 0; busy() && !complaint().has_value(); ++turns) {
    if (turns == kDrainTurnsMax) judge_->object("the engines do not come to rest");
    turn();
  }
  if (complaint().has_value()) return;
  judge_->check_all_ended();
  // What handoffs left behind is cleaned up without anybody asking.
  const base::Nanoseconds rest = clock_.now() + 4 * scenario_.server.engines.front().config.handoff.timeout;
  while (clock_.now() < rest) turn();
  server_->router().flush_prefix_cache();
  for (int turns = 0; turns < 8; ++turns) turn();
  for (std::size_t i = 0; i < step_faults_.size(); ++i) check_drained(i);
}

void Simulation::check_drained(std::size_t i) {
  audit(i);
  const kv_cache::QuarantineAudit rewritten = pool(i).audit_quarantined(*stream_);
  if (rewritten.kept > 0) judge_->object(fmt::format("engine {}: {} pages never left quarantine", i, rewritten.kept));
  const kv_cache::PageCounts counts = pool(i).counts();
  if (counts.free != counts.total) {
    judge_->object(fmt::format("engine {}: {} of {} pages came back", i, counts.free, counts.total));
  }
}

std::string Simulation::describe_engines() const {
  std::string text;
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
    if (!there(i)) {
      text += fmt::format("engine {} has ended\n", scenario_.server.engines[i].config.id);
      continue;
    }
    const request::EngineStats stats = loop(i).stats();
    text += fmt::format(
        "engine {} ({}): {} waiting, {} running, {} moving; pages: {} free, {} leased, {} cached, {} quarantined\n",
        loop(i).info().id, request::engine_role_name(loop(i).info().role), stats.waiting, stats.running,
        stats.handing_over, stats.pages_free, stats.pages_leased, stats.pages_cached, stats.pages_quarantined);
  }
  return text;
}

void Simulation::count_engine(SimulationCounts& counts, std::size_t i) const {
  const request::EngineStats stats = loop(i).stats();
  (loop(i).info().role == EngineRole::kDecode ? counts.preemptions_decode : counts.preemptions_first) +=
      stats.preemptions;
  counts.prefix_hit_tokens += stats.prefix_hit_tokens;
  counts.pages_swept += stats.pages_swept;
}

SimulationCounts Simulation::counts() const {
  SimulationCounts counts = counts_;
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
    counts.stepped.add(step_faults_[i]->counts());
    if (there(i)) count_engine(counts, i);
  }
  counts.messages = wire_->messages();
  counts.messages_disturbed = wire_->disturbed();
  counts.messages_refused = messages_refused_;
  counts.judged = judge_->counts();
  return counts;
}

}  // namespace tessera::simulation
