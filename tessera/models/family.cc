#include "tessera/models/family.h"

#include <array>

#include "tessera/base/check.h"
#include "tessera/models/llama.h"

namespace tessera::models {

std::span<const FamilyEntry* const> families() {
  static constexpr std::array<const FamilyEntry*, 1> kFamilies = {&kLlamaFamily};
  return kFamilies;
}

const FamilyEntry& family_entry(Family family) {
  for (const FamilyEntry* entry : families()) {
    if (entry->family == family) return *entry;
  }
  TESSERA_CHECK(false, "a family without an entry");
}

ModelDescription describe(const ModelConfig& config) { return family_entry(config.family).describe(config); }

}  // namespace tessera::models
