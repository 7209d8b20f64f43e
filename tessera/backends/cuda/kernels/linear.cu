#include <cuda_bf16.h>

#include <algorithm>

#include "tessera/backends/cuda/kernels/linear.h"
#include "tessera/backends/cuda/kernels/mma_device.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kSlices = 8;  // Warps of a block, and parts of K.
constexpr int kUnit = 64;   // Elements of K that a warp takes at once.

// The product that is this block's.
__device__ __forceinline__ LinearKernel batch_of(LinearKernel p) {
  const std::int64_t batch = blockIdx.z;
  p.in += batch * p.in_batch;
  p.weight = static_cast<const std::byte*>(p.weight) + batch * p.weight_batch * (p.weight_is_bf16 ? 2 : 4);
  p.out += batch * p.out_batch;
  return p;
}

__device__ __forceinline__ void finish(const LinearKernel& p, std::int64_t token, std::int64_t n, float sum) {
  float* out = p.out + token * p.out_stride + n;
  if (p.bias != nullptr) sum += p.bias[n];
  if (p.add) sum += *out;
  *out = sum;
}

// F32 weights: one warp an output feature and up to kTokens tokens. Lane l adds up elements l, l + 32, ...; the lanes'
// sums are added in a fixed tree.
constexpr int kTokens = 8;
__global__ void __launch_bounds__(kSlices * 32) linear_f32_kernel(LinearKernel all) {
  const LinearKernel p = batch_of(all);
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kSlices + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (n >= p.n) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kTokens;
  const auto tokens = static_cast<int>(p.tokens - first < kTokens ? p.tokens - first : kTokens);
  const float* weight = static_cast<const float*>(p.weight) + n * p.pitch;
  const float* in = p.in + first * p.in_stride;
  float sums[kTokens] = {};
  for (std::int64_t k = lane; k < p.k; k += 32) {
    const float w = weight[k];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t < tokens) sums[t] = fmaf(w, in[t * p.in_stride + k], sums[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float sum = warp_sum(sums[t]);
    if (lane == 0 && t < tokens) finish(p, first + t, n, sum);
  }
}

// Elements k .. k + 7 of a token as four registers of two BF16 each; zeros past K.
__device__ __forceinline__ uint4 load_activations(const float* row, std::int64_t k, std::int64_t k_end, bool vector) {
  if (vector && k + 8 <= k_end) {
    const float4 a = *reinterpret_cast<const float4*>(row + k);
    const float4 b = *reinterpret_cast<const float4*>(row + k + 4);
    return {pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w)};
  }
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = k + i < k_end ? row[k + i] : 0.0f;
  return {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])};
}

// BF16 weights: a block computes kRowTiles * 16 features of kTokenTiles * 8 tokens; its warps are the slices of K.
//
// Inside 32 elements of K, a lane whose column is c = lane % 4 takes elements 8c .. 8c + 7 of its weight rows and of
// its token, 16 bytes at a time. The mma instructions call them by other indices, but by the same ones on both sides.
template <int kRowTiles, int kTokenTiles>
__global__ void __launch_bounds__(kSlices * 32) linear_bf16_kernel(LinearKernel all, bool vector) {
  const LinearKernel p = batch_of(all);
  extern __shared__ float partial[];  // [slice][token][feature]
  constexpr int kRows = kRowTiles * 16;
  constexpr int kBlockTokens = kTokenTiles * 8;
  const int slice = threadIdx.x / 32;
  const int group = threadIdx.x % 32 / 4;
  const int column = threadIdx.x % 4;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const std::int64_t first_token = static_cast<std::int64_t>(blockIdx.y) * kBlockTokens;

  // Rows past the last are read as the last one, and not stored.
  const __nv_bfloat16* weights[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::int64_t row = first_row + r * 16 + i * 8 + group;
      if (row >= p.n) row = p.n - 1;
      weights[r][i] = static_cast<const __nv_bfloat16*>(p.weight) + row * p.pitch + column * 8;
    }
  }
  const float* tokens[kTokenTiles];
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    const std::int64_t token = first_token + t * 8 + group;
    tokens[t] = token < p.tokens ? p.in + token * p.in_stride : nullptr;
  }

  float sums[kRowTiles][kTokenTiles][4] = {};
  // Enough loads in flight, as registers allow.
  constexpr int kUnroll = kRowTiles * kTokenTiles == 1 ? 4 : kRowTiles * kTokenTiles <= 4 ? 2 : 1;
#pragma unroll(kUnroll)
  for (std::int64_t begin = slice * kUnit; begin < p.pitch; begin += kSlices * kUnit) {
    uint4 a[2][kRowTiles][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          a[half][r][i] = __ldg(reinterpret_cast<const uint4*>(weights[r][i] + begin + half * 32));
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t k = begin + half * 32 + column * 8;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const uint4 b = tokens[t] == nullptr ? uint4{0, 0, 0, 0} : load_activations(tokens[t], k, p.k, vector);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const uint4& low = a[half][r][0];
          const uint4& high = a[half][r][1];
          mma(sums[r][t], low.x, high.x, low.y, high.y, b.x, b.y);
          mma(sums[r][t], low.z, high.z, low.w, high.w, b.z, b.w);
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = t * 8 + column * 2 + i % 2;
        const int row = r * 16 + group + i / 2 * 8;
        partial[(slice * kBlockTokens + token) * kRows + row] = sums[r][t][i];
      }
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < kRows * kBlockTokens; e += kSlices * 32) {
    const std::int64_t n = first_row + e % kRows;
    const std::int64_t token = first_token + e / kRows;
    if (n >= p.n || token >= p.tokens) continue;
    float sum = partial[e];
#pragma unroll
    for (int s = 1; s < kSlices; ++s) sum += partial[s * kBlockTokens * kRows + e];
    finish(p, token, n, sum);
  }
}

// Many tokens: a block computes kN features of kM tokens from tiles in shared memory. Each of its eight warps goes
// through all slices of K, one after another, and adds them up as it goes: the same sums in the same order as above,
// and the same elements in the same places of each mma.
//
// A stage holds one unit of K: weights [kN, 64] in BF16 and activations [kM, 64] in F32. Odd rows have their halves of
// 64 bytes (weights) or neighbouring 16 bytes (activations) exchanged, so that lanes of two rows read from different
// banks.
template <int kN, int kM>
struct Tiles {
  static constexpr int kStages = 4;
  static constexpr int kWeightBytes = kN * kUnit * 2;
  static constexpr int kStageBytes = kWeightBytes + kM * kUnit * 4;
  static constexpr int kBytes = kStages * kStageBytes;
};

template <int kN, int kM>
__device__ __forceinline__ void start_unit(const LinearKernel& p, std::byte* stage, std::int64_t first_row,
                                           std::int64_t first_token, std::int64_t k) {
  constexpr int kThreads = kSlices * 32;
#pragma unroll
  for (int i = 0; i < kN * 8 / kThreads; ++i) {
    const int e = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = e / 8;
    const int chunk = e % 8;
    // Rows past the last are read as the last one, and not stored.
    const std::int64_t n = min(first_row + row, p.n - 1);
    const auto* from = static_cast<const __nv_bfloat16*>(p.weight) + n * p.pitch + k + chunk * 8;
    copy_async(stage + row * 128 + (chunk ^ (row % 2 * 4)) * 16, from, false);
  }
#pragma unroll
  for (int i = 0; i < kM * 16 / kThreads; ++i) {
    const int e = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = e / 16;
    const int chunk = e % 16;
    const std::int64_t token = first_token + row;
    const bool exists = token < p.tokens && k + chunk * 4 < p.k;
    const float* from = exists ? p.in + token * p.in_stride + k + chunk * 4 : p.in;
    copy_async(stage + Tiles<kN, kM>::kWeightBytes + row * 256 + (chunk ^ row % 2) * 16, from, !exists);
  }
}

template <int kN, int kM>
__global__ void __launch_bounds__(kSlices * 32, 1) linear_tiled_kernel(LinearKernel all) {
  const LinearKernel p = batch_of(all);
  using T = Tiles<kN, kM>;
  extern __shared__ uint4 tiles[];
  auto* stages = reinterpret_cast<std::byte*>(tiles);
  constexpr int kRowTiles = kN / 2 / 16;   // Of a warp: half of the features
  constexpr int kTokenTiles = kM / 4 / 8;  // and a quarter of the tokens.
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int group = lane / 4;
  const int column = lane % 4;
  const int warp_row = warp % 2 * (kN / 2);
  const int warp_token = warp / 2 * (kM / 4);
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kN;
  const std::int64_t first_token = static_cast<std::int64_t>(blockIdx.y) * kM;

  // Units in the order of slices. The one to start next, and the one to compute next.
  const auto units = static_cast<std::int32_t>(p.pitch / kUnit);
  const auto following = [&](std::int32_t unit) {
    return unit + kSlices < units                     ? unit + kSlices
           : unit % kSlices + 1 < min(kSlices, units) ? unit % kSlices + 1
                                                      : units;
  };
  std::int32_t next = 0;
#pragma unroll
  for (int s = 0; s < T::kStages - 1; ++s) {
    if (next < units) {
      start_unit<kN, kM>(p, stages + s * T::kStageBytes, first_row, first_token, std::int64_t{next} * kUnit);
      next = following(next);
    }
    commit_copies();
  }

  float totals[kRowTiles][kTokenTiles][4] = {};
  float sums[kRowTiles][kTokenTiles][4] = {};
  int stage = 0;
  for (std::int32_t unit = 0; unit < units;) {
    wait_for_copies<T::kStages - 2>();
    __syncthreads();  // The unit has arrived for all, and all are done with the stage that is filled next.
    const int filled = (stage + T::kStages - 1) % T::kStages;
    if (next < units) {
      start_unit<kN, kM>(p, stages + filled * T::kStageBytes, first_row, first_token, std::int64_t{next} * kUnit);
      next = following(next);
    }
    commit_copies();
    const std::byte* weights = stages + stage * T::kStageBytes;
    const std::byte* activations = weights + T::kWeightBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 a[kRowTiles][2];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = warp_row + r * 16 + i * 8 + group;
          a[r][i] = *reinterpret_cast<const uint4*>(weights + row * 128 + (half ^ row % 2) * 64 + column * 16);
        }
      }
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const int row = warp_token + t * 8 + group;
        const std::byte* at = activations + row * 256 + half * 128 + column * 32;
        const float4 low = *reinterpret_cast<const float4*>(at + row % 2 * 16);
        const float4 high = *reinterpret_cast<const float4*>(at + (row % 2 ^ 1) * 16);
        const uint4 b = {pack(low.x, low.y), pack(low.z, low.w), pack(high.x, high.y), pack(high.z, high.w)};
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          mma(sums[r][t], a[r][0].x, a[r][1].x, a[r][0].y, a[r][1].y, b.x, b.y);
          mma(sums[r][t], a[r][0].z, a[r][1].z, a[r][0].w, a[r][1].w, b.z, b.w);
        }
      }
    }
    stage = (stage + 1) % T::kStages;
    const std::int32_t after = following(unit);
    if (after == units || after % kSlices != unit % kSlices) {  // The slice is complete.
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            totals[r][t][i] = unit % kSlices == 0 ? sums[r][t][i] : totals[r][t][i] + sums[r][t][i];
            sums[r][t][i] = 0.0f;
          }
        }
      }
    }
    unit = after;
  }

#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t n = first_row + warp_row + r * 16 + i / 2 * 8 + group;
        const std::int64_t token = first_token + warp_token + t * 8 + column * 2 + i % 2;
        if (n < p.n && token < p.tokens) finish(p, token, n, totals[r][t][i]);
      }
    }
  }
}

unsigned ceil_div(std::int64_t a, std::int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

// Whether 16 bytes of activations may be read at once.
bool is_vector(const LinearKernel& kernel) {
  return reinterpret_cast<std::uintptr_t>(kernel.in) % 16 == 0 && kernel.in_stride % 4 == 0 && kernel.in_batch % 4 == 0;
}

template <int kRowTiles, int kTokenTiles>
void launch_bf16(const LinearKernel& kernel, const Launch& launch) {
  constexpr int kBytes = kSlices * kTokenTiles * 8 * kRowTiles * 16 * static_cast<int>(sizeof(float));
  if constexpr (kBytes > 48 * 1024) {
    cudaFuncSetAttribute(linear_bf16_kernel<kRowTiles, kTokenTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         kBytes);
  }
  const bool vector = is_vector(kernel);
  const dim3 grid(ceil_div(kernel.n, kRowTiles * 16), ceil_div(kernel.tokens, kTokenTiles * 8),
                  static_cast<unsigned>(kernel.batches));
  linear_bf16_kernel<kRowTiles, kTokenTiles><<<grid, kSlices * 32, kBytes, launch.stream>>>(kernel, vector);
}

// Whether tiles of this size are enough for three quarters of the multiprocessors.
template <int kN, int kM>
bool fills(const LinearKernel& kernel, const Launch& launch) {
  return 4 * std::int64_t{ceil_div(kernel.n, kN)} * ceil_div(kernel.tokens, kM) * kernel.batches >=
         3 * launch.multiprocessors;
}

template <int kN, int kM>
void launch_tiled(const LinearKernel& kernel, const Launch& launch) {
  constexpr int kBytes = Tiles<kN, kM>::kBytes;
  cudaFuncSetAttribute(linear_tiled_kernel<kN, kM>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(ceil_div(kernel.n, kN), ceil_div(kernel.tokens, kM), static_cast<unsigned>(kernel.batches));
  linear_tiled_kernel<kN, kM><<<grid, kSlices * 32, kBytes, launch.stream>>>(kernel);
}

}  // namespace

void launch_linear(const LinearKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  if (!kernel.weight_is_bf16) {
    const dim3 grid(ceil_div(kernel.n, kSlices), ceil_div(kernel.tokens, kTokens),
                    static_cast<unsigned>(kernel.batches));
    linear_f32_kernel<<<grid, kSlices * 32, 0, launch.stream>>>(kernel);
  } else if (kernel.tokens <= 8) {
    launch_bf16<1, 1>(kernel, launch);
  } else if (kernel.tokens <= 16) {
    launch_bf16<1, 2>(kernel, launch);
  } else if (kernel.tokens <= 32) {
    launch_bf16<1, 4>(kernel, launch);
  } else if (is_vector(kernel) && kernel.k % 4 == 0 && fills<128, 64>(kernel, launch)) {
    launch_tiled<128, 64>(kernel, launch);
  } else if (is_vector(kernel) && kernel.k % 4 == 0 && fills<64, 64>(kernel, launch)) {
    launch_tiled<64, 64>(kernel, launch);
  } else {
    launch_bf16<4, 4>(kernel, launch);
  }
}

}  // namespace tessera::backends::cuda
