#include "tessera/backends/cuda/kernels/dsa_select.h"
#include "tessera/backends/cuda/kernels/fault_device.h"
#include "tessera/backends/cuda/kernels/kv_rows_device.h"
#include "tessera/backends/cuda/kernels/mma_device.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kKeys = kWarps * 8;  // Of a block.

__host__ __device__ constexpr int padded(int elements) { return (elements + 15) / 16 * 16; }

// The longest row, which all threads of a block learn: the distance between tokens' scores.
__device__ std::int64_t longest_row(const DsaSelectKernel& p) {
  __shared__ std::int32_t longest;
  if (threadIdx.x == 0) longest = 0;
  __syncthreads();
  std::int32_t mine = 0;
  for (std::int64_t r = threadIdx.x; r < p.rows; r += blockDim.x) {
    mine = max(mine, static_cast<std::int32_t>(kv_len_of(p.kv_lens, r, p.max_pages_per_row, p.page_size)));
  }
  if (mine > 0) atomicMax(&longest, mine);
  __syncthreads();
  return longest;
}

// How many positions a token sees; 0 in a row that failed.
__device__ __forceinline__ std::int64_t positions_seen(const DsaSelectKernel& p, const SelectToken& token) {
  const std::int64_t kv_len = kv_len_of(p.kv_lens, token.row, p.max_pages_per_row, p.page_size);
  if (kv_len <= 0 || kv_len < token.q_len) return 0;
  return kv_len - token.q_len + token.query + 1;
}

// Grid: keys, tokens. Shared memory: the token's queries [heads padded to 16][row], the keys [kKeys][row], in BF16.
__global__ void __launch_bounds__(kThreads) score_kernel(DsaSelectKernel p) {
  extern __shared__ uint4 memory[];
  __shared__ float key_scales[kKeys];
  const SelectToken token = p.tokens[blockIdx.y];
  const std::int64_t seen = positions_seen(p, token);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kKeys;
  if (seen <= p.width || first >= seen) return;
  const std::int64_t stride = longest_row(p);
  const int dim16 = padded(p.head_dim);
  const int row = dim16 + 8;
  const int heads16 = padded(p.heads);
  auto* queries = reinterpret_cast<__nv_bfloat16*>(memory);
  __nv_bfloat16* keys = queries + heads16 * row;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const float* q = p.q + blockIdx.y * p.q_stride;
  for (int i = threadIdx.x; i < heads16 * dim16; i += kThreads) {
    const int head = i / dim16;
    const int e = i % dim16;
    const float x = head < p.heads && e < p.head_dim ? q[head * p.head_dim + e] : 0.0f;
    queries[head * row + e] = __float2bfloat16_rn(x);
  }
  const std::int32_t* table = p.table + token.row * p.max_pages_per_row;
  for (int i = 0; i < 8; ++i) {
    const int key = warp * 8 + i;
    const std::int64_t position = first + key;
    __nv_bfloat16* to = keys + key * row;
    if (position >= seen) {
      for (int e = lane; e < dim16; e += 32) to[e] = __float2bfloat16_rn(0.0f);
      if (lane == 0) key_scales[key] = 0.0f;
      continue;
    }
    const std::int64_t page = table[position / p.page_size];
    const std::int64_t slot = position % p.page_size;
    const std::byte* from = row_data(p.keys, page, slot);
    if (lane == 0) key_scales[key] = *reinterpret_cast<const float*>(row_scales(p.keys, page, slot));
    if (p.head_dim % 16 == 0) {
      for (int e = lane; e < p.head_dim / 4; e += 32) {
        const auto codes = reinterpret_cast<const std::uint32_t*>(from)[e];
        reinterpret_cast<uint2*>(to)[e] = {widen_fp8(codes & 0xffff), widen_fp8(codes >> 16)};
      }
    } else {
      for (int e = lane; e < dim16; e += 32) {
        const std::uint32_t both = e < p.head_dim ? widen_fp8(static_cast<std::uint32_t>(from[e])) : 0;
        to[e] = __ushort_as_bfloat16(static_cast<unsigned short>(both & 0xffff));
      }
    }
  }
  __syncthreads();

  const int g = lane / 4;
  const int c = lane % 4;
  const float* weights = p.weights + blockIdx.y * p.weights_stride;
  const __nv_bfloat16* key = keys + (warp * 8 + g) * row + c * 2;
  const float scales[2] = {key_scales[warp * 8 + c * 2], key_scales[warp * 8 + c * 2 + 1]};
  float scores[2] = {};  // Of keys 2c and 2c + 1.
  for (int head = 0; head < heads16; head += 16) {
    float sums[4] = {};
    for (int e = 0; e < dim16; e += 16) {
      std::uint32_t a[4];
      load_matrices(a, queries + (head + lane % 16) * row + e + lane / 16 * 8);
      mma(sums, a[0], a[1], a[2], a[3], *reinterpret_cast<const std::uint32_t*>(key + e),
          *reinterpret_cast<const std::uint32_t*>(key + e + 8));
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float score = 0.0f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int h = head + g + r * 8;
        const float product = __fmul_rn(__fmul_rn(sums[2 * r + k], scales[k]), p.softmax_scale);
        // NaN stays NaN.
        if (h < p.heads) score = fmaf(weights[h], product < 0.0f ? 0.0f : product, score);
      }
#pragma unroll
      for (int offset = 4; offset < 32; offset <<= 1) score += __shfl_xor_sync(kFullWarp, score, offset);
      scores[k] += score;
    }
  }
  if (g != 0) return;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const std::int64_t position = first + warp * 8 + c * 2 + k;
    if (position < seen) p.scores[blockIdx.y * stride + position] = scores[k];
  }
}

// A score as a number that is larger for a larger score; NaN counts as -infinity and -0 as 0.
__device__ __forceinline__ std::uint32_t score_key(float score) {
  if (isnan(score)) score = -INFINITY;
  const std::uint32_t bits = __float_as_uint(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

constexpr int kSelectThreads = 1024;

// Sum over the block of what threads before this one have, and of all.
__device__ __forceinline__ std::int32_t sum_before(std::int32_t value, std::int32_t* warp_sums, std::int32_t& all) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  std::int32_t sum = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const std::int32_t other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();  // The sums of before have been read.
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  std::int32_t before = sum - value;
  all = 0;
  for (int w = 0; w < kSelectThreads / 32; ++w) {
    if (w < warp) before += warp_sums[w];
    all += warp_sums[w];
  }
  return before;
}

// One block a token.
__global__ void __launch_bounds__(kSelectThreads) select_kernel(DsaSelectKernel p, DeviceFault* fault) {
  __shared__ std::int32_t histogram[256];
  __shared__ std::int32_t warp_sums[kSelectThreads / 32];
  __shared__ std::uint32_t chosen_digit;
  __shared__ std::int32_t still_needed;
  const SelectToken token = p.tokens[blockIdx.x];
  const std::int64_t seen = positions_seen(p, token);
  const std::int64_t kv_len = kv_len_of(p.kv_lens, token.row, p.max_pages_per_row, p.page_size);
  if (kv_len > 0 && kv_len < token.q_len && threadIdx.x == 0) {
    report_fault(fault, FaultKind::kQueriesOverKeys, token.row, token.q_len, kv_len);
  }
  std::int32_t* positions = p.positions + static_cast<std::int64_t>(blockIdx.x) * p.width;
  if (threadIdx.x == 0) p.counts[blockIdx.x] = static_cast<std::int32_t>(min(seen, std::int64_t{p.width}));
  if (seen <= p.width) {
    for (std::int64_t j = threadIdx.x; j < seen; j += kSelectThreads) positions[j] = static_cast<std::int32_t>(j);
    return;
  }
  const float* scores = p.scores + blockIdx.x * longest_row(p);
  // The key of the last one selected, digit after digit from the top; `needed` of those equal to it so far are in.
  std::uint32_t prefix = 0;
  std::int32_t needed = p.width;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kSelectThreads) histogram[i] = 0;
    __syncthreads();
    for (std::int64_t j = threadIdx.x; j < seen; j += kSelectThreads) {
      const std::uint32_t key = score_key(scores[j]);
      if (shift == 24 || key >> (shift + 8) == prefix) atomicAdd(histogram + (key >> shift & 0xff), 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      std::int32_t left = needed;
      int digit = 255;
      while (histogram[digit] < left) left -= histogram[digit--];
      chosen_digit = static_cast<std::uint32_t>(digit);
      still_needed = left;
    }
    __syncthreads();
    prefix = prefix << 8 | chosen_digit;
    needed = still_needed;
    __syncthreads();
  }
  // In order of positions: whatever is above the last key, and the first `needed` of those equal to it.
  std::int32_t written = 0;
  std::int32_t equal_before = 0;
  for (std::int64_t begin = 0; begin < seen; begin += kSelectThreads) {
    const std::int64_t j = begin + threadIdx.x;
    const std::uint32_t key = j < seen ? score_key(scores[j]) : 0;  // No score has key 0.
    const bool equal = j < seen && key == prefix;
    std::int32_t equals = 0;
    const std::int32_t rank = equal_before + sum_before(equal ? 1 : 0, warp_sums, equals);
    const bool taken = j < seen && (key > prefix || (equal && rank < needed));
    std::int32_t all = 0;
    const std::int32_t at = written + sum_before(taken ? 1 : 0, warp_sums, all);
    if (taken) positions[at] = static_cast<std::int32_t>(j);
    equal_before += equals;
    written += all;
  }
}

}  // namespace

void launch_dsa_select(const DsaSelectKernel& kernel, const Launch& launch) {
  if (kernel.num_tokens == 0) return;
  const std::int64_t length_max = kernel.max_pages_per_row * kernel.page_size;
  const int bytes = (padded(kernel.heads) + kKeys) * (padded(kernel.head_dim) + 8) * 2;
  cudaFuncSetAttribute(score_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const dim3 grid(static_cast<unsigned>((length_max + kKeys - 1) / kKeys), static_cast<unsigned>(kernel.num_tokens));
  score_kernel<<<grid, kThreads, bytes, launch.stream>>>(kernel);
  select_kernel<<<grid.y, kSelectThreads, 0, launch.stream>>>(kernel, launch.fault);
}

}  // namespace tessera::backends::cuda
