// The indexer's selection, as ops/mla.h writes it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tessera/backends/cpu/reference/double_dot.h"
#include "tessera/backends/cpu/reference/page_rows.h"
#include "tessera/backends/cpu/reference/reference_ops.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

namespace {

// One token's score of one key.
double index_score(const ops::DsaSelectParams& params, const float* q, const float* weights, const float* key) {
  double score = 0.0;
  for (std::int32_t h = 0; h < params.index_n_heads; ++h) {
    const double product = static_cast<double>(params.softmax_scale) *
                           double_dot(q + std::int64_t{h} * params.index_head_dim, key, params.index_head_dim);
    // NaN stays NaN.
    score += static_cast<double>(weights[h]) * (product < 0.0 ? 0.0 : product);
  }
  return std::isnan(score) ? -std::numeric_limits<double>::infinity() : score;
}

}  // namespace

void ReferenceBackend::dsa_select(ops::Stream&, const ops::DsaSelectParams& params) {
  ops::check_params(params);
  const std::int64_t head_dim = params.index_head_dim;
  const std::int64_t width = params.selection.width;
  std::vector<float> keys;
  std::vector<double> scores;
  std::vector<std::int32_t> order;
  for (std::int64_t r = 0; r < params.pages.rows(); ++r) {
    const std::int64_t begin = params.cu_seqlens_q[r];
    const std::int64_t q_len = params.cu_seqlens_q[r + 1] - begin;
    const std::int64_t kv_len = params.pages.kv_lens()[r];
    if (kv_len == 0) {
      std::fill_n(params.selection.counts + begin, q_len, 0);
      continue;
    }
    TESSERA_CHECK(kv_len >= q_len, fmt::format("row {}: {} queries over {} tokens of KV", r, q_len, kv_len));
    read_tokens(params.cache, params.layer, ops::kPartIndexKeys, params.pages, r, 0, head_dim, keys);
    for (std::int64_t i = 0; i < q_len; ++i) {
      const std::int64_t t = begin + i;
      const std::int64_t seen = kv_len - q_len + i + 1;
      const std::int64_t count = std::min(seen, width);
      order.resize(static_cast<std::size_t>(seen));
      std::iota(order.begin(), order.end(), 0);
      if (seen > width) {
        scores.resize(static_cast<std::size_t>(seen));
        for (std::int64_t j = 0; j < seen; ++j) {
          scores[j] = index_score(params, params.q.f32() + t * params.q.row_stride,
                                  params.weights.f32() + t * params.weights.row_stride, keys.data() + j * head_dim);
        }
        std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](std::int32_t a, std::int32_t b) {
          return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
        });
        std::sort(order.begin(), order.begin() + count);
      }
      std::copy_n(order.begin(), count, params.selection.positions + t * width);
      params.selection.counts[t] = static_cast<std::int32_t>(count);
    }
  }
}

}  // namespace tessera::backends::cpu
