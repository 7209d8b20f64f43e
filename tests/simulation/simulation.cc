#include "tests/simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tests/support/fault_access.h"

namespace tessera::simulation {

using fault_injection::Access;
using request::EngineRole;

namespace {

// Turns in which a server without work must have come to rest: many timeouts.
constexpr int kDrainTurnsMax = 200'000;
constexpr double kWireFaultRate = 0.02;

}  // namespace

void SimulationCounts::add(const SimulationCounts& other) {
  turns += other.turns;
  steps += other.steps;
  rows += other.rows;
  preemptions += other.preemptions;
  prefix_hit_tokens += other.prefix_hit_tokens;
  messages += other.messages;
  messages_disturbed += other.messages_disturbed;
  allocations_failed += other.allocations_failed;
  restarts += other.restarts;
  audits += other.audits;
  judged.submitted += other.judged.submitted;
  judged.finished += other.judged.finished;
  judged.cancelled += other.judged.cancelled;
  judged.corrupted += other.judged.corrupted;
  judged.failed += other.judged.failed;
  judged.tokens += other.judged.tokens;
  judged.recomputes += other.judged.recomputes;
  for (std::size_t i = 0; i < reached.size(); ++i) reached[i] += other.reached[i];
}

Simulation::Simulation(const SimulationOptions& options)
    : Simulation(options, [&] {
        Dice dice(options.seed);
        return make_scenario(dice, options.faults);
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
                           .recomputes_max = first.integrity.recomputes_max,
                           .level = first.integrity.level};
  judge_ = std::make_unique<Judge>(*backend_, rules, clock_, *trace_);
  for (auto& engine : engines) {
    step_faults_.push_back(
        std::make_unique<StepFaults>(StepFaults::Options{.faults = options.faults}, *judge_, *trace_, dice_.split()));
    engine.config.observer = step_faults_.back().get();
    engine.config.integrity.on_error = options.on_error;
  }
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
                    .fault_rate = options.faults.has(FaultKind::kTransport) ? kWireFaultRate : 0.0,
                    .handoff_timeout = first.handoff.timeout,
                    .sends = sends},
      server_->transport(), clock_, *judge_, *trace_, dice_.split());
  paused_until_.assign(engines.size(), 0);
}

Simulation::~Simulation() {
  server_->transport().set_filter({});
  // The router tells what lives that the server stops: nobody listens any more.
  server_->stop();
}

std::int64_t Simulation::steps() const {
  std::int64_t sum = 0;
  for (const auto& faults : step_faults_) sum += faults->steps();
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
  wire_->deliver();
  bool moved = turn_engines();
  // Before clients hear of what that led to.
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
    if (pool(i).counts().quarantined > pool(i).awaiting_fence()) judge_->pools_shrank();
    if (!options_.faults.empty()) rewrite_quarantined(i);
    step_faults_[i]->between_turns(pool(i));
  }
  moved |= server_->router().pump(base::Nanoseconds(0)) > 0;
  check_pools();
  judge_->check_stall(scenario_.stall_after);
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
    if (counts_.turns < paused_until_[i]) {
      moved = true;
      continue;
    }
    moved |= server_->engine(i).loop().turn() == engine::Turn::kMoved;
    if (scenario_.pause_turns_max > 0 && dice_.chance(0.01)) {
      paused_until_[i] = counts_.turns + dice_.range(1, scenario_.pause_turns_max);
    }
  }
  return moved;
}

// Nothing can happen before this: time passes at once.
void Simulation::skip_idle_time() {
  base::Nanoseconds wait = std::chrono::milliseconds(500);
  for (std::size_t i = 0; i < step_faults_.size(); ++i) wait = std::min(wait, server_->engine(i).loop().idle_time());
  if (const auto arrival = wire_->next_arrival()) wait = std::min(wait, *arrival - clock_.now());
  if (wait > scenario_.turn) clock_.advance(wait - scenario_.turn);
}

// ---- Clients ----

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
    if (!status.ok()) {
      const bool too_long = status.code() == base::StatusCode::kOutOfRange;
      if (too_long == judge_->is_live(id)) {
        judge_->object(fmt::format("sequence {} is refused: {}", id, status.to_string()));
      }
      if (!too_long) judge_->refused(id);
    }
  }
}

void Simulation::leave() {
  while (!leaving_.empty() && leaving_.begin()->first <= counts_.turns) {
    const request::SequenceId id = leaving_.begin()->second;
    leaving_.erase(leaving_.begin());
    if (!judge_->is_live(id)) continue;
    judge_->client_left(id);
    server_->router().abort(id);
  }
  if (dice_.chance(scenario_.traffic.flush_chance)) {
    trace_->add("flush");
    server_->router().flush_prefix_cache();
  }
}

// ---- Faults that are not a step's or a message's ----

void Simulation::break_something() {
  const auto engine = [&] { return static_cast<std::size_t>(dice_.range(0, std::ssize(step_faults_) - 1)); };
  if (options_.faults.has(FaultKind::kAllocations) && dice_.chance(0.05)) {
    kv_cache::PagePool& broken = pool(engine());
    if (Access::allocations_until_failure(broken) == 0) {
      Access::fail_nth_allocation(broken, dice_.range(1, 6));
      ++counts_.allocations_failed;
      trace_->add("no page");
    }
  }
  if (options_.faults.has(FaultKind::kRestarts) && dice_.chance(0.0005)) restart(engine());
}

// The operator's part.
void Simulation::rewrite_quarantined(std::size_t i) {
  const kv_cache::PageCounts counts = pool(i).counts();
  const bool due = scenario_.rewrites_at_once ? counts.quarantined > pool(i).awaiting_fence()
                                              : 8 * counts.quarantined >= counts.total && dice_.chance(0.2);
  if (!due) return;
  const kv_cache::QuarantineAudit audit = pool(i).audit_quarantined(*stream_);
  trace_->add("quarantine", static_cast<std::uint64_t>(audit.freed), static_cast<std::uint64_t>(audit.kept));
}

void Simulation::restart(std::size_t i) {
  trace_->add("restart", i);
  ++counts_.restarts;
  const request::EngineStats stats = server_->engine(i).loop().stats();
  counts_.preemptions += stats.preemptions;
  counts_.prefix_hit_tokens += stats.prefix_hit_tokens;
  judge_->all_may_be_lost(clock_.now() + 2 * scenario_.server.engines[i].config.handoff.timeout +
                          std::chrono::seconds(1));
  server_->restart_engine(i);
  step_faults_[i]->forget();
  // Whoever started the engine again ends what it lost.
  server_->router().end_all(base::unavailable("an engine was started again"));
}

// ---- What must hold after every turn ----

void Simulation::check_pools() {
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
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
  // What was damaged on the device differs from the host's until the page's life ends.
  if (step_faults_[i]->damaged()) return;
  ++counts_.audits;
  if (const base::Status status = server_->engine(i).loop().audit(); !status.ok()) {
    judge_->object(fmt::format("engine {}: {}", i, status.to_string()));
  }
}

void Simulation::drain() {
  if (complaint().has_value()) return;
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
    step_faults_[i]->end();
    Access::fail_nth_allocation(pool(i), 0);
  }
  wire_->end_faults();
  scenario_.pause_turns_max = 0;
  paused_until_.assign(paused_until_.size(), 0);
  const auto busy = [&] {
    bool any = server_->router().live() > 0 || wire_->next_arrival().has_value();
    for (std::size_t i = 0; i < step_faults_.size(); ++i) any |= server_->engine(i).loop().live() > 0;
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
    engine::EngineLoop& loop = server_->engine(i).loop();
    const request::EngineStats stats = loop.stats();
    text += fmt::format(
        "engine {} ({}): {} waiting, {} running, {} moving; pages: {} free, {} leased, {} cached, {} quarantined\n",
        loop.info().id, request::engine_role_name(loop.info().role), stats.waiting, stats.running, stats.handing_over,
        stats.pages_free, stats.pages_leased, stats.pages_cached, stats.pages_quarantined);
  }
  return text;
}

SimulationCounts Simulation::counts() const {
  SimulationCounts counts = counts_;
  counts.steps = steps();
  for (std::size_t i = 0; i < step_faults_.size(); ++i) {
    counts.rows += step_faults_[i]->rows();
    for (std::size_t f = 0; f < counts.reached.size(); ++f) counts.reached[f] += step_faults_[i]->reached()[f];
    const request::EngineStats stats = server_->engine(i).loop().stats();
    counts.preemptions += stats.preemptions;
    counts.prefix_hit_tokens += stats.prefix_hit_tokens;
  }
  counts.messages = wire_->messages();
  counts.messages_disturbed = wire_->disturbed();
  counts.judged = judge_->counts();
  return counts;
}

}  // namespace tessera::simulation
