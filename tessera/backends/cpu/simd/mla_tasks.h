// What the kernels of latent attention and of the indexer take (kernels.h), and how large their working memory is.
//
// Rows of latents lie widened to F32 in tiles: [latent | rope], each padded to 16 floats with zeros.
#pragma once

#include <cstdint>

#include "tessera/ops/mla.h"

namespace tessera::backends::cpu::simd {

constexpr std::int64_t padded_floats(std::int64_t count) { return (count + 15) / 16 * 16; }
constexpr std::int64_t mla_row_floats(const ops::MlaShape& shape) {
  return padded_floats(shape.kv_lora_rank) + padded_floats(shape.qk_rope_head_dim);
}

// Rows of the up projection that are dequantized together: with a rank of 512 they take half of the first cache.
inline constexpr std::int64_t kMlaWeightRows = 8;
constexpr std::int64_t mla_weight_floats(const ops::MlaShape& shape) {
  return kMlaWeightRows * padded_floats(shape.kv_lora_rank);
}

// The absorbed form. A query's places (positions, or places in its selection) are taken in runs of kMlaRun keys, whose
// widened tile, all heads' queries and their sums fit the second cache together (351 KB for 64 heads), and in splits
// with a softmax of their own, which are merged in order. Both depend on the place alone.
inline constexpr std::int64_t kMlaRun = 32;
inline constexpr std::int64_t kMlaSplit = 1024;
// Queries whose way into latent space shares the dequantized up projection, at most.
inline constexpr std::int64_t kMlaQueries = 32;
// Maximum and sum in a vector of their own, then the weighted latents.
constexpr std::int64_t mla_state_floats(const ops::MlaShape& shape) { return 16 + padded_floats(shape.kv_lora_rank); }

// One head of `count` tokens (at most kMlaQueries): their queries into latent space, or their latent sums out of it.
struct MlaUpTask {
  const ops::MlaAttentionParams* params = nullptr;
  std::int32_t head = 0;
  const std::int64_t* tokens = nullptr;  // [count]: rows of q and of out.
  std::int64_t count = 0;
  float* queries = nullptr;       // [count, heads, mla_row_floats]
  const float* states = nullptr;  // [count, heads, mla_state_floats], divided by their sums.
  float* scratch = nullptr;       // mla_up_scratch_floats
};
constexpr std::int64_t mla_up_scratch_floats(const ops::MlaShape& shape) {
  return mla_weight_floats(shape) + kMlaQueries * padded_floats(shape.qk_nope_head_dim);
}

// One token in the absorbed form.
struct MlaToken {
  std::int64_t row = 0;
  std::int64_t token = 0;                   // Row of q and of out.
  const std::int32_t* positions = nullptr;  // [places], each at or before the token's own; null: place j is position j.
  std::int64_t places = 0;                  // At least 1.
};

// Heads [head_begin, head_end) of one token, splits [split_begin, split_end).
struct MlaAttendTask {
  const ops::MlaAttentionParams* params = nullptr;
  MlaToken token;
  std::int32_t head_begin = 0;
  std::int32_t head_end = 0;
  std::int64_t split_begin = 0;
  std::int64_t split_end = 0;
  const float* queries = nullptr;  // [heads, mla_row_floats]
  // All splits are here: the merged states, divided by their sums, go to `states` [heads, mla_state_floats]. One split
  // is here: its states go to `partial` [heads, mla_state_floats].
  float* states = nullptr;
  float* partial = nullptr;
  float* scratch = nullptr;  // mla_attend_scratch_floats
};
constexpr std::int64_t mla_attend_scratch_floats(const ops::MlaShape& shape) {
  return kMlaRun * mla_row_floats(shape) + shape.heads * (kMlaRun + mla_state_floats(shape)) +
         padded_floats(shape.heads);
}

// The expanded form: runs of kMlaExpandedRun keys, whose keys and values of one head are made together and shared by
// all queries of a task. Their softmax is one, updated after each run.
inline constexpr std::int64_t kMlaExpandedRun = 64;
// Queries of a task at most. Making keys and values costs as much as some 200 queries that attend to them.
inline constexpr std::int64_t kMlaExpandedQueries = 512;

// Queries [query_begin, query_end) of one row, one head.
struct MlaExpandTask {
  const ops::MlaAttentionParams* params = nullptr;
  std::int64_t row = 0;
  std::int32_t head = 0;
  std::int64_t query_begin = 0;
  std::int64_t query_end = 0;
  // [tokens of the batch]: how many of a token's selected positions are at or before its own; null without selection.
  const std::int64_t* places = nullptr;
  std::int64_t places_max = 0;  // The largest of this task's queries.
  float* scratch = nullptr;     // mla_expand_scratch_floats
};
constexpr std::int64_t mla_key_floats(const ops::MlaShape& shape) {
  return padded_floats(shape.qk_nope_head_dim) + padded_floats(shape.qk_rope_head_dim);
}
// Of a task whose queries select at most `places` positions each; 0 without selection.
constexpr std::int64_t mla_expand_scratch_floats(const ops::MlaShape& shape, std::int64_t queries,
                                                 std::int64_t places) {
  const std::int64_t runs = places == 0 ? 1 : (places + kMlaExpandedRun - 1) / kMlaExpandedRun;
  return mla_weight_floats(shape) +
         kMlaExpandedRun * (mla_row_floats(shape) + mla_key_floats(shape) + padded_floats(shape.v_head_dim)) +
         queries * (mla_key_floats(shape) + 16 + padded_floats(shape.v_head_dim) + runs * kMlaExpandedRun) +
         padded_floats(queries * runs) + padded_floats(2 * queries);
}

// The indexer: scores of keys [key_begin, key_end) for tokens [token_begin, token_end) of one row, of each token only
// those that it may see. Keys are widened kIndexKeys at a time.
inline constexpr std::int64_t kIndexKeys = 64;
inline constexpr std::int64_t kIndexTokens = 4;  // Of one task at most: they share the widened keys.
struct IndexScoreTask {
  const ops::DsaSelectParams* params = nullptr;
  std::int64_t row = 0;
  std::int64_t token_begin = 0;  // Of the batch.
  std::int64_t token_end = 0;
  std::int64_t first_position = 0;  // Of token_begin.
  std::int64_t key_begin = 0;       // A multiple of kIndexKeys.
  std::int64_t key_end = 0;
  // Key j's score of token token_begin + i goes to scores[i * score_stride + j]; NaN as -infinity, zero as +0. Up to
  // three floats behind the last one are junk.
  float* scores = nullptr;
  std::int64_t score_stride = 0;
  float* scratch = nullptr;  // index_score_scratch_floats
};
constexpr std::int64_t index_score_scratch_floats(std::int64_t heads, std::int64_t head_dim) {
  return (kIndexKeys + kIndexTokens * heads) * padded_floats(head_dim);
}

}  // namespace tessera::backends::cpu::simd
