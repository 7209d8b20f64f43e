#include "tessera/planner/prefill_floor.h"

#include <algorithm>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/planner/decode_floor.h"

namespace tessera::planner {

namespace {

using models::WeightPart;

// Query-key pairs of a causal prompt in which a token attends to at most `width` tokens.
double causal_pairs(double tokens, double width) {
  if (tokens <= width) return tokens * (tokens + 1) / 2;
  return width * (width + 1) / 2 + (tokens - width) * width;
}

bool is_product(const TensorGroup& group) {
  return group.usage == ops::WeightUsage::kLinear || group.usage == ops::WeightUsage::kRouter;
}

bool runs_in_fp8(const weights::StoredFormat& format) {
  return format.kind == weights::StoredKind::kF8Block128 || format.kind == weights::StoredKind::kF8Channel;
}

}  // namespace

base::Result<PrefillFloor> prefill_floor(const ModelFacts& facts, const WeightMemory& weights, const Gpu& gpu,
                                         const Routing& routing, std::int64_t tokens) {
  TESSERA_CHECK(tokens >= 1);
  PrefillFloor floor;
  floor.tokens = tokens;
  const auto n = static_cast<double>(tokens);
  const auto seconds = [&gpu](double flop, bool fp8) {
    return flop / (fp8 ? gpu.fp8_flops.value : gpu.bf16_flops.value);
  };
  double compute = 0;
  for (const TensorGroup& group : facts.tensors) {
    if (!is_product(group) || group.part == WeightPart::kEmbedding) continue;
    const weights::StoredFormat format = recipe_format(weights.recipe, group);
    TESSERA_ASSIGN_OR_RETURN(const RankTensor rank, rank_tensor(group, format, weights.tp));
    double uses = n * static_cast<double>(group.count);
    const bool routed = group.part == WeightPart::kRoutedExperts;
    if (routed) uses *= static_cast<double>(facts.num_experts_per_tok) / static_cast<double>(facts.n_routed_experts);
    if (group.part == WeightPart::kHead) uses = static_cast<double>(group.count);
    const double flop = 2.0 * static_cast<double>(rank.rows) * static_cast<double>(rank.cols) * uses;
    (routed ? floor.expert_flop : floor.dense_flop) += flop;
    compute += seconds(flop, runs_in_fp8(format));
  }
  const auto heads = static_cast<double>(facts.num_attention_heads) / weights.tp;
  const double width = facts.index_topk > 0 ? static_cast<double>(facts.index_topk) : n;
  floor.attention_flop = 2.0 * static_cast<double>(facts.qk_head_dim + facts.v_head_dim) * heads *
                         static_cast<double>(facts.num_hidden_layers) * causal_pairs(n, width);
  compute += seconds(floor.attention_flop, false);
  if (tokens > facts.index_topk) {
    floor.indexer_flop =
        2.0 * static_cast<double>(facts.index_n_heads * facts.index_head_dim * facts.index_layers) * causal_pairs(n, n);
    compute += seconds(floor.indexer_flop, true);
  }
  floor.compute_ms = compute * 1e3;

  TESSERA_ASSIGN_OR_RETURN(const StepBytes bytes, step_bytes(facts, weights, ops::KvFormat::kBF16, 1));
  double read = static_cast<double>(bytes.outside_bytes);
  if (facts.expert_layers > 0) {
    const std::vector<double> chosen = expert_probabilities(routing, facts.n_routed_experts, facts.num_experts_per_tok);
    read += expected_experts(chosen, tokens) * static_cast<double>(facts.expert_layers * bytes.expert_bytes);
  }
  floor.weights_ms = read / gpu.read_bandwidth.value * 1e3;
  floor.floor_ms = std::max(floor.compute_ms, floor.weights_ms);
  floor.tokens_per_second = n / floor.floor_ms * 1e3;
  return floor;
}

}  // namespace tessera::planner
