#include "tessera/backends/cuda/kernels/moe_route.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

// A value and its index as one number that is larger for a larger value, and for the lower index of equal ones. NaN
// counts as -infinity and -0 as 0. Never 0, which stands for what cannot be chosen.
__device__ __forceinline__ std::uint64_t choice_key(float value, std::int32_t index) {
  if (isnan(value)) value = -INFINITY;
  const std::uint32_t bits = __float_as_uint(value + 0.0f);
  const std::uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<std::uint32_t>(index));
}

__device__ __forceinline__ std::int32_t key_index(std::uint64_t key) {
  return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(key));
}

// The largest key of an array, to every lane.
__device__ __forceinline__ std::uint64_t largest_key(const std::uint64_t* keys, std::int32_t count, int lane) {
  std::uint64_t best = 0;
  for (std::int32_t i = lane; i < count; i += 32) best = keys[i] > best ? keys[i] : best;
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const std::uint64_t other = __shfl_xor_sync(kFullWarp, best, offset);
    best = other > best ? other : best;
  }
  return best;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Shared memory: the experts' keys, then the groups'. Whoever is taken gets the key kTaken, groups that stay too.
__global__ void __launch_bounds__(32) moe_route_kernel(MoeRouteKernel p) {
  extern __shared__ std::uint64_t keys[];
  const std::int64_t token = blockIdx.x;
  const int lane = threadIdx.x;
  const float* logits = p.logits + token * p.logits_stride;
  for (std::int32_t e = lane; e < p.experts; e += 32) {
    const float score = sigmoid(logits[e]);
    keys[e] = choice_key(p.bias == nullptr ? score : score + p.bias[e], e);
  }
  __syncwarp();

  const std::int32_t group_size = p.experts / p.n_group;
  if (p.topk_group < p.n_group) {
    std::uint64_t* groups = keys + p.experts;
    for (std::int32_t g = lane; g < p.n_group; g += 32) {
      std::uint64_t first = 0;
      std::uint64_t second = 0;
      for (std::int32_t e = g * group_size; e < (g + 1) * group_size; ++e) {
        if (keys[e] > first) {
          second = first;
          first = keys[e];
        } else if (keys[e] > second) {
          second = keys[e];
        }
      }
      const auto choice = [&](std::uint64_t key) {
        const std::int32_t e = key_index(key);
        const float score = sigmoid(logits[e]);
        const float value = p.bias == nullptr ? score : score + p.bias[e];
        return isnan(value) ? -INFINITY : value;
      };
      groups[g] = choice_key(choice(first) + choice(second), g);
    }
    __syncwarp();
    // Groups that stay are marked by a key of 0, then the experts of the others lose theirs.
    for (std::int32_t i = 0; i < p.topk_group; ++i) {
      const std::uint64_t best = largest_key(groups, p.n_group, lane);
      __syncwarp();
      if (lane == 0) groups[key_index(best)] = 0;
      __syncwarp();
    }
    for (std::int32_t e = lane; e < p.experts; e += 32) {
      if (groups[e / group_size] != 0) keys[e] = 0;
    }
    __syncwarp();
  }

  constexpr std::uint64_t kTaken = 1;  // No choice has it: those have bits above.
  for (std::int32_t i = 0; i < p.taken; ++i) {
    const std::uint64_t best = largest_key(keys, p.experts, lane);
    __syncwarp();
    if (lane == 0) keys[key_index(best)] = kTaken;
    __syncwarp();
  }

  std::int32_t* ids = p.expert_ids + token * p.taken;
  float* weights = p.expert_weights + token * p.taken;
  std::int32_t found = 0;
  for (std::int32_t begin = 0; begin < p.experts; begin += 32) {
    const std::int32_t e = begin + lane;
    const bool taken = e < p.experts && keys[e] == kTaken;
    const unsigned mask = __ballot_sync(kFullWarp, taken);
    if (taken) ids[found + __popc(mask & ((1u << lane) - 1))] = e;
    found += __popc(mask);
  }
  __syncwarp();
  double sum = 0.0;
  for (std::int32_t j = 0; j < p.taken; ++j) sum += static_cast<double>(sigmoid(logits[ids[j]]));
  for (std::int32_t j = lane; j < p.taken; j += 32) {
    const double score = static_cast<double>(sigmoid(logits[ids[j]]));
    const double weight = p.norm_topk_prob ? score / (sum + 1e-20) : score;
    weights[j] = static_cast<float>(weight * static_cast<double>(p.factor));
  }
}

}  // namespace

void launch_moe_route(const MoeRouteKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  const int bytes = (kernel.experts + kernel.n_group) * static_cast<int>(sizeof(std::uint64_t));
  if (bytes > 48 * 1024) cudaFuncSetAttribute(moe_route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  moe_route_kernel<<<static_cast<unsigned>(kernel.tokens), 32, bytes, launch.stream>>>(kernel);
}

}  // namespace tessera::backends::cuda
