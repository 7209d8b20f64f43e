// Random weights in the formats of large models' checkpoints, at their shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/op_bench.h"

namespace tessera::bench {

// An expert of Kimi K2.x: [kExpertWidth, kLargeHidden] twice and [kLargeHidden, kExpertWidth].
inline constexpr std::int64_t kLargeHidden = 7168;
inline constexpr std::int64_t kExpertWidth = 2048;

// A quantized linear weight in host memory. FP8 codes are those of evenly spread values, never NaN.
struct HostWeight {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  ops::WeightSource source;  // Points into the two; moving the struct keeps them.
};
HostWeight random_host_weight(ops::WeightFormat format, std::int32_t group_size, std::int64_t rows, std::int64_t cols,
                              std::uint64_t seed);

}  // namespace tessera::bench
