// Who wants to know what an engine's steps compute, and can change nothing of it: `tessera evaluate` has one, which
// knows by it whose logits a step gives. What tests change steps with is step_observer.h.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/kv_cache/page_pool.h"
#include "tessera/request/sequence_spec.h"

namespace tessera::engine {

struct RowOutcome;

// One row of the batch, from the host's records.
struct StepRowView {
  request::SequenceId id = 0;
  std::span<const kv_cache::Lease> leases;
  std::int64_t start = 0;        // First token that the step computes.
  std::int64_t count = 0;        // How many.
  std::int64_t first_token = 0;  // Index of that token in the batch.
};

// Called on the engine's thread; the views are valid during the call.
class StepListener {
 public:
  virtual ~StepListener() = default;
  // These rows, in this order, are about to be computed.
  virtual void before_step(std::span<const StepRowView> rows) = 0;
  // What the checks say of each row; the engine has not acted on it yet. All work of the step is done.
  virtual void after_step(std::span<const StepRowView> rows, std::span<const RowOutcome> outcomes) = 0;
};

}  // namespace tessera::engine
