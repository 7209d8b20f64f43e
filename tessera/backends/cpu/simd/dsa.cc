// The indexer's selection: scores of a few tokens at a time, then the largest of each.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
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

// Tokens whose scores are in memory at the same time.
constexpr std::int64_t kTokensTogether = 64;
// Keys of one task.
constexpr std::int64_t kKeysATask = 1024;

// Whose integer order is the order of scores; they hold neither NaN nor -0.
std::uint32_t ordered(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Writes the positions of the `width` largest scores, ascending; equal ones go to the lower position. The smallest
// score that is selected is found digit by digit, from the highest on.
void select_largest(std::span<const float> scores, std::int64_t width, std::int32_t* positions) {
  constexpr std::uint32_t kDigitBits = 11;
  std::array<std::int64_t, 1 << kDigitBits> counts{};
  std::uint32_t prefix = 0;      // Of the smallest score that is selected, in its upper bits.
  std::int64_t wanted = width;   // Scores that are selected among those with this prefix.
  std::uint32_t undecided = 32;  // Lower bits.
  while (undecided > 0) {
    const std::uint32_t digit_bits = std::min(undecided, kDigitBits);
    const std::uint32_t shift = undecided - digit_bits;
    counts.fill(0);
    for (const float score : scores) {
      const std::uint32_t value = ordered(score);
      // A shift by all 32 bits is none.
      const bool matches = undecided == 32 || value >> undecided == prefix;
      if (matches) ++counts[value >> shift & ((1u << digit_bits) - 1)];
    }
    std::uint32_t digit = (1u << digit_bits) - 1;
    for (; counts[digit] < wanted; --digit) wanted -= counts[digit];
    prefix = prefix << digit_bits | digit;
    undecided = shift;
  }
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const std::uint32_t value = ordered(scores[j]);
    if (value < prefix || (value == prefix && wanted == 0)) continue;
    if (value == prefix) --wanted;
    *positions++ = static_cast<std::int32_t>(j);
  }
}

// One token that has more positions than it may select.
struct Choice {
  std::int64_t row = 0;
  std::int64_t token = 0;
  std::int64_t position = 0;
};

}  // namespace

std::int64_t SimdBackend::dsa_select_scratch_bytes(std::int32_t index_n_heads, std::int32_t index_head_dim,
                                                   std::int64_t tokens, std::int64_t context_tokens_max) const {
  const std::int64_t scores = std::min(tokens, kTokensTogether) * base::round_up(context_tokens_max, kIndexKeys);
  return (scores + threads_.threads() * index_score_scratch_floats(index_n_heads, index_head_dim)) * kFloatBytes;
}

void SimdBackend::dsa_select(ops::Stream&, const ops::DsaSelectParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  TESSERA_CHECK(params.q.rows == 0 || params.scratch != nullptr);
  const std::int64_t width = params.selection.width;
  std::vector<Choice> choices;
  for (std::int64_t r = 0; r < params.pages.rows(); ++r) {
    const std::int64_t begin = params.cu_seqlens_q[r];
    const std::int64_t end = params.cu_seqlens_q[r + 1];
    const std::int64_t kv_len = params.pages.kv_lens()[r];
    TESSERA_CHECK(kv_len == 0 || kv_len >= end - begin,
                  fmt::format("row {}: {} queries over {} tokens of KV", r, end - begin, kv_len));
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t seen = kv_len == 0 ? 0 : kv_len - end + t + 1;
      const std::int64_t count = std::min(seen, width);
      params.selection.counts[t] = static_cast<std::int32_t>(count);
      if (seen > width) {
        choices.push_back({r, t, seen - 1});
      } else {
        std::iota(params.selection.positions + t * width, params.selection.positions + t * width + count, 0);
      }
    }
  }

  auto* const scores = reinterpret_cast<float*>(params.scratch);
  std::vector<IndexScoreTask> tasks;
  for (std::span<const Choice> left = choices; !left.empty();) {
    const auto together = left.first(std::min(left.size(), static_cast<std::size_t>(kTokensTogether)));
    left = left.subspan(together.size());
    std::int64_t stride = 0;
    for (const Choice& choice : together) {
      stride = std::max(stride, base::round_up(choice.position + 1, kIndexKeys));
    }
    tasks.clear();
    for (std::size_t i = 0; i < together.size();) {
      // Neighbours of one row share its keys.
      std::size_t end = i + 1;
      while (end < together.size() && end < i + kIndexTokens && together[end].row == together[i].row) ++end;
      IndexScoreTask task;
      task.params = &params;
      task.row = together[i].row;
      task.token_begin = together[i].token;
      task.token_end = together[end - 1].token + 1;
      task.first_position = together[i].position;
      task.scores = scores + static_cast<std::int64_t>(i) * stride;
      task.score_stride = stride;
      const std::int64_t keys = together[end - 1].position + 1;
      for (task.key_begin = 0; task.key_begin < keys; task.key_begin += kKeysATask) {
        task.key_end = std::min(task.key_begin + kKeysATask, keys);
        tasks.push_back(task);
      }
      i = end;
    }
    float* threads = scores + std::ssize(together) * stride;
    const std::int64_t thread_floats = index_score_scratch_floats(params.index_n_heads, params.index_head_dim);
    for_each_task(threads_, std::ssize(tasks), [&](std::int64_t i, std::int64_t slot) {
      IndexScoreTask task = tasks[static_cast<std::size_t>(i)];
      task.scratch = threads + slot * thread_floats;
      kernels_.index_scores(task);
    });
    threads_.parallel_for(std::ssize(together), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Choice& choice = together[static_cast<std::size_t>(i)];
        select_largest({scores + i * stride, static_cast<std::size_t>(choice.position + 1)}, width,
                       params.selection.positions + choice.token * width);
      }
    });
  }
}

}  // namespace tessera::backends::cpu::simd
