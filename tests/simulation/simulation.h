// One run of a whole server on one thread and one clock, from one seed. docs and commands: README.md beside this.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/base/clock.h"
#include "tests/serving/oracle_server.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/judge.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/step_faults.h"
#include "tests/simulation/trace.h"
#include "tests/simulation/wire.h"

namespace tessera::simulation {

struct SimulationOptions {
  std::uint64_t seed = 1;
  ScenarioChoices choices{};
  Printing printing = Printing::kOff;
  kv_cache::OnIntegrityError on_error = kv_cache::OnIntegrityError::kAbort;
};

// Of a sequence whose client left: on the engine that has its prompt, and on the decode engine of a pair.
inline constexpr std::array<std::string_view, 6> kPlaceNames = {"waiting", "computing", "handoff pending",
                                                                "sending", "receiving", "not there"};
using PlaceCounts = std::array<std::int64_t, kPlaceNames.size()>;

struct SimulationCounts {
  std::int64_t turns = 0;
  StepCounts stepped;
  std::int64_t preemptions_first = 0;   // On unified engines.
  std::int64_t preemptions_decode = 0;  // Prefill begins again.
  std::int64_t prefix_hit_tokens = 0;
  std::int64_t pages_swept = 0;
  std::int64_t messages = 0;
  WireFaultCounts messages_disturbed{};
  std::int64_t messages_refused = 0;  // The way was full.
  std::int64_t allocations_failed = 0;
  std::int64_t restarts = 0;
  std::int64_t lost_in_restarts = 0;    // Sequences.
  std::int64_t spared_in_restarts = 0;  // Sequences that lived on other engines.
  std::int64_t audits = 0;              // Of all leases of an engine.
  std::int64_t rewritten = 0;           // Pages of quarantine that came back.
  std::int64_t flushes = 0;
  PlaceCounts left_first{};
  PlaceCounts left_decode{};
  JudgeCounts judged;

  void add(const SimulationCounts& other);
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);
  // With a scenario of one's own.
  Simulation(const SimulationOptions& options, Scenario scenario);
  ~Simulation();

  // Until so many steps were checked (by all engines together), or the judge objects.
  void run_steps(std::int64_t steps);
  // Until so much simulated time has gone, or the judge objects.
  void run_for(base::Nanoseconds duration);
  // Nobody asks for more, and nothing more is broken: all that lives ends, everything is given back, and what is in
  // quarantine returns by an audit.
  void drain();

  // The n-th allocation of an engine's page pool from now on fails; whether it has.
  void fail_allocation(std::size_t i, std::int64_t n);
  bool allocation_failed(std::size_t i);

  void set_abort_share(double share) { scenario_.traffic.abort_share = share; }
  const std::optional<std::string>& complaint() const { return judge_->complaint(); }
  std::uint64_t hash() const { return trace_->hash(); }
  SimulationCounts counts() const;
  base::Nanoseconds now() const { return clock_.now(); }
  // How the engines stand, a line each.
  std::string describe_engines() const;

 private:
  void turn();
  bool turn_engines();
  void arrive();
  void submit(ClientRequest request);
  void leave();
  void leave(request::SequenceId id);
  void leave_from_somewhere();
  void break_something();
  void rewrite_quarantined(std::size_t i);
  void end_engine(std::size_t i);
  void seat_engines();
  bool loses(request::SequenceId id, std::size_t i);
  void take_command(std::size_t i, const request::EngineCommand& command);
  void count_place(request::SequenceId id);
  void count_engine(SimulationCounts& counts, std::size_t i) const;
  void check_pools();
  void audit(std::size_t i);
  void skip_idle_time();
  void sent(kv_transfer::PeerId peer, request::SequenceId id, std::int64_t first, std::int64_t count);
  void check_drained(std::size_t i);
  void commits(kv_transfer::PeerId peer, request::SequenceId id);
  void session_disturbed(kv_transfer::PeerId sender, kv_transfer::PeerId receiver);
  void check_refusal(request::SequenceId id, bool fits, const base::Status& status);
  std::int64_t steps() const;
  bool there(std::size_t i) const { return server_->has_engine(i); }
  engine::EngineLoop& loop(std::size_t i) const { return server_->engine(i).loop(); }
  kv_cache::PagePool& pool(std::size_t i) const { return loop(i).pool(); }
  std::optional<std::size_t> index_of(request::EngineId id) const;

  const SimulationOptions options_;
  Dice dice_;
  Scenario scenario_;
  base::ManualClock clock_;
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<ops::Stream> stream_;
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<Judge> judge_;
  std::vector<std::unique_ptr<StepFaults>> step_faults_;  // One for each engine.
  std::unique_ptr<test_support::OracleServer> server_;
  std::unique_ptr<Traffic> traffic_;
  std::unique_ptr<Wire> wire_;
  std::vector<std::int64_t> paused_until_;                    // Turns, of each engine.
  std::vector<bool> allocation_armed_;                        // To fail, of each engine's pool.
  std::vector<std::int64_t> empty_until_;                     // Turns, of engines that have ended.
  std::multimap<std::int64_t, request::SequenceId> leaving_;  // By turn.
  // Where the router sent a sequence last.
  struct Assigned {
    std::size_t first = 0;
    std::optional<std::size_t> decode;
  };
  std::unordered_map<request::SequenceId, Assigned> assigned_;
  // Pairs whose session was disturbed, until when.
  std::map<std::pair<std::size_t, std::size_t>, base::Nanoseconds> disturbed_pairs_;
  std::int64_t messages_refused_ = 0;
  SimulationCounts counts_;  // What is not counted elsewhere, and what ended engines had counted.
};

}  // namespace tessera::simulation
