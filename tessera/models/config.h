// config.json as the models use it. Fields keep their Hugging Face names. Values are range-checked (base/limits.h)
// before anything is sized by them; unknown architectures, activations or rope types are refused by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
  std::vector<std::int32_t> eos_token_ids;  // From generation_config.json where it is there, else from config.json.
};

inline constexpr std::string_view kConfigFileName = "config.json";
inline constexpr std::string_view kGenerationConfigFileName = "generation_config.json";

// Parses the text of config.json, and of generation_config.json where there is one. Messages name file, field and
// expectation.
base::Result<ModelConfig> parse_config(std::string_view config_json, std::optional<std::string_view> generation_json);

// Reads config.json (and generation_config.json beside it). `dir` is a model folder.
base::Result<ModelConfig> read_config(const std::filesystem::path& dir);

}  // namespace tessera::models
