// Which experts a token takes (ops/moe.h, MoeRouteParams). All pointers are device memory. A warp a token; the taken
// scores are added up in ascending order of experts, in double.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

inline constexpr std::int64_t kRouteExpertsMax = 4096;

struct MoeRouteKernel {
  const float* logits = nullptr;  // [tokens, experts]
  std::int64_t logits_stride = 0;
  std::int64_t tokens = 0;
  std::int32_t experts = 0;     // <= kRouteExpertsMax
  const float* bias = nullptr;  // [experts] or null
  std::int32_t n_group = 1;
  std::int32_t topk_group = 1;
  std::int32_t taken = 1;
  bool norm_topk_prob = true;
  float factor = 1.0f;
  std::int32_t* expert_ids = nullptr;  // [tokens, taken]
  float* expert_weights = nullptr;     // [tokens, taken]
};
void launch_moe_route(const MoeRouteKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
