// Vector types, conversions and the exponential that all kernels share. Included once for each target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "tessera/backends/cpu/simd/kernels.h"

#if defined(TESSERA_SIMD_BF16_DOT)
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512bf16"
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::backends::cpu::simd {
namespace {  // NOLINT(google-build-namespaces): every target's kernels are its translation unit's own.

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using U32 = hn::Rebind<std::uint32_t, F32>;
using I32 = hn::Rebind<std::int32_t, F32>;
using U16Half = hn::Rebind<std::uint16_t, F32>;  // As many lanes as F32.
using U8Quarter = hn::Rebind<std::uint8_t, F32>;
using V = hn::Vec<F32>;
inline constexpr std::int64_t kLanes = HWY_LANES(float);

HWY_INLINE V zero() { return hn::Zero(F32()); }

// e^x within 2 units in the last place; NaN stays NaN. Below -87 the result is 0, above 88 infinity. Range
// reduction and polynomial as in S. L. Moshier's Cephes, expf.
HWY_INLINE V exp_of(V x) {
  const F32 d;
  // The instructions behind Min and Max return their second operand when either is NaN.
  const V clamped = hn::Min(hn::Set(d, 88.0f), hn::Max(hn::Set(d, -87.0f), x));
  const auto steps = hn::NearestInt(hn::Mul(clamped, hn::Set(d, 1.44269504088896341f)));
  const V n = hn::ConvertTo(d, steps);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const I32 di;
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(steps, hn::Set(di, 127))));
  const V y = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(p, power));
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.0f)), hn::Set(d, __builtin_huge_valf()), y);
}

HWY_INLINE float exp_scalar(float x) { return hn::GetLane(exp_of(hn::Set(F32(), x))); }

HWY_INLINE float sum_of(V v) { return hn::GetLane(hn::SumOfLanes(F32(), v)); }
HWY_INLINE float max_of(V v) { return hn::GetLane(hn::MaxOfLanes(F32(), v)); }

HWY_INLINE V load_bf16(const std::uint16_t* in) {
  const auto bits = hn::PromoteTo(U32(), hn::LoadU(U16Half(), in));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(bits));
}

// Multiplying what load_f8_unscaled gives by this gives the e4m3 value: it reads the code as a half, whose exponent
// bias is larger by 8. NaN stays NaN.
inline constexpr float kF8Unscale = 256.0f;

HWY_INLINE V load_f8_unscaled(const std::uint8_t* in) {
  const U16Half d;
  const hn::Rebind<std::int16_t, F32> di;
  const hn::Rebind<std::int8_t, F32> d8;
  const auto extended = hn::BitCast(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(in))));
  const auto shifted = hn::ShiftLeft<7>(extended);  // The sign twice, then exponent and mantissa.
  const auto magnitude = hn::And(shifted, hn::Set(d, std::uint16_t{0x3f80}));
  const auto is_nan = hn::VecFromMask(d, hn::Eq(magnitude, hn::Set(d, std::uint16_t{0x3f80})));
  const auto half =
      hn::Or(hn::And(shifted, hn::Set(d, std::uint16_t{0xbf80})), hn::And(is_nan, hn::Set(d, std::uint16_t{0x7e00})));
  return hn::PromoteTo(F32(), hn::BitCast(hn::Rebind<hwy::float16_t, F32>(), half));
}

// Rounds to nearest, ties to even; NaN stays a quiet NaN. The lower half of each lane is the result.
HWY_INLINE hn::Vec<U32> bf16_bits(V v) {
  const U32 d;
  const auto bits = hn::BitCast(d, v);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(d, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fffu))));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(d, 0x7fffffffu)), hn::Set(d, 0x7f800000u));
  return hn::IfThenElse(is_nan, hn::Or(high, hn::Set(d, 0x40u)), rounded);
}

HWY_INLINE void store_bf16(V v, std::uint16_t* out) {
  hn::StoreU(hn::TruncateTo(U16Half(), bf16_bits(v)), U16Half(), out);
}

// The e4m3 code of each lane, as base::to_f8e4m3 has it.
HWY_INLINE hn::Vec<U32> f8_bits(V v) {
  const F32 df;
  const U32 d;
  const auto bits = hn::BitCast(d, v);
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(d, 0x80u));
  const auto magnitude = hn::And(bits, hn::Set(d, 0x7fffffffu));
  // Below 2^-6 codes are multiples of 2^-9: adding 2^14 makes the addition round there.
  const auto base = hn::Set(df, 16384.0f);
  const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), base)), hn::BitCast(d, base));
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(d, 1u));
  const auto rounded = hn::Add(magnitude, hn::Add(odd, hn::Set(d, 0x7ffffu)));
  const auto normal = hn::Min(hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(d, 120u << 3)), hn::Set(d, 0x7eu));
  auto code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x3c800000u)), subnormal, normal);
  code = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7f800000u)), hn::Set(d, 0x7fu), code);
  return hn::Or(sign, code);
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
