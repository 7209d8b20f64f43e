// KV bytes a token and how many tokens fit beside the weights.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/planner/model_facts.h"

namespace tessera::planner {

inline constexpr ops::KvFormat kKvFormats[] = {ops::KvFormat::kBF16, ops::KvFormat::kF8E4M3, ops::KvFormat::kF32};

// The layout of one rank. Latent attention: every rank holds the whole of it. Grouped-query attention: the KV heads are
// divided; where there are fewer heads than ranks, several ranks hold the same head. invalid_argument where the heads
// cannot be divided.
base::Result<ops::KvLayout> rank_kv_layout(const ModelFacts& facts, ops::KvFormat format, std::int32_t page_size,
                                           std::int32_t tp);

struct KvMemory {
  ops::KvFormat format = ops::KvFormat::kBF16;
  std::int64_t token_bytes = 0;        // One copy of the whole model's.
  std::int64_t index_token_bytes = 0;  // Of token_bytes: index keys and their scales.
  std::int64_t rank_token_bytes = 0;   // On each rank.
  std::int64_t rank_page_bytes = 0;
  std::int64_t pages = 0;   // That fit in the free memory of every rank; the null page is not one of them.
  std::int64_t tokens = 0;  // pages * page_size.
};

// free_bytes: what a rank has left for KV; negative counts as none. Page tables and tags (about 40 bytes a page) belong
// to the reserve.
base::Result<KvMemory> kv_memory(const ModelFacts& facts, ops::KvFormat format, std::int32_t page_size, std::int32_t tp,
                                 std::int64_t free_bytes);

// Requests of `context` tokens each; a request's last page is its own even if it is not full.
std::int64_t requests_that_fit(const KvMemory& memory, std::int32_t page_size, std::int64_t context);

// Bytes of KV that attention of one token reads on one rank, at a context of `context` tokens (its own included).
// Sparse attention reads the latents of index_topk tokens at most; beyond that many, every layer with an indexer reads
// the index keys of the whole context. (Up to index_topk tokens all are selected, whatever the keys.)
double kv_read_bytes(const ModelFacts& facts, const ops::KvLayout& rank_layout, std::int64_t context);

}  // namespace tessera::planner
