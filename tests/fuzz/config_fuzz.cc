// config.json and generation_config.json from outside, split at the first zero byte. Whatever is accepted must describe
// a model whose sizes the rooms above may compute with.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/models/config.h"
#include "tessera/models/family.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t split = text.find('\0');
  std::optional<std::string_view> generation;
  if (split != std::string_view::npos) generation = text.substr(split + 1);
  const auto config = models::parse_config(text.substr(0, split), generation);
  if (!config.has_value()) {
    TESSERA_CHECK(!config.error().message().empty());
    return 0;
  }
  TESSERA_CHECK(config->num_attention_heads % config->num_key_value_heads == 0 && config->head_dim % 2 == 0);
  for (const std::int32_t id : config->eos_token_ids) TESSERA_CHECK(id >= 0 && id < config->vocab_size);
  const models::ModelDescription description = models::describe(*config);
  for (const models::TensorSpec& spec : description.tensors) {
    const auto elements = base::checked_mul(spec.rows(), spec.cols());
    TESSERA_CHECK(elements.has_value() && *elements > 0 && base::checked_mul(*elements, 4).has_value());
  }
  const ops::KvLayout kv = description.kv_layout(ops::KvFormat::kF32, 64);
  for (int part = 0; part < kv.num_parts; ++part) TESSERA_CHECK(kv.parts[part].elements > 0);
  TESSERA_CHECK(kv.token_bytes() > 0);
  return 0;
}
