// Multi-head latent attention in both of its forms, as ops/mla.h writes them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/double_dot.h"
#include "tessera/backends/cpu/reference/page_rows.h"
#include "tessera/backends/cpu/reference/reference_ops.h"
#include "tessera/backends/cpu/reference/weight_rows.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

namespace {

// What one head needs: its rows of the up projection, and in the expanded form its keys and values.
struct Head {
  std::vector<float> key_rows;    // [qk_nope_head_dim, kv_lora_rank]
  std::vector<float> value_rows;  // [v_head_dim, kv_lora_rank]
  std::vector<double> keys;       // [kv_len, qk_nope_head_dim]
  std::vector<double> values;     // [kv_len, v_head_dim]
};

// The stored rows of one sequence.
struct Latents {
  std::vector<float> rows;  // [kv_len, kv_lora_rank + qk_rope_head_dim]
  std::int64_t width = 0;
  std::int64_t kv_lora_rank = 0;
  const float* latent(std::int64_t position) const { return rows.data() + position * width; }
  const float* rope(std::int64_t position) const { return latent(position) + kv_lora_rank; }
};

void read_up_rows(const ops::MlaUpProjection& up, std::int32_t head, Head& out) {
  const ops::MlaShape& shape = up.shape;
  out.key_rows.clear();
  out.value_rows.clear();
  std::vector<float> scratch;
  const std::int64_t rows = shape.qk_nope_head_dim + shape.v_head_dim;
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* row = weight_row(up.weight, head * rows + i, scratch);
    std::vector<float>& to = i < shape.qk_nope_head_dim ? out.key_rows : out.value_rows;
    to.insert(to.end(), row, row + shape.kv_lora_rank);
  }
}

void expand(const ops::MlaShape& shape, const Latents& latents, std::int64_t kv_len, Head& head) {
  head.keys.resize(static_cast<std::size_t>(kv_len * shape.qk_nope_head_dim));
  head.values.resize(static_cast<std::size_t>(kv_len * shape.v_head_dim));
  const std::int64_t rank = shape.kv_lora_rank;
  for (std::int64_t j = 0; j < kv_len; ++j) {
    for (std::int64_t d = 0; d < shape.qk_nope_head_dim; ++d) {
      head.keys[j * shape.qk_nope_head_dim + d] = double_dot(latents.latent(j), head.key_rows.data() + d * rank, rank);
    }
    for (std::int64_t d = 0; d < shape.v_head_dim; ++d) {
      head.values[j * shape.v_head_dim + d] = double_dot(latents.latent(j), head.value_rows.data() + d * rank, rank);
    }
  }
}

// Turns scores into the weights of a softmax, and returns their total.
double soften(std::vector<double>& scores) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const double score : scores) largest = std::max(largest, score);
  double total = 0.0;
  for (double& score : scores) {
    score = std::exp(score - largest);
    total += score;
  }
  return total;
}

// sums[d] = sum_j weights[j] * rows[positions[j]][d] / total.
template <typename Row>
void weighted_mean(const std::vector<double>& weights, double total, const std::vector<std::int32_t>& positions,
                   std::int64_t width, Row row, std::vector<double>& sums) {
  sums.assign(static_cast<std::size_t>(width), 0.0);
  for (std::size_t j = 0; j < positions.size(); ++j) {
    const auto* values = row(positions[j]);
    for (std::int64_t d = 0; d < width; ++d) sums[d] += weights[j] * static_cast<double>(values[d]);
  }
  for (double& sum : sums) sum /= total;
}

// One query of one head: q = [nope | rope].
void attend_expanded(const ops::MlaShape& shape, const Head& head, const Latents& latents, const float* q,
                     const std::vector<std::int32_t>& positions, double scale, float* out) {
  const std::int64_t nope = shape.qk_nope_head_dim;
  std::vector<double> weights;
  weights.reserve(positions.size());
  for (const std::int32_t j : positions) {
    weights.push_back(scale * (double_dot(q, head.keys.data() + j * nope, nope) +
                               double_dot(q + nope, latents.rope(j), shape.qk_rope_head_dim)));
  }
  const double total = soften(weights);
  std::vector<double> sums;
  weighted_mean(
      weights, total, positions, shape.v_head_dim,
      [&](std::int32_t j) { return head.values.data() + std::int64_t{j} * shape.v_head_dim; }, sums);
  for (std::int64_t d = 0; d < shape.v_head_dim; ++d) out[d] = static_cast<float>(sums[d]);
}

void attend_absorbed(const ops::MlaShape& shape, const Head& head, const Latents& latents, const float* q,
                     const std::vector<std::int32_t>& positions, double scale, float* out) {
  const std::int64_t nope = shape.qk_nope_head_dim;
  const std::int64_t rank = shape.kv_lora_rank;
  std::vector<double> latent_query(static_cast<std::size_t>(rank), 0.0);
  for (std::int64_t d = 0; d < nope; ++d) {
    for (std::int64_t i = 0; i < rank; ++i) {
      latent_query[i] += static_cast<double>(q[d]) * static_cast<double>(head.key_rows[d * rank + i]);
    }
  }
  std::vector<double> weights;
  weights.reserve(positions.size());
  for (const std::int32_t j : positions) {
    weights.push_back(scale * (double_dot(latent_query.data(), latents.latent(j), rank) +
                               double_dot(q + nope, latents.rope(j), shape.qk_rope_head_dim)));
  }
  const double total = soften(weights);
  std::vector<double> sums;
  weighted_mean(weights, total, positions, rank, [&](std::int32_t j) { return latents.latent(j); }, sums);
  for (std::int64_t d = 0; d < shape.v_head_dim; ++d) {
    out[d] = static_cast<float>(double_dot(sums.data(), head.value_rows.data() + d * rank, rank));
  }
}

// What token t at `position` sees, ascending.
std::vector<std::int32_t> seen_positions(const ops::TokenSelection* selection, std::int64_t t, std::int64_t position) {
  std::vector<std::int32_t> positions;
  if (selection == nullptr) {
    for (std::int64_t j = 0; j <= position; ++j) positions.push_back(static_cast<std::int32_t>(j));
    return positions;
  }
  const std::int32_t count = selection->counts[t];
  TESSERA_CHECK(count >= 0 && count <= selection->width, fmt::format("{} of {} selected", count, selection->width));
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t j = selection->positions[t * selection->width + i];
    TESSERA_CHECK(j >= 0, fmt::format("selected position {}", j));
    if (j <= position) positions.push_back(j);
  }
  return positions;
}

}  // namespace

void ReferenceBackend::mla_attention(ops::Stream&, const ops::MlaAttentionParams& params) {
  ops::check_params(params);
  const ops::MlaShape& shape = params.up->shape;
  const std::int64_t query_width = shape.qk_nope_head_dim + shape.qk_rope_head_dim;
  Latents latents;
  latents.kv_lora_rank = shape.kv_lora_rank;
  latents.width = shape.kv_lora_rank + shape.qk_rope_head_dim;
  Head head;
  for (std::int64_t r = 0; r < params.pages.rows(); ++r) {
    const std::int64_t begin = params.cu_seqlens_q[r];
    const std::int64_t q_len = params.cu_seqlens_q[r + 1] - begin;
    const std::int64_t kv_len = params.pages.kv_lens()[r];
    for (std::int64_t i = 0; i < q_len; ++i) {
      std::fill_n(params.out.f32() + (begin + i) * params.out.row_stride, params.out.cols, 0.0f);
    }
    if (kv_len == 0 || q_len == 0) continue;
    TESSERA_CHECK(kv_len >= q_len, fmt::format("row {}: {} queries over {} tokens of KV", r, q_len, kv_len));
    read_tokens(params.cache, params.layer, ops::kPartLatent, params.pages, r, 0, latents.width, latents.rows);
    std::vector<std::vector<std::int32_t>> seen;
    seen.reserve(static_cast<std::size_t>(q_len));
    for (std::int64_t i = 0; i < q_len; ++i) {
      seen.push_back(seen_positions(params.selection, begin + i, kv_len - q_len + i));
    }
    const bool expanded = params.forms[r] == ops::MlaForm::kExpanded;
    for (std::int32_t h = 0; h < shape.heads; ++h) {
      read_up_rows(*params.up, h, head);
      if (expanded) expand(shape, latents, kv_len, head);
      for (std::int64_t i = 0; i < q_len; ++i) {
        if (seen[i].empty()) continue;
        const float* q = params.q.f32() + (begin + i) * params.q.row_stride + h * query_width;
        float* out = params.out.f32() + (begin + i) * params.out.row_stride + std::int64_t{h} * shape.v_head_dim;
        (expanded ? attend_expanded : attend_absorbed)(shape, head, latents, q, seen[i], params.softmax_scale, out);
      }
    }
  }
}

}  // namespace tessera::backends::cpu
