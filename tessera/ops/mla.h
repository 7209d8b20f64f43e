// Multi-head latent attention (MLA; DeepSeek-AI 2024, arXiv:2405.04434) over paged latents, dense or over selected
// tokens (DSA; DeepSeek-AI 2025, DeepSeek-V3.2). A token's KV is one row [latent | rope] shared by all heads.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/ops/buffer.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/ops/verified_pages.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

struct MlaShape {
  std::int32_t heads = 0;  // Of this rank.
  std::int32_t kv_lora_rank = 0;
  std::int32_t qk_rope_head_dim = 0;
  std::int32_t qk_nope_head_dim = 0;
  std::int32_t v_head_dim = 0;
  friend bool operator==(const MlaShape&, const MlaShape&) = default;
};

// kv_b_proj [heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank] as a backend holds it: head h's first
// qk_nope_head_dim rows make its keys from a latent, its other v_head_dim rows its values. Move-only.
struct MlaUpProjection {
  MlaShape shape;
  WeightFormat format = WeightFormat::kF32;
  Weight weight;   // As kLinear, where the backend computes on it so; else empty.
  Buffer storage;  // The backend's own arrangement, where it has one.
  std::int64_t bytes() const { return weight.storage.bytes() + storage.bytes(); }
};

// The two ways to compute one attention; equal but for rounding. A sequence's prompt tokens always take the first and
// its generated tokens the second, however they are batched and cut, so that recompute gives the same bits.
enum class MlaForm : std::uint8_t {
  kExpanded,  // Keys and values of every head are made from the latents first (prefill).
  kAbsorbed,  // Queries are taken into latent space, values made from the summed latents (decode).
};

// Positions that each token may attend to, ascending. Made by dsa_select, read by mla_attention of its layer and of the
// layers that share it. Device memory.
struct TokenSelection {
  std::int32_t* positions = nullptr;  // [tokens, width]; entries past the count hold anything.
  std::int32_t* counts = nullptr;     // [tokens]
  std::int32_t width = 0;             // index_topk.
};

// Causal attention of a ragged batch, rows and positions as in PagedAttentionParams. With [c_j | r_j] the stored row of
// position j, W_k,h and W_v,h head h's rows of the up projection, and q_h = [n_h | p_h]:
//   score[j] = softmax_scale * (n_h . (W_k,h c_j) + p_h . r_j),  out_h = sum_j softmax_j(score[j]) W_v,h c_j
// over j = 0 .. the query's position, or over the selected positions only. A selected position behind the query's own
// is left out. Keys are taken in ascending position, in runs that depend on position alone (dense) or on the place in
// the selection alone (sparse). A row of kv_len 0 gives zeros, and so does a token that is left no position. Slots past
// kv_len may hold anything.
struct MlaAttentionParams {
  ConstMatrix q;                               // [tokens, heads * (qk_nope_head_dim + qk_rope_head_dim)], rope rotated.
  std::span<const std::int32_t> cu_seqlens_q;  // host, [rows + 1]
  std::span<const MlaForm> forms;              // host, [rows]
  VerifiedPages pages;                         // rows
  KvCacheView cache;                           // Of mla_kv_layout.
  std::int32_t layer = 0;
  const MlaUpProjection* up = nullptr;
  float softmax_scale = 1.0f;
  const TokenSelection* selection = nullptr;  // Null: every position.
  Matrix out;                                 // [tokens, heads * v_head_dim]
  std::byte* scratch = nullptr;               // Backend::mla_attention_scratch_bytes(...), 256-byte aligned.
};

// The indexer of DSA: which positions each token attends to.
//   score[j] = sum_h weights[t][h] * relu(softmax_scale * (q_h . k_j)),  k_j the stored index key of position j,
// over j = 0 .. the token's position; the index_topk largest are selected, all of them when there are no more. Ties go
// to the lower position; NaN counts as -infinity. A token of a row of kv_len 0 selects nothing. Positions come out
// ascending.
struct DsaSelectParams {
  ConstMatrix q;                               // [tokens, index_n_heads * index_head_dim], rotated.
  ConstMatrix weights;                         // [tokens, index_n_heads]
  std::span<const std::int32_t> cu_seqlens_q;  // host, [rows + 1]
  VerifiedPages pages;
  KvCacheView cache;  // Its layout has index keys in `layer`.
  std::int32_t layer = 0;
  std::int32_t index_n_heads = 0;
  std::int32_t index_head_dim = 0;
  float softmax_scale = 1.0f;    // > 0: (index_head_dim * index_n_heads)^-0.5, the weights' own factor taken in.
  TokenSelection selection;      // Out; selection.width is index_topk.
  std::byte* scratch = nullptr;  // Backend::dsa_select_scratch_bytes(...), 256-byte aligned.
};

}  // namespace tessera::ops
