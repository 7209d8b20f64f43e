#include "tessera/backends/cuda/kernels/product_device.h"
#include "tessera/backends/cuda/kernels/quantized_linear.h"

namespace tessera::backends::cuda {

namespace {

// A block computes kRowTiles * 16 features of kTokenTiles * 8 tokens; its warps are the slices of K.
template <ops::WeightFormat kFormat, int kRowTiles, int kTokenTiles>
__global__ void __launch_bounds__(kProductThreads) quantized_linear_kernel(QuantizedLinearKernel p, bool vector) {
  extern __shared__ float shared[];
  constexpr int kRows = kRowTiles * 16;
  const int group = threadIdx.x % 32 / 4;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const std::int64_t first_token = static_cast<std::int64_t>(blockIdx.y) * kTokenTiles * 8;
  // Rows past the last are read as the last one, and not stored.
  LaneRow rows[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows[r][i] = lane_row<kFormat>(p.weight, min(first_row + r * 16 + i * 8 + group, p.weight.n - 1));
    }
  }
  const float* tokens[kTokenTiles];
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    const std::int64_t token = first_token + t * 8 + group;
    tokens[t] = token < p.tokens ? p.in + token * p.in_stride : nullptr;
  }
  float totals[kRowTiles][kTokenTiles][4] = {};
  accumulate_slice<kFormat, kRowTiles, kTokenTiles>(rows, tokens, threadIdx.x / 32, p.weight.k, p.weight.pitch, vector,
                                                    totals);
  share_totals<kRowTiles, kTokenTiles>(shared, totals);
  for (int e = threadIdx.x; e < kRows * kTokenTiles * 8; e += kProductThreads) {
    const std::int64_t n = first_row + e % kRows;
    const std::int64_t token = first_token + e / kRows;
    if (n >= p.weight.n || token >= p.tokens) continue;
    float sum = sum_of_slices<kRowTiles, kTokenTiles>(shared, e);
    float* out = p.out + token * p.out_stride + n;
    if (p.bias != nullptr) sum += p.bias[n];
    if (p.add) sum += *out;
    *out = sum;
  }
}

// One thread a chunk of 64 bytes: sixteen words, transposed as four by four.
__global__ void arrange_int4_kernel(std::byte* data, std::int64_t chunks) {
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (chunk >= chunks) return;
  auto* words = reinterpret_cast<uint4*>(data + chunk * 64);
  const uint4 a = words[0];
  const uint4 b = words[1];
  const uint4 c = words[2];
  const uint4 d = words[3];
  words[0] = {a.x, b.x, c.x, d.x};
  words[1] = {a.y, b.y, c.y, d.y};
  words[2] = {a.z, b.z, c.z, d.z};
  words[3] = {a.w, b.w, c.w, d.w};
}

unsigned ceil_div(std::int64_t a, std::int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

template <ops::WeightFormat kFormat, int kRowTiles, int kTokenTiles>
void launch_tiles(const QuantizedLinearKernel& kernel, const Launch& launch) {
  constexpr int kBytes = product_shared_bytes<kRowTiles, kTokenTiles>();
  const auto function = quantized_linear_kernel<kFormat, kRowTiles, kTokenTiles>;
  if constexpr (kBytes > 48 * 1024) {
    cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  }
  const bool vector = reinterpret_cast<std::uintptr_t>(kernel.in) % 16 == 0 && kernel.in_stride % 4 == 0;
  const dim3 grid(ceil_div(kernel.weight.n, kRowTiles * 16), ceil_div(kernel.tokens, kTokenTiles * 8));
  function<<<grid, kProductThreads, kBytes, launch.stream>>>(kernel, vector);
}

template <ops::WeightFormat kFormat>
void launch_format(const QuantizedLinearKernel& kernel, const Launch& launch) {
  if (kernel.tokens <= 8) {
    launch_tiles<kFormat, 1, 1>(kernel, launch);
  } else if (kernel.tokens <= 32) {
    launch_tiles<kFormat, 1, 4>(kernel, launch);
  } else {
    launch_tiles<kFormat, 2, 4>(kernel, launch);
  }
}

}  // namespace

void launch_quantized_linear(const QuantizedLinearKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  switch (kernel.weight.format) {
    case ops::WeightFormat::kF32:
    case ops::WeightFormat::kBF16:
      return;  // linear.h has these.
    case ops::WeightFormat::kF8Block128:
      return launch_format<ops::WeightFormat::kF8Block128>(kernel, launch);
    case ops::WeightFormat::kF8Channel:
      return launch_format<ops::WeightFormat::kF8Channel>(kernel, launch);
    case ops::WeightFormat::kInt4Group:
      return launch_format<ops::WeightFormat::kInt4Group>(kernel, launch);
  }
}

void launch_arrange_int4(std::byte* data, std::int64_t chunks, const Launch& launch) {
  if (chunks == 0) return;
  arrange_int4_kernel<<<ceil_div(chunks, 256), 256, 0, launch.stream>>>(data, chunks);
}

}  // namespace tessera::backends::cuda
