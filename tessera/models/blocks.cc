#include "tessera/models/blocks.h"

#include <cmath>

#include "tessera/base/check.h"

namespace tessera::models {

namespace {

// `count` rows from `begin`.
ops::ConstMatrix rows_of(const ops::ConstMatrix& m, std::int64_t begin, std::int64_t count) {
  return ops::ConstMatrix(m.f32() + begin * m.row_stride, m.dtype, count, m.cols, m.row_stride);
}

// RMS norm of every head of every token: as many rows as there are heads. Nothing where there is no weight.
void norm_heads(const BlockContext& context, const GqaShape& shape, const ops::Weight* weight, ops::Matrix x) {
  if (weight == nullptr) return;
  TESSERA_CHECK(x.row_stride == x.cols, "heads follow each other without gaps");
  const ops::Matrix heads = ops::f32_matrix(x.f32(), x.rows * (x.cols / shape.head_dim), shape.head_dim);
  context.backend.rms_norm(context.stream,
                           {.in = heads, .weight = weight, .epsilon = shape.norm_epsilon, .out = heads});
}

}  // namespace

void gqa_attention(const BlockContext& context, std::int32_t layer, const GqaShape& shape, const GqaWeights& weights,
                   ops::ConstMatrix in, const GqaScratch& scratch, ops::Matrix residual) {
  const auto& [backend, stream, batch] = context;
  backend.linear(stream, {.in = in, .weight = weights.q, .bias = weights.q_bias, .out = scratch.q});
  backend.linear(stream, {.in = in, .weight = weights.k, .bias = weights.k_bias, .out = scratch.k});
  backend.linear(stream, {.in = in, .weight = weights.v, .bias = weights.v_bias, .out = scratch.v});
  norm_heads(context, shape, weights.q_norm, scratch.q);
  norm_heads(context, shape, weights.k_norm, scratch.k);

  ops::RopeParams rope;
  rope.positions = batch.positions;
  rope.inverse_frequencies = shape.inverse_frequencies;
  rope.head_dim = shape.head_dim;
  rope.rotary_dim = shape.rotary_dim;
  rope.style = shape.rope_style;
  rope.magnitude = shape.rope_magnitude;
  rope.x = scratch.q;
  rope.heads = shape.heads;
  backend.rope(stream, rope);
  rope.x = scratch.k;
  rope.heads = shape.kv_heads;
  backend.rope(stream, rope);

  backend.kv_write(stream, {.slots = batch.slots,
                            .parts = {scratch.k, scratch.v, ops::ConstMatrix{}},
                            .cache = batch.cache,
                            .layer = layer,
                            .nonfinite_rows = batch.nonfinite_rows});
  backend.paged_attention(stream, {.q = scratch.q,
                                   .cu_seqlens_q = batch.cu_seqlens_q,
                                   .pages = batch.pages,
                                   .cache = batch.cache,
                                   .layer = layer,
                                   .heads = shape.heads,
                                   .kv_heads = shape.kv_heads,
                                   .head_dim = shape.head_dim,
                                   .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                                   .out = scratch.context});
  backend.linear(stream, {.in = scratch.context, .weight = weights.o, .out = residual, .mode = ops::OutputMode::kAdd});
}

void swiglu_mlp(const BlockContext& context, const SwigluWeights& weights, ops::ConstMatrix in,
                const SwigluScratch& scratch, ops::Matrix residual) {
  const auto& [backend, stream, batch] = context;
  backend.linear(stream, {.in = in, .weight = weights.gate, .out = scratch.gate});
  backend.linear(stream, {.in = in, .weight = weights.up, .out = scratch.up});
  backend.swiglu(stream, {.gate = scratch.gate, .up = scratch.up, .out = scratch.gate});
  backend.linear(stream, {.in = scratch.gate, .weight = weights.down, .out = residual, .mode = ops::OutputMode::kAdd});
}

void moe_mlp(const BlockContext& context, const MoeShape& shape, const MoeWeights& weights, ops::ConstMatrix in,
             const MoeScratch& scratch, ops::Matrix residual) {
  const auto& [backend, stream, batch] = context;
  backend.linear(stream, {.in = in, .weight = weights.router, .out = scratch.router_logits});
  backend.moe_route(stream, {.logits = scratch.router_logits,
                             .correction_bias = weights.correction_bias,
                             .n_group = shape.n_group,
                             .topk_group = shape.topk_group,
                             .num_experts_per_tok = shape.num_experts_per_tok,
                             .norm_topk_prob = shape.norm_topk_prob,
                             .routed_scaling_factor = shape.routed_scaling_factor,
                             .expert_ids = scratch.expert_ids,
                             .expert_weights = scratch.expert_weights});
  backend.moe_experts(stream, {.in = in,
                               .experts = weights.experts,
                               .num_experts_per_tok = shape.num_experts_per_tok,
                               .expert_ids = scratch.expert_ids,
                               .expert_weights = scratch.expert_weights,
                               .out = residual,
                               .scratch = scratch.experts});
  if (weights.shared.gate != nullptr) swiglu_mlp(context, weights.shared, in, scratch.shared, residual);
}

void write_logits(const BlockContext& context, const ops::Weight& norm, float epsilon, const ops::Weight& head,
                  ops::ConstMatrix residual, ops::Matrix scratch, ops::Matrix logits) {
  const auto& [backend, stream, batch] = context;
  const std::span<const std::int32_t> tokens = batch.logit_tokens;
  const std::int64_t count = std::ssize(tokens);
  if (count == 0) return;
  // Norming a run of neighbouring rows into consecutive rows of the scratch gathers them without a copy: one call for a
  // decode batch, one for each sequence of a prefill batch.
  for (std::int64_t begin = 0; begin < count;) {
    std::int64_t end = begin + 1;
    while (end < count && tokens[end] == tokens[end - 1] + 1) ++end;
    TESSERA_CHECK(tokens[begin] >= 0 && tokens[end - 1] < residual.rows, "logit_tokens are indices into the batch");
    TESSERA_CHECK(end == count || tokens[end] > tokens[end - 1], "logit_tokens are ascending");
    const ops::Matrix out{scratch.f32() + begin * scratch.row_stride, scratch.dtype, end - begin, scratch.cols,
                          scratch.row_stride};
    backend.rms_norm(
        stream, {.in = rows_of(residual, tokens[begin], end - begin), .weight = &norm, .epsilon = epsilon, .out = out});
    begin = end;
  }
  backend.linear(stream, {.in = first_rows(scratch, count), .weight = &head, .out = logits});
}

}  // namespace tessera::models
