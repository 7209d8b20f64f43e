// Routing and routed experts, as ops/moe.h writes them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/double_dot.h"
#include "tessera/backends/cpu/reference/reference_ops.h"
#include "tessera/backends/cpu/reference/weight_rows.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

namespace {

// Tokens whose experts' outputs are held at a time: a bound on memory, not on results.
constexpr std::int64_t kTokensABlock = 32;

float nan_is_least(float value) { return std::isnan(value) ? -std::numeric_limits<float>::infinity() : value; }

// The first `count` of `candidates` by value descending, then index ascending.
void keep_best(std::vector<std::int32_t>& candidates, const std::vector<float>& values, std::int64_t count) {
  std::sort(candidates.begin(), candidates.end(),
            [&](std::int32_t a, std::int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
  candidates.resize(static_cast<std::size_t>(count));
}

// The experts that one token may choose among: those of the best groups.
std::vector<std::int32_t> candidate_experts(const ops::MoeRouteParams& params, const std::vector<float>& choices) {
  std::vector<std::int32_t> groups(static_cast<std::size_t>(params.n_group));
  std::iota(groups.begin(), groups.end(), 0);
  const std::int64_t group_size = std::ssize(choices) / params.n_group;
  if (params.topk_group < params.n_group) {
    std::vector<float> values;
    for (const std::int32_t g : groups) {
      std::vector<float> members(choices.begin() + g * group_size, choices.begin() + (g + 1) * group_size);
      std::partial_sort(members.begin(), members.begin() + 2, members.end(), std::greater<>());
      values.push_back(nan_is_least(members[0] + members[1]));
    }
    keep_best(groups, values, params.topk_group);
  }
  std::vector<std::int32_t> experts;
  for (const std::int32_t g : groups) {
    for (std::int64_t i = 0; i < group_size; ++i) experts.push_back(static_cast<std::int32_t>(g * group_size + i));
  }
  return experts;
}

}  // namespace

void ReferenceBackend::moe_route(ops::Stream&, const ops::MoeRouteParams& params) {
  ops::check_params(params);
  const std::int64_t experts = params.logits.cols;
  const std::int64_t taken = params.num_experts_per_tok;
  const auto* bias =
      params.correction_bias == nullptr ? nullptr : static_cast<const float*>(params.correction_bias->data);
  std::vector<float> scores(static_cast<std::size_t>(experts));
  std::vector<float> choices(scores.size());
  for (std::int64_t t = 0; t < params.logits.rows; ++t) {
    const float* logits = params.logits.f32() + t * params.logits.row_stride;
    for (std::int64_t e = 0; e < experts; ++e) {
      scores[e] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logits[e]))));
      choices[e] = nan_is_least(bias == nullptr ? scores[e] : scores[e] + bias[e]);
    }
    std::vector<std::int32_t> best = candidate_experts(params, choices);
    keep_best(best, choices, taken);
    std::sort(best.begin(), best.end());
    double sum = 0.0;
    for (const std::int32_t e : best) sum += static_cast<double>(scores[e]);
    for (std::int64_t j = 0; j < taken; ++j) {
      const double score = scores[best[j]];
      const double weight = params.norm_topk_prob ? score / (sum + 1e-20) : score;
      params.expert_ids[t * taken + j] = best[j];
      params.expert_weights[t * taken + j] =
          static_cast<float>(weight * static_cast<double>(params.routed_scaling_factor));
    }
  }
}

void ReferenceBackend::moe_experts(ops::Stream&, const ops::MoeExpertsParams& params) {
  ops::check_params(params);
  const ops::ExpertStack& stack = *params.experts;
  const std::int64_t taken = params.num_experts_per_tok;
  std::vector<float> scratch;
  std::vector<float> other_scratch;
  std::vector<double> middle;   // [places of one expert, intermediate]
  std::vector<double> outputs;  // [places of the block, hidden], not yet weighted.
  for (std::int64_t begin = 0; begin < params.in.rows; begin += kTokensABlock) {
    const std::int64_t tokens = std::min(kTokensABlock, params.in.rows - begin);
    // A place is a token and one of its experts.
    std::vector<std::vector<std::int64_t>> places(static_cast<std::size_t>(stack.experts));
    for (std::int64_t place = 0; place < tokens * taken; ++place) {
      const std::int32_t id = params.expert_ids[begin * taken + place];
      TESSERA_CHECK(id >= 0 && id < stack.experts, fmt::format("expert {} of {}", id, stack.experts));
      places[static_cast<std::size_t>(id)].push_back(place);
    }
    outputs.resize(static_cast<std::size_t>(tokens * taken * stack.hidden));
    for (std::size_t e = 0; e < places.size(); ++e) {
      const std::int64_t count = std::ssize(places[e]);
      middle.resize(static_cast<std::size_t>(count * stack.intermediate));
      // The weights' rows outside, so that each is read once.
      for (std::int64_t n = 0; count > 0 && n < stack.intermediate; ++n) {
        const float* gate_row = weight_row(stack.gate[e], n, scratch);
        const float* up_row = weight_row(stack.up[e], n, other_scratch);
        for (std::int64_t i = 0; i < count; ++i) {
          const float* in = params.in.f32() + (begin + places[e][i] / taken) * params.in.row_stride;
          const double gate = double_dot(in, gate_row, stack.hidden);
          middle[i * stack.intermediate + n] = gate / (1.0 + std::exp(-gate)) * double_dot(in, up_row, stack.hidden);
        }
      }
      for (std::int64_t n = 0; count > 0 && n < stack.hidden; ++n) {
        const float* down_row = weight_row(stack.down[e], n, scratch);
        for (std::int64_t i = 0; i < count; ++i) {
          outputs[places[e][i] * stack.hidden + n] =
              double_dot(middle.data() + i * stack.intermediate, down_row, stack.intermediate);
        }
      }
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      float* out = params.out.f32() + (begin + t) * params.out.row_stride;
      for (std::int64_t n = 0; n < stack.hidden; ++n) {
        double sum = out[n];
        for (std::int64_t j = 0; j < taken; ++j) {
          sum += static_cast<double>(params.expert_weights[(begin + t) * taken + j]) *
                 outputs[(t * taken + j) * stack.hidden + n];
        }
        out[n] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace tessera::backends::cpu
