// The hash of a row of a cache, by a warp (ops/page_transfer.h, row_hash).
#pragma once

#include <cuda_runtime.h>

#include "tessera/backends/cuda/kernels/kv_rows_device.h"
#include "tessera/backends/cuda/kernels/xxh3_device.h"
#include "tessera/ops/page_transfer.h"

namespace tessera::backends::cuda {

constexpr std::int32_t round_up_to_16(std::int32_t bytes) { return (bytes + 15) / 16 * 16; }

// Shared memory of one warp: a row, and the hash's secret.
constexpr std::int32_t row_hash_bytes(std::int32_t row_bytes) {
  return round_up_to_16(row_bytes) + kXxh3SecretWords * static_cast<std::int32_t>(sizeof(std::uint64_t));
}

// The hash of a row that lies in a warp's shared memory, `room` being row_hash_bytes(row_bytes) of it, 16-byte aligned.
__device__ inline std::uint64_t warp_hash(std::byte* room, std::int32_t row_bytes, std::uint64_t seed, int lane) {
  auto* secret = reinterpret_cast<std::uint64_t*>(room + round_up_to_16(row_bytes));
  return warp_xxh3(room, row_bytes, seed, secret, lane);
}

// How many members of the set are below `layer`. Not LayerSet::count_below, which is the host's: nvcc 13.0 takes
// std::popcount to be 0 in device code.
__device__ inline std::int32_t members_below(const ops::LayerSet& set, std::int32_t layer) {
  std::int32_t count = 0;
  for (std::int32_t w = 0; w < layer / 64; ++w) count += __popcll(set.words()[w]);
  if (layer % 64 != 0) count += __popcll(set.words()[layer / 64] & ((1ull << (layer % 64)) - 1));
  return count;
}

// All lanes call it with the same arguments and get the hash; `room` has row_hash_bytes(cache.first.row_bytes).
__device__ inline std::uint64_t warp_row_hash(const KvLayers& cache, std::int32_t layer, std::int64_t page,
                                              std::int32_t slot, std::uint64_t key, std::byte* room, int lane) {
  std::int64_t offset = layer * cache.layer_stride;
  std::int32_t parts = cache.first.num_parts;
  if (cache.index_bytes > 0) {
    offset += members_below(cache.index_layers, layer) * cache.index_bytes;
    if (!cache.index_layers.contains(layer)) --parts;
  }
  __syncwarp();  // The row before it is no longer read.
  std::byte* at = room;
  for (int i = 0; i < parts; ++i) {
    const KvRowsPart& part = cache.first.parts[i];
    warp_copy(at, row_data(part, page, slot) + offset, part.row_bytes, lane);
    at += part.row_bytes;
    if (part.row_scale_bytes == 0) continue;
    warp_copy(at, row_scales(part, page, slot) + offset, part.row_scale_bytes, lane);
    at += part.row_scale_bytes;
  }
  __syncwarp();
  return warp_hash(room, static_cast<std::int32_t>(at - room), ops::digest_seed(key, layer, slot), lane);
}

}  // namespace tessera::backends::cuda
