// Simulations with a plan of their own: a storm of clients that leave, and every allocation of a run failing in turn.
#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/simulation.h"

namespace tessera::simulation {

struct StormOptions {
  std::uint64_t seed = 1;
  EngineShape shape = EngineShape::kSplit;
  base::Nanoseconds storm = std::chrono::hours(1);
};

struct StormReport {
  // Tokens that clients were told, a second of simulated time: before, while 30% of the requests are cancelled, and
  // from ten seconds after that on.
  double before = 0.0;
  double during = 0.0;
  double after = 0.0;
  SimulationCounts counts;
  std::string complaint;  // Empty: none.
};
StormReport run_abort_storm(const StormOptions& options);

struct AllocationReport {
  std::int64_t runs = 0;
  std::int64_t failures = 0;  // Allocations that failed: one in every run but the last for each engine.
  std::string complaint;      // Empty: none.
};
// Runs the same requests again and again; in run n the n-th allocation of one engine's page pool fails, for every n
// until a run has no more. Every request must be answered all the same.
AllocationReport fail_every_allocation(std::uint64_t seed, EngineShape shape, test_support::OracleKv kv,
                                       std::int64_t steps);

}  // namespace tessera::simulation
