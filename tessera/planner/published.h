// Token counts that others published for their own systems, and the reserve that would explain each. Nothing is fitted
// to them: they are set beside the plan.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/ops/kv_layout.h"
#include "tessera/planner/model_facts.h"
#include "tessera/planner/weight_memory.h"

namespace tessera::planner {

// A published count of KV tokens held by one tensor-parallel group.
struct PublishedTokens {
  std::string_view model;  // As published.
  // By which the model is recognised in a configuration. Models that agree in all of it cannot be told apart (Kimi K2.5
  // from K2.6).
  std::string_view architecture;
  std::int64_t num_hidden_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t n_routed_experts = 0;
  std::int64_t index_layers = 0;
  weights::StoredFormat stored_experts;  // As the published checkpoint stores them.
  std::string_view gpu;
  std::int32_t tp = 1;
  WeightRecipe recipe = WeightRecipe::kAsStored;
  ops::KvFormat format = ops::KvFormat::kBF16;
  std::string_view format_note;  // Where the publication does not say the format.
  std::int64_t tokens = 0;
  bool describes(const ModelFacts& facts) const;
};

std::span<const PublishedTokens> published_tokens();

}  // namespace tessera::planner
