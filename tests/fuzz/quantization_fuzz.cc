// A quantization_config from outside, then, behind a zero byte, the name of a weight. Patterns among it may be hostile:
// whatever is accepted must answer, or refuse to, in bounded time.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/weights/quantization.h"
#include "tessera/weights/stored_shard.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t split = text.find('\0');
  const std::string_view name =
      split == std::string_view::npos ? "model.layers.1.mlp.experts.0.up_proj.weight" : text.substr(split + 1);
  const auto config = weights::QuantizationConfig::parse(text.substr(0, split), "config.json");
  if (!config.has_value()) {
    TESSERA_CHECK(!config.error().message().empty());
    return 0;
  }
  const weights::StoredFormat format = config->format();
  TESSERA_CHECK(config->quantized() && format.kind != weights::StoredKind::kPlain);
  const bool groups = format.kind == weights::StoredKind::kInt4Group;
  TESSERA_CHECK(groups ? format.group_size == 32 || format.group_size == 64 || format.group_size == 128
                       : format.group_size == 0);
  weights::PatternBudget budget;
  for (const auto usage : {ops::WeightUsage::kLinear, ops::WeightUsage::kRouter}) {
    const auto expected = config->expected(name, usage, budget);
    if (!expected.has_value()) {
      TESSERA_CHECK(expected.error().code() == base::StatusCode::kOutOfRange);
      continue;
    }
    TESSERA_CHECK(*expected == format || expected->kind == weights::StoredKind::kPlain);
    TESSERA_CHECK(usage == ops::WeightUsage::kLinear || expected->kind == weights::StoredKind::kPlain);
  }
  return 0;
}
