// The fields that families have in common, read the same way everywhere: sizes, rotary embedding, attention and expert
// blocks. A family calls what it has; each call fills its part of the config. Messages name the field.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/base/status.h"
#include "tessera/models/config.h"
#include "tessera/models/config_fields.h"

namespace tessera::models {

// What `layer_types` may say of every layer.
enum class AttentionLayers : std::uint8_t { kFull, kIndexed };
// Vocabulary, hidden size, layers, heads, context, epsilon, tied head; hidden_act must be silu. Refuses fields of
// relatives that would change what is computed.
base::Status read_decoder_fields(const ConfigFields& fields, ModelConfig& config,
                                 AttentionLayers layers = AttentionLayers::kFull);

enum class RopeTypes : std::uint8_t { kDefault, kDefaultOrYarn };
// Older files: rope_theta and rope_scaling (null, or {"rope_type" or "type": ...}). Newer ones: rope_parameters with
// both inside.
base::Status read_rope_fields(const ConfigFields& fields, RopeTypes types, ModelConfig& config);

enum class HeadDim : std::uint8_t { kMayBeMissing, kRequired };     // Missing: hidden_size / num_attention_heads.
enum class PartialRotary : std::uint8_t { kNone, kHalfIfMissing };  // By partial_rotary_factor, wherever it stands.
// Key-value heads, head size and rotated part, into config.gqa. Whether there are biases and norms is the family's.
base::Status read_gqa_fields(const ConfigFields& fields, HeadDim head_dim, PartialRotary rotary, ModelConfig& config);

enum class QLora : std::uint8_t { kOptional, kRequired };
// Ranks and head sizes of latent attention, into config.mla. rope_interleave is the family's.
base::Status read_mla_fields(const ConfigFields& fields, QLora q_lora, ModelConfig& config);

// Indexer sizes and which layers have one, into config.dsa.
base::Status read_dsa_fields(const ConfigFields& fields, ModelConfig& config);

// Experts and routing, into config.moe, and num_nextn_predict_layers.
base::Status read_moe_fields(const ConfigFields& fields, ModelConfig& config);

// A field that may be missing, and if it is there has one value that this build computes with.
base::Status expect_boolean(const ConfigFields& fields, std::string_view field, bool missing, bool expected);
base::Status expect_text(const ConfigFields& fields, std::string_view field, std::string_view expected);
base::Status expect_integer(const ConfigFields& fields, std::string_view field, std::int64_t expected);

}  // namespace tessera::models
