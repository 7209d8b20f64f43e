// Element types of tensors, and the host's exact conversions. C++20, so that device code may include it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::base {

enum class DType : std::uint8_t { kF32, kBF16, kF16, kF8E4M3, kI64, kI32, kI16, kI8, kU8, kBool };

// Bytes of one element.
constexpr std::int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
      return 2;
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

// The name that safetensors uses: "F32", "BF16", "F8_E4M3", ...
constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kI16:
      return "I16";
    case DType::kI8:
      return "I8";
    case DType::kU8:
      return "U8";
    case DType::kBool:
      return "BOOL";
  }
  return "?";
}

constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (DType d : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI64, DType::kI32, DType::kI16,
                  DType::kI8, DType::kU8, DType::kBool}) {
    if (dtype_name(d) == name) return d;
  }
  return std::nullopt;
}

// bfloat16 as stored bits. Conversion from float rounds to nearest, ties to even; NaN stays NaN (quiet).
struct BF16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(BF16, BF16) = default;
};

constexpr float to_float(BF16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

constexpr BF16 to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return BF16{static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  return BF16{static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// The smallest bfloat16 that is >= value, for finite value >= 0. Scales are rounded up, so that a row's largest
// element never quantizes beyond the largest finite e4m3.
constexpr BF16 to_bf16_round_up(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return BF16{static_cast<std::uint16_t>((bits + 0xffffu) >> 16)};
}

// float8 e4m3 ("fn": no infinities; 0x7f and 0xff are NaN; largest finite 448) as stored bits.
struct F8E4M3 {
  std::uint8_t bits = 0;
  friend constexpr bool operator==(F8E4M3, F8E4M3) = default;
};

inline constexpr float kF8E4M3Max = 448.0f;

constexpr float to_float(F8E4M3 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x80u) << 24;
  const std::uint32_t exponent = (value.bits >> 3) & 0xfu;
  const std::uint32_t mantissa = value.bits & 0x7u;
  if (exponent == 0xfu && mantissa == 0x7u) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {  // Subnormal: mantissa * 2^-9.
    const float magnitude = static_cast<float>(mantissa) * 0.001953125f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

// Rounds to nearest, ties to even; saturates to +-448 (also infinities); NaN gives 0x7f with the sign.
F8E4M3 to_f8e4m3(float value);

}  // namespace tessera::base
