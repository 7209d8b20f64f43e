// Latent attention: how its two forms are cut for the threads, and where their working memory lies.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/backends/cpu/simd/task_slots.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

namespace {

constexpr auto kFloatBytes = static_cast<std::int64_t>(sizeof(float));

// Bytes of partial states at most: with more tokens than that, heads are cut instead of contexts.
constexpr std::int64_t kPartialBytesMax = 64 << 20;
// Heads that share a widened tile, at least, where heads are cut.
constexpr std::int64_t kHeadsATaskMin = 8;
// Bytes of scores that a task of the expanded form keeps over a selection, at most (but for one query's).
constexpr std::int64_t kSelectedScoreBytes = 4 << 20;

std::int64_t splits_of(std::int64_t places) { return base::ceil_div(places, kMlaSplit); }

// Queries of one task of the expanded form, whose queries select at most `places` positions each (0: all).
std::int64_t expanded_queries(std::int64_t queries, std::int64_t places) {
  const std::int64_t most = std::min(queries, kMlaExpandedQueries);
  if (places == 0) return most;
  const std::int64_t score_bytes = base::round_up(places, kMlaExpandedRun) * kFloatBytes;
  return std::clamp<std::int64_t>(kSelectedScoreBytes / score_bytes, 1, std::max<std::int64_t>(most, 1));
}

// Floats that one thread needs in the expanded form, whatever the batch and the selections.
std::int64_t expanded_floats_max(const ops::MlaShape& shape, std::int64_t tokens, std::int64_t context_tokens_max) {
  const std::int64_t queries = expanded_queries(tokens, 0);
  const std::int64_t of_one = base::round_up(context_tokens_max, kMlaExpandedRun);
  // Scores over selections, and a decay for each of their runs.
  const std::int64_t scores = std::min(queries * of_one, std::max(kSelectedScoreBytes / kFloatBytes, of_one));
  return mla_expand_scratch_floats(shape, queries, 0) + scores + padded_floats(scores / kMlaExpandedRun);
}

// The absorbed form's memory, in floats: queries, states, partial states, then each thread's own.
struct AbsorbedMemory {
  std::int64_t queries = 0;  // Of one token.
  std::int64_t states = 0;   // Of one token (or one split of it).
  std::int64_t thread = 0;
  explicit AbsorbedMemory(const ops::MlaShape& shape)
      : queries(shape.heads * mla_row_floats(shape)),
        states(shape.heads * mla_state_floats(shape)),
        thread(std::max(mla_up_scratch_floats(shape), mla_attend_scratch_floats(shape))) {}
  // Whether `tokens` tokens of `splits` splits in all are cut into their splits.
  bool cuts(std::int64_t tokens, std::int64_t splits, std::int64_t wanted_tasks) const {
    return tokens < wanted_tasks && splits > tokens && splits * states * kFloatBytes <= kPartialBytesMax;
  }
};

// How many positions each token is left of its selection. Positions must ascend: so they are no more than the context.
std::vector<std::int64_t> seen_places(const ops::MlaAttentionParams& params) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(params.q.rows));
  const ops::TokenSelection& selection = *params.selection;
  for (std::int64_t r = 0; r < params.pages.rows(); ++r) {
    const std::int64_t kv_len = params.pages.kv_lens()[r];
    if (kv_len == 0) continue;
    const std::int64_t end = params.cu_seqlens_q[r + 1];
    for (std::int64_t t = params.cu_seqlens_q[r]; t < end; ++t) {
      const std::int32_t count = selection.counts[t];
      TESSERA_CHECK(count >= 0 && count <= selection.width, fmt::format("{} of {} selected", count, selection.width));
      const std::int32_t* positions = selection.positions + t * selection.width;
      const std::int64_t own = kv_len - end + t;
      std::int64_t seen = 0;
      for (std::int32_t i = 0; i < count; ++i) {
        TESSERA_CHECK(positions[i] >= 0 && (i == 0 || positions[i] > positions[i - 1]),
                      fmt::format("selected position {} is not ascending", positions[i]));
        if (positions[i] <= own) ++seen;
      }
      places[static_cast<std::size_t>(t)] = seen;
    }
  }
  return places;
}

}  // namespace

std::int64_t SimdBackend::mla_attention_scratch_bytes(const ops::MlaShape& shape, std::int64_t tokens,
                                                      std::int64_t context_tokens_max) const {
  const AbsorbedMemory memory(shape);
  const std::int64_t cut_tokens = std::min({tokens, kMlaQueries, wanted_tasks() - 1});
  const std::int64_t partials =
      std::min(kPartialBytesMax / kFloatBytes, cut_tokens * splits_of(context_tokens_max) * memory.states);
  const std::int64_t absorbed = std::min(tokens, kMlaQueries) * (memory.queries + memory.states) +
                                base::round_up(partials, 16) + threads_.threads() * memory.thread;
  const std::int64_t expanded = expanded_floats_max(shape, tokens, context_tokens_max);
  return std::max(absorbed, threads_.threads() * expanded) * kFloatBytes;
}

void SimdBackend::mla_attention(ops::Stream&, const ops::MlaAttentionParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  TESSERA_CHECK(params.q.rows == 0 || params.scratch != nullptr);
  const std::vector<std::int64_t> places =
      params.selection == nullptr ? std::vector<std::int64_t>() : seen_places(params);
  std::vector<MlaToken> absorbed;
  std::vector<std::int64_t> expanded;
  for (std::int64_t r = 0; r < params.pages.rows(); ++r) {
    const std::int64_t begin = params.cu_seqlens_q[r];
    const std::int64_t end = params.cu_seqlens_q[r + 1];
    const std::int64_t kv_len = params.pages.kv_lens()[r];
    TESSERA_CHECK(kv_len == 0 || kv_len >= end - begin,
                  fmt::format("row {}: {} queries over {} tokens of KV", r, end - begin, kv_len));
    const bool expands = params.forms[r] == ops::MlaForm::kExpanded;
    if (expands && kv_len > 0 && end > begin) expanded.push_back(r);
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t seen =
          params.selection == nullptr ? kv_len - end + t + 1 : places[static_cast<std::size_t>(t)];
      if (kv_len == 0 || seen == 0) {
        std::fill_n(params.out.f32() + t * params.out.row_stride, params.out.cols, 0.0f);
      } else if (!expands) {
        const std::int32_t* positions =
            params.selection == nullptr ? nullptr : params.selection->positions + t * params.selection->width;
        absorbed.push_back({r, t, positions, seen});
      }
    }
  }
  for (std::span<const MlaToken> left = absorbed; !left.empty();) {
    const std::size_t count = std::min(left.size(), static_cast<std::size_t>(kMlaQueries));
    mla_absorbed(params, left.first(count));
    left = left.subspan(count);
  }
  if (!expanded.empty()) mla_expanded(params, expanded, places.empty() ? nullptr : places.data());
}

void SimdBackend::mla_absorbed(const ops::MlaAttentionParams& params, std::span<const MlaToken> tokens) {
  const ops::MlaShape& shape = params.up->shape;
  const AbsorbedMemory memory(shape);
  const std::int64_t count = std::ssize(tokens);
  std::vector<std::int64_t> token_rows;
  std::int64_t splits = 0;
  for (const MlaToken& token : tokens) {
    token_rows.push_back(token.token);
    splits += splits_of(token.places);
  }
  const bool cut = memory.cuts(count, splits, wanted_tasks());
  auto* queries = reinterpret_cast<float*>(params.scratch);
  float* states = queries + count * memory.queries;
  float* partials = states + count * memory.states;
  float* threads = partials + (cut ? splits * memory.states : 0);

  MlaUpTask up;
  up.params = &params;
  up.tokens = token_rows.data();
  up.count = count;
  up.queries = queries;
  up.states = states;
  for_each_task(threads_, shape.heads, [&](std::int64_t head, std::int64_t slot) {
    MlaUpTask task = up;
    task.head = static_cast<std::int32_t>(head);
    task.scratch = threads + slot * memory.thread;
    kernels_.mla_absorb(task);
  });

  // Nothing of this plan changes a result.
  const std::int64_t units = cut ? splits : count;
  const std::int64_t blocks = std::clamp<std::int64_t>(base::ceil_div(wanted_tasks(), units), 1,
                                                       std::max<std::int64_t>(shape.heads / kHeadsATaskMin, 1));
  std::vector<MlaAttendTask> tasks;
  std::vector<float*> partials_of;  // Of each token.
  for (std::int64_t i = 0; i < count; ++i) {
    MlaAttendTask task;
    task.params = &params;
    task.token = tokens[static_cast<std::size_t>(i)];
    task.queries = queries + i * memory.queries;
    task.states = states + i * memory.states;
    partials_of.push_back(partials);
    const std::int64_t of_token = splits_of(task.token.places);
    const std::int64_t splits_a_task = cut ? 1 : of_token;
    for (task.split_begin = 0; task.split_begin < of_token; task.split_begin = task.split_end) {
      task.split_end = task.split_begin + splits_a_task;
      if (cut) {
        task.partial = partials;
        partials += memory.states;
      }
      for (std::int64_t block = 0; block < blocks; ++block) {
        task.head_begin = static_cast<std::int32_t>(shape.heads * block / blocks);
        task.head_end = static_cast<std::int32_t>(shape.heads * (block + 1) / blocks);
        tasks.push_back(task);
      }
    }
  }
  for_each_task(threads_, std::ssize(tasks), [&](std::int64_t i, std::int64_t slot) {
    MlaAttendTask task = tasks[static_cast<std::size_t>(i)];
    task.scratch = threads + slot * memory.thread;
    kernels_.mla_attend(task);
  });
  const std::int64_t state = mla_state_floats(shape);
  if (cut) {
    threads_.parallel_for(count * shape.heads, kHeadsATaskMin, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto token = static_cast<std::size_t>(i / shape.heads);
        kernels_.mla_merge(partials_of[token] + i % shape.heads * state, splits_of(tokens[token].places), memory.states,
                           shape.kv_lora_rank, states + i * state);
      }
    });
  }

  for_each_task(threads_, shape.heads, [&](std::int64_t head, std::int64_t slot) {
    MlaUpTask task = up;
    task.head = static_cast<std::int32_t>(head);
    task.scratch = threads + slot * memory.thread;
    kernels_.mla_values(task);
  });
}

void SimdBackend::mla_expanded(const ops::MlaAttentionParams& params, std::span<const std::int64_t> rows,
                               const std::int64_t* places) {
  const ops::MlaShape& shape = params.up->shape;
  std::vector<MlaExpandTask> tasks;
  std::int64_t thread_floats = 0;
  for (const std::int64_t r : rows) {
    MlaExpandTask task;
    task.params = &params;
    task.row = r;
    task.places = places;
    const std::int64_t begin = params.cu_seqlens_q[r];
    const std::int64_t q_len = params.cu_seqlens_q[r + 1] - begin;
    if (places != nullptr) task.places_max = *std::max_element(places + begin, places + begin + q_len);
    if (places != nullptr && task.places_max == 0) continue;
    const std::int64_t queries = expanded_queries(q_len, task.places_max);
    thread_floats = std::max(thread_floats, mla_expand_scratch_floats(shape, queries, task.places_max));
    for (task.query_begin = 0; task.query_begin < q_len; task.query_begin += queries) {
      task.query_end = std::min(task.query_begin + queries, q_len);
      for (task.head = 0; task.head < shape.heads; ++task.head) tasks.push_back(task);
    }
  }
  for_each_task(threads_, std::ssize(tasks), [&](std::int64_t i, std::int64_t slot) {
    MlaExpandTask task = tasks[static_cast<std::size_t>(i)];
    task.scratch = reinterpret_cast<float*>(params.scratch) + slot * thread_floats;
    kernels_.mla_expand(task);
  });
}

}  // namespace tessera::backends::cpu::simd
