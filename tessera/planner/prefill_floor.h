// The least time of one prompt on one tensor-parallel group: its multiplications and additions on the busiest rank,
// over the measured peak of a dense product, or the weights' bytes over the read bandwidth if that is longer. Counted
// are the products' 2 * N * K a token, experts for the tokens that choose them, the head for the last token, and
// attention's part that grows with the square of the prompt. Softmax, norms, collectives and whatever does not overlap
// are not.
#pragma once

#include <cstdint>

#include "tessera/base/status.h"
#include "tessera/planner/gpu.h"
#include "tessera/planner/model_facts.h"
#include "tessera/planner/routing.h"
#include "tessera/planner/weight_memory.h"

namespace tessera::planner {

struct PrefillFloor {
  std::int64_t tokens = 0;
  // FLOP of one rank.
  double dense_flop = 0;      // Products outside the routed experts.
  double expert_flop = 0;     // Routed experts.
  double attention_flop = 0;  // Scores and values, causal; only the selected positions of sparse attention.
  double indexer_flop = 0;    // Scores of the indexer, which every rank computes for all heads.
  // Milliseconds. FP8 weights run at the FP8 peak, others at the BF16 peak; attention at BF16's, the indexer at FP8's.
  double compute_ms = 0;
  double weights_ms = 0;         // Reading every weight that the prompt touches, once.
  double floor_ms = 0;           // The longer of the two.
  double tokens_per_second = 0;  // Of the group.
};

// tokens >= 1: one prompt, nothing of it cached. Fails as rank_tensor does.
base::Result<PrefillFloor> prefill_floor(const ModelFacts& facts, const WeightMemory& weights, const Gpu& gpu,
                                         const Routing& routing, std::int64_t tokens);

}  // namespace tessera::planner
