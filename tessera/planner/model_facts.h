// What the planner knows of a model: its tensors, counted by kind, its KV, its routing and the sizes that attention's
// arithmetic needs. Everything is taken from models::describe() and the parsed configuration; nothing here knows a
// family. Plain state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/models/config.h"
#include "tessera/models/tensor_spec.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/ops/weight.h"
#include "tessera/weights/quantization.h"
#include "tessera/weights/shard.h"

namespace tessera::planner {

// Tensors that plans treat apart.
enum class TensorRole : std::uint8_t {
  kPlain,
  kKvHeads,  // K and V projections of grouped-query attention and their biases: with more ranks than heads, several
             // ranks hold the same head.
  kUpProjection,  // kv_b_proj of latent attention, which absorbed decode multiplies by head.
  kTiedHead,      // The embedding's tensor once more, as the head: read by a step, stored and held once.
  kKeptPlain,     // A product that published checkpoints never quantize: a speculation layer's own projection.
};

// Tensors that are alike but for their names.
struct TensorGroup {
  models::WeightPart part = models::WeightPart::kNorms;
  ops::WeightUsage usage = ops::WeightUsage::kLinear;
  TensorRole role = TensorRole::kPlain;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  weights::ShardSpec shard;
  weights::StoredFormat stored;  // As the configuration says that the checkpoint holds them.
  std::int64_t count = 0;
  std::string example;  // One of their names, for messages.
  std::int64_t parameters() const { return rows * cols * count; }
};

struct ModelFacts {
  std::string architecture;
  std::string model_type;
  std::int64_t num_hidden_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t max_position_embeddings = 0;
  std::int64_t plain_element_bytes = 2;  // Of tensors that are not quantized: 2 (BF16) or 4 (F32).
  bool quantized = false;                // The configuration says so.

  std::vector<TensorGroup> tensors;  // Computed with.
  // In the checkpoint, not loaded: layers for speculation (MTP).
  std::int64_t speculation_layers = 0;
  std::vector<TensorGroup> skipped;
  // In the checkpoint, of a size that the configuration does not tell; a sentence each.
  std::vector<std::string> uncounted;

  // One copy of the whole model's, in BF16 pages of 64.
  ops::KvLayout kv;
  std::int64_t kv_heads = 0;  // That tensor parallelism divides; 0: every rank holds all of it (latent attention).

  // Mixture of experts; 0 where there is none.
  std::int64_t n_routed_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t expert_layers = 0;

  // Of one head, in attention over a prompt (expanded form).
  std::int64_t qk_head_dim = 0;
  std::int64_t v_head_dim = 0;

  // Sparse attention; 0 where every token attends to all before it.
  std::int64_t index_topk = 0;
  std::int64_t index_n_heads = 0;
  std::int64_t index_head_dim = 0;
  std::int64_t index_layers = 0;

  std::int64_t parameters() const;
  // Parameters that one token's step reads: all but the embedding table and the routed experts that it does not take.
  // (A tied head counts: it is computed with.)
  std::int64_t active_parameters() const;
};

// out_of_range for a model of more parameters than the arithmetic here is meant for. The number of tensors was bounded
// when the configuration was read.
base::Result<ModelFacts> facts_of(const models::ModelConfig& config);

}  // namespace tessera::planner
