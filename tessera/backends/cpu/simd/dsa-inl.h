// The indexer's scores (mla_tasks.h). A key takes its heads in order, and each product its elements, whatever is
// computed beside it.
#pragma once

#include "tessera/backends/cpu/simd/mla-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::backends::cpu::simd {
namespace {  // NOLINT(google-build-namespaces)

// Scores of four keys.
HWY_INLINE void score_four(const float* q, std::int64_t heads, const float* head_weights, const float* const (&keys)[4],
                           std::int64_t padded, float scale, float* out) {
  const hn::FixedTag<float, 4> d4;
  alignas(16) float products_of_heads[kDotRows * 4];
  auto sum = hn::Zero(d4);
  for (std::int64_t h = 0; h < heads; h += kDotRows) {
    const std::int64_t rows = heads - h < kDotRows ? heads - h : kDotRows;
    dots_of_rows(rows, q + h * padded, padded, keys, padded, products_of_heads, 4);
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto x = hn::Mul(hn::Set(d4, scale), hn::Load(d4, products_of_heads + r * 4));
      // The instruction behind Max returns its second operand when either is NaN, so NaN passes.
      sum = hn::MulAdd(hn::Set(d4, head_weights[h + r]), hn::Max(hn::Zero(d4), x), sum);
    }
  }
  const auto lowest = hn::Set(d4, -__builtin_huge_valf());
  hn::StoreU(hn::IfThenElse(hn::IsNaN(sum), lowest, hn::Add(sum, hn::Zero(d4))), d4, out);
}

void index_scores(const IndexScoreTask& task) {
  const ops::DsaSelectParams& p = *task.params;
  const std::int64_t dim = p.index_head_dim;
  const std::int64_t heads = p.index_n_heads;
  const std::int64_t padded = padded_floats(dim);
  const std::int64_t tokens = task.token_end - task.token_begin;
  float* keys = task.scratch;
  float* q = keys + kIndexKeys * padded;
  for (std::int64_t i = 0; i < tokens; ++i) {
    const float* from = p.q.f32() + (task.token_begin + i) * p.q.row_stride;
    for (std::int64_t h = 0; h < heads; ++h) {
      float* to = q + (i * heads + h) * padded;
      std::memcpy(to, from + h * dim, static_cast<std::size_t>(dim) * sizeof(float));
      clear_padding(to, dim, padded);
    }
  }
  const std::int64_t page_size = p.cache.layout.page_size;
  const std::int32_t* table = p.pages.table() + task.row * p.pages.max_pages_per_row();
  const auto* data = reinterpret_cast<const std::uint8_t*>(p.cache.page_data(p.layer, ops::kPartIndexKeys, 0));
  const std::byte* scales = p.cache.page_scales(p.layer, ops::kPartIndexKeys, 0);
  for (std::int64_t start = task.key_begin; start < task.key_end; start += kIndexKeys) {
    const std::int64_t count = task.key_end - start < kIndexKeys ? task.key_end - start : kIndexKeys;
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t position = start + j;
      const std::int64_t slot = table[position / page_size] * page_size + position % page_size;
      widen_f8_scaled(data + slot * dim, load_any<float>(scales, slot), dim, padded, keys + j * padded);
    }
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t seen = task.first_position + i + 1 - start;
      const std::int64_t end = seen < count ? seen : count;
      const float* head_weights = p.weights.f32() + (task.token_begin + i) * p.weights.row_stride;
      for (std::int64_t j = 0; j < end; j += 4) {
        const float* at = keys + j * padded;
        const float* const four[4] = {at, at + padded, at + 2 * padded, at + 3 * padded};
        score_four(q + i * heads * padded, heads, head_weights, four, padded, p.softmax_scale,
                   task.scores + i * task.score_stride + start + j);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
