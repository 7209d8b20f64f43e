// The tensors of a decoder: pre-norm layers, each an attention block (grouped-query or latent) and a feed-forward block
// (dense or mixture of experts), under the names that all families on Hugging Face have taken over from Llama. What a
// config's parts say is what is listed.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/models/config.h"
#include "tessera/models/tensor_spec.h"

namespace tessera::models {

// Each of these says where the weights of a block stand in the description's lists.

struct QkvBiasTensors {
  std::size_t q = 0, k = 0, v = 0;
};

struct QkNormTensors {
  std::size_t q = 0, k = 0;
};

struct GqaTensors {
  std::size_t q = 0, k = 0, v = 0, o = 0;
  std::optional<QkvBiasTensors> bias;
  std::optional<QkNormTensors> norm;
};

struct IndexerTensors {
  std::size_t q = 0;        // wq_b, from the normed query latent.
  std::size_t k = 0;        // wk
  std::size_t k_norm = 0;   // A layer norm's weight,
  std::size_t k_bias = 0;   // and its bias.
  std::size_t weights = 0;  // weights_proj: one for each head.
};

struct QueryLatentTensors {
  std::size_t projection = 0;  // q_a_proj
  std::size_t norm = 0;
};

struct MlaTensors {
  std::optional<QueryLatentTensors> query_latent;
  std::size_t q = 0;  // q_b_proj, or q_proj where there is no query latent.
  std::size_t kv = 0;
  std::size_t kv_norm = 0;
  std::size_t up = 0;  // In ModelDescription::mla_ups.
  std::size_t o = 0;
  std::optional<IndexerTensors> indexer;  // Of layers that select their own tokens.
};

struct SwigluTensors {
  std::size_t gate = 0, up = 0, down = 0;
};

struct MoeTensors {
  std::size_t router = 0;
  std::size_t correction_bias = 0;
  std::size_t experts = 0;  // In ModelDescription::expert_stacks.
  std::optional<SwigluTensors> shared;
};

struct LayerTensors {
  std::size_t input_norm = 0;
  std::variant<GqaTensors, MlaTensors> attention;
  std::size_t post_attention_norm = 0;
  std::variant<SwigluTensors, MoeTensors> feed_forward;
};

struct DecoderTensors {
  ModelDescription description;
  std::size_t embedding = 0;
  std::vector<LayerTensors> layers;
  std::size_t final_norm = 0;
  std::size_t head = 0;
};

struct DecoderNames {
  std::string prefix;                // Before every name, "language_model." for example.
  std::vector<NamePattern> skipped;  // Beside what every family skips: layers for speculation, and rotary frequencies
                                     // that some tools store although they follow from the config.
};

// The decoder that the config describes.
DecoderTensors describe_decoder(const ModelConfig& config, const DecoderNames& names);

}  // namespace tessera::models
