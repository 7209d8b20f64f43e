// The indexer's selection (ops/mla.h, DsaSelectParams), in two kernels over a block of tokens at a time: scores of
// every position that a token sees, and the best of them. All pointers are device memory.
//
// Scores are products on the tensor cores of queries rounded to BF16 and stored keys (FP8 widens to BF16 exactly), in
// F32; a head's is multiplied by the key's scale and the softmax scale, and the heads are added in a fixed order:
// sixteen at a time, by lanes in a fixed tree. A score depends on its query and key alone. The best are found by their
// bits, eight at a time, and leave in the order of positions; a token that sees no more than it may select is not
// scored.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/kernels/kv_rows.h"
#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

// Tokens of which scores are held at a time.
inline constexpr std::int64_t kSelectTokens = 64;
inline constexpr std::int32_t kIndexHeadDimMax = 256;
inline constexpr std::int32_t kIndexHeadsMax = 128;

// Which sequence a token is of, and where it stands in it.
struct SelectToken {
  std::int32_t row = 0;    // Of the page table.
  std::int32_t q_len = 0;  // Queries of the sequence.
  std::int32_t query = 0;  // Which of them.
};

struct DsaSelectKernel {
  const SelectToken* tokens = nullptr;
  std::int64_t num_tokens = 0;  // <= kSelectTokens
  std::int64_t rows = 0;
  const float* q = nullptr;  // [num_tokens, heads * head_dim]
  std::int64_t q_stride = 0;
  const float* weights = nullptr;  // [num_tokens, heads]
  std::int64_t weights_stride = 0;
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;
  const std::int32_t* table = nullptr;
  std::int64_t max_pages_per_row = 0;
  const std::int32_t* kv_lens = nullptr;  // [rows]
  std::int32_t page_size = 0;
  KvRowsPart keys;  // The part of index keys.
  float softmax_scale = 1.0f;
  std::int32_t width = 0;
  std::int32_t* positions = nullptr;  // Out, [num_tokens, width]
  std::int32_t* counts = nullptr;     // Out, [num_tokens]
  // [num_tokens, largest of kv_lens]; how large that is, the device knows.
  float* scores = nullptr;
};
void launch_dsa_select(const DsaSelectKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
