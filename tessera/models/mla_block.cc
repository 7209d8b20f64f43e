#include "tessera/models/mla_block.h"

#include <cmath>

#include "tessera/base/check.h"

namespace tessera::models {

namespace {

// The inner norms have an epsilon of their own, whatever rms_norm_eps says: so the families' reference code has it.
constexpr float kInnerNormEpsilon = 1e-6f;

void rotate(const BlockContext& context, const MlaBlockShape& shape, ops::Matrix x, std::int32_t heads,
            std::int32_t head_dim) {
  context.backend.rope(context.stream, {.x = x,
                                        .positions = context.batch.positions,
                                        .inverse_frequencies = shape.inverse_frequencies,
                                        .heads = heads,
                                        .head_dim = head_dim,
                                        .rotary_dim = shape.mla.qk_rope_head_dim,
                                        .style = shape.rope_style,
                                        .magnitude = shape.rope_magnitude});
}

void rms_norm(const BlockContext& context, const ops::Weight* weight, ops::Matrix x) {
  context.backend.rms_norm(context.stream, {.in = x, .weight = weight, .epsilon = kInnerNormEpsilon, .out = x});
}

// The index keys of this step's tokens, to be written with their latents.
void index_keys(const BlockContext& context, const MlaBlockShape& shape, const IndexerWeights& weights,
                ops::ConstMatrix in, ops::Matrix k) {
  context.backend.linear(context.stream, {.in = in, .weight = weights.k, .out = k});
  context.backend.layer_norm(
      context.stream,
      {.in = k, .weight = weights.k_norm, .bias = weights.k_bias, .epsilon = kInnerNormEpsilon, .out = k});
  rotate(context, shape, k, 1, shape.indexer.head_dim);
}

void select(const BlockContext& context, std::int32_t layer, const MlaBlockShape& shape, const IndexerWeights& weights,
            ops::ConstMatrix in, const MlaScratch& scratch) {
  const auto& [backend, stream, batch] = context;
  backend.linear(stream, {.in = scratch.q_latent, .weight = weights.q, .out = scratch.index_q});
  rotate(context, shape, scratch.index_q, shape.indexer.n_heads, shape.indexer.head_dim);
  backend.linear(stream, {.in = in, .weight = weights.weights, .out = scratch.index_weights});
  // The weights' own factor n_heads^-0.5 is taken into the scale: relu(a x) = a relu(x) for a > 0.
  const float heads_and_size = static_cast<float>(shape.indexer.head_dim) * static_cast<float>(shape.indexer.n_heads);
  backend.dsa_select(stream, {.q = scratch.index_q,
                              .weights = scratch.index_weights,
                              .cu_seqlens_q = batch.cu_seqlens_q,
                              .pages = batch.pages,
                              .cache = batch.cache,
                              .layer = layer,
                              .index_n_heads = shape.indexer.n_heads,
                              .index_head_dim = shape.indexer.head_dim,
                              .softmax_scale = 1.0f / std::sqrt(heads_and_size),
                              .selection = *scratch.selection,
                              .scratch = scratch.select});
}

}  // namespace

void mla_attention(const BlockContext& context, std::int32_t layer, const MlaBlockShape& shape,
                   const MlaWeights& weights, std::span<const ops::MlaForm> forms, ops::ConstMatrix in,
                   const MlaScratch& scratch, ops::Matrix residual) {
  const auto& [backend, stream, batch] = context;
  const ops::MlaShape& mla = shape.mla;
  const bool selects = weights.indexer.q != nullptr;
  TESSERA_CHECK(!selects || (weights.q_latent != nullptr && scratch.selection != nullptr));

  ops::ConstMatrix q_in = in;
  if (weights.q_latent != nullptr) {
    backend.linear(stream, {.in = in, .weight = weights.q_latent, .out = scratch.q_latent});
    rms_norm(context, weights.q_latent_norm, scratch.q_latent);
    q_in = scratch.q_latent;
  }
  backend.linear(stream, {.in = q_in, .weight = weights.q, .out = scratch.q});
  // The rotated part of a head is its end: seen from there, it is the beginning of a head of the same size.
  ops::Matrix rotated = scratch.q;
  rotated.data = scratch.q.f32() + mla.qk_nope_head_dim;
  rotate(context, shape, rotated, mla.heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim);

  backend.linear(stream, {.in = in, .weight = weights.kv, .out = scratch.kv});
  rms_norm(context, weights.kv_norm, columns_of(scratch.kv, 0, mla.kv_lora_rank));
  rotate(context, shape, columns_of(scratch.kv, mla.kv_lora_rank, mla.qk_rope_head_dim), 1, mla.qk_rope_head_dim);

  if (selects) index_keys(context, shape, weights.indexer, in, scratch.index_k);
  backend.kv_write(stream, {.slots = batch.slots,
                            .parts = {scratch.kv, selects ? ops::ConstMatrix(scratch.index_k) : ops::ConstMatrix()},
                            .cache = batch.cache,
                            .layer = layer,
                            .nonfinite_rows = batch.nonfinite_rows});
  if (selects) select(context, layer, shape, weights.indexer, in, scratch);
  backend.mla_attention(stream, {.q = scratch.q,
                                 .cu_seqlens_q = batch.cu_seqlens_q,
                                 .forms = forms,
                                 .pages = batch.pages,
                                 .cache = batch.cache,
                                 .layer = layer,
                                 .up = weights.up,
                                 .softmax_scale = shape.softmax_scale,
                                 .selection = scratch.selection,
                                 .out = scratch.context,
                                 .scratch = scratch.attention});
  backend.linear(stream, {.in = scratch.context, .weight = weights.o, .out = residual, .mode = ops::OutputMode::kAdd});
}

}  // namespace tessera::models
