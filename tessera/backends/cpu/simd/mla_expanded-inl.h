// Latent attention in the expanded form: keys and values of one head are made from a run of latents, and all queries of
// the task attend to them.
//
// Dense, a run of positions is a tile, and one pass does it all. Over a selection the runs are of places, which lie
// scattered over the tiles; so a first pass over the tiles makes keys and scores, then each query's runs are softened
// in order, and a second pass makes values and adds them. Each score, weight and sum takes the same steps in the same
// order as in the dense pass, so a selection of every position gives the same bits.
#pragma once

#include "tessera/backends/cpu/simd/mla-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::backends::cpu::simd {
namespace {  // NOLINT(google-build-namespaces)

// Working memory of a task (mla_expand_scratch_floats), and what its steps share.
struct Expansion {
  const MlaExpandTask& task;
  const ops::MlaAttentionParams& p;
  const ops::MlaShape& shape;
  std::int64_t padded_rank = 0;
  std::int64_t row_floats = 0;    // Of a latent row.
  std::int64_t key_floats = 0;    // Of a key and of a query.
  std::int64_t value_floats = 0;  // Of a value.
  std::int64_t state_floats = 0;
  std::int64_t queries = 0;
  std::int64_t first_token = 0;     // Of the task's first query, in the batch.
  std::int64_t first_position = 0;  // Of the task's first query.
  std::int64_t first_row = 0;       // Of the head in the up projection.
  std::int64_t score_stride = 0;    // Of a query's scores.
  std::int64_t runs = 0;            // Of a query's decays.
  float* weights = nullptr;         // [kMlaWeightRows, padded_rank]
  float* latents = nullptr;         // [kMlaExpandedRun, row_floats]
  float* keys = nullptr;            // [kMlaExpandedRun, key_floats]
  float* values = nullptr;          // [kMlaExpandedRun, value_floats]
  float* q = nullptr;               // [queries, key_floats]
  float* states = nullptr;          // [queries, state_floats]
  float* decays = nullptr;          // [queries], or [queries, runs] over a selection.
  float* scores = nullptr;          // [queries, score_stride]
  std::int64_t* cursors = nullptr;  // [queries]: the first place that no tile has had yet.
};

HWY_INLINE Expansion make_expansion(const MlaExpandTask& task) {
  const ops::MlaAttentionParams& p = *task.params;
  const ops::MlaShape& shape = p.up->shape;
  const std::int64_t begin = p.cu_seqlens_q[static_cast<std::size_t>(task.row)];
  const std::int64_t q_len = p.cu_seqlens_q[static_cast<std::size_t>(task.row) + 1] - begin;
  Expansion e{.task = task, .p = p, .shape = shape};
  e.padded_rank = padded_floats(shape.kv_lora_rank);
  e.row_floats = mla_row_floats(shape);
  e.key_floats = mla_key_floats(shape);
  e.value_floats = padded_floats(shape.v_head_dim);
  e.state_floats = 16 + e.value_floats;
  e.queries = task.query_end - task.query_begin;
  e.first_token = begin + task.query_begin;
  e.first_position = p.pages.kv_lens()[task.row] - q_len + task.query_begin;
  e.first_row = task.head * (shape.qk_nope_head_dim + shape.v_head_dim);
  e.runs = task.places == nullptr ? 1 : (task.places_max + kMlaExpandedRun - 1) / kMlaExpandedRun;
  e.score_stride = e.runs * kMlaExpandedRun;
  e.weights = task.scratch;
  e.latents = e.weights + mla_weight_floats(shape);
  e.keys = e.latents + kMlaExpandedRun * e.row_floats;
  e.values = e.keys + kMlaExpandedRun * e.key_floats;
  e.q = e.values + kMlaExpandedRun * e.value_floats;
  e.states = e.q + e.queries * e.key_floats;
  e.scores = e.states + e.queries * e.state_floats;
  e.decays = e.scores + e.queries * e.score_stride;
  e.cursors = reinterpret_cast<std::int64_t*>(e.decays + padded_floats(e.queries * e.runs));
  return e;
}

HWY_INLINE void start_expansion(const Expansion& e) {
  const std::int64_t nope = e.shape.qk_nope_head_dim;
  const std::int64_t rope = e.shape.qk_rope_head_dim;
  const std::int64_t padded_nope = padded_floats(nope);
  // What no step writes is padding.
  clear_padding(e.keys, 0, kMlaExpandedRun * e.key_floats);
  clear_padding(e.values, 0, kMlaExpandedRun * e.value_floats);
  for (std::int64_t i = 0; i < e.queries; ++i) {
    const float* from = e.p.q.f32() + (e.first_token + i) * e.p.q.row_stride + e.task.head * (nope + rope);
    float* to = e.q + i * e.key_floats;
    std::memcpy(to, from, static_cast<std::size_t>(nope) * sizeof(float));
    clear_padding(to, nope, padded_nope);
    std::memcpy(to + padded_nope, from + nope, static_cast<std::size_t>(rope) * sizeof(float));
    clear_padding(to, padded_nope + rope, e.key_floats);
    clear_state(e.states + i * e.state_floats, e.value_floats);
  }
}

HWY_INLINE void finish_expansion(const Expansion& e) {
  const std::int64_t dim = e.shape.v_head_dim;
  for (std::int64_t i = 0; i < e.queries; ++i) {
    // A token that is left no position gives zeros, which its caller wrote.
    if (e.task.places != nullptr && e.task.places[e.first_token + i] == 0) continue;
    float* out = e.p.out.f32() + (e.first_token + i) * e.p.out.row_stride + e.task.head * dim;
    write_result(e.states + i * e.state_floats, dim, out);
  }
}

// to[j][d] = latents[j] . row first + d of the up projection, for d < rows.
HWY_INLINE void expand_rows(const Expansion& e, std::int64_t first, std::int64_t rows, std::int64_t count, float* to,
                            std::int64_t to_stride) {
  for (std::int64_t d = 0; d < rows; d += kMlaWeightRows) {
    load_weight_rows(e.p.up->weight, first + d, first + rows, e.padded_rank, e.weights);
    products(e.latents, e.row_floats, count, e.weights, e.padded_rank, kMlaWeightRows, e.padded_rank, to + d,
             to_stride);
  }
}
HWY_INLINE void expand_keys(const Expansion& e, std::int64_t count) {
  expand_rows(e, e.first_row, e.shape.qk_nope_head_dim, count, e.keys, e.key_floats);
  const std::int64_t padded_nope = padded_floats(e.shape.qk_nope_head_dim);
  for (std::int64_t j = 0; j < count; ++j) {
    std::memcpy(e.keys + j * e.key_floats + padded_nope, e.latents + j * e.row_floats + e.padded_rank,
                static_cast<std::size_t>(e.key_floats - padded_nope) * sizeof(float));
  }
}
HWY_INLINE void expand_values(const Expansion& e, std::int64_t count) {
  expand_rows(e, e.first_row + e.shape.qk_nope_head_dim, e.shape.v_head_dim, count, e.values, e.value_floats);
}

// Queries whose scores are computed before their values are added.
inline constexpr std::int64_t kQueriesTogether = 24;

void attend_dense(const Expansion& e) {
  const std::int64_t end = e.first_position + e.queries;
  for (std::int64_t start = 0; start < end; start += kMlaExpandedRun) {
    const std::int64_t count = end - start < kMlaExpandedRun ? end - start : kMlaExpandedRun;
    load_latents(e.p, e.task.row, nullptr, start, count, e.latents);
    expand_keys(e, count);
    expand_values(e, count);
    // The first query that sees a key of the tile, and the first that sees all.
    std::int64_t i = start > e.first_position ? start - e.first_position : 0;
    while (i < e.queries) {
      const std::int64_t seen = e.first_position + i + 1 - start;
      // Queries that see part of the tile go one by one: what lies behind them must not touch their sums.
      const bool partial = seen < count;
      std::int64_t rows = partial ? 1 : e.queries - i;
      if (rows > kQueriesTogether) rows = kQueriesTogether;
      const std::int64_t keys = partial ? seen : count;
      float* states = e.states + i * e.state_floats;
      products(e.q + i * e.key_floats, e.key_floats, rows, e.keys, e.key_floats, keys, e.key_floats, e.scores,
               kMlaExpandedRun);
      for (std::int64_t r = 0; r < rows; ++r) {
        e.decays[r] = soften(e.scores + r * kMlaExpandedRun, keys, e.p.softmax_scale, states + r * e.state_floats);
      }
      weighted_sums(e.scores, kMlaExpandedRun, rows, e.values, e.value_floats, keys, e.value_floats, e.decays,
                    states + kStateValues, e.state_floats);
      i += rows;
    }
  }
}

// state = state * decay + sum of weights[t] * value of position positions[t], as add_vectors does it.
template <int kVectors>
HWY_INLINE void add_selected_vectors(const float* weights, const std::int32_t* positions, std::int64_t start,
                                     std::int64_t count, const float* values, std::int64_t stride, float decay,
                                     float* out) {
  const F32 d;
  V acc[kVectors];
  const V factor = hn::Set(d, decay);
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) acc[j] = hn::Mul(factor, hn::LoadU(d, out + j * kLanes));
  for (std::int64_t t = 0; t < count; ++t) {
    const float* from = values + (positions[t] - start) * stride;
    const V w = hn::Set(d, weights[t]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) acc[j] = hn::MulAdd(w, hn::LoadU(d, from + j * kLanes), acc[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) hn::StoreU(acc[j], d, out + j * kLanes);
}
HWY_INLINE void add_selected(const float* weights, const std::int32_t* positions, std::int64_t start,
                             std::int64_t count, const Expansion& e, float decay, float* out) {
  std::int64_t i = 0;
  for (; i + 8 * kLanes <= e.value_floats; i += 8 * kLanes) {
    add_selected_vectors<8>(weights, positions, start, count, e.values + i, e.value_floats, decay, out + i);
  }
  for (; i < e.value_floats; i += 16) {
    add_selected_vectors<16 / kLanes>(weights, positions, start, count, e.values + i, e.value_floats, decay, out + i);
  }
}

// Calls visit(query, positions, first place, end place) for every query that selects positions of a tile, tile after
// tile, after make(count) has made the tile's keys or values.
template <typename Make, typename Visit>
HWY_INLINE void over_tiles(const Expansion& e, const Make& make, const Visit& visit) {
  const ops::TokenSelection& selection = *e.p.selection;
  const std::int64_t end = e.first_position + e.queries;
  for (std::int64_t i = 0; i < e.queries; ++i) e.cursors[i] = 0;
  for (std::int64_t start = 0; start < end; start += kMlaExpandedRun) {
    const std::int64_t count = end - start < kMlaExpandedRun ? end - start : kMlaExpandedRun;
    bool made = false;
    for (std::int64_t i = 0; i < e.queries; ++i) {
      const std::int64_t token = e.first_token + i;
      const std::int32_t* positions = selection.positions + token * selection.width;
      const std::int64_t first = e.cursors[i];
      std::int64_t last = first;
      while (last < e.task.places[token] && positions[last] < start + count) ++last;
      if (last == first) continue;
      if (!made) {
        load_latents(e.p, e.task.row, nullptr, start, count, e.latents);
        make(count);
        made = true;
      }
      visit(i, positions, start, first, last);
      e.cursors[i] = last;
    }
  }
}

void attend_selected(const Expansion& e) {
  over_tiles(
      e, [&](std::int64_t count) HWY_ATTR { expand_keys(e, count); },
      [&](std::int64_t i, const std::int32_t* positions, std::int64_t start, std::int64_t first, std::int64_t last)
          HWY_ATTR {
            float* scores = e.scores + i * e.score_stride;
            const auto key = [&](std::int64_t place) HWY_ATTR {
              return e.keys + (positions[place < last ? place : last - 1] - start) * e.key_floats;
            };
            alignas(16) float four[4];
            for (std::int64_t place = first; place < last; place += 4) {
              const float* const keys[4] = {key(place), key(place + 1), key(place + 2), key(place + 3)};
              dots<1>(e.q + i * e.key_floats, e.key_floats, keys, e.key_floats, four, 4);
              for (std::int64_t j = 0; j < 4 && place + j < last; ++j) scores[place + j] = four[j];
            }
          });
  for (std::int64_t i = 0; i < e.queries; ++i) {
    const std::int64_t places = e.task.places[e.first_token + i];
    for (std::int64_t first = 0; first < places; first += kMlaExpandedRun) {
      const std::int64_t count = places - first < kMlaExpandedRun ? places - first : kMlaExpandedRun;
      e.decays[i * e.runs + first / kMlaExpandedRun] =
          soften(e.scores + i * e.score_stride + first, count, e.p.softmax_scale, e.states + i * e.state_floats);
    }
  }
  over_tiles(
      e, [&](std::int64_t count) HWY_ATTR { expand_values(e, count); },
      [&](std::int64_t i, const std::int32_t* positions, std::int64_t start, std::int64_t first,
          std::int64_t last) HWY_ATTR {
        const float* weights = e.scores + i * e.score_stride;
        for (std::int64_t place = first; place < last;) {
          // Up to the end of the run.
          const std::int64_t run = place / kMlaExpandedRun;
          const std::int64_t run_end = (run + 1) * kMlaExpandedRun < last ? (run + 1) * kMlaExpandedRun : last;
          const bool starts_run = place % kMlaExpandedRun == 0;
          add_selected(weights + place, positions + place, start, run_end - place, e,
                       starts_run ? e.decays[i * e.runs + run] : 1.0f, e.states + i * e.state_floats + kStateValues);
          place = run_end;
        }
      });
}

void mla_expand(const MlaExpandTask& task) {
  const Expansion e = make_expansion(task);
  start_expansion(e);
  task.places == nullptr ? attend_dense(e) : attend_selected(e);
  finish_expansion(e);
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
