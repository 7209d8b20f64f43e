// How weights of products lie on the device, and what every kernel of products does with them.
//
// Rows are row-major, `pitch` elements apart, a multiple of kProductChunk; what lies past K is zero. Inside a row:
//   BF16          as stored
//   FP8           codes as stored. Scales: one F32 for each 128x128 block [ceil(n / 128), pitch / 128], or for each
//                 row [n]
//   INT4          words of eight codes (docs/checkpoints.md), sixteen words a chunk: word 4c + h holds what was word
//                 4h + c, so that a lane's 16 bytes hold one word of each group of 32. Scales: one BF16 for each 32
//                 elements [n, pitch / 32], repeated where a checkpoint's groups are larger
// A lane of a warp loads 16 bytes at a time, mma fragments are made from them in registers, and bulk tensor copies can
// load any of it.
//
// Order of summation, whatever the number of tokens: K is cut into chunks of 128; chunk u belongs to slice u % 8.
// Inside a chunk, codes are multiplied as they are (exact in BF16) by activations rounded to BF16, on the tensor cores,
// in F32; each group's sum is then multiplied by its scale and added to the slice's (fma). Slices are added in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/ops/weight.h"

namespace tessera::backends::cuda {

inline constexpr std::int64_t kProductChunk = 128;
inline constexpr std::int32_t kScaleGroup = 32;  // Of INT4.

struct ProductWeight {
  ops::WeightFormat format = ops::WeightFormat::kBF16;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t pitch = 0;  // Elements.
};

constexpr std::int64_t product_row_bytes(ops::WeightFormat format, std::int64_t pitch) {
  switch (format) {
    case ops::WeightFormat::kF32:
      return pitch * 4;
    case ops::WeightFormat::kBF16:
      return pitch * 2;
    case ops::WeightFormat::kF8Block128:
    case ops::WeightFormat::kF8Channel:
      return pitch;
    case ops::WeightFormat::kInt4Group:
      return pitch / 2;
  }
  return 0;
}

constexpr std::int64_t product_scale_bytes(ops::WeightFormat format, std::int64_t n, std::int64_t pitch) {
  switch (format) {
    case ops::WeightFormat::kF32:
    case ops::WeightFormat::kBF16:
      return 0;
    case ops::WeightFormat::kF8Block128:
      return (n + 127) / 128 * (pitch / 128) * 4;
    case ops::WeightFormat::kF8Channel:
      return n * 4;
    case ops::WeightFormat::kInt4Group:
      return n * (pitch / kScaleGroup) * 2;
  }
  return 0;
}

}  // namespace tessera::backends::cuda
