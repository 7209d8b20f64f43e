// The plans of an evaluation as its runner asks them.
#pragma once

#include <atomic>
#include <memory>

#include "evaluate_plans.h"
#include "tessera/base/status.h"
#include "tessera/quality/respondent.h"

namespace tessera::app {

// Starts the plan's engines, with a server on a loopback port of which only this process knows the key, and connects to
// it; or connects to the plan's server. The engines end with the respondent. `stop` outlives it. The caller has blocked
// the ending signals (signals.h).
base::Result<std::unique_ptr<quality::Respondent>> start_plan(const PlanSpec& plan, bool quiet,
                                                              const std::atomic<bool>& stop);

}  // namespace tessera::app
