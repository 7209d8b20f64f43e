#include "tessera/models/llama.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/models/blocks.h"
#include "tessera/models/rope.h"
#include "tessera/weights/safetensors.h"

namespace tessera::models {

namespace {

namespace limits = base::limits;

// A factor that is absent, null or 1.
base::Status require_one(const ConfigFields& fields, std::string_view field) {
  if (!fields.has(field)) return base::ok_status();
  TESSERA_ASSIGN_OR_RETURN(const double value, fields.number(field, {-1e30, 1e30}));
  if (value == 1.0) return base::ok_status();
  return fields.refuse_unsupported(field, fmt::format("is {}, expected 1", value));
}

// Older files: rope_theta and rope_scaling (null, or {"rope_type" or "type": ...}). Newer ones: rope_parameters with
// both inside.
base::Status read_rope(const ConfigFields& fields, ModelConfig& config) {
  const bool newer = fields.has("rope_parameters");
  ConfigFields holder = fields;
  if (newer) {
    TESSERA_ASSIGN_OR_RETURN(holder, fields.object("rope_parameters"));
  }
  TESSERA_ASSIGN_OR_RETURN(const double theta, holder.number("rope_theta", {1.0, 1e12}));
  config.rope_theta = static_cast<float>(theta);
  if (newer && fields.has("rope_theta")) {
    TESSERA_ASSIGN_OR_RETURN(const double other, fields.number("rope_theta", {1.0, 1e12}));
    if (other != theta) {
      return fields.refuse("rope_theta", fmt::format("is {}, but rope_parameters say {}", other, theta));
    }
  }
  for (const std::string_view place : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(place)) continue;
    TESSERA_ASSIGN_OR_RETURN(const ConfigFields scaling, fields.object(place));
    const std::string_view field = scaling.has("rope_type") ? "rope_type" : "type";
    TESSERA_ASSIGN_OR_RETURN(const std::string type, scaling.text(field));
    if (type != "default") {
      return scaling.refuse_unsupported(field, fmt::format("is {}, expected 'default'", weights::quote_name(type)));
    }
    TESSERA_RETURN_IF_ERROR(require_one(scaling, "partial_rotary_factor"));
  }
  TESSERA_ASSIGN_OR_RETURN(const bool interleaved, fields.boolean_or("rope_interleaved", false));
  if (interleaved) return fields.refuse_unsupported("rope_interleaved", "is true, expected false");
  return base::ok_status();
}

// Fields of the architecture's relatives that change what is computed. Absent or null, or at the value that changes
// nothing, they are fine; anything else would be computed wrongly here, so it is refused instead of ignored.
base::Status refuse_foreign_mathematics(const ConfigFields& fields) {
  for (const std::string_view field : {"partial_rotary_factor", "pretraining_tp", "embedding_multiplier",
                                       "residual_multiplier", "logits_scaling", "logit_scale"}) {
    TESSERA_RETURN_IF_ERROR(require_one(fields, field));
  }
  // No value of these is known to change nothing: a multiplier of attention stands in for 1 / sqrt(head_dim).
  for (const std::string_view field : {"sliding_window", "attention_chunk_size", "attention_multiplier",
                                       "final_logit_softcapping", "attn_logit_softcapping"}) {
    if (fields.has(field)) return fields.refuse_unsupported(field, "is not computed, expected none or null");
  }
  for (const std::string_view field : {"use_sliding_window", "use_qk_norm", "qk_layernorm"}) {
    TESSERA_ASSIGN_OR_RETURN(const bool present, fields.boolean_or(field, false));
    if (present) return fields.refuse_unsupported(field, "is true, expected false");
  }
  return base::ok_status();
}

base::Status read_llama_fields(const ConfigFields& fields, ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(config.vocab_size, fields.integer("vocab_size", {1, limits::kVocabularyMax}));
  TESSERA_ASSIGN_OR_RETURN(config.hidden_size, fields.integer("hidden_size", {1, limits::kHiddenMax}));
  TESSERA_ASSIGN_OR_RETURN(config.intermediate_size,
                           fields.integer("intermediate_size", {1, limits::kIntermediateMax}));
  TESSERA_ASSIGN_OR_RETURN(config.num_hidden_layers, fields.integer("num_hidden_layers", {1, limits::kLayersMax}));
  TESSERA_ASSIGN_OR_RETURN(config.num_attention_heads, fields.integer("num_attention_heads", {1, limits::kHeadsMax}));
  TESSERA_ASSIGN_OR_RETURN(config.num_key_value_heads, fields.integer_or("num_key_value_heads", {1, limits::kHeadsMax},
                                                                         config.num_attention_heads));
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    return fields.refuse("num_key_value_heads", fmt::format("is {}, expected a divisor of num_attention_heads {}",
                                                            config.num_key_value_heads, config.num_attention_heads));
  }
  if (!fields.has("head_dim") && config.hidden_size % config.num_attention_heads != 0) {
    return fields.refuse("num_attention_heads", fmt::format("is {}, expected a divisor of hidden_size {}",
                                                            config.num_attention_heads, config.hidden_size));
  }
  TESSERA_ASSIGN_OR_RETURN(config.head_dim, fields.integer_or("head_dim", {2, limits::kHeadDimMax},
                                                              config.hidden_size / config.num_attention_heads));
  if (config.head_dim < 2 || config.head_dim % 2 != 0) {
    return fields.refuse("head_dim", fmt::format("is {}, expected an even number", config.head_dim));
  }
  if (config.num_attention_heads * config.head_dim > limits::kIntermediateMax) {
    return fields.refuse("head_dim",
                         fmt::format("times num_attention_heads is {}, expected at most {}",
                                     config.num_attention_heads * config.head_dim, limits::kIntermediateMax));
  }
  TESSERA_ASSIGN_OR_RETURN(config.max_position_embeddings,
                           fields.integer("max_position_embeddings", {1, limits::kContextMax}));
  TESSERA_ASSIGN_OR_RETURN(const double epsilon, fields.number("rms_norm_eps", {1e-12, 1.0}));
  config.rms_norm_eps = static_cast<float>(epsilon);
  TESSERA_RETURN_IF_ERROR(read_rope(fields, config));
  TESSERA_ASSIGN_OR_RETURN(config.tie_word_embeddings, fields.boolean_or("tie_word_embeddings", false));
  TESSERA_ASSIGN_OR_RETURN(const std::string activation, fields.text("hidden_act"));
  if (activation != "silu") {
    return fields.refuse_unsupported("hidden_act",
                                     fmt::format("is {}, expected 'silu'", weights::quote_name(activation)));
  }
  for (const std::string_view bias : {"attention_bias", "mlp_bias"}) {
    TESSERA_ASSIGN_OR_RETURN(const bool present, fields.boolean_or(bias, false));
    if (present) return fields.refuse_unsupported(bias, "is true, expected false");
  }
  return refuse_foreign_mathematics(fields);
}

// Where each weight of the model stands in the description's list.
struct LlamaLayer {
  std::size_t input_norm, q, k, v, o, post_attention_norm, gate, up, down;
};
struct LlamaTensors {
  ModelDescription description;
  std::size_t embedding, final_norm, head;
  std::vector<LlamaLayer> layers;
};

LlamaTensors llama_tensors(const ModelConfig& config) {
  using ops::WeightUsage;
  using weights::ShardDimension;
  using weights::ShardSpec;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q_rows = config.num_attention_heads * config.head_dim;
  const std::int64_t kv_rows = config.num_key_value_heads * config.head_dim;
  const ShardSpec whole{};
  const ShardSpec rows{ShardDimension::kRows, 1};
  const ShardSpec columns{ShardDimension::kColumns, 1};
  const ShardSpec head_rows{ShardDimension::kRows, config.head_dim};
  const ShardSpec head_columns{ShardDimension::kColumns, config.head_dim};

  LlamaTensors t;
  ModelDescription& d = t.description;
  const std::string embedding_name = "model.embed_tokens.weight";
  const std::vector<std::int64_t> table = {config.vocab_size, hidden};
  d.head_tensor = "lm_head.weight";
  t.embedding = d.add({embedding_name, table, WeightUsage::kEmbedding, rows});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    const auto norm = [&](const char* name) {
      return d.add({prefix + name + ".weight", {hidden}, WeightUsage::kVector, whole});
    };
    const auto linear = [&](const char* name, std::int64_t n, std::int64_t k, const ShardSpec& shard) {
      return d.add({prefix + name + ".weight", {n, k}, WeightUsage::kLinear, shard});
    };
    LlamaLayer layer{};
    layer.input_norm = norm("input_layernorm");
    layer.q = linear("self_attn.q_proj", q_rows, hidden, head_rows);
    layer.k = linear("self_attn.k_proj", kv_rows, hidden, head_rows);
    layer.v = linear("self_attn.v_proj", kv_rows, hidden, head_rows);
    layer.o = linear("self_attn.o_proj", hidden, q_rows, head_columns);
    layer.post_attention_norm = norm("post_attention_layernorm");
    layer.gate = linear("mlp.gate_proj", config.intermediate_size, hidden, rows);
    layer.up = linear("mlp.up_proj", config.intermediate_size, hidden, rows);
    layer.down = linear("mlp.down_proj", hidden, config.intermediate_size, columns);
    t.layers.push_back(layer);
  }
  t.final_norm = d.add({"model.norm.weight", {hidden}, WeightUsage::kVector, whole});
  t.head = d.add({config.tie_word_embeddings ? embedding_name : d.head_tensor, table, WeightUsage::kLinear, rows});
  d.kv = ops::gqa_kv_layout(ops::KvFormat::kBF16, static_cast<std::int32_t>(config.num_hidden_layers), 64,
                            static_cast<std::int32_t>(config.num_key_value_heads),
                            static_cast<std::int32_t>(config.head_dim));
  return t;
}

ModelDescription describe_llama(const ModelConfig& config) { return llama_tensors(config).description; }

class LlamaWorkspace final : public Workspace {
 public:
  // Attention's scratch and the MLP's share memory: a layer is done with one before it begins the other.
  static base::Result<std::unique_ptr<LlamaWorkspace>> create(ops::Backend& backend, const ModelConfig& config,
                                                              const WorkspaceLimits& limits) {
    TESSERA_CHECK(limits.tokens_max > 0);
    const std::int64_t attention = 2 * (config.num_attention_heads + config.num_key_value_heads) * config.head_dim;
    const std::int64_t columns = 2 * config.hidden_size + std::max(attention, 2 * config.intermediate_size);
    const std::optional<std::int64_t> floats = base::checked_mul(limits.tokens_max, columns);
    const std::optional<std::int64_t> bytes =
        floats.has_value() ? base::checked_mul(*floats, static_cast<std::int64_t>(sizeof(float))) : std::nullopt;
    if (!bytes.has_value()) {
      return base::failure(base::out_of_range(fmt::format("workspace for {} tokens overflows", limits.tokens_max)));
    }
    TESSERA_ASSIGN_OR_RETURN(ops::Buffer storage, backend.allocate(*bytes, "model workspace"));
    return std::unique_ptr<LlamaWorkspace>(new LlamaWorkspace(config, limits, std::move(storage)));
  }

  std::int64_t device_bytes() const override { return storage_.bytes(); }
  std::int64_t tokens_max() const { return tokens_max_; }

  ops::Matrix residual;  // All [tokens_max, ...].
  ops::Matrix normed;
  GqaScratch attention;
  SwigluScratch mlp;

 private:
  LlamaWorkspace(const ModelConfig& config, const WorkspaceLimits& limits, ops::Buffer storage)
      : tokens_max_(limits.tokens_max), storage_(std::move(storage)) {
    float* next = storage_.as<float>();
    const auto carve = [&](std::int64_t cols) {
      const ops::Matrix m = ops::f32_matrix(next, tokens_max_, cols);
      next += tokens_max_ * cols;
      return m;
    };
    residual = carve(config.hidden_size);
    normed = carve(config.hidden_size);
    float* const shared = next;
    attention.q = carve(config.num_attention_heads * config.head_dim);
    attention.context = carve(config.num_attention_heads * config.head_dim);
    attention.k = carve(config.num_key_value_heads * config.head_dim);
    attention.v = carve(config.num_key_value_heads * config.head_dim);
    next = shared;
    mlp.gate = carve(config.intermediate_size);
    mlp.up = carve(config.intermediate_size);
  }
  std::int64_t tokens_max_;
  ops::Buffer storage_;
};

class LlamaModel final : public Model {
 public:
  LlamaModel(LoadedModel loaded, ops::Buffer inverse_frequencies)
      : loaded_(std::move(loaded)),
        tensors_(llama_tensors(loaded_.config)),
        inverse_frequencies_(std::move(inverse_frequencies)) {
    const ModelConfig& c = loaded_.config;
    shape_.heads = static_cast<std::int32_t>(c.num_attention_heads);
    shape_.kv_heads = static_cast<std::int32_t>(c.num_key_value_heads);
    shape_.head_dim = static_cast<std::int32_t>(c.head_dim);
    shape_.rotary_dim = shape_.head_dim;
    shape_.inverse_frequencies = {inverse_frequencies_.as<float>(), static_cast<std::size_t>(c.head_dim / 2)};
  }

  const ModelConfig& config() const override { return loaded_.config; }
  ops::KvLayout kv_layout(ops::KvFormat format, std::int32_t page_size) const override {
    return tensors_.description.kv_layout(format, page_size);
  }
  base::Result<std::unique_ptr<Workspace>> make_workspace(const WorkspaceLimits& limits) const override {
    return LlamaWorkspace::create(*loaded_.backend, loaded_.config, limits);
  }
  std::int64_t weight_bytes() const override { return loaded_.weight_bytes; }
  const std::string& digest() const override { return loaded_.digest; }
  const std::string& weight_format() const override { return loaded_.weight_format; }

  void forward(ops::Stream& stream, Workspace& workspace, const ForwardBatch& batch,
               ops::Matrix logits) const override {
    LlamaWorkspace& w = dynamic_cast<LlamaWorkspace&>(workspace);
    const std::int64_t tokens = std::ssize(batch.token_ids);
    TESSERA_CHECK(tokens <= w.tokens_max(), "the batch is larger than its workspace");
    TESSERA_CHECK(std::ssize(batch.positions) == tokens && batch.slots.tokens() == tokens);
    TESSERA_CHECK(!batch.cu_seqlens_q.empty() && batch.cu_seqlens_q.back() == tokens);
    TESSERA_CHECK(logits.rows == std::ssize(batch.logit_tokens) && logits.cols == loaded_.config.vocab_size);
    if (tokens == 0) return;

    ops::Backend& backend = *loaded_.backend;
    const float epsilon = loaded_.config.rms_norm_eps;
    const BlockContext context{backend, stream, batch};
    const ops::Matrix residual = first_rows(w.residual, tokens);
    const ops::Matrix normed = first_rows(w.normed, tokens);
    const GqaScratch attention{first_rows(w.attention.q, tokens), first_rows(w.attention.k, tokens),
                               first_rows(w.attention.v, tokens), first_rows(w.attention.context, tokens)};
    const SwigluScratch mlp{first_rows(w.mlp.gate, tokens), first_rows(w.mlp.up, tokens)};

    backend.embedding(stream, {.table = weight(tensors_.embedding), .token_ids = batch.token_ids, .out = residual});
    for (std::size_t i = 0; i < tensors_.layers.size(); ++i) {
      const LlamaLayer& layer = tensors_.layers[i];
      backend.rms_norm(stream, {.in = residual, .weight = weight(layer.input_norm), .epsilon = epsilon, .out = normed});
      gqa_attention(context, static_cast<std::int32_t>(i), shape_,
                    {weight(layer.q), weight(layer.k), weight(layer.v), weight(layer.o)}, normed, attention, residual);
      backend.rms_norm(
          stream, {.in = residual, .weight = weight(layer.post_attention_norm), .epsilon = epsilon, .out = normed});
      swiglu_mlp(context, {weight(layer.gate), weight(layer.up), weight(layer.down)}, normed, mlp, residual);
      if (batch.after_layer) batch.after_layer(static_cast<int>(i));
    }
    write_logits(context, *weight(tensors_.final_norm), epsilon, *weight(tensors_.head), residual, w.normed, logits);
  }

 private:
  const ops::Weight* weight(std::size_t index) const { return &loaded_.weights[index]; }

  LoadedModel loaded_;
  LlamaTensors tensors_;
  ops::Buffer inverse_frequencies_;  // F32 [head_dim / 2]
  GqaShape shape_;
};

base::Result<std::unique_ptr<Model>> make_llama(LoadedModel loaded) {
  const std::vector<float> frequencies = rope_inverse_frequencies(loaded.config.rope_theta, loaded.config.head_dim);
  const std::int64_t bytes = std::ssize(frequencies) * static_cast<std::int64_t>(sizeof(float));
  TESSERA_ASSIGN_OR_RETURN(ops::Buffer buffer, loaded.backend->allocate(bytes, "rotary frequencies"));
  const std::unique_ptr<ops::Stream> stream = loaded.backend->make_stream();
  loaded.backend->copy_to_device(*stream, buffer.data(), frequencies.data(), bytes);
  stream->synchronize();
  return std::make_unique<LlamaModel>(std::move(loaded), std::move(buffer));
}

}  // namespace

constinit const FamilyEntry kLlamaFamily = {
    "LlamaForCausalLM", "llama", Family::kLlama, &read_llama_fields, &describe_llama, &make_llama,
};

}  // namespace tessera::models
