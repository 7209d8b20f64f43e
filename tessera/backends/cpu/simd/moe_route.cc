// Routing: scores by the kernels, then one pass over a token's experts.
#include <algorithm>
#include <limits>
#include <span>

#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

namespace {

// Experts whose scores are worth another thread.
constexpr std::int64_t kExpertsAChunk = 4096;
constexpr float kLeast = -std::numeric_limits<float>::infinity();

float nan_is_least(float value) { return value != value ? kLeast : value; }

// The best of what is offered in ascending order, best first, the earlier of equals before the later.
class Best {
 public:
  // `ids` has room for as many as are kept.
  Best(const float* values, std::span<std::int32_t> ids) : values_(values), ids_(ids) {}
  void offer(std::int32_t id) {
    if (size_ == ids_.size() && !(values_[id] > values_[ids_.back()])) return;
    std::size_t at = size_ < ids_.size() ? size_++ : size_ - 1;
    for (; at > 0 && values_[id] > values_[ids_[at - 1]]; --at) ids_[at] = ids_[at - 1];
    ids_[at] = id;
  }

 private:
  const float* values_;
  std::span<std::int32_t> ids_;
  std::size_t size_ = 0;
};

// Working memory of one token.
struct RouteScratch {
  float* scores = nullptr;         // [experts]
  float* choices = nullptr;        // [experts]
  float* group_values = nullptr;   // [n_group]
  std::int32_t* groups = nullptr;  // [topk_group]
};

// The sum of a group's two largest choices.
float group_value(const float* choices, std::int64_t count) {
  float first = kLeast;
  float second = kLeast;
  for (std::int64_t i = 0; i < count; ++i) {
    if (choices[i] > first) {
      second = first;
      first = choices[i];
    } else if (choices[i] > second) {
      second = choices[i];
    }
  }
  return nan_is_least(first + second);
}

void route_token(const Kernels& kernels, const ops::MoeRouteParams& params, std::int64_t t,
                 const RouteScratch& scratch) {
  const std::int64_t experts = params.logits.cols;
  const std::int64_t taken = params.num_experts_per_tok;
  const auto* bias =
      params.correction_bias == nullptr ? nullptr : static_cast<const float*>(params.correction_bias->data);
  kernels.sigmoid(params.logits.f32() + t * params.logits.row_stride, experts, scratch.scores);
  for (std::int64_t e = 0; e < experts; ++e) {
    scratch.choices[e] = nan_is_least(bias == nullptr ? scratch.scores[e] : scratch.scores[e] + bias[e]);
  }

  const std::span<std::int32_t> groups(scratch.groups, static_cast<std::size_t>(params.topk_group));
  const std::int64_t group_size = experts / params.n_group;
  if (params.topk_group < params.n_group) {
    for (std::int64_t g = 0; g < params.n_group; ++g) {
      scratch.group_values[g] = group_value(scratch.choices + g * group_size, group_size);
    }
    Best best(scratch.group_values, groups);
    for (std::int32_t g = 0; g < params.n_group; ++g) best.offer(g);
    std::sort(groups.begin(), groups.end());
  } else {
    for (std::int32_t g = 0; g < params.n_group; ++g) groups[static_cast<std::size_t>(g)] = g;
  }

  const std::span<std::int32_t> ids(params.expert_ids + t * taken, static_cast<std::size_t>(taken));
  Best best(scratch.choices, ids);
  for (const std::int32_t g : groups) {
    for (std::int64_t i = 0; i < group_size; ++i) best.offer(static_cast<std::int32_t>(g * group_size + i));
  }
  std::sort(ids.begin(), ids.end());

  double sum = 0.0;
  for (const std::int32_t e : ids) sum += static_cast<double>(scratch.scores[e]);
  float* weights = params.expert_weights + t * taken;
  for (const std::int32_t e : ids) {
    const double score = scratch.scores[e];
    const double weight = params.norm_topk_prob ? score / (sum + 1e-20) : score;
    *weights++ = static_cast<float>(weight * static_cast<double>(params.routed_scaling_factor));
  }
}

}  // namespace

void SimdBackend::moe_route(ops::Stream&, const ops::MoeRouteParams& params) {
  ops::check_params(params);
  const std::int64_t experts = params.logits.cols;
  const std::int64_t chunk = std::max<std::int64_t>(1, kExpertsAChunk / experts);
  threads_.parallel_for(params.logits.rows, chunk, [&](std::int64_t begin, std::int64_t end) {
    const ScratchPool::Loan loan = scratch_.borrow((2 * experts + params.n_group + params.topk_group) * 4);
    RouteScratch scratch;
    scratch.scores = loan.as<float>();
    scratch.choices = scratch.scores + experts;
    scratch.group_values = scratch.choices + experts;
    scratch.groups = reinterpret_cast<std::int32_t*>(scratch.group_values + params.n_group);
    for (std::int64_t t = begin; t < end; ++t) route_token(kernels_, params, t, scratch);
  });
}

}  // namespace tessera::backends::cpu::simd
