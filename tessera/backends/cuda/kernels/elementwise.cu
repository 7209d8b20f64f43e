#include <cuda_bf16.h>

#include "tessera/backends/cuda/kernels/elementwise.h"
#include "tessera/backends/cuda/kernels/fault_device.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

// One block a token.
template <typename T>
__global__ void embedding_kernel(EmbeddingKernel p, DeviceFault* fault) {
  const std::int64_t token = blockIdx.x;
  const std::int32_t id = p.token_ids[token];
  const bool known = id >= 0 && id < p.vocab;
  if (!known && threadIdx.x == 0) report_fault(fault, FaultKind::kTokenId, id, p.vocab);
  const T* row = static_cast<const T*>(p.table) + (known ? id : 0) * p.hidden;
  float* out = p.out + token * p.out_stride;
  for (std::int64_t i = threadIdx.x; i < p.hidden; i += blockDim.x) out[i] = known ? widen(row[i]) : 0.0f;
}

// One block a token, of a size that follows the row's. Thread i sums the squares of elements i, i + kSize, ...; the
// threads' sums are added in a fixed order.
template <int kSize>
__global__ void __launch_bounds__(kSize) rms_norm_kernel(RmsNormKernel p) {
  __shared__ float warp_sums[kSize / 32];
  const float* in = p.in + static_cast<std::int64_t>(blockIdx.x) * p.in_stride;
  float* out = p.out + static_cast<std::int64_t>(blockIdx.x) * p.out_stride;
  float squares = 0.0f;
  for (std::int64_t i = threadIdx.x; i < p.hidden; i += kSize) squares = fmaf(in[i], in[i], squares);
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = squares;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kSize / 32; ++w) total += warp_sums[w];
  const float inverse = 1.0f / sqrtf(total / static_cast<float>(p.hidden) + p.epsilon);
  // Each thread reads again what it alone overwrites.
  for (std::int64_t i = threadIdx.x; i < p.hidden; i += kSize) out[i] = in[i] * inverse * p.weight[i];
}

// One warp a token. Lane i sums elements i, i + 32, ...; the lanes' sums are added in a fixed tree.
__global__ void __launch_bounds__(kThreads) layer_norm_kernel(LayerNormKernel p) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= p.tokens) return;
  const float* in = p.in + token * p.in_stride;
  float* out = p.out + token * p.out_stride;
  double sum = 0.0;
  for (std::int64_t i = lane; i < p.width; i += 32) sum += static_cast<double>(in[i]);
  const double mean = warp_sum(sum) / static_cast<double>(p.width);
  double squares = 0.0;
  for (std::int64_t i = lane; i < p.width; i += 32) {
    const double off = static_cast<double>(in[i]) - mean;
    squares += off * off;
  }
  const double variance = warp_sum(squares) / static_cast<double>(p.width);
  const double inverse = 1.0 / sqrt(variance + static_cast<double>(p.epsilon));
  // Each lane reads again what it alone overwrites.
  for (std::int64_t i = lane; i < p.width; i += 32) {
    const auto x = static_cast<float>((static_cast<double>(in[i]) - mean) * inverse);
    out[i] = fmaf(x, p.weight[i], p.bias[i]);
  }
}

// One thread a pair of all heads of one token, so that its angle is computed once.
__global__ void rope_kernel(RopeKernel p) {
  const std::int32_t half = p.rotary_dim / 2;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.tokens * half) return;
  const std::int64_t token = index / half;
  const auto i = static_cast<std::int32_t>(index % half);
  // One F32 product, which must not be fused into anything.
  const float angle = __fmul_rn(static_cast<float>(p.positions[token]), p.inverse_frequencies[i]);
  float sine;
  float cosine;
  sincosf(angle, &sine, &cosine);
  sine *= p.magnitude;
  cosine *= p.magnitude;
  const std::int32_t first = p.interleaved ? 2 * i : i;
  const std::int32_t second = p.interleaved ? 2 * i + 1 : i + half;
  float* x = p.x + token * p.x_stride;
  for (std::int32_t h = 0; h < p.heads; ++h, x += p.head_dim) {
    const float a = x[first];
    const float b = x[second];
    x[first] = a * cosine - b * sine;
    x[second] = a * sine + b * cosine;
  }
}

__global__ void swiglu_kernel(SwigluKernel p) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.tokens * p.width) return;
  const std::int64_t token = index / p.width;
  const std::int64_t i = index % p.width;
  const float gate = p.gate[token * p.gate_stride + i];
  const float up = p.up[token * p.up_stride + i];
  p.out[token * p.out_stride + i] = gate / (1.0f + expf(-gate)) * up;
}

unsigned blocks_for(std::int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

void launch_embedding(const EmbeddingKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  const auto blocks = static_cast<unsigned>(kernel.tokens);
  if (kernel.table_is_bf16) {
    embedding_kernel<__nv_bfloat16><<<blocks, kThreads, 0, launch.stream>>>(kernel, launch.fault);
  } else {
    embedding_kernel<float><<<blocks, kThreads, 0, launch.stream>>>(kernel, launch.fault);
  }
}

void launch_rms_norm(const RmsNormKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  const auto blocks = static_cast<unsigned>(kernel.tokens);
  if (kernel.hidden <= 2048) {
    rms_norm_kernel<kThreads><<<blocks, kThreads, 0, launch.stream>>>(kernel);
  } else {
    rms_norm_kernel<1024><<<blocks, 1024, 0, launch.stream>>>(kernel);
  }
}

void launch_layer_norm(const LayerNormKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  layer_norm_kernel<<<blocks_for(kernel.tokens * 32), kThreads, 0, launch.stream>>>(kernel);
}

void launch_rope(const RopeKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  rope_kernel<<<blocks_for(kernel.tokens * (kernel.rotary_dim / 2)), kThreads, 0, launch.stream>>>(kernel);
}

void launch_swiglu(const SwigluKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  swiglu_kernel<<<blocks_for(kernel.tokens * kernel.width), kThreads, 0, launch.stream>>>(kernel);
}

}  // namespace tessera::backends::cuda
