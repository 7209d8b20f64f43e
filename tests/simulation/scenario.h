// What one seed stands for: which engines there are, and what is asked of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/request/sequence_spec.h"
#include "tests/serving/oracle_server.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/faults.h"

namespace tessera::simulation {

struct TrafficOptions {
  std::int64_t live_max = 16;       // Sequences at once.
  double burst_chance = 0.05;       // Of a turn.
  std::int64_t burst_max = 6;       // Requests.
  std::int64_t prompt_max = 48;     // Tokens.
  std::int64_t generated_max = 24;  // Tokens.
  std::int64_t tenants = 2;
  std::int64_t trees = 3;             // Of common beginnings.
  double abort_share = 0.15;          // Of sequences.
  std::int64_t abort_turns_max = 80;  // Turns that such a client waits, at most.
  double flush_chance = 0.0005;       // Of a turn.
};

struct Scenario {
  test_support::OracleServerOptions server;
  TrafficOptions traffic;
  base::Nanoseconds turn = std::chrono::microseconds(100);
  // A message is on its way for at most so many turns.
  std::int64_t latency_turns_max = 0;
  // An engine that pauses does so for at most so many turns.
  std::int64_t pause_turns_max = 0;
  // The leases of a pool are compared with those that sequences hold every so many turns.
  std::int64_t audit_every_turns = 16;
  // Whether an operator has what is in quarantine rewritten after every turn, or only when much is there: then what is
  // left may be too little for a sequence that fitted before.
  bool rewrites_at_once = false;
  // Simulated time in which anything must happen while a sequence lives, and in which anything must happen to each.
  base::Nanoseconds stall_after = std::chrono::seconds(10);
  base::Nanoseconds starves_after = std::chrono::seconds(30);
};

enum class EngineShape : std::uint8_t { kUnified, kSplit };

// What is not left to the seed.
struct ScenarioChoices {
  FaultSet faults{};
  std::optional<EngineShape> shape = {};
  std::optional<kv_cache::IntegrityLevel> level = {};
};

// Small pools and pages, so that every boundary is met often.
Scenario make_scenario(Dice& dice, const ScenarioChoices& choices);
// In which a sweep of the engine looks at every page once, as the engine's turns come.
base::Nanoseconds sweep_time(const engine::EngineConfig& config, base::Nanoseconds turn);

// A client's request: `choices` sequences over one prompt.
struct ClientRequest {
  std::string tenant;
  std::vector<std::int32_t> prompt;
  std::vector<request::SamplingParams> choices;
};

class Traffic {
 public:
  Traffic(const TrafficOptions& options, std::int64_t page_size, std::int64_t chunk, Dice dice);
  ClientRequest next();

 private:
  std::int64_t prompt_length();
  request::SamplingParams sampling();
  const TrafficOptions options_;
  const std::int64_t page_size_;
  const std::int64_t chunk_;
  Dice dice_;
  std::vector<std::vector<std::int32_t>>
      trunks_;  // Tenants share them, so that a hit across tenants would be possible.
};

}  // namespace tessera::simulation
