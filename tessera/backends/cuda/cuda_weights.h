// How weights are brought to the device: sizes and layouts (kernels/product_weight.h, kernels/linear.h), and views of
// prepared weights for kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/backends/cuda/kernels/product_weight.h"
#include "tessera/ops/moe.h"
#include "tessera/ops/weight.h"

namespace tessera::backends::cuda {

// Elements from one row of a prepared weight to the next.
std::int64_t weight_pitch(ops::WeightFormat format, ops::WeightUsage usage, std::int64_t cols);
// The same of experts, whose BF16 rows are padded like the others.
std::int64_t expert_pitch(ops::WeightFormat format, std::int64_t cols);

// A prepared weight of usage kLinear, quantized.
ProductWeight product_weight(const ops::Weight& weight);

// Where each expert's weights lie in ExpertStack::storage: first the gates', then the ups', then the downs', of each
// the data of all experts, then the scales of all experts. Every array begins at a multiple of 256 bytes.
struct ExpertLayout {
  struct Part {
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::int64_t pitch = 0;
    std::int64_t data_offset = 0;
    std::int64_t data_stride = 0;
    std::int64_t scale_offset = 0;
    std::int64_t scale_stride = 0;
  };
  Part gate;
  Part up;
  Part down;
  std::int64_t bytes = 0;
};
ExpertLayout expert_layout(ops::WeightFormat format, std::int64_t experts, std::int64_t hidden,
                           std::int64_t intermediate);

// Bytes of an element in the largest thing that is computed from a weight's shape: padded F32 elements.
inline constexpr std::int64_t kElementBytesMax = 4 * kProductChunk;

// The weight in F32, row-major and dense, on the host.
std::vector<float> decode_weight(const ops::WeightSource& source);

}  // namespace tessera::backends::cuda
