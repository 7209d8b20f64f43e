// What a quantized weight means, written down naively from docs/checkpoints.md: the judge of whoever computes with one.
#pragma once

#include <vector>

#include "tessera/ops/weight.h"

namespace tessera::test_support {

// All elements [rows, cols], each the product of its stored number and its scale in double, rounded once to float.
std::vector<float> dequantize(const ops::WeightSource& source);

}  // namespace tessera::test_support
