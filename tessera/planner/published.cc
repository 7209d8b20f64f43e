#include "tessera/planner/published.h"

#include <algorithm>
#include <array>

namespace tessera::planner {

namespace {

using ops::KvFormat;

using weights::StoredFormat;
using weights::StoredKind;

constexpr PublishedTokens kimi(KvFormat format, std::int64_t tokens) {
  return {.model = "Kimi K2.6",
          .architecture = "KimiK25ForConditionalGeneration",
          .num_hidden_layers = 61,
          .hidden_size = 7168,
          .n_routed_experts = 384,
          .index_layers = 0,
          .stored_experts = StoredFormat{StoredKind::kInt4Group, 32},
          .gpu = "h200",
          .tp = 8,
          .recipe = WeightRecipe::kAsStored,
          .format = format,
          .format_note = "",
          .tokens = tokens};
}

// GLM-5 and 5.1 have an indexer in every layer.
constexpr PublishedTokens glm(KvFormat format) {
  return {.model = "GLM-5.2",
          .architecture = "GlmMoeDsaForCausalLM",
          .num_hidden_layers = 78,
          .hidden_size = 6144,
          .n_routed_experts = 256,
          .index_layers = 21,
          .stored_experts = StoredFormat{StoredKind::kF8Block128, 0},
          .gpu = "h200",
          .tp = 8,
          .recipe = WeightRecipe::kInt4,
          .format = format,
          .format_note = "KV format not published",
          .tokens = 1'180'000};
}

constexpr std::array kPublished = {kimi(KvFormat::kBF16, 686'000), kimi(KvFormat::kF8E4M3, 1'370'000),
                                   glm(KvFormat::kBF16), glm(KvFormat::kF8E4M3)};

}  // namespace

bool PublishedTokens::describes(const ModelFacts& facts) const {
  const bool sizes = facts.architecture == architecture && facts.num_hidden_layers == num_hidden_layers &&
                     facts.hidden_size == hidden_size && facts.n_routed_experts == n_routed_experts &&
                     facts.index_layers == index_layers;
  return sizes && std::ranges::all_of(facts.tensors, [&](const TensorGroup& group) {
           return group.part != models::WeightPart::kRoutedExperts || group.stored == stored_experts;
         });
}

std::span<const PublishedTokens> published_tokens() { return kPublished; }

}  // namespace tessera::planner
