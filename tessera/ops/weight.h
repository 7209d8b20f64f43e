// Weights as a backend holds them. A model hands the backend a WeightSource (host memory, the checkpoint's own bytes)
// once at load; the backend answers with a Weight in whatever layout its kernels want.
#pragma once

#include <cstdint>

#include "tessera/ops/buffer.h"

namespace tessera::ops {

// How a weight's numbers are stored. What each means byte for byte: docs/checkpoints.md.
enum class WeightFormat : std::uint8_t {
  kF32,
  kBF16,
  kF8Block128,  // e4m3 [N, K] with one F32 scale for each 128x128 block: scales [ceil(N / 128), ceil(K / 128)].
  kF8Channel,   // e4m3 [N, K] with one F32 scale for each row: scales [N].
  kInt4Group,   // compressed-tensors pack-quantized: words [N, K / 8], BF16 scales [N, K / group_size].
};

// "f32", "bf16", "f8_block128", "f8_channel", "int4_group": for errors and logs.
constexpr const char* weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kF8Block128:
      return "f8_block128";
    case WeightFormat::kF8Channel:
      return "f8_channel";
    case WeightFormat::kInt4Group:
      return "int4_group";
  }
  return "?";
}

// Stored as codes with scales.
constexpr bool is_quantized(WeightFormat format) {
  return format != WeightFormat::kF32 && format != WeightFormat::kBF16;
}

// What a weight is used for decides its layout.
enum class WeightUsage : std::uint8_t {
  kLinear,     // Products: y = x W^T.
  kRouter,     // Products whose result chooses experts: held in F32, inputs never rounded.
  kEmbedding,  // Rows looked up by token id.
  kVector,     // Norm weights and biases: elementwise, held in F32; rows == 1.
};

// A tensor [rows, cols] in host memory, row-major. rows is the number of output features.
struct WeightSource {
  WeightFormat format = WeightFormat::kF32;
  WeightUsage usage = WeightUsage::kLinear;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const void* data = nullptr;  // host
  // host, not aligned; null where the format has none. In the dtype that the format says.
  const void* scales = nullptr;
  std::int32_t group_size = 0;  // kInt4Group: 32, 64 or 128, a divisor of cols.
  // The bytes behind data stay valid and unchanged for the backend's life, so it may use them in place.
  bool outlives_backend = false;
  // The same of the bytes behind scales, which may have another owner (they are converted where a file stores them in
  // another dtype).
  bool scales_outlive_backend = false;
};

// A weight that a backend has prepared; only that backend reads `data`.
struct Weight {
  WeightFormat format = WeightFormat::kF32;
  WeightUsage usage = WeightUsage::kLinear;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const void* data = nullptr;
  const void* scales = nullptr;
  std::int32_t group_size = 0;
  Buffer storage;  // Empty when the backend uses the source in place. Its size is the weight's memory.
};

}  // namespace tessera::ops
