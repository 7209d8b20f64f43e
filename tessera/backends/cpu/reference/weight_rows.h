// A linear weight as it lies in a checkpoint, row by row: what each format means as F32 numbers, for every CPU backend.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/ops/weight.h"

namespace tessera::backends::cpu {

// Bytes of a source's data and of its scales, for a shape that prepare_row_major_weight accepts.
std::int64_t weight_data_bytes(ops::WeightFormat format, std::int64_t rows, std::int64_t cols);
std::int64_t weight_scale_bytes(ops::WeightFormat format, std::int64_t rows, std::int64_t cols,
                                std::int32_t group_size);

// Row n of a row-major weight: its elements, in FP8 and INT4 the F32 products of code and scale. Written to `scratch`,
// which is resized, unless the weight holds the row as F32 itself.
const float* weight_row(const ops::Weight& weight, std::int64_t n, std::vector<float>& scratch);

}  // namespace tessera::backends::cpu
