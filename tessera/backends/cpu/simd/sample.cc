// From logits to token ids, as ops/sample.h writes it: the largest logit and the softmax's sum in one kernel, sampling
// from as few sorted candidates as it needs.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

namespace {

struct Candidate {
  float logit;
  std::int32_t id;
};

// By logit descending, then id ascending.
bool before(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

// The first `count` of a row in that order.
std::vector<Candidate> best_candidates(const float* logits, std::int64_t vocab, std::int64_t count) {
  std::vector<Candidate> best;
  if (count == 0) return best;
  best.reserve(static_cast<std::size_t>(count));
  // A heap whose front is the last of the best so far. Ids come in ascending order, so an equal logit never displaces.
  for (std::int64_t i = 0; i < vocab; ++i) {
    const Candidate candidate{logits[i], static_cast<std::int32_t>(i)};
    if (std::ssize(best) < count) {
      best.push_back(candidate);
      std::push_heap(best.begin(), best.end(), before);
    } else if (candidate.logit > best.front().logit) {
      std::pop_heap(best.begin(), best.end(), before);
      best.back() = candidate;
      std::push_heap(best.begin(), best.end(), before);
    }
  }
  std::sort_heap(best.begin(), best.end(), before);
  return best;
}

// The index at which the cumulative sum exceeds uniform times the total.
std::size_t walk(const std::vector<double>& weights, std::size_t kept, double uniform) {
  const double wanted =
      uniform * std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  double sum = 0.0;
  for (std::size_t i = 0; i < kept; ++i) {
    sum += weights[i];
    if (sum > wanted) return i;
  }
  // uniform < 1, and the same sum in the same order reaches the total.
  TESSERA_CHECK(false, "the walk found no token");
  return 0;
}

// The length of the shortest prefix of weights that holds `wanted`, at least 1; empty when all together do not.
std::size_t prefix_with(const std::vector<double>& weights, double wanted, bool complete) {
  double sum = 0.0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= wanted) return i + 1;
  }
  return complete ? weights.size() : 0;
}

std::int32_t draw(const float* logits, std::int64_t vocab, double largest, const ops::SampleRow& row) {
  const double uniform = ops::sampling_uniform(row.seed, row.position);
  const double temperature = row.temperature;
  const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - largest) / temperature); };
  const bool cut_by_count = row.top_k > 0 && row.top_k < vocab;
  std::vector<double> weights;
  double total = 0.0;
  if (!cut_by_count) {
    weights.resize(static_cast<std::size_t>(vocab));
    for (std::int64_t i = 0; i < vocab; ++i) weights[static_cast<std::size_t>(i)] = weight(logits[i]);
    if (row.top_p >= 1.0f) return static_cast<std::int32_t>(walk(weights, weights.size(), uniform));
    total = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  // With top_p alone the prefix is usually short: sort few candidates, and more only where they do not reach.
  constexpr std::int64_t kFirstTry = 128;
  for (std::int64_t count = cut_by_count ? row.top_k : std::min(kFirstTry, vocab);;
       count = std::min(count * 8, vocab)) {
    const std::vector<Candidate> best = best_candidates(logits, vocab, count);
    weights.clear();
    for (const Candidate& candidate : best) weights.push_back(weight(candidate.logit));
    std::size_t kept = weights.size();
    if (row.top_p < 1.0f) {
      if (cut_by_count) total = std::accumulate(weights.begin(), weights.end(), 0.0);
      kept = prefix_with(weights, static_cast<double>(row.top_p) * total, cut_by_count || count == vocab);
    }
    if (kept > 0) return best[walk(weights, kept, uniform)].id;
  }
}

}  // namespace

void SimdBackend::sample_tokens(ops::Stream&, const ops::SampleTokensParams& params) {
  ops::check_params(params);
  const std::int64_t vocab = params.logits.cols;
  threads_.parallel_for(params.logits.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* logits = params.logits.f32() + r * params.logits.row_stride;
      const ops::SampleRow& row = params.rows[static_cast<std::size_t>(r)];
      std::int32_t* top_ids = params.top_ids + r * params.top_width;
      float* top_logprobs = params.top_logprobs + r * params.top_width;
      std::fill_n(top_ids, params.top_width, -1);
      std::fill_n(top_logprobs, params.top_width, 0.0f);
      params.out[r] = ops::SampledToken{};

      const GreedyResult greedy = kernels_.greedy(logits, vocab);
      if (greedy.has_nan || !std::isfinite(greedy.maximum)) continue;
      const double log_total = static_cast<double>(greedy.maximum) + std::log(greedy.sum);
      const auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - log_total); };
      std::int32_t token = row.forced_token;
      if (token < 0) {
        token = row.temperature == 0.0f ? static_cast<std::int32_t>(greedy.index)
                                        : draw(logits, vocab, static_cast<double>(greedy.maximum), row);
      }
      params.out[r] = ops::SampledToken{token, logprob(logits[token])};
      std::int64_t i = 0;
      for (const Candidate& best : best_candidates(logits, vocab, std::min<std::int64_t>(row.top_logprobs, vocab))) {
        top_ids[i] = best.id;
        top_logprobs[i++] = logprob(best.logit);
      }
    }
  });
}

}  // namespace tessera::backends::cpu::simd
