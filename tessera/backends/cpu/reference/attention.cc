// Paged attention with grouped queries, as ops/transformer.h writes it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tessera/backends/cpu/reference/double_dot.h"
#include "tessera/backends/cpu/reference/page_rows.h"
#include "tessera/backends/cpu/reference/reference_ops.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

namespace {

// One query of one head over keys and values 0 .. keys - 1.
void attend(const float* q, const float* k, const float* v, std::int64_t keys, std::int64_t head_dim, double scale,
            std::vector<double>& weights, std::vector<double>& sums, float* out) {
  weights.resize(static_cast<std::size_t>(keys));
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = 0; j < keys; ++j) {
    weights[j] = scale * double_dot(q, k + j * head_dim, head_dim);
    largest = std::max(largest, weights[j]);
  }
  double total = 0.0;
  sums.assign(static_cast<std::size_t>(head_dim), 0.0);
  for (std::int64_t j = 0; j < keys; ++j) {
    const double weight = std::exp(weights[j] - largest);
    total += weight;
    for (std::int64_t d = 0; d < head_dim; ++d) sums[d] += weight * static_cast<double>(v[j * head_dim + d]);
  }
  for (std::int64_t d = 0; d < head_dim; ++d) out[d] = static_cast<float>(sums[d] / total);
}

}  // namespace

void ReferenceBackend::paged_attention(ops::Stream&, const ops::PagedAttentionParams& params) {
  ops::check_params(params);
  const std::int64_t head_dim = params.head_dim;
  const std::int32_t group = params.heads / params.kv_heads;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<double> weights;
  std::vector<double> sums;
  for (std::int64_t r = 0; r < params.pages.rows(); ++r) {
    const std::int64_t begin = params.cu_seqlens_q[r];
    const std::int64_t q_len = params.cu_seqlens_q[r + 1] - begin;
    const std::int64_t kv_len = params.pages.kv_lens()[r];
    if (kv_len == 0) {
      for (std::int64_t i = 0; i < q_len; ++i) {
        std::fill_n(params.out.f32() + (begin + i) * params.out.row_stride, params.out.cols, 0.0f);
      }
      continue;
    }
    TESSERA_CHECK(kv_len >= q_len, fmt::format("row {}: {} queries over {} tokens of KV", r, q_len, kv_len));
    for (std::int32_t kv_head = 0; q_len > 0 && kv_head < params.kv_heads; ++kv_head) {
      const std::int64_t first = kv_head * head_dim;
      read_tokens(params.cache, params.layer, ops::kPartK, params.pages, r, first, head_dim, k);
      read_tokens(params.cache, params.layer, ops::kPartV, params.pages, r, first, head_dim, v);
      for (std::int64_t i = 0; i < q_len; ++i) {
        for (std::int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          attend(params.q.f32() + (begin + i) * params.q.row_stride + h * head_dim, k.data(), v.data(),
                 kv_len - q_len + i + 1, head_dim, params.softmax_scale, weights, sums,
                 params.out.f32() + (begin + i) * params.out.row_stride + h * head_dim);
        }
      }
    }
  }
}

}  // namespace tessera::backends::cpu
