// `tessera plan` as data: everything that its table and its JSON say, computed once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/planner/decode_floor.h"
#include "tessera/planner/gpu.h"
#include "tessera/planner/kv_memory.h"
#include "tessera/planner/model_facts.h"
#include "tessera/planner/prefill_floor.h"
#include "tessera/planner/routing.h"
#include "tessera/planner/weight_memory.h"

namespace tessera::planner {

// Memory of each GPU that neither weights nor KV take: the CUDA context, activations, captured graphs, communication
// buffers, page tables, fragmentation. An assumption, printed with every plan.
struct Reserve {
  double fraction = 0.1;              // Of the GPU's memory.
  std::optional<std::int64_t> bytes;  // Instead.
};

// What one phase's pool holds.
struct Precision {
  WeightRecipe weights = WeightRecipe::kAsStored;
  ops::KvFormat kv = ops::KvFormat::kBF16;
};

struct PlanRequest {
  Gpu gpu;
  std::int32_t tp = 1;    // Ranks of one group.
  std::int64_t gpus = 0;  // Of each pool, a multiple of tp; 0: tp.
  Reserve reserve;
  std::int32_t page_size = 64;
  Precision prefill{WeightRecipe::kAsStored, ops::KvFormat::kBF16};
  Precision decode{WeightRecipe::kAsStored, ops::KvFormat::kF8E4M3};
  UpProjection decode_up = UpProjection::kBf16;
  std::vector<std::int64_t> contexts = {8192};
  std::vector<std::int64_t> batches = {1, 8, 16, 32, 64};
  Routing routing;
  std::vector<std::int64_t> held_tokens;  // Token counts whose implied reserve is wanted, beside published ones.
};

struct PhasePlan {
  Precision precision;
  WeightMemory weights;
  std::int64_t free_bytes = 0;  // For KV, on each GPU; negative: what is missing.
  std::vector<KvMemory> kv;     // One for each of kKvFormats.
  const KvMemory& chosen_kv() const;
};

struct DecodeRow {
  std::int64_t batch = 0;
  std::int64_t context = 0;
  bool kv_fits = false;  // One group holds that many such sequences.
  StepFloor floor;
};

// The decode pool's weights on groups of another size.
struct GroupRow {
  std::int32_t tp = 1;
  std::string refused;  // Why tensors cannot be divided so; else empty and the rest is filled in.
  std::int64_t rank_bytes = 0;
  std::int64_t free_bytes = 0;
  std::int64_t tokens = 0;  // Of the decode pool's KV format.
};

// A count of tokens and what it implies: reserve = memory - weights - tokens * bytes a token.
struct ImpliedReserve {
  std::string source;
  WeightRecipe weights = WeightRecipe::kAsStored;
  ops::KvFormat format = ops::KvFormat::kBF16;
  std::int64_t tokens = 0;
  std::int64_t weight_bytes = 0;  // On each GPU.
  double kv_bytes = 0;            // On each GPU.
  double reserve_bytes = 0;       // Negative: the count is impossible under this precision.
};

struct Plan {
  PlanRequest request;
  ModelFacts facts;
  std::int64_t replicas = 1;  // Groups of each pool.
  std::int64_t reserve_bytes = 0;
  std::vector<CheckpointSize> checkpoints;  // One for each of kWeightRecipes.
  PhasePlan prefill;
  PhasePlan decode;
  StepBytes step;
  std::vector<DecodeRow> decode_rows;      // By context, then batch.
  std::vector<PrefillFloor> prefill_rows;  // By context.
  std::vector<GroupRow> groups;            // tp 1, 2, 4, ... and the request's.
  std::vector<ImpliedReserve> implied;
};

// invalid_argument or out_of_range, naming what is wrong with the request; never for what does not fit.
base::Result<Plan> make_plan(const models::ModelConfig& config, const PlanRequest& request);

// The arithmetic of weights, reserve and memory of one GPU as a sentence, both where it fits and where it does not.
std::string memory_sentence(const Plan& plan, std::int64_t rank_bytes, std::int64_t gpus);

// resource_exhausted, with the arithmetic, where a pool's weights do not fit, or not one sequence of the longest
// context.
base::Status fit(const Plan& plan);

}  // namespace tessera::planner
