#include "tessera/models/decoder.h"

#include <cmath>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/models/blocks.h"
#include "tessera/models/decoder_workspace.h"
#include "tessera/models/mla_block.h"
#include "tessera/models/rope.h"

namespace tessera::models {

namespace {

std::int64_t rotary_dim(const ModelConfig& config) {
  return config.gqa.has_value() ? config.gqa->rotary_dim : config.mla->qk_rope_head_dim;
}

GqaShape gqa_shape(const ModelConfig& config, std::span<const float> inverse_frequencies) {
  GqaShape shape;
  shape.heads = static_cast<std::int32_t>(config.num_attention_heads);
  shape.kv_heads = static_cast<std::int32_t>(config.gqa->num_key_value_heads);
  shape.head_dim = static_cast<std::int32_t>(config.gqa->head_dim);
  shape.rotary_dim = static_cast<std::int32_t>(config.gqa->rotary_dim);
  shape.rope_style = ops::RopeStyle::kHalf;
  shape.inverse_frequencies = inverse_frequencies;
  shape.rope_magnitude = rope_magnitude(config.rope);
  shape.norm_epsilon = config.rms_norm_eps;
  return shape;
}

MlaBlockShape mla_shape(const ModelConfig& config, const ops::MlaShape& mla,
                        std::span<const float> inverse_frequencies) {
  MlaBlockShape shape;
  shape.mla = mla;
  shape.rope_style = config.mla->rope_interleave == RopeInterleave::kInterleaved ? ops::RopeStyle::kInterleaved
                                                                                 : ops::RopeStyle::kHalf;
  shape.inverse_frequencies = inverse_frequencies;
  shape.rope_magnitude = rope_magnitude(config.rope);
  double scale = 1.0 / std::sqrt(static_cast<double>(config.mla->qk_head_dim()));
  if (config.rope.yarn.has_value() && config.rope.yarn->mscale_all_dim != 0.0) {
    const double mscale = yarn_mscale(config.rope.yarn->factor, config.rope.yarn->mscale_all_dim);
    scale *= mscale * mscale;
  }
  shape.softmax_scale = static_cast<float>(scale);
  if (config.dsa.has_value()) {
    shape.indexer.n_heads = static_cast<std::int32_t>(config.dsa->index_n_heads);
    shape.indexer.head_dim = static_cast<std::int32_t>(config.dsa->index_head_dim);
  }
  return shape;
}

MoeShape moe_shape(const MoeConfig& config) {
  MoeShape shape;
  shape.n_group = static_cast<std::int32_t>(config.n_group);
  shape.topk_group = static_cast<std::int32_t>(config.topk_group);
  shape.num_experts_per_tok = static_cast<std::int32_t>(config.num_experts_per_tok);
  shape.norm_topk_prob = config.norm_topk_prob == TopkProb::kNormalized;
  shape.routed_scaling_factor = config.routed_scaling_factor;
  return shape;
}

SwigluScratch first_rows(const SwigluScratch& s, std::int64_t rows) {
  return {models::first_rows(s.gate, rows), models::first_rows(s.up, rows)};
}

GqaScratch first_rows(const GqaScratch& s, std::int64_t rows) {
  return {models::first_rows(s.q, rows), models::first_rows(s.k, rows), models::first_rows(s.v, rows),
          models::first_rows(s.context, rows)};
}

MlaScratch first_rows(const MlaScratch& s, std::int64_t rows) {
  MlaScratch first = s;
  for (ops::Matrix* m :
       {&first.q_latent, &first.q, &first.kv, &first.context, &first.index_q, &first.index_k, &first.index_weights}) {
    m->rows = rows;
  }
  return first;
}

MoeScratch first_rows(const MoeScratch& s, std::int64_t rows) {
  MoeScratch first = s;
  first.router_logits.rows = rows;
  first.shared = first_rows(s.shared, rows);
  return first;
}

class Decoder final : public Model {
 public:
  Decoder(LoadedModel loaded, DecoderTensors tensors, ops::Buffer inverse_frequencies)
      : loaded_(std::move(loaded)), tensors_(std::move(tensors)), inverse_frequencies_(std::move(inverse_frequencies)) {
    const ModelConfig& c = loaded_.config;
    const std::span<const float> frequencies(inverse_frequencies_.as<float>(),
                                             static_cast<std::size_t>(rotary_dim(c) / 2));
    if (c.gqa.has_value()) {
      gqa_ = gqa_shape(c, frequencies);
    } else {
      mla_ = mla_shape(c, loaded_.mla_ups.front().shape, frequencies);
    }
    if (c.moe.has_value()) moe_ = moe_shape(*c.moe);
  }

  const ModelConfig& config() const override { return loaded_.config; }
  ops::KvLayout kv_layout(ops::KvFormat format, std::int32_t page_size) const override {
    return tensors_.description.kv_layout(format, page_size);
  }
  base::Result<std::unique_ptr<Workspace>> make_workspace(const WorkspaceLimits& limits) const override {
    return DecoderWorkspace::create(loaded_, limits);
  }
  std::int64_t weight_bytes() const override { return loaded_.weight_bytes; }
  const std::string& digest() const override { return loaded_.digest; }
  const std::string& weight_format() const override { return loaded_.weight_format; }

  void forward(ops::Stream& stream, Workspace& workspace, const ForwardBatch& batch,
               ops::Matrix logits) const override {
    DecoderWorkspace& w = dynamic_cast<DecoderWorkspace&>(workspace);
    const std::int64_t tokens = std::ssize(batch.token_ids);
    TESSERA_CHECK(tokens <= w.tokens_max(), "the batch is larger than its workspace");
    TESSERA_CHECK(std::ssize(batch.positions) == tokens && batch.slots.tokens() == tokens);
    TESSERA_CHECK(!batch.cu_seqlens_q.empty() && batch.cu_seqlens_q.back() == tokens);
    TESSERA_CHECK(batch.row_phases.size() + 1 == batch.cu_seqlens_q.size());
    TESSERA_CHECK(batch.pages.max_pages_per_row() * batch.cache.layout.page_size <
                      w.context_tokens_max() + batch.cache.layout.page_size,
                  "the page table's rows are longer than the workspace's context");
    TESSERA_CHECK(logits.rows == std::ssize(batch.logit_tokens) && logits.cols == loaded_.config.vocab_size);
    if (tokens == 0) return;
    w.forms.clear();
    for (const RowPhase phase : batch.row_phases) {
      w.forms.push_back(phase == RowPhase::kPrompt ? ops::MlaForm::kExpanded : ops::MlaForm::kAbsorbed);
    }

    ops::Backend& backend = *loaded_.backend;
    const float epsilon = loaded_.config.rms_norm_eps;
    const BlockContext context{backend, stream, batch};
    const ops::Matrix residual = models::first_rows(w.residual, tokens);
    const ops::Matrix normed = models::first_rows(w.normed, tokens);
    backend.embedding(stream, {.table = weight(tensors_.embedding), .token_ids = batch.token_ids, .out = residual});
    for (std::size_t i = 0; i < tensors_.layers.size(); ++i) {
      const LayerTensors& layer = tensors_.layers[i];
      backend.rms_norm(stream, {.in = residual, .weight = weight(layer.input_norm), .epsilon = epsilon, .out = normed});
      attention(context, static_cast<std::int32_t>(i), w, normed, residual);
      backend.rms_norm(
          stream, {.in = residual, .weight = weight(layer.post_attention_norm), .epsilon = epsilon, .out = normed});
      if (const auto* moe = std::get_if<MoeTensors>(&layer.feed_forward)) {
        moe_mlp(context, moe_, weights_of(*moe), normed, first_rows(w.moe, tokens), residual);
      } else {
        swiglu_mlp(context, weights_of(std::get<SwigluTensors>(layer.feed_forward)), normed,
                   first_rows(w.dense, tokens), residual);
      }
      if (batch.after_layer) batch.after_layer(static_cast<int>(i));
    }
    write_logits(context, *weight(tensors_.final_norm), epsilon, *weight(tensors_.head), residual, w.normed, logits);
  }

 private:
  const ops::Weight* weight(std::size_t index) const { return &loaded_.weights[index]; }

  void attention(const BlockContext& context, std::int32_t layer, const DecoderWorkspace& w, ops::ConstMatrix in,
                 ops::Matrix residual) const {
    const LayerTensors& tensors = tensors_.layers[static_cast<std::size_t>(layer)];
    if (const auto* gqa = std::get_if<GqaTensors>(&tensors.attention)) {
      gqa_attention(context, layer, gqa_, weights_of(*gqa), in, first_rows(w.gqa, in.rows), residual);
    } else {
      mla_attention(context, layer, mla_, weights_of(std::get<MlaTensors>(tensors.attention)), w.forms, in,
                    first_rows(w.mla, in.rows), residual);
    }
  }

  GqaWeights weights_of(const GqaTensors& t) const {
    GqaWeights w;
    w.q = weight(t.q);
    w.k = weight(t.k);
    w.v = weight(t.v);
    w.o = weight(t.o);
    if (t.bias.has_value()) {
      w.q_bias = weight(t.bias->q);
      w.k_bias = weight(t.bias->k);
      w.v_bias = weight(t.bias->v);
    }
    if (t.norm.has_value()) {
      w.q_norm = weight(t.norm->q);
      w.k_norm = weight(t.norm->k);
    }
    return w;
  }
  MlaWeights weights_of(const MlaTensors& t) const {
    MlaWeights w;
    if (t.query_latent.has_value()) {
      w.q_latent = weight(t.query_latent->projection);
      w.q_latent_norm = weight(t.query_latent->norm);
    }
    w.q = weight(t.q);
    w.kv = weight(t.kv);
    w.kv_norm = weight(t.kv_norm);
    w.up = &loaded_.mla_ups[t.up];
    w.o = weight(t.o);
    if (t.indexer.has_value()) {
      w.indexer = {weight(t.indexer->q), weight(t.indexer->k), weight(t.indexer->k_norm), weight(t.indexer->k_bias),
                   weight(t.indexer->weights)};
    }
    return w;
  }
  SwigluWeights weights_of(const SwigluTensors& t) const { return {weight(t.gate), weight(t.up), weight(t.down)}; }
  MoeWeights weights_of(const MoeTensors& t) const {
    MoeWeights w;
    w.router = weight(t.router);
    w.correction_bias = weight(t.correction_bias);
    w.experts = &loaded_.expert_stacks[t.experts];
    if (t.shared.has_value()) w.shared = weights_of(*t.shared);
    return w;
  }

  LoadedModel loaded_;
  DecoderTensors tensors_;
  ops::Buffer inverse_frequencies_;  // F32 [rotary_dim / 2]
  GqaShape gqa_;                     // Of models with it.
  MlaBlockShape mla_;                // Of models with it.
  MoeShape moe_;                     // Of models with it.
};

}  // namespace

base::Result<std::unique_ptr<Model>> make_decoder(LoadedModel loaded, DecoderTensors tensors) {
  const std::vector<float> frequencies = rope_inverse_frequencies(loaded.config.rope, rotary_dim(loaded.config));
  const std::int64_t bytes = std::ssize(frequencies) * static_cast<std::int64_t>(sizeof(float));
  TESSERA_ASSIGN_OR_RETURN(ops::Buffer buffer, loaded.backend->allocate(bytes, "rotary frequencies"));
  const std::unique_ptr<ops::Stream> stream = loaded.backend->make_stream();
  loaded.backend->copy_to_device(*stream, buffer.data(), frequencies.data(), bytes);
  stream->synchronize();
  return std::make_unique<Decoder>(std::move(loaded), std::move(tensors), std::move(buffer));
}

}  // namespace tessera::models
