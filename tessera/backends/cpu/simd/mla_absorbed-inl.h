// Latent attention in the absorbed form: queries go into latent space, all heads attend to the same latents, and the
// summed latents come out through the values' rows of the up projection.
#pragma once

#include "tessera/backends/cpu/simd/mla-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::backends::cpu::simd {
namespace {  // NOLINT(google-build-namespaces)

inline constexpr float kOnes[kMlaQueries] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                             1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// queries[c][head] = [sum over d of q[d] * W_k[d] | rope part of q].
void mla_absorb(const MlaUpTask& task) {
  const ops::MlaAttentionParams& p = *task.params;
  const ops::MlaShape& shape = p.up->shape;
  const std::int64_t nope = shape.qk_nope_head_dim;
  const std::int64_t rope = shape.qk_rope_head_dim;
  const std::int64_t padded_rank = padded_floats(shape.kv_lora_rank);
  const std::int64_t width = mla_row_floats(shape);
  const std::int64_t stride = shape.heads * width;
  const std::int64_t packed = padded_floats(nope);
  const std::int64_t first_row = task.head * (nope + shape.v_head_dim);
  float* weights = task.scratch;
  float* factors = weights + mla_weight_floats(shape);
  float* queries = task.queries + task.head * width;
  for (std::int64_t c = 0; c < task.count; ++c) {
    const float* q = p.q.f32() + task.tokens[c] * p.q.row_stride + task.head * (nope + rope);
    float* to = queries + c * stride;
    std::memcpy(factors + c * packed, q, static_cast<std::size_t>(nope) * sizeof(float));
    clear_padding(to, 0, padded_rank);
    std::memcpy(to + padded_rank, q + nope, static_cast<std::size_t>(rope) * sizeof(float));
    clear_padding(to, padded_rank + rope, width);
  }
  for (std::int64_t row = 0; row < nope; row += kMlaWeightRows) {
    load_weight_rows(p.up->weight, first_row + row, first_row + nope, padded_rank, weights);
    const std::int64_t count = nope - row < kMlaWeightRows ? nope - row : kMlaWeightRows;
    weighted_sums(factors + row, packed, task.count, weights, padded_rank, count, padded_rank, kOnes, queries, stride);
  }
}

// out[c][head][d] = W_v[d] . states[c][head].
void mla_values(const MlaUpTask& task) {
  const ops::MlaAttentionParams& p = *task.params;
  const ops::MlaShape& shape = p.up->shape;
  const std::int64_t dim = shape.v_head_dim;
  const std::int64_t padded_rank = padded_floats(shape.kv_lora_rank);
  const std::int64_t state = mla_state_floats(shape);
  const std::int64_t end = (task.head + 1) * (shape.qk_nope_head_dim + dim);
  const float* sums = task.states + task.head * state + kStateValues;
  float* weights = task.scratch;
  alignas(64) float values[kMlaQueries * kMlaWeightRows];
  for (std::int64_t row = 0; row < dim; row += kMlaWeightRows) {
    load_weight_rows(p.up->weight, end - dim + row, end, padded_rank, weights);
    products(sums, shape.heads * state, task.count, weights, padded_rank, kMlaWeightRows, padded_rank, values,
             kMlaWeightRows);
    const std::int64_t count = dim - row < kMlaWeightRows ? dim - row : kMlaWeightRows;
    for (std::int64_t c = 0; c < task.count; ++c) {
      float* out = p.out.f32() + task.tokens[c] * p.out.row_stride + task.head * dim + row;
      std::memcpy(out, values + c * kMlaWeightRows, static_cast<std::size_t>(count) * sizeof(float));
    }
  }
}

HWY_INLINE void divide_by_sum(float* state, std::int64_t padded) {
  const F32 d;
  const V sum = hn::Set(d, state[kStateSum]);
  for (std::int64_t i = kStateValues; i < kStateValues + padded; i += kLanes) {
    hn::StoreU(hn::Div(hn::LoadU(d, state + i), sum), d, state + i);
  }
}

void mla_attend(const MlaAttendTask& task) {
  const ops::MlaAttentionParams& p = *task.params;
  const ops::MlaShape& shape = p.up->shape;
  const std::int64_t heads = task.head_end - task.head_begin;
  const std::int64_t width = mla_row_floats(shape);
  const std::int64_t state = mla_state_floats(shape);
  const std::int64_t padded_rank = padded_floats(shape.kv_lora_rank);
  float* tile = task.scratch;
  float* scores = tile + kMlaRun * width;
  float* decays = scores + heads * kMlaRun;
  float* split_states =
      task.partial != nullptr ? task.partial + task.head_begin * state : decays + padded_floats(heads);
  float* states = task.states + task.head_begin * state;
  const float* queries = task.queries + task.head_begin * width;
  if (task.partial == nullptr) {
    for (std::int64_t h = 0; h < heads; ++h) clear_state(states + h * state, padded_rank);
  }
  for (std::int64_t split = task.split_begin; split < task.split_end; ++split) {
    const std::int64_t split_end =
        (split + 1) * kMlaSplit < task.token.places ? (split + 1) * kMlaSplit : task.token.places;
    for (std::int64_t h = 0; h < heads; ++h) clear_state(split_states + h * state, padded_rank);
    for (std::int64_t first = split * kMlaSplit; first < split_end; first += kMlaRun) {
      const std::int64_t count = split_end - first < kMlaRun ? split_end - first : kMlaRun;
      load_latents(p, task.token.row, task.token.positions, first, count, tile);
      products(queries, width, heads, tile, width, count, width, scores, kMlaRun);
      for (std::int64_t h = 0; h < heads; ++h) {
        decays[h] = soften(scores + h * kMlaRun, count, p.softmax_scale, split_states + h * state);
      }
      weighted_sums(scores, kMlaRun, heads, tile, width, count, padded_rank, decays, split_states + kStateValues,
                    state);
    }
    if (task.partial != nullptr) return;
    for (std::int64_t h = 0; h < heads; ++h) merge_state(states + h * state, split_states + h * state, padded_rank);
  }
  for (std::int64_t h = 0; h < heads; ++h) divide_by_sum(states + h * state, padded_rank);
}

void mla_merge(const float* partials, std::int64_t splits, std::int64_t stride, std::int64_t rank, float* state) {
  const std::int64_t padded = padded_floats(rank);
  clear_state(state, padded);
  for (std::int64_t i = 0; i < splits; ++i) merge_state(state, partials + i * stride, padded);
  divide_by_sum(state, padded);
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
