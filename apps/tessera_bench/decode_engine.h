// A real engine, turned by hand, that decodes a full batch: what one step costs its clients, and what part of it the
// page check is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "measured_verifier.h"
#include "tessera/engine/engine_loop.h"

namespace tessera::bench {

struct StepSample {
  double turn_ms = 0.0;   // From one token of every sequence to the next: the whole turn of the loop.
  double step_ns = 0.0;   // Inside of it, the step, as the engine clocks it,
  double check_ns = 0.0;  // and the page check in the step.
};

// Tokens that a sequence's next step reads, over the batch.
struct ContextRange {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

class DecodeEngine {
 public:
  // `config` is of a unified engine with room for `config.running_max` sequences of a whole context; model, backend and
  // clock outlive it.
  static base::Result<std::unique_ptr<DecodeEngine>> create(const engine::EngineConfig& config,
                                                            const models::Model& model, ops::Backend& backend,
                                                            const base::Clock& clock);

  // Starts a batch of sequences, no two of which share a page, and runs until each is decoding with about `context`
  // tokens. `progress` is called now and then with how many do.
  base::Result<ContextRange> fill(std::int64_t context, const std::function<void(std::int64_t ready)>& progress);
  // One step, in which every sequence gets a token.
  base::Result<StepSample> step(Checking checking);
  // Ends the sequences and forgets what the prefix cache kept of them.
  base::Status clear();

  const engine::EngineLoop& loop() const { return *loop_; }

 private:
  DecodeEngine(const engine::EngineConfig& config, const base::Clock& clock);
  base::Status send(request::EngineCommand command);
  base::Status turn();

  const engine::EngineConfig config_;
  const base::Clock& clock_;
  Checking checking_ = Checking::kOn;
  request::EngineEventQueue events_;
  std::shared_ptr<engine::CommandInbox> inbox_;
  std::unique_ptr<engine::EngineLoop> loop_;
  request::SequenceId last_id_ = 0;
  std::map<request::SequenceId, std::int64_t> lengths_;  // Of the live sequences: prompt and generated tokens.
  std::int64_t tokens_in_turn_ = 0;
};

}  // namespace tessera::bench
