#include "tessera/planner/model_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "tessera/models/family.h"

namespace tessera::planner {

namespace {

using models::WeightPart;

constexpr double kParametersMax = 1e14;  // Keeps every product of bytes below 2^63.

TensorRole role_of(const models::TensorSpec& spec, bool is_up_projection, const models::ModelDescription& description) {
  if (is_up_projection) return TensorRole::kUpProjection;
  const bool of_kv_heads = spec.name.contains(".k_proj.") || spec.name.contains(".v_proj.");
  if (spec.part == WeightPart::kAttention && of_kv_heads) return TensorRole::kKvHeads;
  return description.is_tied_head(spec) ? TensorRole::kTiedHead : TensorRole::kPlain;
}

// Adds tensors one by one and keeps one group for those that are alike.
class Grouping {
 public:
  void add(const models::TensorSpec& spec, TensorRole role, const weights::StoredFormat& stored) {
    const auto key = std::tuple(spec.part, spec.usage, role, spec.rows(), spec.cols(), spec.shard.dimension,
                                spec.shard.unit, stored.kind, stored.group_size);
    const auto [place, is_new] = places_.try_emplace(key, groups_.size());
    if (is_new) {
      groups_.push_back({spec.part, spec.usage, role, spec.rows(), spec.cols(), spec.shard, stored, 0, spec.name});
    }
    ++groups_[place->second].count;
  }
  std::vector<TensorGroup> take() { return std::move(groups_); }

 private:
  using Key = std::tuple<WeightPart, ops::WeightUsage, TensorRole, std::int64_t, std::int64_t, weights::ShardDimension,
                         std::int64_t, weights::StoredKind, std::int32_t>;
  std::map<Key, std::size_t> places_;
  std::vector<TensorGroup> groups_;
};

// A layer for speculation is built as the last layer, and has an indexer of its own where there are any; before it the
// hidden state and the next token's embedding meet in a product of their own (DeepSeek-AI 2024, arXiv:2412.19437,
// section 2.2).
void describe_speculation(const models::ModelConfig& config,
                          const std::vector<std::pair<models::TensorSpec, weights::StoredFormat>>& layer_tensors,
                          ModelFacts& facts) {
  facts.speculation_layers = config.num_nextn_predict_layers;
  Grouping grouping;
  const auto whole = [&](const char* name, std::vector<std::int64_t> shape, ops::WeightUsage usage, WeightPart part) {
    models::TensorSpec spec;
    spec.name = fmt::format("{}: {}", "speculation layer", name);
    spec.shape = std::move(shape);
    spec.usage = usage;
    spec.part = part;
    grouping.add(spec, TensorRole::kKeptPlain, {});
  };
  for (std::int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
    for (const auto& [spec, stored] : layer_tensors) grouping.add(spec, TensorRole::kPlain, stored);
    whole("eh_proj", {config.hidden_size, 2 * config.hidden_size}, ops::WeightUsage::kLinear, WeightPart::kAttention);
    for (const char* name : {"enorm", "hnorm", "shared_head.norm"}) {
      whole(name, {config.hidden_size}, ops::WeightUsage::kVector, WeightPart::kNorms);
    }
  }
  facts.skipped = grouping.take();
}

void read_attention(const models::ModelConfig& config, ModelFacts& facts) {
  if (config.mla.has_value()) {
    facts.qk_head_dim = config.mla->qk_head_dim();
    facts.v_head_dim = config.mla->v_head_dim;
  } else if (config.gqa.has_value()) {
    facts.kv_heads = config.gqa->num_key_value_heads;
    facts.qk_head_dim = config.gqa->head_dim;
    facts.v_head_dim = config.gqa->head_dim;
  }
  if (config.dsa.has_value()) {
    facts.index_topk = config.dsa->index_topk;
    facts.index_n_heads = config.dsa->index_n_heads;
    facts.index_head_dim = config.dsa->index_head_dim;
    facts.index_layers = std::ranges::count(config.dsa->indexer_types, models::IndexerType::kFull);
  }
}

}  // namespace

std::int64_t ModelFacts::parameters() const {
  std::int64_t sum = 0;
  for (const TensorGroup& group : tensors) {
    if (group.role != TensorRole::kTiedHead) sum += group.parameters();
  }
  return sum;
}

std::int64_t ModelFacts::active_parameters() const {
  std::int64_t sum = 0;
  for (const TensorGroup& group : tensors) {
    if (group.part == WeightPart::kEmbedding) continue;
    if (group.part == WeightPart::kRoutedExperts) {
      sum += group.parameters() / n_routed_experts * num_experts_per_tok;
    } else {
      sum += group.parameters();
    }
  }
  return sum;
}

base::Result<ModelFacts> facts_of(const models::ModelConfig& config) {
  ModelFacts facts;
  facts.architecture = config.architecture;
  facts.model_type = config.model_type;
  facts.num_hidden_layers = config.num_hidden_layers;
  facts.hidden_size = config.hidden_size;
  facts.num_attention_heads = config.num_attention_heads;
  facts.max_position_embeddings = config.max_position_embeddings;
  facts.plain_element_bytes = config.dtype == "float32" ? 4 : 2;
  facts.quantized = config.quantization.quantized();
  if (config.moe.has_value()) {
    facts.n_routed_experts = config.moe->n_routed_experts;
    facts.num_experts_per_tok = config.moe->num_experts_per_tok;
    facts.expert_layers = std::ranges::count(config.moe->mlp_layer_types, models::MlpType::kSparse);
  }
  read_attention(config, facts);

  const models::ModelDescription description = models::describe(config);
  facts.kv = description.kv;
  Grouping grouping;
  std::vector<std::pair<models::TensorSpec, weights::StoredFormat>> layer_tensors;  // As a speculation layer has them.
  std::int32_t last_indexer_layer = -1;
  for (const models::TensorSpec& spec : description.tensors) {
    if (spec.part == WeightPart::kIndexer) last_indexer_layer = std::max(last_indexer_layer, spec.layer);
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<weights::StoredFormat> formats,
                           models::stored_formats(config, description));
  double parameters = 0;
  auto next_up = description.mla_ups.begin();
  for (std::size_t i = 0; i < description.tensors.size(); ++i) {
    const models::TensorSpec& spec = description.tensors[i];
    const bool is_up = next_up != description.mla_ups.end() && next_up->tensor == i;
    if (is_up) ++next_up;
    const weights::StoredFormat& stored = formats[i];
    grouping.add(spec, role_of(spec, is_up, description), stored);
    parameters += static_cast<double>(spec.rows()) * static_cast<double>(spec.cols());
    const std::int32_t source = spec.part == WeightPart::kIndexer
                                    ? last_indexer_layer
                                    : static_cast<std::int32_t>(config.num_hidden_layers) - 1;
    if (spec.layer >= 0 && spec.layer == source) layer_tensors.emplace_back(spec, stored);
  }
  if (parameters > kParametersMax) {
    return base::failure(
        base::out_of_range(fmt::format("{:.3g} parameters, expected at most {:.0e}", parameters, kParametersMax)));
  }
  facts.tensors = grouping.take();
  describe_speculation(config, layer_tensors, facts);
  for (const models::NamePattern& pattern : description.skipped) {
    if (pattern.prefix.contains("vision")) {
      facts.uncounted.push_back(
          fmt::format("vision tower ({}*): skipped at load; its size is not in the configuration", pattern.prefix));
    }
  }
  return facts;
}

}  // namespace tessera::planner
