#include <algorithm>

#include "tessera/backends/cuda/kernels/moe_experts.h"
#include "tessera/backends/cuda/kernels/product_device.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kListThreads = 1024;

// One block. Where a place stands in its expert's list is up to chance, and changes no result.
__global__ void __launch_bounds__(kListThreads) list_places_kernel(MoeExpertsKernel p, std::int32_t tile_places) {
  extern __shared__ std::int32_t counts[];  // Of each expert; then where its next place goes.
  std::int32_t* firsts = counts + p.experts;
  std::int32_t* first_tiles = firsts + p.experts;
  const auto places = static_cast<std::int32_t>(p.tokens * p.taken);
  for (std::int32_t e = threadIdx.x; e < p.experts; e += kListThreads) counts[e] = 0;
  __syncthreads();
  for (std::int32_t i = threadIdx.x; i < places; i += kListThreads) {
    const std::int32_t e = p.expert_ids[i];
    if (e >= 0 && e < p.experts) atomicAdd(counts + e, 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    std::int32_t place_base = 0;
    std::int32_t tile_base = 0;
    for (std::int32_t begin = 0; begin < p.experts; begin += 32) {
      const std::int32_t e = begin + lane;
      const std::int32_t count = e < p.experts ? counts[e] : 0;
      const std::int32_t tiles = (count + tile_places - 1) / tile_places;
      std::int32_t place_sum = count;
      std::int32_t tile_sum = tiles;
#pragma unroll
      for (int offset = 1; offset < 32; offset <<= 1) {
        const std::int32_t other_places = __shfl_up_sync(kFullWarp, place_sum, offset);
        const std::int32_t other_tiles = __shfl_up_sync(kFullWarp, tile_sum, offset);
        if (lane >= offset) {
          place_sum += other_places;
          tile_sum += other_tiles;
        }
      }
      if (e < p.experts) {
        firsts[e] = place_base + place_sum - count;
        first_tiles[e] = tile_base + tile_sum - tiles;
      }
      place_base += __shfl_sync(kFullWarp, place_sum, 31);
      tile_base += __shfl_sync(kFullWarp, tile_sum, 31);
    }
    if (lane == 0) *p.tile_count = tile_base;
  }
  __syncthreads();
  for (std::int32_t e = threadIdx.x; e < p.experts; e += kListThreads) {
    for (std::int32_t done = 0, tile = first_tiles[e]; done < counts[e]; done += tile_places, ++tile) {
      p.tiles[tile] = {e, firsts[e] + done, min(tile_places, counts[e] - done)};
    }
    counts[e] = firsts[e];
  }
  __syncthreads();
  for (std::int32_t i = threadIdx.x; i < places; i += kListThreads) {
    const std::int32_t e = p.expert_ids[i];
    if (e >= 0 && e < p.experts) p.places[atomicAdd(counts + e, 1)] = i;
  }
}

__device__ __forceinline__ ProductWeight weight_of(const ExpertWeights& all, std::int32_t expert) {
  ProductWeight weight = all.first;
  weight.data += expert * all.data_stride;
  weight.scales += expert * all.scale_stride;
  return weight;
}

__device__ __forceinline__ float swiglu(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

// Where a token's input to a kind of product lies.
__device__ __forceinline__ const float* layer_input(const MoeExpertsKernel& p, std::int32_t place) {
  return p.in + static_cast<std::int64_t>(place / p.taken) * p.in_stride;
}
__device__ __forceinline__ const float* middle_row(const MoeExpertsKernel& p, std::int32_t place) {
  return p.middle + place * p.gate.first.n;
}

// Grid: sixteen features of gate and up, tiles.
template <ops::WeightFormat kFormat, int kTokenTiles>
__global__ void __launch_bounds__(kProductThreads, kTokenTiles == 1 ? 2 : 1)
    gate_up_kernel(MoeExpertsKernel p, bool vector) {
  extern __shared__ float shared[];
  if (blockIdx.y >= *p.tile_count) return;
  const ExpertTile tile = p.tiles[blockIdx.y];
  const ProductWeight gate = weight_of(p.gate, tile.expert);
  const ProductWeight up = weight_of(p.up, tile.expert);
  const int group = threadIdx.x % 32 / 4;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * 16;
  LaneRow rows[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t row = min(first_row + i * 8 + group, gate.n - 1);
    rows[0][i] = lane_row<kFormat>(gate, row);
    rows[1][i] = lane_row<kFormat>(up, row);
  }
  const float* tokens[kTokenTiles];
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    const int i = t * 8 + group;
    tokens[t] = i < tile.count ? layer_input(p, p.places[tile.first + i]) : nullptr;
  }
  float totals[2][kTokenTiles][4] = {};
  accumulate_slice<kFormat, 2, kTokenTiles>(rows, tokens, threadIdx.x / 32, gate.k, gate.pitch, vector, totals);
  share_totals<2, kTokenTiles>(shared, totals);
  for (int e = threadIdx.x; e < 16 * kTokenTiles * 8; e += kProductThreads) {
    const int i = e / 16;
    const std::int64_t n = first_row + e % 16;
    if (i >= tile.count || n >= gate.n) continue;
    const float gate_sum = sum_of_slices<2, kTokenTiles>(shared, i * 32 + e % 16);
    const float up_sum = sum_of_slices<2, kTokenTiles>(shared, i * 32 + 16 + e % 16);
    p.middle[p.places[tile.first + i] * gate.n + n] = swiglu(gate_sum, up_sum);
  }
}

// Grid: 32 features, tiles.
template <ops::WeightFormat kFormat, int kTokenTiles>
__global__ void __launch_bounds__(kProductThreads, kTokenTiles == 1 ? 2 : 1)
    down_kernel(MoeExpertsKernel p, bool vector) {
  extern __shared__ float shared[];
  if (blockIdx.y >= *p.tile_count) return;
  const ExpertTile tile = p.tiles[blockIdx.y];
  const ProductWeight down = weight_of(p.down, tile.expert);
  const int group = threadIdx.x % 32 / 4;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * 32;
  LaneRow rows[2][2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      rows[r][i] = lane_row<kFormat>(down, min(first_row + r * 16 + i * 8 + group, down.n - 1));
  }
  const float* tokens[kTokenTiles];
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    const int i = t * 8 + group;
    tokens[t] = i < tile.count ? middle_row(p, p.places[tile.first + i]) : nullptr;
  }
  float totals[2][kTokenTiles][4] = {};
  accumulate_slice<kFormat, 2, kTokenTiles>(rows, tokens, threadIdx.x / 32, down.k, down.pitch, vector, totals);
  share_totals<2, kTokenTiles>(shared, totals);
  for (int e = threadIdx.x; e < 32 * kTokenTiles * 8; e += kProductThreads) {
    const int i = e / 32;
    const std::int64_t n = first_row + e % 32;
    if (i >= tile.count || n >= down.n) continue;
    p.outputs[p.places[tile.first + i] * down.n + n] = sum_of_slices<2, kTokenTiles>(shared, e);
  }
}

// The same for as few chunks of K as the experts of one of many ranks have: a warp takes them all, one slice after
// another, keeps its places' activations, and asks for sixteen features before it multiplies those of before. Each sum
// is down_kernel's: the slices that are not there would add zeros. Grid: features, tiles of eight places; a block has
// `runs` times kProductSlices runs of sixteen features.
template <ops::WeightFormat kFormat, int kChunks>
__global__ void __launch_bounds__(kProductThreads, 2) narrow_down_kernel(MoeExpertsKernel p, int runs, bool vector) {
  using C = Codec<kFormat>;
  if (blockIdx.y >= *p.tile_count) return;
  const ExpertTile tile = p.tiles[blockIdx.y];
  const ProductWeight down = weight_of(p.down, tile.expert);
  const int group = threadIdx.x % 32 / 4;
  const int column = threadIdx.x % 4;
  const auto first_feature = [&](int run) {
    return ((static_cast<std::int64_t>(blockIdx.x) * runs + run) * kProductSlices + threadIdx.x / 32) * 16;
  };
  struct Run {
    RowChunk<kFormat> chunks[kChunks][1][2];
  };
  const auto load = [&](Run& to, int run) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const LaneRow row = lane_row<kFormat>(down, min(first_feature(run) + i * 8 + group, down.n - 1));
#pragma unroll
      for (int u = 0; u < kChunks; ++u) to.chunks[u][0][i].load(row, u);
    }
  };
  Run next;
  load(next, 0);
  const float* token = group < tile.count ? middle_row(p, p.places[tile.first + group]) : nullptr;
  uint4 activations[kChunks][4];
#pragma unroll
  for (int u = 0; u < kChunks; ++u) {
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      activations[u][quarter] =
          load_activations<C::kOrder>(token, u * kProductChunk + C::element(quarter, column), down.k, vector);
    }
  }
  float* outputs[2];  // Of tokens 2c and 2c + 1.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = column * 2 + i;
    outputs[i] = t < tile.count ? p.outputs + p.places[tile.first + t] * down.n : nullptr;
  }
  for (int run = 0; run < runs && first_feature(run) < down.n; ++run) {
    const Run now = next;
    if (run + 1 < runs) load(next, run + 1);
    float sums[4];
#pragma unroll
    for (int u = 0; u < kChunks; ++u) {
      float totals[1][1][4] = {};
      multiply_chunk<kFormat, 1, 1>(now.chunks[u], [&](int quarter, int) { return activations[u][quarter]; }, totals);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = u == 0 ? totals[0][0][i] : sums[i] + totals[0][0][i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t n = first_feature(run) + group + i / 2 * 8;
      if (n < down.n && outputs[i % 2] != nullptr) outputs[i % 2][n] = sums[i] + 0.0f;
    }
  }
}

// F32 weights: a warp a feature of up to eight places.
__device__ __forceinline__ void f32_sums(float (&sums)[8], const float* weight, const float* const (&tokens)[8],
                                         std::int64_t k_end, int lane) {
  for (std::int64_t k = lane; k < k_end; k += 32) {
    const float w = weight[k];
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      if (tokens[t] != nullptr) sums[t] = fmaf(w, tokens[t][k], sums[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < 8; ++t) sums[t] = warp_sum(sums[t]);
}

enum class F32Stage { kGateUp, kDown };

template <F32Stage kStage>
__global__ void __launch_bounds__(kProductThreads) f32_kernel(MoeExpertsKernel p) {
  if (blockIdx.y >= *p.tile_count) return;
  const ExpertTile tile = p.tiles[blockIdx.y];
  const int lane = threadIdx.x % 32;
  constexpr bool kGateUp = kStage == F32Stage::kGateUp;
  const ProductWeight weight = weight_of(kGateUp ? p.gate : p.down, tile.expert);
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kProductSlices + threadIdx.x / 32;
  if (n >= weight.n) return;
  const float* tokens[8];
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    tokens[t] = nullptr;
    if (t < tile.count) {
      const std::int32_t place = p.places[tile.first + t];
      tokens[t] = kGateUp ? layer_input(p, place) : middle_row(p, place);
    }
  }
  float sums[8] = {};
  f32_sums(sums, reinterpret_cast<const float*>(weight.data) + n * weight.pitch, tokens, weight.k, lane);
  float ups[8] = {};
  if constexpr (kGateUp) {
    const ProductWeight up = weight_of(p.up, tile.expert);
    f32_sums(ups, reinterpret_cast<const float*>(up.data) + n * up.pitch, tokens, up.k, lane);
  }
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    if (lane != 0 || t >= tile.count) continue;
    float* to = (kGateUp ? p.middle : p.outputs) + p.places[tile.first + t] * weight.n + n;
    *to = kGateUp ? swiglu(sums[t], ups[t]) : sums[t];
  }
}

// Grid: tokens, runs of features.
__global__ void combine_kernel(MoeExpertsKernel p) {
  const std::int64_t token = blockIdx.x;
  const std::int64_t hidden = p.down.first.n;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (n >= hidden) return;
  float* out = p.out + token * p.out_stride + n;
  float sum = *out;
  for (std::int32_t j = 0; j < p.taken; ++j) {
    const std::int64_t place = token * p.taken + j;
    const std::int32_t e = p.expert_ids[place];
    const bool exists = e >= 0 && e < p.experts;
    sum = fmaf(p.expert_weights[place], exists ? p.outputs[place * hidden + n] : NAN, sum);
  }
  *out = sum;
}

unsigned ceil_div(std::int64_t a, std::int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

template <ops::WeightFormat kFormat, int kTokenTiles>
void launch_products(const MoeExpertsKernel& kernel, unsigned tiles, const Launch& launch) {
  constexpr int kBytes = product_shared_bytes<2, kTokenTiles>();
  const bool vector_in = reinterpret_cast<std::uintptr_t>(kernel.in) % 16 == 0 && kernel.in_stride % 4 == 0;
  const bool vector_middle = kernel.gate.first.n % 4 == 0;
  gate_up_kernel<kFormat, kTokenTiles>
      <<<dim3(ceil_div(kernel.gate.first.n, 16), tiles), kProductThreads, kBytes, launch.stream>>>(kernel, vector_in);
  const std::int64_t chunks = kernel.down.first.pitch / kProductChunk;
  if (kTokenTiles == 1 && chunks <= 2) {
    // Blocks enough for every multiprocessor, and no smaller than that needs.
    const std::int64_t all = ceil_div(kernel.down.first.n, 16 * kProductSlices);
    const std::int64_t room = std::int64_t{8} * launch.multiprocessors;
    const auto runs = static_cast<int>(std::clamp<std::int64_t>(all * tiles / room, 1, 8));
    const dim3 grid(ceil_div(all, runs), tiles);
    if (chunks == 1) {
      narrow_down_kernel<kFormat, 1><<<grid, kProductThreads, 0, launch.stream>>>(kernel, runs, vector_middle);
    } else {
      narrow_down_kernel<kFormat, 2><<<grid, kProductThreads, 0, launch.stream>>>(kernel, runs, vector_middle);
    }
    return;
  }
  down_kernel<kFormat, kTokenTiles>
      <<<dim3(ceil_div(kernel.down.first.n, 32), tiles), kProductThreads, kBytes, launch.stream>>>(kernel,
                                                                                                   vector_middle);
}

template <ops::WeightFormat kFormat>
void launch_format(const MoeExpertsKernel& kernel, std::int32_t tile_places, unsigned tiles, const Launch& launch) {
  if (tile_places == 8) {
    launch_products<kFormat, 1>(kernel, tiles, launch);
  } else {
    launch_products<kFormat, 4>(kernel, tiles, launch);
  }
}

}  // namespace

void launch_moe_experts(const MoeExpertsKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  const std::int64_t places = kernel.tokens * kernel.taken;
  const bool f32 = kernel.gate.first.format == ops::WeightFormat::kF32;
  // Tiles of more places where an expert gets many.
  const std::int32_t tile_places = f32 || places <= 8 * std::int64_t{kernel.experts} ? 8 : 32;
  const int list_bytes = kernel.experts * 3 * static_cast<int>(sizeof(std::int32_t));
  list_places_kernel<<<1, kListThreads, list_bytes, launch.stream>>>(kernel, tile_places);
  const auto tiles = static_cast<unsigned>(expert_tiles_max(kernel.experts, places));
  switch (kernel.gate.first.format) {
    case ops::WeightFormat::kF32:
      f32_kernel<F32Stage::kGateUp>
          <<<dim3(ceil_div(kernel.gate.first.n, kProductSlices), tiles), kProductThreads, 0, launch.stream>>>(kernel);
      f32_kernel<F32Stage::kDown>
          <<<dim3(ceil_div(kernel.down.first.n, kProductSlices), tiles), kProductThreads, 0, launch.stream>>>(kernel);
      break;
    case ops::WeightFormat::kBF16:
      launch_format<ops::WeightFormat::kBF16>(kernel, tile_places, tiles, launch);
      break;
    case ops::WeightFormat::kF8Block128:
      launch_format<ops::WeightFormat::kF8Block128>(kernel, tile_places, tiles, launch);
      break;
    case ops::WeightFormat::kF8Channel:
      launch_format<ops::WeightFormat::kF8Channel>(kernel, tile_places, tiles, launch);
      break;
    case ops::WeightFormat::kInt4Group:
      launch_format<ops::WeightFormat::kInt4Group>(kernel, tile_places, tiles, launch);
      break;
  }
  combine_kernel<<<dim3(static_cast<unsigned>(kernel.tokens), ceil_div(kernel.down.first.n, 256)), 256, 0,
                   launch.stream>>>(kernel);
}

}  // namespace tessera::backends::cuda
