// KV write and paged attention, as ops/transformer.h writes them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tessera/backends/cpu/reference/double_dot.h"
#include "tessera/backends/cpu/reference/kv_row.h"
#include "tessera/backends/cpu/reference/page_rows.h"
#include "tessera/backends/cpu/reference/reference_ops.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

namespace {

// Keys or values of one KV head of one row, positions 0 .. kv_len - 1, as dense floats [kv_len, head_dim].
void read_head(const ops::PagedAttentionParams& params, std::int64_t row, int part, std::int32_t kv_head,
               std::vector<float>& out) {
  const ops::KvLayout& layout = params.cache.layout;
  const std::int32_t* table = params.pages.table() + row * params.pages.max_pages_per_row();
  const std::int64_t kv_len = params.pages.kv_lens()[row];
  out.resize(static_cast<std::size_t>(kv_len * params.head_dim));
  for (std::int64_t j = 0; j < kv_len; ++j) {
    const PageRows<std::byte> page = rows_in_cache(params.cache, params.layer, table[j / layout.page_size]);
    const std::int64_t slot = j % layout.page_size;
    decode_kv_row(layout.format, layout.parts[part], page.data[part] + slot * layout.row_bytes(part),
                  page.scales[part] + slot * layout.row_scale_bytes(part),
                  static_cast<std::int64_t>(kv_head) * params.head_dim, params.head_dim,
                  out.data() + j * params.head_dim);
  }
}

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

void ReferenceBackend::kv_write(ops::Stream&, const ops::KvWriteParams& params) {
  ops::check_params(params);
  const ops::KvLayout& layout = params.cache.layout;
  const std::int64_t page_size = layout.page_size;
  const std::vector<float> zeros(
      static_cast<std::size_t>(std::max(layout.parts[ops::kPartK].elements, layout.parts[ops::kPartV].elements)));
  for (std::int64_t t = 0; t < params.slots.tokens(); ++t) {
    const std::int64_t slot = params.slots.slots()[t];
    if (slot == ops::kNullSlot) continue;
    TESSERA_CHECK(slot >= page_size && slot < params.cache.num_pages * page_size, fmt::format("slot {}", slot));
    const float* rows[2] = {params.k.f32() + t * params.k.row_stride, params.v.f32() + t * params.v.row_stride};
    if (!kv_row_is_storable(layout.format, rows[ops::kPartK], params.k.cols) ||
        !kv_row_is_storable(layout.format, rows[ops::kPartV], params.v.cols)) {
      params.nonfinite_rows[t] = 1;
      rows[ops::kPartK] = zeros.data();
      rows[ops::kPartV] = zeros.data();
    }
    const PageRows<std::byte> page = rows_in_cache(params.cache, params.layer, slot / page_size);
    for (int p = 0; p < layout.num_parts; ++p) {
      encode_kv_row(layout.format, layout.parts[p], rows[p], page.data[p] + slot % page_size * layout.row_bytes(p),
                    page.scales[p] + slot % page_size * layout.row_scale_bytes(p));
    }
  }
}

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
      read_head(params, r, ops::kPartK, kv_head, k);
      read_head(params, r, ops::kPartV, kv_head, v);
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
