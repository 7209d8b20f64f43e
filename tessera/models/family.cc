#include "tessera/models/family.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <system_error>

#include "tessera/base/check.h"
#include "tessera/models/deepseek_v3.h"
#include "tessera/models/glm4_moe.h"
#include "tessera/models/glm_moe_dsa.h"
#include "tessera/models/kimi_k25.h"
#include "tessera/models/llama.h"
#include "tessera/models/qwen2.h"
#include "tessera/models/qwen3.h"

namespace tessera::models {

std::span<const FamilyEntry* const> families() {
  static constexpr std::array<const FamilyEntry*, 7> kFamilies = {
      &kLlamaFamily,      &kQwen2Family,   &kQwen3Family,     &kGlm4MoeFamily,
      &kDeepseekV3Family, &kKimiK25Family, &kGlmMoeDsaFamily,
  };
  return kFamilies;
}

const FamilyEntry& family_entry(Family family) {
  for (const FamilyEntry* entry : families()) {
    if (entry->family == family) return *entry;
  }
  TESSERA_CHECK(false, "a family without an entry");
}

ModelDescription describe(const ModelConfig& config) {
  return family_entry(config.family).describe(config).description;
}

bool NamePattern::matches(std::string_view name) const {
  if (name.size() < prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix)) return false;
  if (!numbers_below.has_value()) return true;
  const std::string_view between = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(between.data(), between.data() + between.size(), number);
  return error == std::errc() && fmt::format("{}", number) == between && number >= 0 && number < *numbers_below;
}

base::Result<std::vector<weights::StoredFormat>> stored_formats(const ModelConfig& config,
                                                                const ModelDescription& description) {
  std::vector<weights::StoredFormat> formats;
  formats.reserve(description.tensors.size());
  weights::PatternBudget budget;
  for (const TensorSpec& spec : description.tensors) {
    weights::StoredFormat format;
    if (!description.is_tied_head(spec)) {
      TESSERA_ASSIGN_OR_RETURN(format, config.quantization.expected(spec.name, spec.usage, budget));
    }
    formats.push_back(format);
  }
  return formats;
}

}  // namespace tessera::models
