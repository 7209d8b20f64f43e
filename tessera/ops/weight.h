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
  kF8Block128,   // e4m3 with one F32 scale for each 128x128 block; reserved, refused by prepare_weight so far.
  kF8Channel,    // e4m3 with one scale for each output row; reserved likewise.
  kInt4Group32,  // compressed-tensors pack-quantized; reserved likewise.
};

// "f32", "bf16", "f8_block128", ...: for errors and logs.
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
    case WeightFormat::kInt4Group32:
      return "int4_group32";
  }
  return "?";
}

// What a weight is used for decides its layout.
enum class WeightUsage : std::uint8_t {
  kLinear,     // Products: y = x W^T.
  kEmbedding,  // Rows looked up by token id.
  kVector,     // Norm weights and biases: elementwise, held in F32; rows == 1.
};

// A tensor [rows, cols] in host memory, row-major. rows is the number of output features.
struct WeightSource {
  WeightFormat format = WeightFormat::kF32;
  WeightUsage usage = WeightUsage::kLinear;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const void* data = nullptr;    // host
  const void* scales = nullptr;  // host; null where the format has none.
  // The bytes behind data stay valid and unchanged for the backend's life, so it may use them in place.
  bool outlives_backend = false;
};

// A weight that a backend has prepared; only that backend reads `data`.
struct Weight {
  WeightFormat format = WeightFormat::kF32;
  WeightUsage usage = WeightUsage::kLinear;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const void* data = nullptr;
  const void* scales = nullptr;
  Buffer storage;  // Empty when the backend uses the source in place. Its size is the weight's memory.
};

}  // namespace tessera::ops
