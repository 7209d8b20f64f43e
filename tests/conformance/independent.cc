#include "tests/conformance/independent.h"

#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace tessera::conformance {

namespace {

template <typename T>
void append(std::vector<std::byte>& to, T value) {
  const std::size_t at = to.size();
  to.resize(at + sizeof(T));
  std::memcpy(to.data() + at, &value, sizeof(T));
}

float bf16_of_bits(std::uint32_t upper_half) {
  const std::uint32_t bits = upper_half << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::uint16_t upper_half(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

}  // namespace

double e4m3_value(std::uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

std::uint8_t nearest_e4m3(float x) {
  const double magnitude = std::abs(static_cast<double>(x));
  int best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 0x7f; ++code) {
    const double distance = std::abs(magnitude - e4m3_value(static_cast<std::uint8_t>(code)));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

float nearest_bf16(float x) {
  const double magnitude = std::abs(static_cast<double>(x));
  const std::uint32_t below = upper_half(std::abs(x));
  const std::uint32_t above = below + 1;
  // As a neighbour in the grid, infinity stands where the next number would be.
  const double above_value = above == 0x7f80 ? 0x1.0p128 : static_cast<double>(bf16_of_bits(above));
  const double to_below = magnitude - static_cast<double>(bf16_of_bits(below));
  const double to_above = above_value - magnitude;
  const bool take_below = to_below < to_above || (to_below == to_above && below % 2 == 0);
  return std::copysign(bf16_of_bits(take_below ? below : above), x);
}

std::uint16_t bf16_not_less(float x) {
  std::uint32_t low = 0;  // Always too small, or zero.
  std::uint32_t high = 0x7f80;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (bf16_of_bits(middle) >= x ? high : low) = middle;
  }
  return static_cast<std::uint16_t>(high);
}

StoredRow store_row(const ops::KvLayout& layout, int part_index, std::span<const float> x) {
  StoredRow row;
  const ops::KvPart& part = layout.parts[static_cast<std::size_t>(part_index)];
  const bool index_keys = part.kind == ops::KvPartKind::kIndexKeys;
  if (layout.format == ops::KvFormat::kF8E4M3 || (index_keys && layout.format == ops::KvFormat::kBF16)) {
    std::size_t begin = 0;
    for (int group = 0; group < part.scales; ++group) {
      const std::size_t end = begin + static_cast<std::size_t>(group == 0 ? part.first_group : part.other_groups);
      float largest = 0.0f;
      for (std::size_t i = begin; i < end; ++i) largest = std::fmax(largest, std::fabs(x[i]));
      float scale = largest == 0.0f ? 1.0f : largest / 448.0f;
      if (index_keys) {
        if (scale == 0.0f) scale = std::numeric_limits<float>::denorm_min();
        append(row.scales, scale);
      } else {
        const std::uint16_t scale_bits = largest == 0.0f ? upper_half(1.0f) : bf16_not_less(scale);
        scale = bf16_of_bits(scale_bits);
        append(row.scales, scale_bits);
      }
      for (std::size_t i = begin; i < end; ++i) {
        const std::uint8_t code = nearest_e4m3(x[i] / scale);
        append(row.data, code);
        row.values.push_back(static_cast<float>(e4m3_value(code) * static_cast<double>(scale)));
      }
      begin = end;
    }
    return row;
  }
  for (const float value : x) {
    const float kept = layout.format == ops::KvFormat::kBF16 ? nearest_bf16(value) : value;
    if (layout.format == ops::KvFormat::kBF16) {
      append(row.data, upper_half(kept));
    } else {
      append(row.data, kept);
    }
    row.values.push_back(kept);
  }
  return row;
}

std::uint64_t row_digest(std::uint64_t key, std::int32_t layer, std::int32_t slot,
                         std::span<const std::byte> row_bytes) {
  // splitmix64 of the key with layer (upper half) and slot (lower half) mixed in.
  std::uint64_t z = key ^ (static_cast<std::uint64_t>(layer) * (1ull << 32) + static_cast<std::uint64_t>(slot));
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return XXH3_64bits_withSeed(row_bytes.data(), row_bytes.size(), z);
}

}  // namespace tessera::conformance
