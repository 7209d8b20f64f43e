// Parameters of the ops of a transformer layer. Shapes are [rows, cols], row-major; activations are F32 on the CPU
// backends. Sums run in an order that depends only on the row's own length, never on the other rows of the batch.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tessera/ops/buffer.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/ops/verified_pages.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

// out[t] = table[token_ids[t]]. A token id outside the table is a programmer's error (the server range-checks ids).
struct EmbeddingParams {
  const Weight* table = nullptr;            // [vocab, hidden], usage kEmbedding.
  std::span<const std::int32_t> token_ids;  // [tokens]
  Matrix out;                               // [tokens, hidden]
};

// out[t][i] = in[t][i] / sqrt(mean_i(in[t][i]^2) + epsilon) * weight[i]. out may be in. Zhang and Sennrich 2019,
// arXiv:1910.07467.
struct RmsNormParams {
  ConstMatrix in;                  // [tokens, hidden]
  const Weight* weight = nullptr;  // [1, hidden], usage kVector.
  float epsilon = 1e-5f;
  Matrix out;  // [tokens, hidden]
};

// out[t][i] = (in[t][i] - mean) / sqrt(variance + epsilon) * weight[i] + bias[i], over the row, with the variance of
// the whole row (not of a sample). out may be in. Ba, Kiros and Hinton 2016, arXiv:1607.06450.
struct LayerNormParams {
  ConstMatrix in;                  // [tokens, width]
  const Weight* weight = nullptr;  // [1, width], usage kVector.
  const Weight* bias = nullptr;    // [1, width], usage kVector.
  float epsilon = 1e-6f;
  Matrix out;  // [tokens, width]
};

enum class RopeStyle : std::uint8_t {
  kHalf,         // Pairs (i, i + rotary_dim / 2), as Llama's checkpoints have it on Hugging Face.
  kInterleaved,  // Pairs (2i, 2i + 1).
};

// Rotates, in place, the first rotary_dim elements of every head: with angle = position * inverse_frequencies[i] (one
// F32 product, as the reference implementations have it), (a, b) becomes (a cos - b sin, a sin + b cos) * magnitude. Su
// et al. 2021, arXiv:2104.09864.
struct RopeParams {
  Matrix x;                                    // [tokens, heads * head_dim]
  std::span<const std::int32_t> positions;     // [tokens]
  std::span<const float> inverse_frequencies;  // [rotary_dim / 2]
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t rotary_dim = 0;  // Even, <= head_dim.
  RopeStyle style = RopeStyle::kHalf;
  float magnitude = 1.0f;  // YaRN's attention factor, where a family applies it here.
};

enum class OutputMode : std::uint8_t { kOverwrite, kAdd };

// out[t][n] = sum_k in[t][k] * weight[n][k] (+ bias[n]) (+ out[t][n] where mode is kAdd, the residual). in and out do
// not overlap. A backend may round `in` to BF16 where the weight is BF16, and where it is INT4 to 16 bits below the
// largest of every 32 neighbours (NaN or infinity among them then makes the row's outputs NaN); conformance allows for
// it.
struct LinearParams {
  ConstMatrix in;                  // [tokens, K]
  const Weight* weight = nullptr;  // [N, K], usage kLinear or kRouter.
  const Weight* bias = nullptr;    // [1, N], usage kVector; may be null.
  Matrix out;                      // [tokens, N]
  OutputMode mode = OutputMode::kOverwrite;
};

// out = gate / (1 + exp(-gate)) * up, elementwise. out may be gate or up. Shazeer 2020, arXiv:2002.05202.
struct SwigluParams {
  ConstMatrix gate;  // [tokens, width]
  ConstMatrix up;    // [tokens, width]
  Matrix out;        // [tokens, width]
};

// Writes the parts (keys and values; latent and rope; index keys) of this step's tokens into the KV cache, as its
// layout stores each. Tokens whose slot is kNullSlot are skipped. BF16 rounds to nearest even. FP8: for each scale
// group of a row, scale = amax / 448 (one F32 quotient) rounded up to BF16, at least the smallest positive BF16 (1 for
// an all-zero group), element = e4m3(x / scale) (one F32 quotient, then nearest even). Index keys in e4m3 likewise,
// with the F32 quotient itself as scale, at least the smallest positive F32 (1 for an all-zero row). NaN or infinity in
// any part of a token, or a value that the format would store as infinity: all parts of the token are stored as zeros
// (scales 1) and nonfinite_rows[t] is set to 1, an error of that sequence (the caller clears the array before the
// step's first write).
struct KvWriteParams {
  WritableSlots slots;  // [tokens]
  // [tokens, elements of part p]: as many as the layer has (KvLayout::layer_parts); the others are empty.
  std::array<ConstMatrix, KvLayout::kPartsMax> parts;
  KvCacheView cache;
  std::int32_t layer = 0;
  std::uint8_t* nonfinite_rows = nullptr;  // [tokens]
};

// Causal attention of a ragged batch over paged keys and values (GQA), for prefill chunks and decode alike. Row r has
// queries cu_seqlens_q[r] .. cu_seqlens_q[r+1], its last tokens: query i of q_len sits at position kv_len - q_len + i
// and sees keys 0 .. that position. Query head h uses KV head h / (heads / kv_heads).
//   out[t][h] = sum_j softmax_j(softmax_scale * q[t][h] . k[j]) v[j]
// Keys are taken in pages from position 0, so the order of summation depends on the query's position only. A row of
// kv_len 0 (failed its check, or padding) gives zeros. kv_len >= q_len otherwise. Slots past kv_len may hold anything,
// NaN included, and do not matter.
struct PagedAttentionParams {
  ConstMatrix q;                               // [tokens, heads * head_dim]
  std::span<const std::int32_t> cu_seqlens_q;  // host, [rows + 1], from 0 to tokens.
  VerifiedPages pages;                         // rows
  KvCacheView cache;
  std::int32_t layer = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  float softmax_scale = 1.0f;
  Matrix out;  // [tokens, heads * head_dim]
};

}  // namespace tessera::ops
