// config.json from outside. Whatever is accepted must describe a model whose sizes the rooms above may compute with.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/models/config.h"
#include "tessera/models/family.h"
#include "tessera/models/rope.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const auto config = models::parse_config(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!config.has_value()) {
    TESSERA_CHECK(!config.error().message().empty());
    return 0;
  }
  TESSERA_CHECK(config->gqa.has_value() != config->mla.has_value());
  TESSERA_CHECK(!config->dsa.has_value() || config->mla.has_value());
  if (config->gqa.has_value()) {
    TESSERA_CHECK(config->num_attention_heads % config->gqa->num_key_value_heads == 0);
    TESSERA_CHECK(config->gqa->rotary_dim % 2 == 0 && config->gqa->rotary_dim <= config->gqa->head_dim);
  }
  const models::ModelDescription description = models::describe(*config);
  for (const models::TensorSpec& spec : description.tensors) {
    const auto elements = base::checked_mul(spec.rows(), spec.cols());
    TESSERA_CHECK(elements.has_value() && *elements > 0 && base::checked_mul(*elements, 4).has_value());
  }
  const auto formats = models::stored_formats(*config, description);
  TESSERA_CHECK(formats.has_value() ? formats->size() == description.tensors.size()
                                    : formats.error().code() == base::StatusCode::kOutOfRange);
  const ops::KvLayout kv = description.kv_layout(ops::KvFormat::kF32, 64);
  for (int part = 0; part < kv.num_parts; ++part) TESSERA_CHECK(kv.parts[part].elements > 0);
  TESSERA_CHECK(kv.token_bytes() > 0);
  const std::int64_t rotary = config->gqa.has_value() ? config->gqa->rotary_dim : config->mla->qk_rope_head_dim;
  for (const float frequency : models::rope_inverse_frequencies(config->rope, rotary)) {
    TESSERA_CHECK(frequency >= 0.0f && frequency < 1.001f);
  }
  return 0;
}
