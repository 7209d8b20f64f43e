#include "tessera/models/decoder_tensors.h"

#include <fmt/format.h>

#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"

namespace tessera::models {

namespace {

using ops::WeightUsage;
using weights::ShardDimension;
using weights::ShardSpec;

static_assert(base::limits::kLayersMax <= ops::LayerSet::kLayersMax);

const ShardSpec kWhole{};
const ShardSpec kRows{ShardDimension::kRows, 1};
const ShardSpec kColumns{ShardDimension::kColumns, 1};

ShardSpec head_rows(std::int64_t head_dim) { return {ShardDimension::kRows, head_dim}; }
// A bias is one row; its heads lie side by side.
ShardSpec head_columns(std::int64_t head_dim) { return {ShardDimension::kColumns, head_dim}; }

// Adds the tensors of one place of the model: a layer, or what is around the layers.
class Place {
 public:
  Place(ModelDescription& description, std::string prefix, std::int32_t layer)
      : description_(description), prefix_(std::move(prefix)), layer_(layer) {}

  std::size_t linear(WeightPart part, std::string_view name, std::int64_t n, std::int64_t k, const ShardSpec& shard,
                     WeightUsage usage = WeightUsage::kLinear) {
    return add(part, fmt::format("{}.weight", name), {n, k}, usage, shard);
  }
  std::size_t norm(WeightPart part, std::string_view name, std::int64_t size) {
    return add(part, fmt::format("{}.weight", name), {size}, WeightUsage::kVector, kWhole);
  }
  std::size_t vector(WeightPart part, std::string_view name, std::int64_t size, const ShardSpec& shard) {
    return add(part, std::string(name), {size}, WeightUsage::kVector, shard);
  }
  SwigluTensors swiglu(WeightPart part, std::string_view name, std::int64_t hidden, std::int64_t intermediate,
                       std::int32_t expert = -1) {
    expert_ = expert;
    SwigluTensors t;
    t.gate = linear(part, fmt::format("{}.gate_proj", name), intermediate, hidden, kRows);
    t.up = linear(part, fmt::format("{}.up_proj", name), intermediate, hidden, kRows);
    t.down = linear(part, fmt::format("{}.down_proj", name), hidden, intermediate, kColumns);
    expert_ = -1;
    return t;
  }
  ModelDescription& description() { return description_; }

 private:
  std::size_t add(WeightPart part, const std::string& name, std::vector<std::int64_t> shape, WeightUsage usage,
                  const ShardSpec& shard) {
    return description_.add({prefix_ + name, std::move(shape), usage, shard, part, layer_, expert_});
  }
  ModelDescription& description_;
  const std::string prefix_;
  const std::int32_t layer_;
  std::int32_t expert_ = -1;
};

GqaTensors add_gqa(Place& place, const ModelConfig& config) {
  const GqaConfig& gqa = *config.gqa;
  const std::int64_t q_rows = config.num_attention_heads * gqa.head_dim;
  const std::int64_t kv_rows = gqa.num_key_value_heads * gqa.head_dim;
  const WeightPart part = WeightPart::kAttention;
  GqaTensors t;
  t.q = place.linear(part, "self_attn.q_proj", q_rows, config.hidden_size, head_rows(gqa.head_dim));
  t.k = place.linear(part, "self_attn.k_proj", kv_rows, config.hidden_size, head_rows(gqa.head_dim));
  t.v = place.linear(part, "self_attn.v_proj", kv_rows, config.hidden_size, head_rows(gqa.head_dim));
  t.o = place.linear(part, "self_attn.o_proj", config.hidden_size, q_rows, head_columns(gqa.head_dim));
  if (gqa.qkv_bias == QkvBias::kPresent) {
    t.bias.emplace();
    t.bias->q = place.vector(part, "self_attn.q_proj.bias", q_rows, head_columns(gqa.head_dim));
    t.bias->k = place.vector(part, "self_attn.k_proj.bias", kv_rows, head_columns(gqa.head_dim));
    t.bias->v = place.vector(part, "self_attn.v_proj.bias", kv_rows, head_columns(gqa.head_dim));
  }
  if (gqa.qk_norm == QkNorm::kPresent) {
    t.norm.emplace();
    t.norm->q = place.norm(part, "self_attn.q_norm", gqa.head_dim);
    t.norm->k = place.norm(part, "self_attn.k_norm", gqa.head_dim);
  }
  return t;
}

IndexerTensors add_indexer(Place& place, const ModelConfig& config) {
  const DsaConfig& dsa = *config.dsa;
  const WeightPart part = WeightPart::kIndexer;
  IndexerTensors t;
  t.q = place.linear(part, "self_attn.indexer.wq_b", dsa.index_n_heads * dsa.index_head_dim, config.mla->q_lora_rank,
                     kWhole);
  t.k = place.linear(part, "self_attn.indexer.wk", dsa.index_head_dim, config.hidden_size, kWhole);
  t.k_norm = place.norm(part, "self_attn.indexer.k_norm", dsa.index_head_dim);
  t.k_bias = place.vector(part, "self_attn.indexer.k_norm.bias", dsa.index_head_dim, kWhole);
  // Its product decides which tokens are seen, as a router's does which experts: held and computed in F32.
  t.weights = place.linear(part, "self_attn.indexer.weights_proj", dsa.index_n_heads, config.hidden_size, kWhole,
                           WeightUsage::kRouter);
  return t;
}

MlaTensors add_mla(Place& place, const ModelConfig& config, std::int64_t layer) {
  const MlaConfig& mla = *config.mla;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t heads = config.num_attention_heads;
  const std::int64_t q_rows = heads * mla.qk_head_dim();
  const std::int64_t up_rows = mla.qk_nope_head_dim + mla.v_head_dim;
  const WeightPart part = WeightPart::kAttention;
  MlaTensors t;
  if (mla.q_lora_rank > 0) {
    t.query_latent.emplace();
    t.query_latent->projection = place.linear(part, "self_attn.q_a_proj", mla.q_lora_rank, hidden, kWhole);
    t.query_latent->norm = place.norm(part, "self_attn.q_a_layernorm", mla.q_lora_rank);
    t.q = place.linear(part, "self_attn.q_b_proj", q_rows, mla.q_lora_rank, head_rows(mla.qk_head_dim()));
  } else {
    t.q = place.linear(part, "self_attn.q_proj", q_rows, hidden, head_rows(mla.qk_head_dim()));
  }
  t.kv = place.linear(part, "self_attn.kv_a_proj_with_mqa", mla.kv_lora_rank + mla.qk_rope_head_dim, hidden, kWhole);
  t.kv_norm = place.norm(part, "self_attn.kv_a_layernorm", mla.kv_lora_rank);
  MlaUpSpec up;
  up.tensor = place.linear(part, "self_attn.kv_b_proj", heads * up_rows, mla.kv_lora_rank, head_rows(up_rows));
  up.shape.heads = static_cast<std::int32_t>(heads);
  up.shape.kv_lora_rank = static_cast<std::int32_t>(mla.kv_lora_rank);
  up.shape.qk_rope_head_dim = static_cast<std::int32_t>(mla.qk_rope_head_dim);
  up.shape.qk_nope_head_dim = static_cast<std::int32_t>(mla.qk_nope_head_dim);
  up.shape.v_head_dim = static_cast<std::int32_t>(mla.v_head_dim);
  t.up = place.description().mla_ups.size();
  place.description().mla_ups.push_back(up);
  t.o = place.linear(part, "self_attn.o_proj", hidden, heads * mla.v_head_dim, head_columns(mla.v_head_dim));
  if (config.dsa.has_value() && config.dsa->indexer_types[static_cast<std::size_t>(layer)] == IndexerType::kFull) {
    t.indexer = add_indexer(place, config);
  }
  return t;
}

MoeTensors add_moe(Place& place, const ModelConfig& config) {
  const MoeConfig& moe = *config.moe;
  MoeTensors t;
  t.router = place.linear(WeightPart::kRouter, "mlp.gate", moe.n_routed_experts, config.hidden_size, kWhole,
                          WeightUsage::kRouter);
  t.correction_bias =
      place.vector(WeightPart::kRouter, "mlp.gate.e_score_correction_bias", moe.n_routed_experts, kWhole);
  t.experts = place.description().expert_stacks.size();
  place.description().expert_stacks.push_back({place.description().tensors.size(), moe.n_routed_experts});
  for (std::int64_t e = 0; e < moe.n_routed_experts; ++e) {
    place.swiglu(WeightPart::kRoutedExperts, fmt::format("mlp.experts.{}", e), config.hidden_size,
                 moe.moe_intermediate_size, static_cast<std::int32_t>(e));
  }
  if (moe.n_shared_experts > 0) {
    t.shared = place.swiglu(WeightPart::kSharedExperts, "mlp.shared_experts", config.hidden_size,
                            moe.n_shared_experts * moe.moe_intermediate_size);
  }
  return t;
}

ops::KvLayout kv_of(const ModelConfig& config) {
  const auto layers = static_cast<std::int32_t>(config.num_hidden_layers);
  constexpr std::int32_t kPageSize = 64;  // Of the format that nobody has chosen yet.
  if (config.gqa.has_value()) {
    return ops::gqa_kv_layout(ops::KvFormat::kBF16, layers, kPageSize,
                              static_cast<std::int32_t>(config.gqa->num_key_value_heads),
                              static_cast<std::int32_t>(config.gqa->head_dim));
  }
  ops::LayerSet index_layers;
  std::int32_t index_head_dim = 0;
  if (config.dsa.has_value()) {
    index_head_dim = static_cast<std::int32_t>(config.dsa->index_head_dim);
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      if (config.dsa->indexer_types[static_cast<std::size_t>(layer)] == IndexerType::kFull) index_layers.insert(layer);
    }
  }
  return ops::mla_kv_layout(ops::KvFormat::kBF16, layers, kPageSize,
                            static_cast<std::int32_t>(config.mla->kv_lora_rank),
                            static_cast<std::int32_t>(config.mla->qk_rope_head_dim), index_head_dim, index_layers);
}

}  // namespace

DecoderTensors describe_decoder(const ModelConfig& config, const DecoderNames& names) {
  TESSERA_CHECK(config.gqa.has_value() != config.mla.has_value(), "a decoder has one kind of attention");
  DecoderTensors t;
  ModelDescription& d = t.description;
  const std::int64_t hidden = config.hidden_size;
  const std::string embedding = names.prefix + "model.embed_tokens";
  d.head_tensor = names.prefix + "lm_head.weight";
  Place around(d, "", -1);
  t.embedding =
      around.linear(WeightPart::kEmbedding, embedding, config.vocab_size, hidden, kRows, WeightUsage::kEmbedding);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    Place place(d, fmt::format("{}model.layers.{}.", names.prefix, i), static_cast<std::int32_t>(i));
    LayerTensors layer;
    layer.input_norm = place.norm(WeightPart::kNorms, "input_layernorm", hidden);
    if (config.gqa.has_value()) {
      layer.attention = add_gqa(place, config);
    } else {
      layer.attention = add_mla(place, config, i);
    }
    layer.post_attention_norm = place.norm(WeightPart::kNorms, "post_attention_layernorm", hidden);
    if (config.moe.has_value() && config.moe->mlp_layer_types[static_cast<std::size_t>(i)] == MlpType::kSparse) {
      layer.feed_forward = add_moe(place, config);
    } else {
      layer.feed_forward = place.swiglu(WeightPart::kDenseMlp, "mlp", hidden, config.intermediate_size);
    }
    t.layers.push_back(layer);
  }
  t.final_norm = around.norm(WeightPart::kNorms, names.prefix + "model.norm", hidden);
  t.head = around.linear(WeightPart::kHead, config.tie_word_embeddings ? embedding : names.prefix + "lm_head",
                         config.vocab_size, hidden, kRows);
  d.skipped = names.skipped;
  const std::string layers = names.prefix + "model.layers.";
  for (std::int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
    d.skipped.push_back({fmt::format("{}{}.", layers, config.num_hidden_layers + i), ""});
  }
  d.skipped.push_back({layers, ".self_attn.rotary_emb.inv_freq", config.num_hidden_layers});
  d.kv = kv_of(config);
  return t;
}

}  // namespace tessera::models
