// The two halves of analyse(): what plans answered, and how far their distributions lie apart.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/quality/analysis.h"

namespace tessera::quality {

// Everything but adjusted p-values and verdicts, which need the whole family.
TaskAnalysis analyse_outcomes(const Evaluation& evaluation, std::size_t task);
// One for each task that has distances.
std::vector<DistanceAnalysis> analyse_distances(const Evaluation& evaluation);

// The p of a swap test again, by so many resamples: of a comparison (not of kAccuracy) of that task, and of a pair of
// plans in the distances of the task of that name. Both have something to compare.
double comparison_p(const Evaluation& evaluation, std::size_t task, const Comparison& comparison,
                    std::size_t resamples);
double pair_p(const Evaluation& evaluation, const std::string& task, const DistancePair& pair, std::size_t resamples);

}  // namespace tessera::quality
