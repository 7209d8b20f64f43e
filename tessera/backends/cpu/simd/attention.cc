// Paged attention: what one thread takes at a time.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

namespace {

// A task of few queries takes KV heads side by side, so that it reads memory in long pieces, as far as their widened
// tile stays in the second cache.
constexpr std::int64_t kTileBytesMax = 64 << 10;
constexpr std::int64_t kQueriesOfWideTasks = 2;

}  // namespace

void SimdBackend::paged_attention(ops::Stream&, const ops::PagedAttentionParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  const std::int64_t tokens_a_split = split_pages(params.cache.layout.page_size) * params.cache.layout.page_size;
  const std::int64_t group = params.heads / params.kv_heads;
  const std::int64_t state = attention_state_floats(params.head_dim);
  const std::int64_t tile_bytes =
      2 * kTileTokens * padded_head_dim(params.head_dim) * static_cast<std::int64_t>(sizeof(float));

  // Rows of one query may be cut into their splits. Nothing of this plan changes a result.
  const auto splits_of = [&](std::int64_t row) { return base::ceil_div(params.pages.kv_lens()[row], tokens_a_split); };
  std::int64_t query_blocks = 0;
  std::int64_t splits = 0;
  for (std::int64_t r = 0; r < params.pages.rows(); ++r) {
    const std::int64_t q_len = params.cu_seqlens_q[r + 1] - params.cu_seqlens_q[r];
    query_blocks += base::ceil_div(q_len, kQueryBlock);
    splits += q_len == 1 ? splits_of(r) : 0;
  }
  // Twice as many tasks as threads even out their different lengths.
  const std::int64_t wanted = threads_.threads() == 1 ? 1 : 2 * threads_.threads();
  const bool cut_splits = query_blocks < wanted && splits > query_blocks;
  const std::int64_t heads_by_tasks =
      params.kv_heads * std::max<std::int64_t>(cut_splits ? splits : query_blocks, 1) / wanted;
  const std::int64_t wide =
      std::clamp<std::int64_t>(std::min(kTileBytesMax / tile_bytes, heads_by_tasks), 1, params.kv_heads);

  std::vector<AttentionTask> tasks;
  // Rows whose splits are computed apart, and where their partial states begin: [splits, heads, state].
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
    AttentionTask task;
    task.params = &params;
    task.row = r;
    const std::int64_t heads = q_len <= kQueriesOfWideTasks ? wide : 1;
    const bool cut = cut_splits && q_len == 1 && splits_of(r) > 1;
    if (cut) {
      cuts.push_back({r, splits_of(r), partial_floats});
      partial_floats += cuts.back().splits * params.heads * state;
    }
    const std::int64_t splits_a_task = cut ? 1 : splits_of(r);
    for (task.split_begin = 0; task.split_begin < splits_of(r); task.split_begin += splits_a_task) {
      task.split_end = task.split_begin + splits_a_task;
      for (task.query_begin = 0; task.query_begin < q_len; task.query_begin += kQueryBlock) {
        task.query_end = std::min(task.query_begin + kQueryBlock, q_len);
        for (task.kv_head_begin = 0; task.kv_head_begin < params.kv_heads; task.kv_head_begin += heads) {
          task.kv_head_end = std::min<std::int64_t>(task.kv_head_begin + heads, params.kv_heads);
          tasks.push_back(task);
        }
      }
    }
  }

  const ScratchPool::Loan partials = scratch_.borrow(partial_floats * static_cast<std::int64_t>(sizeof(float)));
  const auto partial_of = [&](const Cut& cut, std::int64_t split, std::int64_t head) {
    return partials.as<float>() + cut.offset + (split * params.heads + head) * state;
  };
  std::size_t next_cut = 0;  // Tasks and cuts are both in order of rows.
  for (AttentionTask& task : tasks) {
    while (next_cut < cuts.size() && cuts[next_cut].row < task.row) ++next_cut;
    if (next_cut < cuts.size() && cuts[next_cut].row == task.row) {
      task.partial = partial_of(cuts[next_cut], task.split_begin, task.kv_head_begin * group);
    }
  }
  const std::int64_t scratch_floats =
      std::max(attention_scratch_floats(params.head_dim, group, 1, kQueryBlock),
               attention_scratch_floats(params.head_dim, group, wide, kQueriesOfWideTasks));
  threads_.parallel_for(std::ssize(tasks), 1, [&](std::int64_t begin, std::int64_t end) {
    const ScratchPool::Loan loan = scratch_.borrow(scratch_floats * static_cast<std::int64_t>(sizeof(float)));
    for (std::int64_t i = begin; i < end; ++i) {
      AttentionTask task = tasks[static_cast<std::size_t>(i)];
      task.scratch = loan.as<float>();
      kernels_.attention(task);
    }
  });
  for (const Cut& cut : cuts) {
    for (std::int64_t h = 0; h < params.heads; ++h) {
      float* out = params.out.f32() + params.cu_seqlens_q[cut.row] * params.out.row_stride + h * params.head_dim;
      kernels_.attention_merge(partial_of(cut, 0, h), cut.splits, params.heads * state, params.head_dim, out);
    }
  }
}

}  // namespace tessera::backends::cpu::simd
