#include "tessera/models/decoder_workspace.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/limits.h"

namespace tessera::models {

// Takes pieces of a buffer, one after another, each aligned to 256 bytes. Without a buffer it only counts. The limits
// are checked before, so that no sum can overflow.
class DecoderWorkspace::Cutter {
 public:
  Cutter(std::byte* base, std::int64_t tokens) : base_(base), tokens_(tokens) {}

  ops::Matrix matrix(std::int64_t cols, std::int64_t floats_behind = 0) {
    std::byte* piece = bytes((tokens_ * cols + floats_behind) * static_cast<std::int64_t>(sizeof(float)));
    return ops::f32_matrix(reinterpret_cast<float*>(piece), tokens_, cols);
  }
  template <typename T>
  T* array(std::int64_t count_per_token) {
    return reinterpret_cast<T*>(bytes(tokens_ * count_per_token * static_cast<std::int64_t>(sizeof(T))));
  }
  std::byte* bytes(std::int64_t count) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + next_;
    next_ += base::round_up(count, 256);
    end_ = std::max(end_, next_);
    return piece;
  }
  std::int64_t position() const { return next_; }
  void go_back(std::int64_t position) { next_ = position; }
  std::int64_t end() const { return end_; }

 private:
  std::byte* const base_;
  const std::int64_t tokens_;
  std::int64_t next_ = 0;
  std::int64_t end_ = 0;
};

void DecoderWorkspace::cut(const LoadedModel& loaded, Cutter& cutter) {
  const ModelConfig& c = loaded.config;
  const ops::Backend& backend = *loaded.backend;
  const std::int64_t tokens = limits_.tokens_max;
  const std::int64_t context = limits_.context_tokens_max;
  residual = cutter.matrix(c.hidden_size);
  normed = cutter.matrix(c.hidden_size);
  if (c.dsa.has_value()) {
    selection.width = static_cast<std::int32_t>(c.dsa->index_topk);
    selection.positions = cutter.array<std::int32_t>(c.dsa->index_topk);
    selection.counts = cutter.array<std::int32_t>(1);
  }
  const std::int64_t shared = cutter.position();

  if (c.gqa.has_value()) {
    gqa.q = cutter.matrix(c.num_attention_heads * c.gqa->head_dim);
    gqa.k = cutter.matrix(c.gqa->num_key_value_heads * c.gqa->head_dim);
    gqa.v = cutter.matrix(c.gqa->num_key_value_heads * c.gqa->head_dim);
    gqa.context = cutter.matrix(c.num_attention_heads * c.gqa->head_dim);
  } else {
    if (c.mla->q_lora_rank > 0) mla.q_latent = cutter.matrix(c.mla->q_lora_rank);
    mla.q = cutter.matrix(c.num_attention_heads * c.mla->qk_head_dim(), c.mla->qk_nope_head_dim);
    mla.kv = cutter.matrix(c.mla->kv_lora_rank + c.mla->qk_rope_head_dim);
    mla.context = cutter.matrix(c.num_attention_heads * c.mla->v_head_dim);
    mla.attention = cutter.bytes(backend.mla_attention_scratch_bytes(loaded.mla_ups.front().shape, tokens, context));
    if (c.dsa.has_value()) {
      mla.index_q = cutter.matrix(c.dsa->index_n_heads * c.dsa->index_head_dim);
      mla.index_k = cutter.matrix(c.dsa->index_head_dim);
      mla.index_weights = cutter.matrix(c.dsa->index_n_heads);
      mla.select = cutter.bytes(backend.dsa_select_scratch_bytes(static_cast<std::int32_t>(c.dsa->index_n_heads),
                                                                 static_cast<std::int32_t>(c.dsa->index_head_dim),
                                                                 tokens, context));
      mla.selection = &selection;
    }
  }

  cutter.go_back(shared);
  dense.gate = cutter.matrix(c.intermediate_size);
  dense.up = cutter.matrix(c.intermediate_size);
  if (!c.moe.has_value()) return;
  cutter.go_back(shared);
  moe.router_logits = cutter.matrix(c.moe->n_routed_experts);
  moe.expert_ids = cutter.array<std::int32_t>(c.moe->num_experts_per_tok);
  moe.expert_weights = cutter.array<float>(c.moe->num_experts_per_tok);
  const std::int64_t before_experts = cutter.position();
  // Every layer's experts have one shape; formats may differ.
  std::int64_t experts = 0;
  for (const ops::ExpertStack& stack : loaded.expert_stacks) {
    experts = std::max(experts, backend.moe_experts_scratch_bytes(
                                    stack, static_cast<std::int32_t>(c.moe->num_experts_per_tok), tokens));
  }
  moe.experts = cutter.bytes(experts);
  // The shared experts run when the routed ones are done.
  cutter.go_back(before_experts);
  if (c.moe->n_shared_experts > 0) {
    moe.shared.gate = cutter.matrix(c.moe->n_shared_experts * c.moe->moe_intermediate_size);
    moe.shared.up = cutter.matrix(c.moe->n_shared_experts * c.moe->moe_intermediate_size);
  }
}

base::Result<std::unique_ptr<DecoderWorkspace>> DecoderWorkspace::create(const LoadedModel& loaded,
                                                                         const WorkspaceLimits& limits) {
  const auto outside = [](std::int64_t value, std::int64_t max, const char* what) {
    return base::failure(base::out_of_range(fmt::format("a workspace for {} {}, expected 1 to {}", value, what, max)));
  };
  if (limits.tokens_max < 1 || limits.tokens_max > base::limits::kBatchTokensMax) {
    return outside(limits.tokens_max, base::limits::kBatchTokensMax, "tokens of a batch");
  }
  if (limits.context_tokens_max < 1 || limits.context_tokens_max > base::limits::kContextMax) {
    return outside(limits.context_tokens_max, base::limits::kContextMax, "tokens of context");
  }
  std::unique_ptr<DecoderWorkspace> workspace(new DecoderWorkspace(limits));
  Cutter measure(nullptr, limits.tokens_max);
  workspace->cut(loaded, measure);
  TESSERA_ASSIGN_OR_RETURN(workspace->storage_, loaded.backend->allocate(measure.end(), "model workspace"));
  Cutter cutter(workspace->storage_.data(), limits.tokens_max);
  workspace->cut(loaded, cutter);
  return workspace;
}

}  // namespace tessera::models
