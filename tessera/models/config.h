// config.json as the models use it. Fields keep their Hugging Face names. Values are range-checked (base/limits.h)
// before anything is sized by them; unknown architectures, activations or rope types are refused by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::models {

enum class Family : std::uint8_t { kLlama };

struct ModelConfig {
  Family family = Family::kLlama;
  std::string architecture;  // For example "LlamaForCausalLM".
  std::string model_type;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-5f;
  float rope_theta = 10000.0f;  // From rope_theta, or from rope_parameters as newer files have it.
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  std::string dtype;  // "float32", "bfloat16", ...: what config.json says; the tensors' own dtypes are what counts.
};

inline constexpr std::string_view kConfigFileName = "config.json";

// Parses the text of config.json. Messages name file, field and expectation. Stop tokens are not the model's business:
// text/eos_tokens.h.
base::Result<ModelConfig> parse_config(std::string_view config_json);

// Reads config.json of the model folder `dir`.
base::Result<ModelConfig> read_config(const std::filesystem::path& dir);

}  // namespace tessera::models
