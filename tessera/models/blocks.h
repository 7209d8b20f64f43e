// Parts of a transformer layer that families share, written in ops. Activations are F32 matrices [tokens, features] in
// the engine's workspace; nothing here allocates. `residual` is the stream that every block adds to.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/models/model.h"
#include "tessera/ops/backend.h"

namespace tessera::models {

struct BlockContext {
  ops::Backend& backend;
  ops::Stream& stream;
  const ForwardBatch& batch;
};

struct GqaShape {
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t rotary_dim = 0;
  ops::RopeStyle rope_style = ops::RopeStyle::kHalf;
  std::span<const float> inverse_frequencies;  // device, [rotary_dim / 2]
  float rope_magnitude = 1.0f;
  float norm_epsilon = 1e-5f;
};

struct GqaWeights {
  const ops::Weight* q = nullptr;       // [heads * head_dim, hidden]
  const ops::Weight* k = nullptr;       // [kv_heads * head_dim, hidden]
  const ops::Weight* v = nullptr;       // [kv_heads * head_dim, hidden]
  const ops::Weight* o = nullptr;       // [hidden, heads * head_dim]
  const ops::Weight* q_bias = nullptr;  // [heads * head_dim]; all three or none.
  const ops::Weight* k_bias = nullptr;
  const ops::Weight* v_bias = nullptr;
  const ops::Weight* q_norm = nullptr;  // [head_dim]; both or none.
  const ops::Weight* k_norm = nullptr;
};

struct GqaScratch {
  ops::Matrix q;        // [tokens, heads * head_dim], rows without gaps.
  ops::Matrix k;        // [tokens, kv_heads * head_dim], likewise.
  ops::Matrix v;        // [tokens, kv_heads * head_dim]
  ops::Matrix context;  // [tokens, heads * head_dim]
};

// Grouped-query attention over the paged cache: writes this step's K and V of `layer`, then
// residual += o(attention(rope(norm(q(in))), rope(norm(k(in))), v(in))), scaled by 1 / sqrt(head_dim), with the norms
// of each head where the family has them. Ainslie et al. 2023, arXiv:2305.13245.
//
// With tensor parallelism the heads are divided over the ranks, o over its columns; its partial sums then meet in an
// all-reduce, to which rank 0 alone contributes the residual.
void gqa_attention(const BlockContext& context, std::int32_t layer, const GqaShape& shape, const GqaWeights& weights,
                   ops::ConstMatrix in, const GqaScratch& scratch, ops::Matrix residual);

struct SwigluWeights {
  const ops::Weight* gate = nullptr;  // [intermediate, hidden]
  const ops::Weight* up = nullptr;    // [intermediate, hidden]
  const ops::Weight* down = nullptr;  // [hidden, intermediate]
};

struct SwigluScratch {
  ops::Matrix gate;  // [tokens, intermediate]
  ops::Matrix up;    // [tokens, intermediate]
};

// residual += down(silu(gate(in)) * up(in)). Shazeer 2020, arXiv:2002.05202. Under tensor parallelism as above.
void swiglu_mlp(const BlockContext& context, const SwigluWeights& weights, ops::ConstMatrix in,
                const SwigluScratch& scratch, ops::Matrix residual);

struct MoeShape {
  std::int32_t n_group = 1;
  std::int32_t topk_group = 1;
  std::int32_t num_experts_per_tok = 1;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0f;
};

struct MoeWeights {
  const ops::Weight* router = nullptr;           // [n_routed_experts, hidden]
  const ops::Weight* correction_bias = nullptr;  // [n_routed_experts]
  const ops::ExpertStack* experts = nullptr;
  SwigluWeights shared;  // Null pointers where there are none.
};

struct MoeScratch {
  ops::Matrix router_logits;           // [tokens, n_routed_experts]
  std::int32_t* expert_ids = nullptr;  // [tokens, num_experts_per_tok]
  float* expert_weights = nullptr;     // [tokens, num_experts_per_tok]
  std::byte* experts = nullptr;        // Backend::moe_experts_scratch_bytes
  SwigluScratch shared;
};

// residual += sum of the routed experts' outputs, weighted + shared(in): DeepSeek-AI 2024, arXiv:2412.19437. Under
// tensor parallelism every rank routes alike and holds a part of each expert's columns; sums as above.
void moe_mlp(const BlockContext& context, const MoeShape& shape, const MoeWeights& weights, ops::ConstMatrix in,
             const MoeScratch& scratch, ops::Matrix residual);

// Final norm and head, for the batch's logit_tokens only: logits[i] = head(norm(residual[logit_tokens[i]])).
// `scratch` [>= logit tokens, hidden] takes the gathered, normed rows.
void write_logits(const BlockContext& context, const ops::Weight& norm, float epsilon, const ops::Weight& head,
                  ops::ConstMatrix residual, ops::Matrix scratch, ops::Matrix logits);

// The first `rows` rows, and `count` columns from `begin`.
inline ops::Matrix first_rows(const ops::Matrix& m, std::int64_t rows) {
  return ops::Matrix{m.data, m.dtype, rows, m.cols, m.row_stride};
}
inline ops::Matrix columns_of(const ops::Matrix& m, std::int64_t begin, std::int64_t count) {
  return ops::Matrix{m.f32() + begin, m.dtype, m.rows, count, m.row_stride};
}

}  // namespace tessera::models
