#include "tessera/models/family_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/base/limits.h"
#include "tessera/models/rope.h"
#include "tessera/weights/safetensors.h"

namespace tessera::models {

namespace {

namespace limits = base::limits;

base::Status read_yarn(const ConfigFields& fields, const ConfigFields& yarn, ModelConfig& config) {
  YarnConfig y;
  TESSERA_ASSIGN_OR_RETURN(y.factor, yarn.number("factor", {1.0, 1e6}));
  TESSERA_ASSIGN_OR_RETURN(y.original_max_position_embeddings,
                           yarn.integer("original_max_position_embeddings", {1, limits::kContextMax}));
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t outside,
                           fields.integer_or("original_max_position_embeddings", {1, limits::kContextMax},
                                             y.original_max_position_embeddings));
  if (outside != y.original_max_position_embeddings) {
    return fields.refuse("original_max_position_embeddings", fmt::format("is {}, but the rotary parameters say {}",
                                                                         outside, y.original_max_position_embeddings));
  }
  TESSERA_ASSIGN_OR_RETURN(y.beta_fast, yarn.number_or("beta_fast", {1e-3, 1e6}, 32.0));
  TESSERA_ASSIGN_OR_RETURN(y.beta_slow, yarn.number_or("beta_slow", {1e-3, 1e6}, 1.0));
  if (y.beta_fast < y.beta_slow) {
    return yarn.refuse("beta_fast", fmt::format("is {}, expected at least beta_slow {}", y.beta_fast, y.beta_slow));
  }
  if (config.rope.rope_theta <= 1.0) {
    return fields.refuse("rope_theta", fmt::format("is {}, expected more than 1 for yarn", config.rope.rope_theta));
  }
  TESSERA_RETURN_IF_ERROR(expect_boolean(yarn, "truncate", true, true));
  TESSERA_ASSIGN_OR_RETURN(const double mscale, yarn.number_or("mscale", {0.0, 100.0}, 0.0));
  TESSERA_ASSIGN_OR_RETURN(y.mscale_all_dim, yarn.number_or("mscale_all_dim", {0.0, 100.0}, 0.0));
  const double made = mscale != 0.0 && y.mscale_all_dim != 0.0
                          ? yarn_mscale(y.factor, mscale) / yarn_mscale(y.factor, y.mscale_all_dim)
                          : yarn_mscale(y.factor, 1.0);
  TESSERA_ASSIGN_OR_RETURN(y.attention_factor, yarn.number_or("attention_factor", {1e-3, 1e3}, made));
  config.rope.yarn = y;
  return base::ok_status();
}

base::Status read_mlp_layer_types(const ConfigFields& fields, ModelConfig& config) {
  std::vector<MlpType>& types = config.moe->mlp_layer_types;
  if (!fields.has("mlp_layer_types")) {
    TESSERA_ASSIGN_OR_RETURN(const std::int64_t dense,
                             fields.integer("first_k_dense_replace", {0, config.num_hidden_layers}));
    types.assign(static_cast<std::size_t>(config.num_hidden_layers), MlpType::kSparse);
    std::fill_n(types.begin(), dense, MlpType::kDense);
    return base::ok_status();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           fields.texts("mlp_layer_types", config.num_hidden_layers));
  for (const std::string& name : names) {
    if (name != "dense" && name != "sparse") {
      return fields.refuse_unsupported("mlp_layer_types",
                                       fmt::format("has {}, expected 'dense' or 'sparse'", weights::quote_name(name)));
    }
    types.push_back(name == "dense" ? MlpType::kDense : MlpType::kSparse);
  }
  if (std::ssize(types) != config.num_hidden_layers) {
    return fields.refuse("mlp_layer_types", fmt::format("has {} entries, expected num_hidden_layers {}", types.size(),
                                                        config.num_hidden_layers));
  }
  return base::ok_status();
}

// By the first that is there: the list, the pattern of letters, the frequency.
base::Result<std::vector<IndexerType>> read_indexer_types(const ConfigFields& fields, std::int64_t layers) {
  std::vector<IndexerType> types;
  if (fields.has("indexer_types")) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, fields.texts("indexer_types", layers));
    for (const std::string& name : names) {
      if (name != "full" && name != "shared") {
        return base::failure(fields.refuse_unsupported(
            "indexer_types", fmt::format("has {}, expected 'full' or 'shared'", weights::quote_name(name))));
      }
      types.push_back(name == "full" ? IndexerType::kFull : IndexerType::kShared);
    }
    if (std::ssize(types) != layers) {
      return base::failure(fields.refuse(
          "indexer_types", fmt::format("has {} entries, expected num_hidden_layers {}", types.size(), layers)));
    }
    return types;
  }
  if (fields.has("index_topk_pattern")) {
    TESSERA_ASSIGN_OR_RETURN(const std::string pattern, fields.text("index_topk_pattern"));
    if (std::ssize(pattern) != layers || pattern.find_first_not_of("FS") != std::string::npos) {
      return base::failure(
          fields.refuse("index_topk_pattern", fmt::format("expected one letter F or S for each of {} layers", layers)));
    }
    for (const char letter : pattern) types.push_back(letter == 'F' ? IndexerType::kFull : IndexerType::kShared);
    return types;
  }
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t frequency,
                           fields.integer_or("index_topk_freq", {1, limits::kLayersMax}, 1));
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t offset,
                           fields.integer_or("index_skip_topk_offset", {0, limits::kLayersMax}, 2));
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const bool full = std::max<std::int64_t>(layer - offset + 1, 0) % frequency == 0;
    types.push_back(full ? IndexerType::kFull : IndexerType::kShared);
  }
  return types;
}

// A factor that is absent, null or 1.
base::Status expect_one(const ConfigFields& fields, std::string_view field) {
  TESSERA_ASSIGN_OR_RETURN(const double value, fields.number_or(field, {-1e30, 1e30}, 1.0));
  if (value == 1.0) return base::ok_status();
  return fields.refuse_unsupported(field, fmt::format("is {}, expected 1", value));
}

// Fields of relatives that change what is computed. Absent or null, or at the value that changes nothing, they are
// fine; anything else would be computed wrongly here, so it is refused instead of ignored.
base::Status refuse_foreign_mathematics(const ConfigFields& fields) {
  for (const std::string_view field :
       {"pretraining_tp", "embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"}) {
    TESSERA_RETURN_IF_ERROR(expect_one(fields, field));
  }
  // No value of these is known to change nothing: a multiplier of attention stands in for 1 / sqrt(head_dim).
  for (const std::string_view field :
       {"attention_chunk_size", "attention_multiplier", "final_logit_softcapping", "attn_logit_softcapping"}) {
    if (fields.has(field)) return fields.refuse_unsupported(field, "is not computed, expected none or null");
  }
  TESSERA_RETURN_IF_ERROR(expect_boolean(fields, "qk_layernorm", false, false));
  TESSERA_RETURN_IF_ERROR(expect_boolean(fields, "use_sliding_window", false, false));
  // Files that have the switch above give the window's size also when it is off.
  if (fields.has("sliding_window") && !fields.has("use_sliding_window")) {
    return fields.refuse_unsupported("sliding_window", "is not computed, expected none or null");
  }
  return base::ok_status();
}

// transformers calls every layer of a sparse model indexed_attention, whether it has an indexer or shares a selection,
// and called it deepseek_sparse_attention before.
base::Status check_layer_types(const ConfigFields& fields, AttentionLayers layers, const ModelConfig& config) {
  if (!fields.has("layer_types")) return base::ok_status();
  const bool indexed = layers == AttentionLayers::kIndexed;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> types, fields.texts("layer_types", config.num_hidden_layers));
  for (const std::string& type : types) {
    if (indexed ? type == "indexed_attention" || type == "deepseek_sparse_attention" : type == "full_attention") {
      continue;
    }
    return fields.refuse_unsupported("layer_types", fmt::format("has {}, expected '{}'", weights::quote_name(type),
                                                                indexed ? "indexed_attention" : "full_attention"));
  }
  return base::ok_status();
}

// partial_rotary_factor, from rope_parameters or beside them; `missing` where it is in neither.
base::Result<double> partial_rotary_factor(const ConfigFields& fields, double missing) {
  constexpr std::string_view kField = "partial_rotary_factor";
  const Range<double> range{1e-3, 1.0};
  TESSERA_ASSIGN_OR_RETURN(const double outside, fields.number_or(kField, range, missing));
  if (!fields.has("rope_parameters")) return outside;
  TESSERA_ASSIGN_OR_RETURN(const ConfigFields rope, fields.object("rope_parameters"));
  TESSERA_ASSIGN_OR_RETURN(const double inside, rope.number_or(kField, range, outside));
  if (fields.has(kField) && inside != outside) {
    return base::failure(fields.refuse(kField, fmt::format("is {}, but rope_parameters say {}", outside, inside)));
  }
  return inside;
}

base::Status expect_whole_rotary(const ConfigFields& fields) {
  TESSERA_ASSIGN_OR_RETURN(const double factor, partial_rotary_factor(fields, 1.0));
  if (factor == 1.0) return base::ok_status();
  return fields.refuse_unsupported("partial_rotary_factor", fmt::format("is {}, expected 1", factor));
}

}  // namespace

base::Status expect_boolean(const ConfigFields& fields, std::string_view field, bool missing, bool expected) {
  TESSERA_ASSIGN_OR_RETURN(const bool value, fields.boolean_or(field, missing));
  if (value == expected) return base::ok_status();
  return fields.refuse_unsupported(field, fmt::format("is {}, expected {}", value, expected));
}

base::Status expect_text(const ConfigFields& fields, std::string_view field, std::string_view expected) {
  if (!fields.has(field)) return base::ok_status();
  TESSERA_ASSIGN_OR_RETURN(const std::string value, fields.text(field));
  if (value == expected) return base::ok_status();
  return fields.refuse_unsupported(field, fmt::format("is {}, expected '{}'", weights::quote_name(value), expected));
}

base::Status expect_integer(const ConfigFields& fields, std::string_view field, std::int64_t expected) {
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t value,
                           fields.integer_or(field, {-limits::kIntermediateMax, limits::kIntermediateMax}, expected));
  if (value == expected) return base::ok_status();
  return fields.refuse_unsupported(field, fmt::format("is {}, expected {}", value, expected));
}

base::Status read_decoder_fields(const ConfigFields& fields, ModelConfig& config, AttentionLayers layers) {
  TESSERA_ASSIGN_OR_RETURN(config.vocab_size, fields.integer("vocab_size", {1, limits::kVocabularyMax}));
  TESSERA_ASSIGN_OR_RETURN(config.hidden_size, fields.integer("hidden_size", {1, limits::kHiddenMax}));
  TESSERA_ASSIGN_OR_RETURN(config.intermediate_size,
                           fields.integer("intermediate_size", {1, limits::kIntermediateMax}));
  TESSERA_ASSIGN_OR_RETURN(config.num_hidden_layers, fields.integer("num_hidden_layers", {1, limits::kLayersMax}));
  TESSERA_ASSIGN_OR_RETURN(config.num_attention_heads, fields.integer("num_attention_heads", {1, limits::kHeadsMax}));
  TESSERA_ASSIGN_OR_RETURN(config.max_position_embeddings,
                           fields.integer("max_position_embeddings", {1, limits::kContextMax}));
  TESSERA_ASSIGN_OR_RETURN(const double epsilon, fields.number("rms_norm_eps", {1e-12, 1.0}));
  config.rms_norm_eps = static_cast<float>(epsilon);
  TESSERA_ASSIGN_OR_RETURN(config.tie_word_embeddings, fields.boolean_or("tie_word_embeddings", false));
  TESSERA_ASSIGN_OR_RETURN(const std::string activation, fields.text("hidden_act"));
  if (activation != "silu") {
    return fields.refuse_unsupported("hidden_act",
                                     fmt::format("is {}, expected 'silu'", weights::quote_name(activation)));
  }
  TESSERA_RETURN_IF_ERROR(refuse_foreign_mathematics(fields));
  return check_layer_types(fields, layers, config);
}

base::Status read_rope_fields(const ConfigFields& fields, RopeTypes types, ModelConfig& config) {
  const bool newer = fields.has("rope_parameters");
  ConfigFields holder = fields;
  if (newer) {
    TESSERA_ASSIGN_OR_RETURN(holder, fields.object("rope_parameters"));
  }
  TESSERA_ASSIGN_OR_RETURN(config.rope.rope_theta, holder.number("rope_theta", {1.0, 1e12}));
  if (newer && fields.has("rope_theta")) {
    TESSERA_ASSIGN_OR_RETURN(const double other, fields.number("rope_theta", {1.0, 1e12}));
    if (other != config.rope.rope_theta) {
      return fields.refuse("rope_theta",
                           fmt::format("is {}, but rope_parameters say {}", other, config.rope.rope_theta));
    }
  }
  if (newer && fields.has("rope_scaling")) {
    return fields.refuse("rope_scaling", "is there beside rope_parameters, expected one of them");
  }
  const std::string_view place = newer ? "rope_parameters" : "rope_scaling";
  if (!fields.has(place)) return base::ok_status();
  TESSERA_ASSIGN_OR_RETURN(const ConfigFields scaling, fields.object(place));
  const std::string_view field = scaling.has("rope_type") ? "rope_type" : "type";
  TESSERA_ASSIGN_OR_RETURN(const std::string type, scaling.text(field));
  if (type == "default") return base::ok_status();
  if (type == "yarn" && types == RopeTypes::kDefaultOrYarn) return read_yarn(fields, scaling, config);
  return scaling.refuse_unsupported(field, fmt::format("is {}, expected 'default'{}", weights::quote_name(type),
                                                       types == RopeTypes::kDefaultOrYarn ? " or 'yarn'" : ""));
}

base::Status read_gqa_fields(const ConfigFields& fields, HeadDim head_dim, PartialRotary rotary, ModelConfig& config) {
  GqaConfig gqa;
  TESSERA_ASSIGN_OR_RETURN(gqa.num_key_value_heads, fields.integer_or("num_key_value_heads", {1, limits::kHeadsMax},
                                                                      config.num_attention_heads));
  if (config.num_attention_heads % gqa.num_key_value_heads != 0) {
    return fields.refuse("num_key_value_heads", fmt::format("is {}, expected a divisor of num_attention_heads {}",
                                                            gqa.num_key_value_heads, config.num_attention_heads));
  }
  if (head_dim == HeadDim::kRequired || fields.has("head_dim")) {
    TESSERA_ASSIGN_OR_RETURN(gqa.head_dim, fields.integer("head_dim", {2, limits::kHeadDimMax}));
  } else if (config.hidden_size % config.num_attention_heads != 0) {
    return fields.refuse("num_attention_heads", fmt::format("is {}, expected a divisor of hidden_size {}",
                                                            config.num_attention_heads, config.hidden_size));
  } else {
    gqa.head_dim = config.hidden_size / config.num_attention_heads;
  }
  if (gqa.head_dim < 2 || gqa.head_dim % 2 != 0) {
    return fields.refuse("head_dim", fmt::format("is {}, expected an even number", gqa.head_dim));
  }
  if (config.num_attention_heads * gqa.head_dim > limits::kIntermediateMax) {
    return fields.refuse("head_dim", fmt::format("times num_attention_heads is {}, expected at most {}",
                                                 config.num_attention_heads * gqa.head_dim, limits::kIntermediateMax));
  }
  if (rotary == PartialRotary::kNone) {
    TESSERA_RETURN_IF_ERROR(expect_whole_rotary(fields));
    gqa.rotary_dim = gqa.head_dim;
    config.gqa = gqa;
    return base::ok_status();
  }
  TESSERA_ASSIGN_OR_RETURN(const double factor, partial_rotary_factor(fields, 0.5));
  gqa.rotary_dim = static_cast<std::int64_t>(static_cast<double>(gqa.head_dim) * factor);
  if (gqa.rotary_dim < 2 || gqa.rotary_dim % 2 != 0) {
    return fields.refuse("partial_rotary_factor", fmt::format("rotates {} of {} elements, expected an even number",
                                                              gqa.rotary_dim, gqa.head_dim));
  }
  config.gqa = gqa;
  return base::ok_status();
}

base::Status read_mla_fields(const ConfigFields& fields, QLora q_lora, ModelConfig& config) {
  MlaConfig mla;
  const Range<std::int64_t> rank{1, limits::kLoraRankMax};
  const Range<std::int64_t> head{1, limits::kHeadDimMax};
  if (q_lora == QLora::kRequired || fields.has("q_lora_rank")) {
    TESSERA_ASSIGN_OR_RETURN(mla.q_lora_rank, fields.integer("q_lora_rank", rank));
  }
  TESSERA_ASSIGN_OR_RETURN(mla.kv_lora_rank, fields.integer("kv_lora_rank", rank));
  TESSERA_ASSIGN_OR_RETURN(mla.qk_nope_head_dim, fields.integer("qk_nope_head_dim", head));
  TESSERA_ASSIGN_OR_RETURN(mla.qk_rope_head_dim, fields.integer("qk_rope_head_dim", head));
  TESSERA_ASSIGN_OR_RETURN(mla.v_head_dim, fields.integer("v_head_dim", head));
  if (mla.qk_rope_head_dim % 2 != 0) {
    return fields.refuse("qk_rope_head_dim", fmt::format("is {}, expected an even number", mla.qk_rope_head_dim));
  }
  if (config.num_attention_heads * (mla.qk_head_dim() + mla.v_head_dim) > limits::kIntermediateMax) {
    return fields.refuse(
        "num_attention_heads",
        fmt::format("times the sizes of a head is {}, expected at most {}",
                    config.num_attention_heads * (mla.qk_head_dim() + mla.v_head_dim), limits::kIntermediateMax));
  }
  // All heads share one latent; files say so by as many key-value heads as heads. `head_dim` is written by some tools
  // and means nothing here; the size of a query is checked where it is written down.
  TESSERA_RETURN_IF_ERROR(expect_integer(fields, "num_key_value_heads", config.num_attention_heads));
  TESSERA_RETURN_IF_ERROR(expect_integer(fields, "qk_head_dim", mla.qk_head_dim()));
  TESSERA_RETURN_IF_ERROR(expect_boolean(fields, "attention_bias", false, false));
  TESSERA_RETURN_IF_ERROR(expect_whole_rotary(fields));
  config.mla = mla;
  return base::ok_status();
}

base::Status read_dsa_fields(const ConfigFields& fields, ModelConfig& config) {
  DsaConfig dsa;
  TESSERA_ASSIGN_OR_RETURN(dsa.index_n_heads, fields.integer("index_n_heads", {1, limits::kHeadsMax}));
  TESSERA_ASSIGN_OR_RETURN(dsa.index_head_dim,
                           fields.integer("index_head_dim", {config.mla->qk_rope_head_dim, limits::kHeadDimMax}));
  TESSERA_ASSIGN_OR_RETURN(dsa.index_topk, fields.integer("index_topk", {1, limits::kIndexTopkMax}));
  if (dsa.index_n_heads * dsa.index_head_dim > limits::kIntermediateMax) {
    return fields.refuse("index_n_heads",
                         fmt::format("times index_head_dim is {}, expected at most {}",
                                     dsa.index_n_heads * dsa.index_head_dim, limits::kIntermediateMax));
  }
  TESSERA_ASSIGN_OR_RETURN(dsa.indexer_types, read_indexer_types(fields, config.num_hidden_layers));
  if (dsa.indexer_types.front() != IndexerType::kFull) {
    return fields.refuse("indexer_types", "the first layer shares a selection, expected it to make one");
  }
  config.dsa = std::move(dsa);
  return base::ok_status();
}

base::Status read_moe_fields(const ConfigFields& fields, ModelConfig& config) {
  config.moe.emplace();
  MoeConfig& moe = *config.moe;
  TESSERA_ASSIGN_OR_RETURN(moe.n_routed_experts, fields.integer("n_routed_experts", {1, limits::kExpertsMax}));
  if (moe.n_routed_experts * config.num_hidden_layers > limits::kExpertsOfAllLayersMax) {
    return fields.refuse("n_routed_experts",
                         fmt::format("times num_hidden_layers is {}, expected at most {}",
                                     moe.n_routed_experts * config.num_hidden_layers, limits::kExpertsOfAllLayersMax));
  }
  TESSERA_ASSIGN_OR_RETURN(moe.n_shared_experts,
                           fields.integer_or("n_shared_experts", {0, limits::kSharedExpertsMax}, 0));
  TESSERA_ASSIGN_OR_RETURN(moe.moe_intermediate_size,
                           fields.integer("moe_intermediate_size", {1, limits::kIntermediateMax}));
  if (moe.n_shared_experts * moe.moe_intermediate_size > limits::kIntermediateMax) {
    return fields.refuse("n_shared_experts",
                         fmt::format("times moe_intermediate_size is {}, expected at most {}",
                                     moe.n_shared_experts * moe.moe_intermediate_size, limits::kIntermediateMax));
  }
  TESSERA_ASSIGN_OR_RETURN(moe.n_group, fields.integer("n_group", {1, moe.n_routed_experts}));
  TESSERA_ASSIGN_OR_RETURN(moe.topk_group, fields.integer("topk_group", {1, moe.n_group}));
  const std::int64_t group_size = moe.n_routed_experts / moe.n_group;
  // A group is judged by its two best experts.
  if (moe.n_routed_experts % moe.n_group != 0 || (moe.n_group > 1 && group_size < 2)) {
    return fields.refuse(
        "n_group", fmt::format("is {}, expected to divide n_routed_experts {} into groups of two or more", moe.n_group,
                               moe.n_routed_experts));
  }
  TESSERA_ASSIGN_OR_RETURN(moe.num_experts_per_tok,
                           fields.integer("num_experts_per_tok", {1, group_size * moe.topk_group}));
  TESSERA_ASSIGN_OR_RETURN(const bool normalized, fields.boolean_or("norm_topk_prob", true));
  moe.norm_topk_prob = normalized ? TopkProb::kNormalized : TopkProb::kAsIs;
  TESSERA_ASSIGN_OR_RETURN(const double scale, fields.number("routed_scaling_factor", {1e-6, 1e6}));
  moe.routed_scaling_factor = static_cast<float>(scale);
  TESSERA_RETURN_IF_ERROR(expect_text(fields, "scoring_func", "sigmoid"));
  TESSERA_RETURN_IF_ERROR(expect_text(fields, "topk_method", "noaux_tc"));
  TESSERA_RETURN_IF_ERROR(expect_integer(fields, "moe_layer_freq", 1));
  TESSERA_RETURN_IF_ERROR(expect_integer(fields, "num_experts", moe.n_routed_experts));
  TESSERA_RETURN_IF_ERROR(expect_integer(fields, "num_local_experts", moe.n_routed_experts));
  TESSERA_RETURN_IF_ERROR(read_mlp_layer_types(fields, config));
  const std::string_view nextn = fields.has("num_nextn_predict_layers") ? "num_nextn_predict_layers" : "num_mtp_layers";
  TESSERA_ASSIGN_OR_RETURN(config.num_nextn_predict_layers, fields.integer_or(nextn, {0, limits::kNextnLayersMax}, 0));
  return base::ok_status();
}

}  // namespace tessera::models
