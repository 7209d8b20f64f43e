#include "tessera/backends/cpu/reference/kv_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

void encode_fp8_group(const float* x, std::int64_t n, std::byte* data, std::byte* scale_at) {
  float amax = 0.0f;
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    finite = finite && std::isfinite(x[i]);
    amax = std::max(amax, std::abs(x[i]));
  }
  if (!finite) {
    std::memset(data, 0, static_cast<std::size_t>(n));
    store(scale_at, 0, base::BF16{0x7fc0});
    return;
  }
  const base::BF16 stored_scale = kv_f8_scale(amax);
  const float scale = base::to_float(stored_scale);
  for (std::int64_t i = 0; i < n; ++i) store(data, i, base::to_f8e4m3(x[i] / scale));
  store(scale_at, 0, stored_scale);
}

}  // namespace

base::BF16 kv_f8_scale(float amax) {
  if (amax == 0.0f) return base::to_bf16(1.0f);
  const base::BF16 scale = base::to_bf16_round_up(amax / base::kF8E4M3Max);
  // amax / 448 can underflow to zero; a zero scale would make every element NaN or infinite.
  return scale.bits == 0 ? base::BF16{1} : scale;
}

bool kv_row_is_storable(ops::KvFormat format, const float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float stored = format == ops::KvFormat::kBF16 ? base::to_float(base::to_bf16(x[i])) : x[i];
    if (!std::isfinite(stored)) return false;
  }
  return true;
}

void encode_kv_row(ops::KvFormat format, const ops::KvPart& part, const float* x, std::byte* data, std::byte* scales) {
  switch (format) {
    case ops::KvFormat::kF32:
      std::memcpy(data, x, static_cast<std::size_t>(part.elements) * sizeof(float));
      return;
    case ops::KvFormat::kBF16:
      for (std::int64_t i = 0; i < part.elements; ++i) store(data, i, base::to_bf16(x[i]));
      return;
    case ops::KvFormat::kF8E4M3:
      for (std::int64_t group = 0, first = 0; group < part.scales; ++group) {
        const std::int64_t n = group == 0 ? part.first_group : part.other_groups;
        encode_fp8_group(x + first, n, data + first, scales + group * 2);
        first += n;
      }
      return;
  }
}

void decode_kv_row(ops::KvFormat format, const ops::KvPart& part, const std::byte* data, const std::byte* scales,
                   std::int64_t first, std::int64_t count, float* out) {
  switch (format) {
    case ops::KvFormat::kF32:
      std::memcpy(out, data + first * 4, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case ops::KvFormat::kBF16:
      for (std::int64_t i = 0; i < count; ++i) out[i] = base::to_float(load<base::BF16>(data, first + i));
      return;
    case ops::KvFormat::kF8E4M3:
      for (std::int64_t i = 0; i < count; ++i) {
        const float scale = base::to_float(load<base::BF16>(scales, kv_scale_group(part, first + i)));
        out[i] = base::to_float(load<base::F8E4M3>(data, first + i)) * scale;
      }
      return;
  }
}

}  // namespace tessera::backends::cpu
