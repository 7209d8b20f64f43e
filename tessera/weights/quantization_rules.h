// What a parsed quantization_config keeps; of the room's own use.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/weights/module_pattern.h"
#include "tessera/weights/quantization.h"

namespace tessera::weights {

// Module names and patterns, one of which a module may match.
class ModuleList {
 public:
  // An exact entry names one module (compressed-tensors), or that module and all inside it, from the name's beginning
  // or at its end (transformers' modules_to_not_convert).
  enum class Entry : std::uint8_t { kModule, kModuleOrPart };

  explicit ModuleList(Entry entry) : entry_(entry) {}
  void add_name(std::string name) { names_.insert(std::move(name)); }
  void add_pattern(ModulePattern pattern) {
    digits_ |= pattern.digits_told_apart();
    patterns_.push_back(std::move(pattern));
  }
  base::Result<bool> matches(std::string_view module, PatternBudget& budget) const;

 private:
  bool names_match(std::string_view module) const;
  base::Result<bool> patterns_match(std::string_view module, PatternBudget& budget) const;
  Entry entry_;
  std::set<std::string, std::less<>> names_;
  std::vector<ModulePattern> patterns_;
  std::uint32_t digits_ = 0;  // That some pattern tells apart.
};

struct QuantizationConfig::Rules {
  StoredFormat format;
  bool targets_all = false;                        // "Linear"
  ModuleList targets{ModuleList::Entry::kModule};  // Where it does not target all.
  ModuleList plain{ModuleList::Entry::kModule};    // Left as they were.
  std::vector<std::string> notes;
};

}  // namespace tessera::weights
