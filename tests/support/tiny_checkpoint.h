// Small random checkpoints of the families that tessera serves, as Hugging Face folders: config.json, safetensors.
// Deterministic: the same options give the same bytes on every machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/status.h"
#include "tessera/models/tensor_spec.h"

namespace tessera::test_support {

enum class HeadKind { kTied, kUntied };

struct TinyLlamaOptions {
  std::int64_t vocab_size = 256;
  std::int64_t hidden_size = 64;
  std::int64_t intermediate_size = 96;
  std::int64_t num_hidden_layers = 2;
  std::int64_t num_attention_heads = 4;
  std::int64_t num_key_value_heads = 2;
  std::int64_t head_dim = 16;
  std::int64_t max_position_embeddings = 2048;
  std::int64_t eos_token_id = 2;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-5;
  HeadKind head = HeadKind::kTied;
  base::DType dtype = base::DType::kBF16;  // Of the weights: F32 or BF16.
  std::int64_t shards = 1;                 // More than one: several files and an index.
  std::uint64_t seed = 1;
};

// The text of config.json.
std::string tiny_llama_config(const TinyLlamaOptions& options);

// Writes config.json and the checkpoint into `dir`, which exists. Matrices are uniform with the variance that keeps
// activations near 1, norm weights uniform around 1: greedy continuations vary instead of repeating one token.
base::Status write_tiny_llama(const std::filesystem::path& dir, const TinyLlamaOptions& options);

// The values that write_tiny_llama stores for one tensor, as they are after rounding to options.dtype: what an
// independent implementation in a test computes with.
std::vector<float> tiny_tensor_values(const models::TensorSpec& spec, const TinyLlamaOptions& options);

}  // namespace tessera::test_support
