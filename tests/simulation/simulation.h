// One run of a whole server on one thread and one clock, from one seed. docs and commands: README.md beside this.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
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
  FaultSet faults{};
  Printing printing = Printing::kOff;
  kv_cache::OnIntegrityError on_error = kv_cache::OnIntegrityError::kAbort;
};

struct SimulationCounts {
  std::int64_t turns = 0;
  std::int64_t steps = 0;  // Checked before and after.
  std::int64_t rows = 0;
  std::int64_t preemptions = 0;
  std::int64_t prefix_hit_tokens = 0;
  std::int64_t messages = 0;
  std::int64_t messages_disturbed = 0;
  std::int64_t allocations_failed = 0;
  std::int64_t restarts = 0;
  std::int64_t audits = 0;
  JudgeCounts judged;
  StepFaultCounts reached{};

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
  void break_something();
  void rewrite_quarantined(std::size_t i);
  void restart(std::size_t i);
  void check_pools();
  void audit(std::size_t i);
  void skip_idle_time();
  void check_drained(std::size_t i);
  std::int64_t steps() const;
  kv_cache::PagePool& pool(std::size_t i) { return server_->engine(i).loop().pool(); }

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
  std::multimap<std::int64_t, request::SequenceId> leaving_;  // By turn.
  SimulationCounts counts_;  // What is not counted elsewhere, and what ended engines had counted.
};

}  // namespace tessera::simulation
