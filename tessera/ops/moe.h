// Mixture of experts: which experts a token takes, and what they add.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/ops/buffer.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

// Sigmoid routing with a correction bias that only selects ("noaux_tc"; DeepSeek-AI 2024, arXiv:2412.19437). All in
// F32:
//   score[e] = 1 / (1 + exp(-logits[t][e])), choice[e] = score[e] + correction_bias[e].
// With n_group > 1 the experts are n_group equal runs; a group's value is the sum of its two largest choices, and only
// the topk_group best groups stay. The num_experts_per_tok largest choices among them are taken. Ties go to the lower
// group and the lower expert; NaN counts as -infinity in every comparison, so that the choice is always a valid one.
//   weight = score / (sum of the taken scores + 1e-20) where norm_topk_prob, else score; times routed_scaling_factor.
// NaN logits of a taken expert give NaN weights: the token's sequence fails where its logits are read. The experts of a
// token come out in ascending order, which is the order in which their outputs are summed.
struct MoeRouteParams {
  ConstMatrix logits;                       // [tokens, n_routed_experts]
  const Weight* correction_bias = nullptr;  // [1, n_routed_experts], usage kVector; null: zeros.
  std::int32_t n_group = 1;                 // Divides n_routed_experts; more than one group have two experts at least.
  std::int32_t topk_group = 1;              // <= n_group.
  std::int32_t num_experts_per_tok = 1;     // <= the experts of topk_group groups.
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0f;
  std::int32_t* expert_ids = nullptr;  // Out, [tokens, num_experts_per_tok], ascending in each row.
  float* expert_weights = nullptr;     // Out, [tokens, num_experts_per_tok]
};

// The routed experts of one layer, in host memory: one weight an expert for each product, all of one format and shape.
struct ExpertSources {
  std::span<const WeightSource> gate;  // [moe_intermediate_size, hidden]
  std::span<const WeightSource> up;    // [moe_intermediate_size, hidden]
  std::span<const WeightSource> down;  // [hidden, moe_intermediate_size]
};

// The same as a backend holds them; only that backend reads the weights. Move-only.
struct ExpertStack {
  std::int64_t experts = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  WeightFormat format = WeightFormat::kF32;
  std::vector<Weight> gate;  // [experts] each; a backend that keeps all of them in `storage` leaves these empty.
  std::vector<Weight> up;
  std::vector<Weight> down;
  Buffer storage;
  std::int64_t bytes() const {
    std::int64_t sum = storage.bytes();
    for (const std::vector<Weight>* weights : {&gate, &up, &down}) {
      for (const Weight& weight : *weights) sum += weight.storage.bytes();
    }
    return sum;
  }
};

// out[t] += sum_j expert_weights[t][j] * down_e(silu(gate_e(in[t])) * up_e(in[t])), e = expert_ids[t][j]. The sum runs
// over j in order, or by ascending expert, which is the same for ids as moe_route gives them.
// Silu as SwigluParams, products as LinearParams. in and out do not overlap. An expert's output for a token does not
// depend on which other tokens it gets. An id outside the stack is a programmer's error on the CPU backends; on a
// device it contributes NaN.
struct MoeExpertsParams {
  ConstMatrix in;  // [tokens, hidden]
  const ExpertStack* experts = nullptr;
  std::int32_t num_experts_per_tok = 1;
  const std::int32_t* expert_ids = nullptr;  // [tokens, num_experts_per_tok]
  const float* expert_weights = nullptr;     // [tokens, num_experts_per_tok]
  Matrix out;                                // [tokens, hidden]
  std::byte* scratch = nullptr;              // Backend::moe_experts_scratch_bytes(...), 256-byte aligned.
};

}  // namespace tessera::ops
