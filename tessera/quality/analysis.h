// What an evaluation's raw data say, by rules that were fixed before anybody looked at them (docs/evaluate.md).
#pragma once

#include "tessera/quality/evaluation.h"

namespace tessera::quality {

struct Analysis {};

// The same evaluation gives the same analysis to the bit: resampling is seeded.
Analysis analyse(const Evaluation& evaluation);

}  // namespace tessera::quality
