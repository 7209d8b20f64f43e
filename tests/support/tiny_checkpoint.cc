#include "tests/support/tiny_checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/models/config.h"
#include "tessera/models/family.h"
#include "tessera/weights/safetensors_writer.h"

namespace tessera::test_support {

namespace {

// splitmix64: the same on every machine, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return base::mix64(state_ += base::kMix64Step); }
  // In [-1, 1).
  double symmetric() { return static_cast<double>(next() >> 11) * 0x1.0p-52 - 1.0; }

 private:
  std::uint64_t state_;
};

// FNV-1a, so that a tensor's values depend on its name and not on its place.
std::uint64_t name_hash(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

std::vector<std::byte> encode(const std::vector<float>& values, base::DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(base::dtype_size(dtype)));
  if (dtype == base::DType::kF32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const base::BF16 value = base::to_bf16(values[i]);
    std::memcpy(bytes.data() + 2 * i, &value, 2);
  }
  return bytes;
}

std::string shard_name(std::int64_t shard, std::int64_t shards) {
  return shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

}  // namespace

std::string tiny_llama_config(const TinyLlamaOptions& o) {
  return fmt::format(
      R"({{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": {},
  "hidden_size": {},
  "intermediate_size": {},
  "num_hidden_layers": {},
  "num_attention_heads": {},
  "num_key_value_heads": {},
  "head_dim": {},
  "max_position_embeddings": {},
  "bos_token_id": 1,
  "eos_token_id": {},
  "hidden_act": "silu",
  "rms_norm_eps": {},
  "rope_theta": {},
  "rope_scaling": null,
  "attention_bias": false,
  "mlp_bias": false,
  "tie_word_embeddings": {},
  "torch_dtype": "{}"
}}
)",
      o.vocab_size, o.hidden_size, o.intermediate_size, o.num_hidden_layers, o.num_attention_heads,
      o.num_key_value_heads, o.head_dim, o.max_position_embeddings, o.eos_token_id, o.rms_norm_eps, o.rope_theta,
      o.head == HeadKind::kTied, o.dtype == base::DType::kF32 ? "float32" : "bfloat16");
}

std::vector<float> tiny_tensor_values(const models::TensorSpec& spec, const TinyLlamaOptions& options) {
  Random random(options.seed ^ name_hash(spec.name));
  const bool vector = spec.usage == ops::WeightUsage::kVector;
  // A uniform number in [-1, 1) has variance 1/3: sqrt(3 / K) keeps the variance of a product of K of them at 1.
  const double scale = vector ? 0.5 : std::sqrt(3.0 / static_cast<double>(spec.cols()));
  std::vector<float> values(static_cast<std::size_t>(spec.rows() * spec.cols()));
  for (float& value : values) {
    value = static_cast<float>((vector ? 1.0 : 0.0) + scale * random.symmetric());
    if (options.dtype == base::DType::kBF16) value = base::to_float(base::to_bf16(value));
  }
  return values;
}

base::Status write_tiny_llama(const std::filesystem::path& dir, const TinyLlamaOptions& options) {
  TESSERA_CHECK(options.dtype == base::DType::kF32 || options.dtype == base::DType::kBF16);
  TESSERA_CHECK(options.shards >= 1);
  const std::string config_text = tiny_llama_config(options);
  TESSERA_ASSIGN_OR_RETURN(const models::ModelConfig config, models::parse_config(config_text));
  {
    std::ofstream file(dir / models::kConfigFileName, std::ios::binary | std::ios::trunc);
    file << config_text;
    file.close();
    if (!file) return base::internal_error(fmt::format("{}: cannot be written", dir.string()));
  }

  // A tied head is listed twice and written once; tensors go round the shards.
  std::vector<std::vector<models::TensorSpec>> shards(static_cast<std::size_t>(options.shards));
  std::set<std::string> seen;
  std::map<std::string, std::string> weight_map;
  std::int64_t total_bytes = 0;
  for (const models::TensorSpec& spec : models::describe(config).tensors) {
    if (!seen.insert(spec.name).second) continue;
    const std::int64_t shard = static_cast<std::int64_t>(weight_map.size()) % options.shards;
    weight_map[spec.name] = shard_name(shard, options.shards);
    total_bytes += spec.rows() * spec.cols() * base::dtype_size(options.dtype);
    shards[static_cast<std::size_t>(shard)].push_back(spec);
  }
  for (std::int64_t shard = 0; shard < options.shards; ++shard) {
    const std::vector<models::TensorSpec>& specs = shards[static_cast<std::size_t>(shard)];
    std::vector<weights::TensorDeclaration> declarations;
    for (const models::TensorSpec& spec : specs) declarations.push_back({spec.name, options.dtype, spec.shape});
    TESSERA_ASSIGN_OR_RETURN(
        weights::SafetensorsWriter writer,
        weights::SafetensorsWriter::create(dir / shard_name(shard, options.shards), std::move(declarations)));
    for (const models::TensorSpec& spec : specs) {
      const std::vector<std::byte> bytes = encode(tiny_tensor_values(spec, options), options.dtype);
      TESSERA_RETURN_IF_ERROR(writer.write(spec.name, bytes));
    }
    TESSERA_RETURN_IF_ERROR(writer.finish());
  }
  return options.shards == 1 ? base::ok_status() : weights::write_checkpoint_index(dir, weight_map, total_bytes);
}

}  // namespace tessera::test_support
