// Multi-head latent attention as a block of a layer, dense or over the tokens that an indexer selects. Written in ops;
// nothing here allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/models/blocks.h"

namespace tessera::models {

struct IndexerShape {
  std::int32_t n_heads = 0;
  std::int32_t head_dim = 0;
};

struct MlaBlockShape {
  ops::MlaShape mla;
  ops::RopeStyle rope_style = ops::RopeStyle::kInterleaved;
  std::span<const float> inverse_frequencies;  // device, [qk_rope_head_dim / 2]
  float rope_magnitude = 1.0f;
  float softmax_scale = 1.0f;
  IndexerShape indexer;  // Zeros where attention is dense.
};

struct IndexerWeights {
  const ops::Weight* q = nullptr;        // [n_heads * head_dim, q_lora_rank]
  const ops::Weight* k = nullptr;        // [head_dim, hidden]
  const ops::Weight* k_norm = nullptr;   // [head_dim]
  const ops::Weight* k_bias = nullptr;   // [head_dim]
  const ops::Weight* weights = nullptr;  // [n_heads, hidden]
};

struct MlaWeights {
  const ops::Weight* q_latent = nullptr;  // [q_lora_rank, hidden]; both null where there is no query latent.
  const ops::Weight* q_latent_norm = nullptr;
  const ops::Weight* q = nullptr;        // [heads * qk_head_dim, q_lora_rank or hidden]
  const ops::Weight* kv = nullptr;       // [kv_lora_rank + qk_rope_head_dim, hidden]
  const ops::Weight* kv_norm = nullptr;  // [kv_lora_rank]
  const ops::MlaUpProjection* up = nullptr;
  const ops::Weight* o = nullptr;  // [hidden, heads * v_head_dim]
  IndexerWeights indexer;          // Null pointers in layers that select nothing themselves.
};

struct MlaScratch {
  ops::Matrix q_latent;  // [tokens, q_lora_rank]
  ops::Matrix q;         // [tokens, heads * qk_head_dim], with qk_nope_head_dim more floats behind the last row.
  ops::Matrix kv;        // [tokens, kv_lora_rank + qk_rope_head_dim]
  ops::Matrix context;   // [tokens, heads * v_head_dim]
  std::byte* attention = nullptr;  // Backend::mla_attention_scratch_bytes
  // Of the indexer.
  ops::Matrix index_q;          // [tokens, n_heads * head_dim]
  ops::Matrix index_k;          // [tokens, head_dim]
  ops::Matrix index_weights;    // [tokens, n_heads]
  std::byte* select = nullptr;  // Backend::dsa_select_scratch_bytes
  // Outlives the layer: a full layer writes it, it and the layers that share it read it. Null where attention is dense.
  const ops::TokenSelection* selection = nullptr;
};

// With c = norm(kv's latent) and r = rope(kv's rest), which are written to the cache:
// residual += o(attention(q(norm(q_latent(in))), c, r)), in the forms of `forms` (host, [rows]). DeepSeek-AI 2024,
// arXiv:2405.04434. The indexer (DeepSeek-V3.2): q from the normed query latent, k = rope(layer_norm(k(in))), of which
// the first qk_rope_head_dim elements are rotated.
void mla_attention(const BlockContext& context, std::int32_t layer, const MlaBlockShape& shape,
                   const MlaWeights& weights, std::span<const ops::MlaForm> forms, ops::ConstMatrix in,
                   const MlaScratch& scratch, ops::Matrix residual);

}  // namespace tessera::models
