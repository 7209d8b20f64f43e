// Paged attention of one task (kernels.h). For each tile of at most kTileTokens keys of one page, keys and values are
// widened once to F32 in scratch that fits the first caches; then each query of the task, with all heads of a group at
// once, takes the keys that it may see. What a query computes does not depend on the other queries or heads: a chunk of
// a prompt gives bit for bit what its tokens give one by one.
#pragma once

#include "tessera/backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::backends::cpu::simd {
namespace {  // NOLINT(google-build-namespaces)

// Heads whose accumulators (one for each of 4 tokens, or of 4 vectors of the values) fit the registers together.
inline constexpr int kHeadBlock = kLanes == 8 ? 3 : 4;

// State of one query and head: maximum, sum, then values, in attention_state_floats.
inline constexpr std::int64_t kStateMaximum = 0;
inline constexpr std::int64_t kStateSum = 1;
inline constexpr std::int64_t kStateValues = 16;

HWY_INLINE void clear_state(float* state, std::int64_t padded) {
  state[kStateMaximum] = -__builtin_huge_valf();
  state[kStateSum] = 0.0f;
  for (std::int64_t i = 0; i < padded; i += kLanes) hn::StoreU(zero(), F32(), state + kStateValues + i);
}

// Adds the state of a later split.
HWY_INLINE void merge_state(float* total, const float* split, std::int64_t padded) {
  const F32 d;
  const float maximum = total[kStateMaximum] > split[kStateMaximum] ? total[kStateMaximum] : split[kStateMaximum];
  const float a = exp_scalar(total[kStateMaximum] - maximum);
  const float b = exp_scalar(split[kStateMaximum] - maximum);
  total[kStateMaximum] = maximum;
  // Contracted by hand: every copy of this function must round alike.
  total[kStateSum] = __builtin_fmaf(total[kStateSum], a, split[kStateSum] * b);
  const V va = hn::Set(d, a);
  const V vb = hn::Set(d, b);
  for (std::int64_t i = kStateValues; i < kStateValues + padded; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, total + i), va, hn::Mul(hn::LoadU(d, split + i), vb)), d, total + i);
  }
}

HWY_INLINE void write_result(const float* state, std::int64_t head_dim, float* out) {
  const F32 d;
  const float sum = state[kStateSum];
  const V divisor = hn::Set(d, sum);
  std::int64_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) {
    hn::StoreU(hn::Div(hn::LoadU(d, state + kStateValues + i), divisor), d, out + i);
  }
  for (; i < head_dim; ++i) out[i] = state[kStateValues + i] / sum;
}

// Working memory of a task, see attention_scratch_floats. Arrays of states and queries are [kv head][query][group].
struct AttentionScratch {
  float* keys;          // [kv heads, kTileTokens, padded]
  float* values;        // [kv heads, kTileTokens, padded]
  float* key_scales;    // [kv heads, kTileTokens]: what a score is multiplied by.
  float* value_scales;  // [kv heads, kTileTokens]
  float* scores;        // [group, kTileTokens]
  float* queries;       // rows of padded
  float* split;         // rows of a state
  float* total;         // rows of a state
};

HWY_INLINE AttentionScratch carve_scratch(float* base, std::int64_t head_dim, std::int64_t group, std::int64_t kv_heads,
                                          std::int64_t queries) {
  const std::int64_t padded = padded_head_dim(head_dim);
  const std::int64_t rows = kv_heads * queries * group;
  AttentionScratch s;
  s.keys = base;
  s.values = s.keys + kv_heads * kTileTokens * padded;
  s.key_scales = s.values + kv_heads * kTileTokens * padded;
  s.value_scales = s.key_scales + kv_heads * kTileTokens;
  s.scores = s.value_scales + kv_heads * kTileTokens;
  s.queries = s.scores + group * kTileTokens;
  s.split = s.queries + rows * padded;
  s.total = s.split + rows * attention_state_floats(head_dim);
  return s;
}

// Widens `elements` numbers and pads the row with zeros.
HWY_INLINE void widen_bf16(const std::uint16_t* in, std::int64_t elements, std::int64_t padded, float* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) hn::StoreU(load_bf16(in + i), F32(), out + i);
  if (i == padded) return;
  std::uint16_t last[kLanes] = {};
  std::memcpy(last, in + i, static_cast<std::size_t>(elements - i) * 2);
  hn::StoreU(load_bf16(last), F32(), out + i);
  for (i += kLanes; i < padded; i += kLanes) hn::StoreU(zero(), F32(), out + i);
}
HWY_INLINE void widen_f8(const std::uint8_t* in, std::int64_t elements, std::int64_t padded, float* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) hn::StoreU(load_f8_unscaled(in + i), F32(), out + i);
  if (i == padded) return;
  std::uint8_t last[kLanes] = {};
  std::memcpy(last, in + i, static_cast<std::size_t>(elements - i));
  hn::StoreU(load_f8_unscaled(last), F32(), out + i);
  for (i += kLanes; i < padded; i += kLanes) hn::StoreU(zero(), F32(), out + i);
}

// Tokens of one page.
struct Tile {
  std::int64_t page = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Brings a tile into scratch. The task's heads lie side by side in a row, so that memory is read in long pieces.
HWY_INLINE void load_tile(const AttentionTask& task, const Tile& tile, std::int64_t padded, const AttentionScratch& s) {
  const ops::PagedAttentionParams& p = *task.params;
  const std::int64_t dim = p.head_dim;
  const std::int64_t row = p.kv_heads * dim;
  const std::int64_t kv_heads = task.kv_head_end - task.kv_head_begin;
  const std::int64_t first = tile.first * row + task.kv_head_begin * dim;
  const std::byte* k = p.cache.page_data(p.layer, ops::kPartK, tile.page);
  const std::byte* v = p.cache.page_data(p.layer, ops::kPartV, tile.page);
  if (p.cache.layout.format == ops::KvFormat::kBF16) {
    const auto* k16 = reinterpret_cast<const std::uint16_t*>(k) + first;
    const auto* v16 = reinterpret_cast<const std::uint16_t*>(v) + first;
    for (std::int64_t t = 0; t < tile.count; ++t) {
      for (std::int64_t h = 0; h < kv_heads; ++h) {
        const std::int64_t to = h * kTileTokens + t;
        widen_bf16(k16 + t * row + h * dim, dim, padded, s.keys + to * padded);
        widen_bf16(v16 + t * row + h * dim, dim, padded, s.values + to * padded);
        s.key_scales[to] = p.softmax_scale;
      }
    }
    return;
  }
  const auto* k8 = reinterpret_cast<const std::uint8_t*>(k) + first;
  const auto* v8 = reinterpret_cast<const std::uint8_t*>(v) + first;
  const auto* ks = reinterpret_cast<const std::uint16_t*>(p.cache.page_scales(p.layer, ops::kPartK, tile.page));
  const auto* vs = reinterpret_cast<const std::uint16_t*>(p.cache.page_scales(p.layer, ops::kPartV, tile.page));
  for (std::int64_t t = 0; t < tile.count; ++t) {
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      const std::int64_t to = h * kTileTokens + t;
      widen_f8(k8 + t * row + h * dim, dim, padded, s.keys + to * padded);
      widen_f8(v8 + t * row + h * dim, dim, padded, s.values + to * padded);
      const std::int64_t scale = (tile.first + t) * p.kv_heads + task.kv_head_begin + h;
      s.key_scales[to] = base::to_float(base::BF16{ks[scale]}) * kF8Unscale * p.softmax_scale;
      s.value_scales[to] = base::to_float(base::BF16{vs[scale]}) * kF8Unscale;
    }
  }
}

// The sums over lanes of four vectors.
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> sums_of_four(V a, V b, V c, V e) {
  const F32 d;
  const hn::Repartition<double, F32> d64;
  const V ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const V ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto x = hn::BitCast(d64, ab);
  const auto y = hn::BitCast(d64, ce);
  const V sum = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, x, y)), hn::BitCast(d, hn::InterleaveUpper(d64, x, y)));
#if HWY_TARGET == HWY_AVX2
  const hn::Half<F32> half;
  return hn::Add(hn::LowerHalf(half, sum), hn::UpperHalf(half, sum));
#else
  const hn::Half<F32> half;
  const hn::Half<decltype(half)> quarter;
  const auto folded = hn::Add(hn::LowerHalf(half, sum), hn::UpperHalf(half, sum));
  return hn::Add(hn::LowerHalf(quarter, folded), hn::UpperHalf(quarter, folded));
#endif
}

// scores[h][t] = q[h] . keys[t] for kHeads heads and all tokens below count; up to three scores past it are junk.
template <int kHeads>
HWY_INLINE void score_heads(const float* queries, const AttentionScratch& s, std::int64_t count, std::int64_t padded,
                            float* scores) {
  const F32 d;
  const hn::FixedTag<float, 4> d4;
  for (std::int64_t t = 0; t < count; t += 4) {
    const float* keys = s.keys + t * padded;
    V acc[kHeads][4];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) acc[h][j] = zero();
    }
    for (std::int64_t i = 0; i < padded; i += kLanes) {
      V q[kHeads];
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) q[h] = hn::LoadU(d, queries + h * padded + i);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const V k = hn::LoadU(d, keys + j * padded + i);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) acc[h][j] = hn::MulAdd(q[h], k, acc[h][j]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      hn::StoreU(sums_of_four(acc[h][0], acc[h][1], acc[h][2], acc[h][3]), d4, scores + h * kTileTokens + t);
    }
  }
}

// values[h] = values[h] * decay[h] + sum over t of weights[h][t] * v[t], for kVectors vectors from element i on.
template <int kHeads, int kVectors>
HWY_INLINE void accumulate_values(const AttentionScratch& s, std::int64_t count, std::int64_t padded, std::int64_t i,
                                  const float* weights, const float* decay, float* state, std::int64_t state_stride) {
  const F32 d;
  V acc[kHeads][kVectors];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    const V a = hn::Set(d, decay[h]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      acc[h][j] = hn::Mul(a, hn::LoadU(d, state + h * state_stride + kStateValues + i + j * kLanes));
    }
  }
  const float* v = s.values + i;
  for (std::int64_t t = 0; t < count; ++t, v += padded) {
    V x[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) x[j] = hn::LoadU(d, v + j * kLanes);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const V w = hn::Set(d, weights[h * kTileTokens + t]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) acc[h][j] = hn::MulAdd(w, x[j], acc[h][j]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      hn::StoreU(acc[h][j], d, state + h * state_stride + kStateValues + i + j * kLanes);
    }
  }
}

// Turns scores [0, count) into softmax weights and updates maximum and sum; returns what the values decay by.
HWY_INLINE float soften_scores(float* scores, const AttentionScratch& s, std::int64_t count, bool has_value_scales,
                               float* state) {
  const F32 d;
  const std::int64_t end = (count + kLanes - 1) / kLanes * kLanes;
  for (std::int64_t t = count; t < end; ++t) scores[t] = -__builtin_huge_valf();
  V largest = hn::Set(d, state[kStateMaximum]);
  for (std::int64_t t = 0; t < end; t += kLanes) {
    V x = hn::LoadU(d, scores + t);
    if (t + kLanes <= count) {
      x = hn::Mul(x, hn::LoadU(d, s.key_scales + t));
    } else {
      x = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(count - t)), hn::Mul(x, hn::LoadU(d, s.key_scales + t)),
                         x);
    }
    hn::StoreU(x, d, scores + t);
    largest = hn::Max(largest, x);
  }
  const float maximum = max_of(largest);
  const float decay = exp_scalar(state[kStateMaximum] - maximum);
  const V shift = hn::Set(d, maximum);
  V sum = zero();
  for (std::int64_t t = 0; t < end; t += kLanes) {
    V p = exp_of(hn::Sub(hn::LoadU(d, scores + t), shift));
    sum = hn::Add(sum, p);
    if (has_value_scales) p = hn::Mul(p, hn::LoadU(d, s.value_scales + t));
    hn::StoreU(p, d, scores + t);
  }
  state[kStateMaximum] = maximum;
  state[kStateSum] = state[kStateSum] * decay + sum_of(sum);
  return decay;
}

// One query, kHeads heads, the first `count` tokens of the tile.
template <int kHeads>
HWY_INLINE void attend_heads(const float* queries, const AttentionScratch& s, std::int64_t count, std::int64_t padded,
                             bool has_value_scales, float* state, std::int64_t state_stride) {
  score_heads<kHeads>(queries, s, count, padded, s.scores);
  float decay[kHeads];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    decay[h] = soften_scores(s.scores + h * kTileTokens, s, count, has_value_scales, state + h * state_stride);
  }
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= padded; i += 4 * kLanes) {
    accumulate_values<kHeads, 4>(s, count, padded, i, s.scores, decay, state, state_stride);
  }
  for (; i < padded; i += kLanes) {
    accumulate_values<kHeads, 1>(s, count, padded, i, s.scores, decay, state, state_stride);
  }
}

HWY_INLINE void attend(const float* queries, const AttentionScratch& s, std::int64_t count, std::int64_t group,
                       std::int64_t padded, bool has_value_scales, float* state, std::int64_t state_stride) {
  std::int64_t h = 0;
  for (; h + kHeadBlock <= group; h += kHeadBlock) {
    attend_heads<kHeadBlock>(queries + h * padded, s, count, padded, has_value_scales, state + h * state_stride,
                             state_stride);
  }
  if (group - h >= 2) {
    attend_heads<2>(queries + h * padded, s, count, padded, has_value_scales, state + h * state_stride, state_stride);
    h += 2;
  }
  if (group - h == 1) {
    attend_heads<1>(queries + h * padded, s, count, padded, has_value_scales, state + h * state_stride, state_stride);
  }
}

void attention(const AttentionTask& task) {
  const ops::PagedAttentionParams& p = *task.params;
  const std::int64_t dim = p.head_dim;
  const std::int64_t padded = padded_head_dim(dim);
  const std::int64_t state = attention_state_floats(dim);
  const std::int64_t group = p.heads / p.kv_heads;
  const std::int64_t page_size = p.cache.layout.page_size;
  const bool has_value_scales = p.cache.layout.part_has_scales(ops::kPartV);
  const std::int64_t queries = task.query_end - task.query_begin;
  const std::int64_t kv_heads = task.kv_head_end - task.kv_head_begin;
  const std::int64_t states = kv_heads * queries * group;
  const AttentionScratch s = carve_scratch(task.scratch, dim, group, kv_heads, queries);

  const std::int64_t first_token = p.cu_seqlens_q[static_cast<std::size_t>(task.row)];
  const std::int64_t q_len = p.cu_seqlens_q[static_cast<std::size_t>(task.row) + 1] - first_token;
  const std::int64_t kv_len = p.pages.kv_lens()[task.row];
  const std::int32_t* table = p.pages.table() + task.row * p.pages.max_pages_per_row();
  const std::int64_t first_position = kv_len - q_len + task.query_begin;  // Of the task's first query.
  const std::int64_t positions_end = first_position + queries;            // Keys below it are seen by some query.
  // Where query i of head h of the task's KV head g lies in q and out.
  const auto offset_of = [&](std::int64_t g, std::int64_t i, std::int64_t h, std::int64_t stride) HWY_ATTR {
    return (first_token + task.query_begin + i) * stride + ((task.kv_head_begin + g) * group + h) * dim;
  };

  for (std::int64_t g = 0; g < kv_heads; ++g) {
    for (std::int64_t i = 0; i < queries; ++i) {
      for (std::int64_t h = 0; h < group; ++h) {
        float* to = s.queries + ((g * queries + i) * group + h) * padded;
        std::memcpy(to, p.q.f32() + offset_of(g, i, h, p.q.row_stride), static_cast<std::size_t>(dim) * sizeof(float));
        for (std::int64_t x = dim; x < padded; ++x) to[x] = 0.0f;
      }
    }
  }
  for (std::int64_t i = 0; i < states; ++i) clear_state(s.total + i * state, padded);

  const std::int64_t pages_a_split = split_pages(page_size);
  for (std::int64_t split = task.split_begin; split < task.split_end; ++split) {
    const std::int64_t split_start = split * pages_a_split * page_size;
    if (split_start >= positions_end) break;
    for (std::int64_t i = 0; i < states; ++i) clear_state(s.split + i * state, padded);
    for (std::int64_t page = split * pages_a_split; page < (split + 1) * pages_a_split; ++page) {
      for (std::int64_t offset = 0; offset < page_size; offset += kTileTokens) {
        const std::int64_t tile_start = page * page_size + offset;
        if (tile_start >= positions_end) break;
        Tile tile{table[page], offset, page_size - offset < kTileTokens ? page_size - offset : kTileTokens};
        if (tile.count > positions_end - tile_start) tile.count = positions_end - tile_start;
        load_tile(task, tile, padded, s);
        for (std::int64_t g = 0; g < kv_heads; ++g) {
          AttentionScratch head = s;
          head.keys += g * kTileTokens * padded;
          head.values += g * kTileTokens * padded;
          head.key_scales += g * kTileTokens;
          head.value_scales += g * kTileTokens;
          for (std::int64_t i = 0; i < queries; ++i) {
            const std::int64_t seen = first_position + i + 1 - tile_start;
            if (seen <= 0) continue;
            const std::int64_t at = (g * queries + i) * group;
            attend(s.queries + at * padded, head, seen < tile.count ? seen : tile.count, group, padded,
                   has_value_scales, s.split + at * state, state);
          }
        }
      }
    }
    if (task.partial != nullptr) {
      std::memcpy(task.partial, s.split, static_cast<std::size_t>(states * state) * sizeof(float));
      return;
    }
    for (std::int64_t i = 0; i < states; ++i) {
      if (first_position + i / group % queries < split_start) continue;
      merge_state(s.total + i * state, s.split + i * state, padded);
    }
  }
  for (std::int64_t g = 0; g < kv_heads; ++g) {
    for (std::int64_t i = 0; i < queries; ++i) {
      for (std::int64_t h = 0; h < group; ++h) {
        write_result(s.total + ((g * queries + i) * group + h) * state, dim,
                     p.out.f32() + offset_of(g, i, h, p.out.row_stride));
      }
    }
  }
}

// The largest total that attention_merge keeps on the stack.
inline constexpr std::int64_t kMergeHeadDimMax = 1024;

void attention_merge(const float* partials, std::int64_t splits, std::int64_t stride, std::int64_t head_dim,
                     float* out) {
  alignas(64) float total[attention_state_floats(kMergeHeadDimMax)];
  const std::int64_t padded = padded_head_dim(head_dim);
  clear_state(total, padded);
  for (std::int64_t i = 0; i < splits; ++i) merge_state(total, partials + i * stride, padded);
  write_result(total, head_dim, out);
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
