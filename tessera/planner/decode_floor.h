// The least time of one decode step on one GPU: the bytes that it must read, over the read bandwidth. Counted: every
// weight outside the routed experts once (not the embedding table, of which a step reads single rows), the experts that
// the batch's tokens touch once, and each sequence's KV. Not counted, and so not in the floor: activations, the token's
// own KV that is written, page tables, collectives, and whatever does not overlap.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/base/status.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/planner/model_facts.h"
#include "tessera/planner/weight_memory.h"

namespace tessera::planner {

// What a step reads on one rank, apart from what depends on the batch.
struct StepBytes {
  std::int64_t layers = 0;         // num_hidden_layers.
  std::int64_t expert_layers = 0;  // Of them, those with routed experts.
  std::int64_t outside_bytes = 0;  // All weights that every step reads.
  std::int64_t expert_bytes = 0;   // One routed expert of one layer.
  // Of one sequence at its context: what kv_read_bytes (kv_memory.h) says of this layout.
  ops::KvLayout rank_layout;
};

base::Result<StepBytes> step_bytes(const ModelFacts& facts, const WeightMemory& weights, ops::KvFormat format,
                                   std::int32_t page_size);

struct StepLoad {
  std::int64_t batch = 1;
  std::int64_t context = 1;    // Tokens of every sequence.
  double experts_touched = 0;  // Different routed experts, summed over the layers.
};

struct StepFloor {
  double experts_touched = 0;
  double expert_bytes = 0;
  double kv_bytes = 0;
  double bytes_moved = 0;  // With outside_bytes.
  double floor_ms = 0;
  double tokens_per_second = 0;  // batch / floor.
};

// read_bandwidth in bytes a second, > 0.
StepFloor step_floor(const ModelFacts& facts, const StepBytes& bytes, const StepLoad& load, double read_bandwidth);

// One measured decode step of one rank, as a benchmark records it.
struct StepRecord {
  std::int64_t batch = 0;
  std::int64_t context = 0;
  std::int64_t layers = 0;     // That the step ran.
  double experts_touched = 0;  // Different routed experts that its tokens took, summed over the layers.
  double bytes_moved = 0;      // As the benchmark counted them.
  double read_bandwidth = 0;   // Bytes a second, measured in the same run, reading only.
  double step_ms = 0;
};

struct RecordCheck {
  StepFloor floor;         // Recomputed from the record's experts_touched and read_bandwidth.
  double bytes_ratio = 0;  // The record's bytes_moved over the recomputed ones: 1 where both count alike.
  double times_floor = 0;  // step_ms over the floor's.
};

// Compares a record with the arithmetic. invalid_argument, naming the field, where the record cannot be one of this
// model: another number of layers, a batch or context below 1, experts that the batch cannot have touched (fewer than
// one token takes, or more than all), bandwidth or time not positive.
base::Result<RecordCheck> check_record(const ModelFacts& facts, const StepBytes& bytes, const StepRecord& record);

}  // namespace tessera::planner
