// Paged attention: what one thread takes at a time.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

std::int64_t attention_scratch_floats(std::int64_t head_dim, std::int64_t group) {
  const std::int64_t padded = padded_head_dim(head_dim);
  return 2 * kTileTokens * padded + 2 * kTileTokens + group * kTileTokens + kQueryBlock * group * padded +
         2 * kQueryBlock * group * attention_state_floats(head_dim);
}

void SimdBackend::paged_attention(ops::Stream&, const ops::PagedAttentionParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  const std::int64_t page_size = params.cache.layout.page_size;
  const std::int64_t tokens_a_split = split_pages(page_size) * page_size;
  const std::int64_t group = params.heads / params.kv_heads;
  const std::int64_t state = attention_state_floats(params.head_dim);

  // Items that compute all their splits, before any is cut further.
  std::int64_t whole_items = 0;
  for (std::int64_t r = 0; r < params.pages.rows(); ++r) {
    const std::int64_t q_len = params.cu_seqlens_q[r + 1] - params.cu_seqlens_q[r];
    whole_items += base::ceil_div(q_len, kQueryBlock) * params.kv_heads;
  }
  const bool cut_splits = threads_.threads() > 1 && whole_items < std::int64_t{4} * threads_.threads();

  std::vector<AttentionTask> tasks;
  // Rows whose splits are computed apart, and where their partial states begin: [heads, splits, state].
  struct Cut {
    std::int64_t row;
    std::int64_t splits;
    std::int64_t offset;
  };
  std::vector<Cut> cuts;
  std::int64_t partial_floats = 0;
  for (std::int64_t r = 0; r < params.pages.rows(); ++r) {
    const std::int64_t begin = params.cu_seqlens_q[r];
    const std::int64_t q_len = params.cu_seqlens_q[r + 1] - begin;
    const std::int64_t kv_len = params.pages.kv_lens()[r];
    if (kv_len == 0) {
      for (std::int64_t i = begin; i < begin + q_len; ++i) {
        std::fill_n(params.out.f32() + i * params.out.row_stride, params.out.cols, 0.0f);
      }
      continue;
    }
    TESSERA_CHECK(kv_len >= q_len, fmt::format("row {}: {} queries over {} tokens of KV", r, q_len, kv_len));
    const std::int64_t splits = base::ceil_div(kv_len, tokens_a_split);
    AttentionTask task;
    task.params = &params;
    task.row = r;
    if (cut_splits && q_len == 1 && splits > 1) {
      for (task.kv_head = 0; task.kv_head < params.kv_heads; ++task.kv_head) {
        for (std::int64_t split = 0; split < splits; ++split) {
          task.query_end = 1;
          task.split_begin = split;
          task.split_end = split + 1;
          tasks.push_back(task);
        }
      }
      cuts.push_back({r, splits, partial_floats});
      partial_floats += params.heads * splits * state;
      continue;
    }
    task.split_end = splits;
    for (std::int64_t first = 0; first < q_len; first += kQueryBlock) {
      task.query_begin = static_cast<std::int32_t>(first);
      task.query_end = static_cast<std::int32_t>(std::min(first + kQueryBlock, q_len));
      for (task.kv_head = 0; task.kv_head < params.kv_heads; ++task.kv_head) tasks.push_back(task);
    }
  }

  const ScratchPool::Loan partials = scratch_.borrow(partial_floats * static_cast<std::int64_t>(sizeof(float)));
  const auto partial_of = [&](const Cut& cut, std::int64_t kv_head, std::int64_t split) {
    return partials.as<float>() + cut.offset + (kv_head * cut.splits + split) * group * state;
  };
  // The tasks of the rows in `cuts` are those of one split, in the same order of rows.
  std::size_t next_cut = 0;
  for (AttentionTask& task : tasks) {
    while (next_cut < cuts.size() && cuts[next_cut].row < task.row) ++next_cut;
    if (next_cut < cuts.size() && cuts[next_cut].row == task.row) {
      task.partial = partial_of(cuts[next_cut], task.kv_head, task.split_begin);
    }
  }
  const std::int64_t scratch_bytes =
      attention_scratch_floats(params.head_dim, group) * static_cast<std::int64_t>(sizeof(float));
  threads_.parallel_for(std::ssize(tasks), 1, [&](std::int64_t begin, std::int64_t end) {
    const ScratchPool::Loan loan = scratch_.borrow(scratch_bytes);
    for (std::int64_t i = begin; i < end; ++i) {
      AttentionTask task = tasks[static_cast<std::size_t>(i)];
      task.scratch = loan.as<float>();
      kernels_.attention(task);
    }
  });
  for (const Cut& cut : cuts) {
    for (std::int64_t h = 0; h < params.heads; ++h) {
      float* out = params.out.f32() + params.cu_seqlens_q[cut.row] * params.out.row_stride + h * params.head_dim;
      kernels_.attention_merge(partial_of(cut, h / group, 0) + h % group * state, cut.splits, group * state,
                               params.head_dim, out);
    }
  }
}

}  // namespace tessera::backends::cpu::simd
