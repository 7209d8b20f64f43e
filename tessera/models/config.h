// config.json as the models use it. Fields keep their Hugging Face names. Values are range-checked (base/limits.h)
// before anything is sized by them; unknown architectures, activations, rope types and routings are refused by name,
// and so are values that contradict each other.
//
// What only some families have lies in parts of its own, which are there exactly when the family has them: so nobody
// computes with a field that was never read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/weights/quantization.h"

namespace tessera::models {

enum class Family : std::uint8_t { kLlama, kQwen2, kQwen3, kGlm4Moe, kDeepseekV3, kKimiK25, kGlmMoeDsa };

// Peng et al. 2023, arXiv:2309.00071.
struct YarnConfig {
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::int64_t original_max_position_embeddings = 0;
  double attention_factor = 1.0;  // Multiplies rotated queries and keys (the file's, or made from mscale and factor).
  double mscale_all_dim = 0.0;    // Where it is not 0, MLA multiplies its softmax scale by yarn_mscale(...)^2.
};

struct RopeConfig {
  double rope_theta = 10000.0;     // From rope_theta, or from rope_parameters as newer files have it.
  std::optional<YarnConfig> yarn;  // rope_type "yarn"; otherwise "default".
};

enum class QkvBias : std::uint8_t { kAbsent, kPresent };
enum class QkNorm : std::uint8_t { kAbsent, kPresent };

// Grouped-query attention.
struct GqaConfig {
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;  // partial_rotary_factor * head_dim: the first elements of each head.
  QkvBias qkv_bias = QkvBias::kAbsent;
  QkNorm qk_norm = QkNorm::kAbsent;  // RMS norm of every head of q and k, before they are rotated.
};

enum class RopeInterleave : std::uint8_t { kHalf, kInterleaved };

// Multi-head latent attention.
struct MlaConfig {
  std::int64_t q_lora_rank = 0;  // 0: queries are projected in one step.
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;
  RopeInterleave rope_interleave = RopeInterleave::kInterleaved;
  std::int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
};

enum class IndexerType : std::uint8_t {
  kFull,    // The layer selects its own tokens.
  kShared,  // It takes the selection of the nearest full layer before it.
};

// Sparse attention over selected tokens; only beside MlaConfig, with q_lora_rank.
struct DsaConfig {
  std::int64_t index_n_heads = 0;
  std::int64_t index_head_dim = 0;
  std::int64_t index_topk = 0;
  std::vector<IndexerType> indexer_types;  // [num_hidden_layers]; the first is full.
};

enum class MlpType : std::uint8_t { kDense, kSparse };
enum class TopkProb : std::uint8_t { kAsIs, kNormalized };

// Mixture of experts with sigmoid routing and a correction bias ("noaux_tc").
struct MoeConfig {
  std::int64_t n_routed_experts = 0;
  std::int64_t n_shared_experts = 0;  // 0: none.
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  TopkProb norm_topk_prob = TopkProb::kNormalized;
  float routed_scaling_factor = 1.0f;
  std::vector<MlpType> mlp_layer_types;  // [num_hidden_layers]; from first_k_dense_replace where the file has no list.
};

struct ModelConfig {
  Family family = Family::kLlama;
  std::string architecture;  // For example "LlamaForCausalLM".
  std::string model_type;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // Of dense feed-forward blocks.
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  RopeConfig rope;
  // Exactly one of the two.
  std::optional<GqaConfig> gqa;
  std::optional<MlaConfig> mla;
  std::optional<DsaConfig> dsa;
  std::optional<MoeConfig> moe;               // Else every feed-forward block is dense.
  std::int64_t num_nextn_predict_layers = 0;  // Layers behind the last one, for speculation: not computed with.
  weights::QuantizationConfig quantization;   // How the checkpoint stores its weights.
  std::string dtype;  // "float32", "bfloat16", ...: what config.json says; the tensors' own dtypes are what counts.
};

inline constexpr std::string_view kConfigFileName = "config.json";

// Parses the text of config.json. Messages name file, field and expectation. Stop tokens are not the model's business:
// text/eos_tokens.h.
base::Result<ModelConfig> parse_config(std::string_view config_json);

// Reads config.json of the model folder `dir`.
base::Result<ModelConfig> read_config(const std::filesystem::path& dir);

}  // namespace tessera::models
