// Which plans of `tessera evaluate` are compared by the distances between their distributions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "evaluate_plans.h"
#include "tessera/base/status.h"

namespace tessera::app {

struct DistancePlans {
  std::vector<bool> compared;      // By plan; the first, the reference, and another at least, or none.
  std::vector<std::string> notes;  // What was left out although the plan is one of own engines, and why.

  bool any() const;
};

// All plans of own engines whose vocabulary is the first plan's: as many tokens, each of the same bytes. Passages are
// encoded by the first plan's tokenizer, and token ids mean nothing to a model of another one. Reads configurations and
// tokenizers, of folders that differ from the first plan's.
//
// `wanted`: as the command's flags say; empty: where it can be done. invalid_argument: distances are wanted, or a plan
// is of a simulated KV format, which has nothing else, and they cannot be had; says why.
base::Result<DistancePlans> choose_distance_plans(std::span<const PlanSpec> plans, std::optional<bool> wanted);

}  // namespace tessera::app
