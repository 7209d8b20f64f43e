#include "tessera/weights/quantization.h"

#include <fmt/format.h>

#include "tessera/weights/quantization_rules.h"

namespace tessera::weights {

namespace {

constexpr std::string_view kTextPrefix = "language_model.";
constexpr std::string_view kWeightSuffix = ".weight";

}  // namespace

std::string stored_format_text(const StoredFormat& format) {
  switch (format.kind) {
    case StoredKind::kPlain:
      return "plain";
    case StoredKind::kF8Block128:
      return "f8_block128";
    case StoredKind::kF8Channel:
      return "f8_channel";
    case StoredKind::kInt4Group:
      return fmt::format("int4_group{}", format.group_size);
  }
  return "?";
}

bool ModuleList::names_match(std::string_view module) const {
  if (names_.contains(module)) return true;
  if (entry_ == Entry::kModule) return false;
  for (std::size_t dot = module.find('.'); dot != std::string_view::npos; dot = module.find('.', dot + 1)) {
    if (names_.contains(module.substr(0, dot)) || names_.contains(module.substr(dot + 1))) return true;
  }
  return false;
}

base::Result<bool> ModuleList::patterns_match(std::string_view module, PatternBudget& budget) const {
  if (patterns_.empty()) return false;
  const std::pair<const void*, std::string> key(this, alike_name(module, digits_));
  if (const auto known = budget.answers().find(key); known != budget.answers().end()) return known->second;
  bool any = false;
  for (std::size_t i = 0; i < patterns_.size() && !any; ++i) {
    TESSERA_ASSIGN_OR_RETURN(any, patterns_[i].matches(module, budget));
  }
  budget.answers().emplace(key, any);
  return any;
}

base::Result<bool> ModuleList::matches(std::string_view module, PatternBudget& budget) const {
  if (names_match(module)) return true;
  TESSERA_ASSIGN_OR_RETURN(const bool found, patterns_match(module, budget));
  if (found) return true;
  // The configuration may have been written for the text model alone, whose names then carry no prefix.
  if (module.starts_with(kTextPrefix)) return matches(module.substr(kTextPrefix.size()), budget);
  return false;
}

StoredFormat QuantizationConfig::format() const { return rules_ == nullptr ? StoredFormat{} : rules_->format; }

std::vector<std::string> QuantizationConfig::notes() const {
  return rules_ == nullptr ? std::vector<std::string>{} : rules_->notes;
}

base::Result<StoredFormat> QuantizationConfig::expected(std::string_view tensor_name, ops::WeightUsage usage,
                                                        PatternBudget& budget) const {
  if (rules_ == nullptr || usage != ops::WeightUsage::kLinear || !tensor_name.ends_with(kWeightSuffix)) {
    return StoredFormat{};
  }
  const std::string_view module = tensor_name.substr(0, tensor_name.size() - kWeightSuffix.size());
  TESSERA_ASSIGN_OR_RETURN(const bool plain, rules_->plain.matches(module, budget));
  if (plain) return StoredFormat{};
  if (rules_->targets_all) return rules_->format;
  TESSERA_ASSIGN_OR_RETURN(const bool target, rules_->targets.matches(module, budget));
  return target ? rules_->format : StoredFormat{};
}

}  // namespace tessera::weights
