// What one instruction set offers: a table of plain functions, each a loop over rows that the backend has cut up for
// its threads. The same sources (*-inl.h) are compiled once for each target, with target attributes on their functions
// only, so that no instruction of a better processor leaks into code that every processor runs.
//
// Every function's result for a row (or an output) depends on that row alone, never on the range it came in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/backends/cpu/simd/mla_tasks.h"
#include "tessera/ops/transformer.h"
#include "tessera/ops/weight.h"

namespace tessera::backends::cpu::simd {

// A linear weight [N, K] lies in panels of 16 output features, padded with zeros; the
// checkpoint's own bytes in another order, that padding, and in FP8 a header a panel (0.25 % at K 7168). In a panel
//   BF16 elements come in pairs of k: [ceil(K / 2)][16][2], so that 64 bytes hold two k of 16 outputs, which AVX2
//     widens with one shift or one mask and which is the operand of AVX-512's BF16 dot product;
//   F32 elements are [round_up(K, 2)][16];
//   FP8 (both formats) has a header, F32 [16] for the outputs and F32 [ceil(K / 128)] for the blocks of k, padded to 64
//     bytes, then codes [ceil(K / 4)][16][4]. An element is code * block * output. Blocks carry 2^kF8BlockShift beside
//     their scale. A code that is NaN makes its output NaN whatever the input, and so is kept as an output scale of
//     NaN;
//   INT4 has the words of the checkpoint [K / 8][16], then BF16 scales [K / group_size][16], padded to 64 bytes.
inline constexpr std::int64_t kPanelOutputs = 16;
inline constexpr std::int64_t kF8BlockK = 128;
// An e4m3 code shifted into the places of an F32's sign, exponent and mantissa is that number times 2^-120.
inline constexpr int kF8BlockShift = 120;

// K as activations are padded to it, with zeros.
constexpr std::int64_t padded_k(ops::WeightFormat format, std::int64_t k) {
  const bool f8 = format == ops::WeightFormat::kF8Block128 || format == ops::WeightFormat::kF8Channel;
  return f8 ? (k + 3) / 4 * 4 : (k + 1) / 2 * 2;
}
constexpr std::int64_t f8_header_bytes(std::int64_t k) {
  return kPanelOutputs * 4 + ((k + kF8BlockK - 1) / kF8BlockK * 4 + 63) / 64 * 64;
}
constexpr std::int64_t panel_bytes(ops::WeightFormat format, std::int64_t k, std::int32_t group_size) {
  const std::int64_t elements = padded_k(format, k) * kPanelOutputs;
  switch (format) {
    case ops::WeightFormat::kF32:
      return elements * 4;
    case ops::WeightFormat::kBF16:
      return elements * 2;
    case ops::WeightFormat::kF8Block128:
    case ops::WeightFormat::kF8Channel:
      return f8_header_bytes(k) + elements;
    case ops::WeightFormat::kInt4Group:
      return elements / 2 + (k / group_size * kPanelOutputs * 2 + 63) / 64 * 64;
  }
  return 0;
}

// Activations as products with INT4 weights take them: 32 neighbouring elements as integers times one power of two, the
// smallest with which none of them needs more than 16 bits, so that an element is off by 2^-15 of the largest of the 32
// at most and the products and sums of a group are exact. A group that holds NaN or infinity has scale NaN.
struct Int16Group {
  static constexpr std::int64_t kElements = 32;
  float scale = 0.0f;
  std::int32_t offset = 0;  // -8 times the sum of x: what the codes' zero point of 8 takes off.
  // Within each eight: 0, 4, 1, 5, 2, 6, 3, 7, since a shift brings these neighbours of a word to its halves' ends.
  std::int16_t x[kElements] = {};
};

// Rows of one task at most. With K = 1536 their activations take 300 KB of the second cache.
inline constexpr std::int64_t kLinearRowsMax = 48;

// Rows [row_begin, row_end), at most kLinearRowsMax, times panels [panel_begin, panel_end).
struct LinearTask {
  ops::WeightFormat format = ops::WeightFormat::kF32;
  const std::byte* panels = nullptr;
  std::int64_t k = 0;
  std::int64_t n = 0;
  std::int32_t group_size = 0;
  // One of the three is read: in_int16 where the weight is INT4, in_bf16 where Kernels::bf16_activations says so.
  const float* in = nullptr;  // [rows, padded_k]: zeros follow each row where K is not padded_k.
  std::int64_t in_stride = 0;
  const std::uint16_t* in_bf16 = nullptr;  // [rows, padded_k]
  const Int16Group* in_int16 = nullptr;    // [rows, k / 32]
  // Row r takes row in_rows[r] of the input and goes to row out_rows[r] of the output, r where null.
  const std::int32_t* in_rows = nullptr;
  const std::int32_t* out_rows = nullptr;
  const float* row_factors = nullptr;  // By which row r's outputs are multiplied; null: not at all.
  const float* bias = nullptr;         // [n] or null.
  float* out = nullptr;                // [rows, n]
  std::int64_t out_stride = 0;
  ops::OutputMode mode = ops::OutputMode::kOverwrite;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t panel_begin = 0;
  std::int64_t panel_end = 0;
};

// Attention is computed in splits of a row's context, each with a softmax of its own, and the splits are merged in
// order. Where they lie depends on the page size only, so a query's result is the same whether one thread computes all
// of its splits or each has one, and whether the query came alone or in a chunk.
inline constexpr std::int64_t kSplitTokens = 128;
constexpr std::int64_t split_pages(std::int64_t page_size) { return (kSplitTokens + page_size - 1) / page_size; }

// Keys and values that are widened together, at most; they lie in one page.
inline constexpr std::int64_t kTileTokens = 32;

// Queries of one task at most: they share its widened keys and values.
inline constexpr std::int64_t kQueryBlock = 16;

// Queries [query_begin, query_end) of one row (at most kQueryBlock), all heads of KV heads [kv_head_begin,
// kv_head_end), splits [split_begin, split_end).
struct AttentionTask {
  const ops::PagedAttentionParams* params = nullptr;
  std::int64_t row = 0;
  std::int64_t kv_head_begin = 0;
  std::int64_t kv_head_end = 0;
  std::int64_t query_begin = 0;
  std::int64_t query_end = 0;
  std::int64_t split_begin = 0;
  std::int64_t split_end = 0;
  float* scratch = nullptr;  // attention_scratch_floats of them, 64-byte aligned.
  // Null: all splits are here, and the result goes to params->out. Otherwise one split, one query: its states, one of
  // attention_state_floats for each head, go here.
  float* partial = nullptr;
};

// Sizes of attention's working memory. Rows are padded to 16 floats.
constexpr std::int64_t padded_head_dim(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
// Maximum and sum in a vector of their own, then the weighted values.
constexpr std::int64_t attention_state_floats(std::int64_t head_dim) { return 16 + padded_head_dim(head_dim); }
constexpr std::int64_t attention_scratch_floats(std::int64_t head_dim, std::int64_t group, std::int64_t kv_heads,
                                                std::int64_t queries) {
  return kv_heads * (2 * kTileTokens * (padded_head_dim(head_dim) + 1) +
                     queries * group * (padded_head_dim(head_dim) + 2 * attention_state_floats(head_dim))) +
         group * kTileTokens;
}

// What one pass over a row of logits finds.
struct GreedyResult {
  std::int64_t index = -1;  // Of the largest, the lowest among equals.
  float maximum = 0.0f;
  double sum = 0.0;  // Of exp(logit - maximum).
  bool has_nan = false;
};

struct Kernels {
  const char* name = "";
  // Linear with BF16 weights takes its activations rounded to BF16.
  bool bf16_activations = false;

  void (*linear)(const LinearTask& task) = nullptr;
  void (*attention)(const AttentionTask& task) = nullptr;
  // Merges the partial states [splits] of one query and one head, `stride` floats apart, in order, and writes the
  // normalized result.
  void (*attention_merge)(const float* partials, std::int64_t splits, std::int64_t stride, std::int64_t head_dim,
                          float* out) = nullptr;
  // Latent attention, absorbed: every head of some tokens into latent space, every token's attention there, and every
  // head out of it.
  void (*mla_absorb)(const MlaUpTask& task) = nullptr;
  void (*mla_attend)(const MlaAttendTask& task) = nullptr;
  // Merges the partial states [splits] of one query and one head, `stride` floats apart, in order, and divides by the
  // sum.
  void (*mla_merge)(const float* partials, std::int64_t splits, std::int64_t stride, std::int64_t kv_lora_rank,
                    float* state) = nullptr;
  void (*mla_values)(const MlaUpTask& task) = nullptr;
  // Latent attention, expanded.
  void (*mla_expand)(const MlaExpandTask& task) = nullptr;
  void (*index_scores)(const IndexScoreTask& task) = nullptr;
  // One row each.
  void (*layer_norm)(const float* in, const float* weight, const float* bias, float epsilon, std::int64_t cols,
                     float* out) = nullptr;
  void (*rms_norm)(const float* in, const float* weight, float epsilon, std::int64_t cols, float* out) = nullptr;
  void (*swiglu)(const float* gate, const float* up, std::int64_t width, float* out) = nullptr;
  // cosines and sines are [rotary_dim / 2], magnitude included.
  void (*rope_half)(float* head, const float* cosines, const float* sines, std::int64_t half) = nullptr;
  GreedyResult (*greedy)(const float* logits, std::int64_t count) = nullptr;

  // out[i] = 1 / (1 + exp(-in[i])).
  void (*sigmoid)(const float* in, std::int64_t count, float* out) = nullptr;

  // `count` is a multiple of 32.
  void (*int16_groups)(const float* in, std::int64_t count, Int16Group* out) = nullptr;

  // Conversions, exactly those of base/dtype.h.
  void (*bf16_to_f32)(const std::uint16_t* in, std::int64_t count, float* out) = nullptr;
  void (*f32_to_bf16)(const float* in, std::int64_t count, std::uint16_t* out) = nullptr;
  void (*f8_to_f32)(const std::uint8_t* in, std::int64_t count, float* out) = nullptr;
  // e4m3(in / scale).
  void (*f32_to_f8)(const float* in, float scale, std::int64_t count, std::uint8_t* out) = nullptr;
  // Largest magnitude; NaN or infinity when the row holds either.
  float (*largest_magnitude)(const float* in, std::int64_t count) = nullptr;
};

const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_bf16_kernels();

}  // namespace tessera::backends::cpu::simd
