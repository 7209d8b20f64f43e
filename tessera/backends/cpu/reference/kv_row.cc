#include "tessera/backends/cpu/reference/kv_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tessera/base/dtype.h"

namespace tessera::backends::cpu {

namespace {

template <typename T>
T load(const std::byte* from, std::int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* to, std::int64_t index, T value) {
  std::memcpy(to + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

// Reads the scale of group `group`.
float load_scale(base::DType dtype, const std::byte* scales, std::int64_t group) {
  if (dtype == base::DType::kF32) return load<float>(scales, group);
  return base::to_float(load<base::BF16>(scales, group));
}

void encode_fp8_group(const float* x, std::int64_t n, base::DType scale_dtype, std::byte* data, std::byte* scale_at) {
  const auto store_scale = [&](float scale) {
    if (scale_dtype == base::DType::kF32) {
      store(scale_at, 0, scale);
    } else {
      store(scale_at, 0, base::to_bf16(scale));
    }
  };
  float amax = 0.0f;
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    finite = finite && std::isfinite(x[i]);
    amax = std::max(amax, std::abs(x[i]));
  }
  if (!finite) {
    std::memset(data, 0, static_cast<std::size_t>(n));
    store_scale(std::bit_cast<float>(0x7fc00000u));
    return;
  }
  const float scale = scale_dtype == base::DType::kF32 ? index_key_scale(amax) : base::to_float(kv_f8_scale(amax));
  for (std::int64_t i = 0; i < n; ++i) store(data, i, base::to_f8e4m3(x[i] / scale));
  store_scale(scale);
}

}  // namespace

base::BF16 kv_f8_scale(float amax) {
  if (amax == 0.0f) return base::to_bf16(1.0f);
  const base::BF16 scale = base::to_bf16_round_up(amax / base::kF8E4M3Max);
  // amax / 448 can underflow to zero; a zero scale would make every element NaN or infinite.
  return scale.bits == 0 ? base::BF16{1} : scale;
}

float index_key_scale(float amax) {
  if (amax == 0.0f) return 1.0f;
  return std::max(amax / base::kF8E4M3Max, std::numeric_limits<float>::denorm_min());
}

bool kv_row_is_storable(const ops::KvLayout& layout, int part, const float* x) {
  const bool rounds = layout.part_dtype(part) == base::DType::kBF16;
  for (std::int64_t i = 0; i < layout.parts[part].elements; ++i) {
    if (!std::isfinite(rounds ? base::to_float(base::to_bf16(x[i])) : x[i])) return false;
  }
  return true;
}

void encode_kv_row(const ops::KvLayout& layout, int part, const float* x, std::byte* data, std::byte* scales) {
  const ops::KvPart& shape = layout.parts[part];
  if (layout.part_has_scales(part)) {
    const base::DType scale_dtype = layout.part_scale_dtype(part);
    for (std::int64_t group = 0, first = 0; group < shape.scales; ++group) {
      const std::int64_t n = group == 0 ? shape.first_group : shape.other_groups;
      encode_fp8_group(x + first, n, scale_dtype, data + first, scales + group * base::dtype_size(scale_dtype));
      first += n;
    }
  } else if (layout.part_dtype(part) == base::DType::kBF16) {
    for (std::int64_t i = 0; i < shape.elements; ++i) store(data, i, base::to_bf16(x[i]));
  } else {
    std::memcpy(data, x, static_cast<std::size_t>(shape.elements) * sizeof(float));
  }
}

void decode_kv_row(const ops::KvLayout& layout, int part, const std::byte* data, const std::byte* scales,
                   std::int64_t first, std::int64_t count, float* out) {
  if (layout.part_has_scales(part)) {
    const base::DType scale_dtype = layout.part_scale_dtype(part);
    for (std::int64_t i = 0; i < count; ++i) {
      const float scale = load_scale(scale_dtype, scales, kv_scale_group(layout.parts[part], first + i));
      out[i] = base::to_float(load<base::F8E4M3>(data, first + i)) * scale;
    }
  } else if (layout.part_dtype(part) == base::DType::kBF16) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = base::to_float(load<base::BF16>(data, first + i));
  } else {
    std::memcpy(out, data + first * 4, static_cast<std::size_t>(count) * sizeof(float));
  }
}

}  // namespace tessera::backends::cpu
