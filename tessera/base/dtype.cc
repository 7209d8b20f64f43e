#include "tessera/base/dtype.h"

namespace tessera::base {

F8E4M3 to_f8e4m3(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint8_t sign = static_cast<std::uint8_t>((bits >> 24) & 0x80u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return F8E4M3{static_cast<std::uint8_t>(sign | 0x7fu)};
  if (magnitude >= std::bit_cast<std::uint32_t>(kF8E4M3Max)) return F8E4M3{static_cast<std::uint8_t>(sign | 0x7eu)};
  if (magnitude < std::bit_cast<std::uint32_t>(0.015625f)) {  // Below 2^-6: multiples of 2^-9.
    // Adding 2^14 makes float's own rounding (to nearest, ties to even) land on multiples of 2^-9.
    const float shifted = std::bit_cast<float>(magnitude) + 16384.0f;
    const std::uint32_t steps = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(16384.0f);
    return F8E4M3{static_cast<std::uint8_t>(sign | steps)};
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const std::uint32_t code = (rounded >> 20) - (120u << 3);
  return F8E4M3{static_cast<std::uint8_t>(sign | (code > 0x7eu ? 0x7eu : code))};
}

}  // namespace tessera::base
