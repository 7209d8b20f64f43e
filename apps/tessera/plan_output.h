// The two forms in which a plan is printed. Both say the same numbers.
#pragma once

#include <string>

#include "tessera/planner/plan.h"

namespace tessera::app {

// For people. `model` is the path that was given.
std::string plan_table(const planner::Plan& plan, const std::string& model);

// For programs; the schema is in docs/plan.md. One line.
std::string plan_json(const planner::Plan& plan, const std::string& model);

}  // namespace tessera::app
