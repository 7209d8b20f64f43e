// The routed experts' products (ops/moe.h, MoeExpertsParams), grouped by expert on the device: no number of what was
// routed where reaches the host. All pointers are device memory.
//
// A place is a token and one of its experts: place t * taken + j. Four kernels: the places of each expert are listed
// and cut into tiles of at most `tile_places`; gate and up products of a tile, through SwiGLU, to `middle`; its down
// products to `outputs`; and the outputs of a token's places, weighted, added to what `out` holds, in order. Products
// are those of product_weight.h, so a place's result depends on nothing but its token and expert; with F32 weights one
// warp adds up a feature, lane l elements l, l + 32, ..., the lanes in a fixed tree. A place of an expert that does not
// exist is in no list, and contributes NaN.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/kernels/product_weight.h"
#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

inline constexpr std::int64_t kExpertsMax = 4096;

// Weights of all experts, one after another.
struct ExpertWeights {
  ProductWeight first;
  std::int64_t data_stride = 0;   // Bytes from one expert to the next.
  std::int64_t scale_stride = 0;  // Likewise.
};

struct ExpertTile {
  std::int32_t expert = 0;
  std::int32_t first = 0;  // In `places`.
  std::int32_t count = 0;
};

struct MoeExpertsKernel {
  const float* in = nullptr;  // [tokens, hidden]
  std::int64_t in_stride = 0;
  std::int64_t tokens = 0;
  std::int32_t taken = 1;
  std::int32_t experts = 0;
  ExpertWeights gate;  // [intermediate, hidden]
  ExpertWeights up;
  ExpertWeights down;                        // [hidden, intermediate]
  const std::int32_t* expert_ids = nullptr;  // [tokens, taken]
  const float* expert_weights = nullptr;     // [tokens, taken]
  float* out = nullptr;                      // [tokens, hidden]
  std::int64_t out_stride = 0;
  // Scratch.
  std::int32_t* tile_count = nullptr;
  ExpertTile* tiles = nullptr;     // [expert_tiles_max(...)]
  std::int32_t* places = nullptr;  // [tokens * taken]
  float* middle = nullptr;         // [tokens * taken, intermediate]
  float* outputs = nullptr;        // [tokens * taken, hidden]
};

// How many tiles there can be, at the least places a tile.
constexpr std::int64_t expert_tiles_max(std::int64_t experts, std::int64_t places) {
  return (experts < places ? experts : places) + places / 8;
}

void launch_moe_experts(const MoeExpertsKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
