// The two halves of analyse(): what plans answered, and how far their distributions lie apart.
#pragma once

#include "tessera/quality/analysis.h"

namespace tessera::quality {

// Everything but adjusted p-values and verdicts, which need the whole family.
TaskAnalysis analyse_outcomes(const Evaluation& evaluation, std::size_t task);
// One for each task that has distances.
std::vector<DistanceAnalysis> analyse_distances(const Evaluation& evaluation);

}  // namespace tessera::quality
