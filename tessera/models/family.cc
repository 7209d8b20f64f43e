#include "tessera/models/family.h"

#include <array>

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

}  // namespace tessera::models
