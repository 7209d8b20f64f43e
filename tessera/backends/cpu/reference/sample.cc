// From logits to token ids, as ops/sample.h writes it.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/backends/cpu/reference/reference_ops.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

namespace {

// The first `count` ids of a row by logit descending, then id ascending.
std::vector<std::int32_t> best_ids(const float* logits, std::int64_t vocab, std::int64_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  ids.resize(static_cast<std::size_t>(count));
  return ids;
}

// The first candidate, in their order, at which the cumulative weight exceeds uniform times the total.
std::int32_t walk(const std::vector<std::int32_t>& ids, const std::vector<double>& weights, double uniform) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0.0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    sum += weights[i];
    if (sum > uniform * total) return ids[i];
  }
  // uniform < 1 and the sums are the same, so the last one exceeds.
  TESSERA_CHECK(false, "the walk found no token");
  return -1;
}

std::int32_t draw(const float* logits, std::int64_t vocab, double largest, const ops::SampleRow& row) {
  const bool cut_by_count = row.top_k > 0 && row.top_k < vocab;
  const bool cut_by_mass = row.top_p < 1.0f;
  std::vector<std::int32_t> ids;
  if (cut_by_count || cut_by_mass) {
    ids = best_ids(logits, vocab, cut_by_count ? row.top_k : vocab);
  } else {
    ids.resize(static_cast<std::size_t>(vocab));
    std::iota(ids.begin(), ids.end(), 0);
  }
  std::vector<double> weights;
  weights.reserve(ids.size());
  for (const std::int32_t id : ids) {
    weights.push_back(std::exp((static_cast<double>(logits[id]) - largest) / static_cast<double>(row.temperature)));
  }
  if (cut_by_mass) {
    const double wanted = static_cast<double>(row.top_p) * std::accumulate(weights.begin(), weights.end(), 0.0);
    double sum = 0.0;
    std::size_t kept = 0;
    while (kept < weights.size() && (kept == 0 || sum < wanted)) sum += weights[kept++];
    ids.resize(kept);
    weights.resize(kept);
  }
  return walk(ids, weights, ops::sampling_uniform(row.seed, row.position));
}

}  // namespace

void ReferenceBackend::sample_tokens(ops::Stream&, const ops::SampleTokensParams& params) {
  ops::check_params(params);
  const std::int64_t vocab = params.logits.cols;
  for (std::int64_t r = 0; r < params.logits.rows; ++r) {
    const float* logits = params.logits.f32() + r * params.logits.row_stride;
    const ops::SampleRow& row = params.rows[r];
    for (std::int32_t i = 0; i < params.top_width; ++i) {
      params.top_ids[r * params.top_width + i] = -1;
      params.top_logprobs[r * params.top_width + i] = 0.0f;
    }
    params.out[r] = ops::SampledToken{};

    std::int64_t best = 0;
    bool usable = true;
    for (std::int64_t i = 0; i < vocab; ++i) {
      usable = usable && !std::isnan(logits[i]);
      if (logits[i] > logits[best]) best = i;
    }
    if (!usable || !std::isfinite(logits[best])) continue;

    const double largest = logits[best];
    double total = 0.0;
    for (std::int64_t i = 0; i < vocab; ++i) total += std::exp(static_cast<double>(logits[i]) - largest);
    const auto logprob = [&](std::int64_t id) {
      return static_cast<float>(static_cast<double>(logits[id]) - largest - std::log(total));
    };

    std::int32_t token = row.forced_token;
    if (token < 0) {
      token = row.temperature == 0.0f ? static_cast<std::int32_t>(best) : draw(logits, vocab, largest, row);
    }
    params.out[r] = ops::SampledToken{token, logprob(token)};
    const std::vector<std::int32_t> top = best_ids(logits, vocab, std::min<std::int64_t>(row.top_logprobs, vocab));
    for (std::size_t i = 0; i < top.size(); ++i) {
      params.top_ids[r * params.top_width + static_cast<std::int64_t>(i)] = top[i];
      params.top_logprobs[r * params.top_width + static_cast<std::int64_t>(i)] = logprob(top[i]);
    }
  }
}

}  // namespace tessera::backends::cpu
