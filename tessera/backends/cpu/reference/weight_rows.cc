#include "tessera/backends/cpu/reference/weight_rows.h"

#include <cstddef>
#include <cstring>

#include "tessera/backends/cpu/reference/cpu_backend_base.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/dtype.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

namespace {

using ops::WeightFormat;
using ops::WeightUsage;

constexpr std::int64_t kBlock = 128;

// Reads element `index` of an array that may lie at any byte of a mapped file.
template <typename T>
T load(const void* from, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(from) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Bytes to which data must be aligned to be used in place.
std::uintptr_t data_alignment(WeightFormat format) {
  if (format == WeightFormat::kF32) return 4;
  return format == WeightFormat::kBF16 ? 2 : 1;
}

}  // namespace

std::int64_t weight_data_bytes(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  switch (format) {
    case WeightFormat::kF32:
      return rows * cols * 4;
    case WeightFormat::kBF16:
      return rows * cols * 2;
    case WeightFormat::kF8Block128:
    case WeightFormat::kF8Channel:
      return rows * cols;
    case WeightFormat::kInt4Group:
      return rows * cols / 2;
  }
  return 0;
}

std::int64_t weight_scale_bytes(WeightFormat format, std::int64_t rows, std::int64_t cols, std::int32_t group_size) {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
      return 0;
    case WeightFormat::kF8Block128:
      return base::ceil_div(rows, kBlock) * base::ceil_div(cols, kBlock) * 4;
    case WeightFormat::kF8Channel:
      return rows * 4;
    case WeightFormat::kInt4Group:
      return rows * (cols / group_size) * 2;
  }
  return 0;
}

const float* weight_row(const ops::Weight& weight, std::int64_t n, std::vector<float>& scratch) {
  const std::int64_t cols = weight.cols;
  if (weight.format == WeightFormat::kF32) return static_cast<const float*>(weight.data) + n * cols;
  scratch.resize(static_cast<std::size_t>(cols));
  switch (weight.format) {
    case WeightFormat::kF32:
      break;
    case WeightFormat::kBF16:
      for (std::int64_t i = 0; i < cols; ++i) {
        scratch[i] = base::to_float(static_cast<const base::BF16*>(weight.data)[n * cols + i]);
      }
      break;
    case WeightFormat::kF8Block128: {
      const std::int64_t first_scale = n / kBlock * base::ceil_div(cols, kBlock);
      for (std::int64_t i = 0; i < cols; ++i) {
        scratch[i] = base::to_float(load<base::F8E4M3>(weight.data, n * cols + i)) *
                     load<float>(weight.scales, first_scale + i / kBlock);
      }
      break;
    }
    case WeightFormat::kF8Channel: {
      const float scale = load<float>(weight.scales, n);
      for (std::int64_t i = 0; i < cols; ++i) {
        scratch[i] = base::to_float(load<base::F8E4M3>(weight.data, n * cols + i)) * scale;
      }
      break;
    }
    case WeightFormat::kInt4Group: {
      // Element 8j + i sits in bits 4i .. 4i + 3 of the little-endian word j: two elements a byte, the lower first.
      for (std::int64_t i = 0; i < cols; ++i) {
        const auto pair = load<std::uint8_t>(weight.data, (n * cols + i) / 2);
        const int code = i % 2 == 0 ? pair & 15 : pair >> 4;
        const base::BF16 scale =
            load<base::BF16>(weight.scales, n * (cols / weight.group_size) + i / weight.group_size);
        scratch[i] = static_cast<float>(code - 8) * base::to_float(scale);
      }
      break;
    }
  }
  return scratch.data();
}

base::Result<ops::Weight> CpuBackendBase::prepare_row_major_weight(const ops::WeightSource& source) {
  TESSERA_CHECK(source.data != nullptr);
  // The largest thing that is computed from the shape: F32 elements.
  TESSERA_RETURN_IF_ERROR(ops::check_source(source, name(), 4));
  ops::Weight weight;
  weight.format = source.format;
  weight.usage = source.usage;
  weight.rows = source.rows;
  weight.cols = source.cols;
  weight.group_size = source.format == WeightFormat::kInt4Group ? source.group_size : 0;

  const bool widens = (source.usage == WeightUsage::kVector || source.usage == WeightUsage::kRouter) &&
                      source.format == WeightFormat::kBF16;
  if (widens) {
    const std::int64_t count = source.rows * source.cols;
    TESSERA_ASSIGN_OR_RETURN(weight.storage, allocate(count * 4, "weight held in F32"));
    for (std::int64_t i = 0; i < count; ++i) {
      weight.storage.as<float>()[i] = base::to_float(load<base::BF16>(source.data, i));
    }
    weight.format = WeightFormat::kF32;
    weight.data = weight.storage.data();
    return weight;
  }

  const std::int64_t data_bytes = weight_data_bytes(source.format, source.rows, source.cols);
  const std::int64_t scale_bytes = weight_scale_bytes(source.format, source.rows, source.cols, source.group_size);
  const bool aligned = reinterpret_cast<std::uintptr_t>(source.data) % data_alignment(source.format) == 0;
  const bool copies_data = !source.outlives_backend || !aligned;
  const bool copies_scales = scale_bytes > 0 && !source.scales_outlive_backend;
  weight.data = source.data;
  weight.scales = scale_bytes > 0 ? source.scales : nullptr;
  if (!copies_data && !copies_scales) return weight;
  const std::int64_t scales_at = copies_data ? base::round_up(data_bytes, kBufferAlignment) : 0;
  TESSERA_ASSIGN_OR_RETURN(weight.storage, allocate(scales_at + (copies_scales ? scale_bytes : 0), "weight"));
  if (copies_data) {
    std::memcpy(weight.storage.data(), source.data, static_cast<std::size_t>(data_bytes));
    weight.data = weight.storage.data();
  }
  if (copies_scales) {
    std::memcpy(weight.storage.data() + scales_at, source.scales, static_cast<std::size_t>(scale_bytes));
    weight.scales = weight.storage.data() + scales_at;
  }
  return weight;
}

}  // namespace tessera::backends::cpu
