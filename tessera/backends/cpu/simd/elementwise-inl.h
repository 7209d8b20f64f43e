// Norms, activations, rotations, conversions and the search for the largest logit: one row at a time.
#pragma once

#include "tessera/backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::backends::cpu::simd {
namespace {  // NOLINT(google-build-namespaces)

// The last, incomplete vector of a row; the lanes past it hold `filler`.
HWY_INLINE V load_tail(const float* in, std::int64_t count, float filler) {
  alignas(64) float lanes[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? in[i] : filler;
  return hn::Load(F32(), lanes);
}
HWY_INLINE void store_tail(V v, float* out, std::int64_t count) {
  alignas(64) float lanes[kLanes];
  hn::Store(v, F32(), lanes);
  for (std::int64_t i = 0; i < count; ++i) out[i] = lanes[i];
}

void rms_norm(const float* in, const float* weight, float epsilon, std::int64_t cols, float* out) {
  const F32 d;
  // Four accumulators, so that the additions overlap.
  V sums[4] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= cols; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const V x = hn::LoadU(d, in + i + j * kLanes);
      sums[j] = hn::MulAdd(x, x, sums[j]);
    }
  }
  for (; i + kLanes <= cols; i += kLanes) {
    const V x = hn::LoadU(d, in + i);
    sums[0] = hn::MulAdd(x, x, sums[0]);
  }
  if (i < cols) {
    const V x = load_tail(in + i, cols - i, 0.0f);
    sums[0] = hn::MulAdd(x, x, sums[0]);
  }
  const float total = sum_of(hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
  const float scale = 1.0f / __builtin_sqrtf(total / static_cast<float>(cols) + epsilon);
  const V s = hn::Set(d, scale);
  for (i = 0; i + kLanes <= cols; i += kLanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, in + i), s), hn::LoadU(d, weight + i)), d, out + i);
  }
  if (i < cols) {
    const V x = hn::Mul(load_tail(in + i, cols - i, 0.0f), s);
    store_tail(hn::Mul(x, load_tail(weight + i, cols - i, 0.0f)), out + i, cols - i);
  }
}

// The lanes of one vector of a row, the last and incomplete one filled up with `filler`.
HWY_INLINE V load_part(const float* in, std::int64_t left, float filler) {
  return left >= kLanes ? hn::LoadU(F32(), in) : load_tail(in, left, filler);
}

void layer_norm(const float* in, const float* weight, const float* bias, float epsilon, std::int64_t cols, float* out) {
  const F32 d;
  V sum = zero();
  for (std::int64_t i = 0; i < cols; i += kLanes) sum = hn::Add(sum, load_part(in + i, cols - i, 0.0f));
  const auto count = static_cast<float>(cols);
  const float estimate = sum_of(sum) / count;
  // Against the estimate the elements are small: their mean corrects it, and their squares lose nothing.
  V off_sum = zero();
  V square_sum = zero();
  const V center = hn::Set(d, estimate);
  for (std::int64_t i = 0; i < cols; i += kLanes) {
    const V off = hn::Sub(load_part(in + i, cols - i, estimate), center);
    off_sum = hn::Add(off_sum, off);
    square_sum = hn::MulAdd(off, off, square_sum);
  }
  const float correction = sum_of(off_sum) / count;
  const float variance = sum_of(square_sum) / count - correction * correction;
  // Rounding may make it negative; NaN stays.
  const float scale = 1.0f / __builtin_sqrtf((variance < 0.0f ? 0.0f : variance) + epsilon);
  const V s = hn::Set(d, scale);
  const V c = hn::Set(d, correction);
  for (std::int64_t i = 0; i < cols; i += kLanes) {
    const std::int64_t left = cols - i;
    const V x = hn::Sub(hn::Sub(load_part(in + i, left, 0.0f), center), c);
    const V y = hn::MulAdd(hn::Mul(x, s), load_part(weight + i, left, 0.0f), load_part(bias + i, left, 0.0f));
    if (left >= kLanes) {
      hn::StoreU(y, d, out + i);
    } else {
      store_tail(y, out + i, left);
    }
  }
}

// gate / (1 + exp(-gate)) * up.
HWY_INLINE V swiglu_of(V gate, V up) {
  const V e = exp_of(hn::Neg(gate));
  return hn::Mul(hn::Div(gate, hn::Add(hn::Set(F32(), 1.0f), e)), up);
}

void swiglu(const float* gate, const float* up, std::int64_t width, float* out) {
  const F32 d;
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    hn::StoreU(swiglu_of(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, out + i);
  }
  if (i < width) {
    const std::int64_t left = width - i;
    store_tail(swiglu_of(load_tail(gate + i, left, 0.0f), load_tail(up + i, left, 0.0f)), out + i, left);
  }
}

HWY_INLINE V sigmoid_of(V x) {
  const V one = hn::Set(F32(), 1.0f);
  return hn::Div(one, hn::Add(one, exp_of(hn::Neg(x))));
}

void sigmoid(const float* in, std::int64_t count, float* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(sigmoid_of(hn::LoadU(F32(), in + i)), F32(), out + i);
  if (i < count) store_tail(sigmoid_of(load_tail(in + i, count - i, 0.0f)), out + i, count - i);
}

void rope_half(float* head, const float* cosines, const float* sines, std::int64_t half) {
  const F32 d;
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const V a = hn::LoadU(d, head + i);
    const V b = hn::LoadU(d, head + half + i);
    const V c = hn::LoadU(d, cosines + i);
    const V s = hn::LoadU(d, sines + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, head + i);
    hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), d, head + half + i);
  }
  for (; i < half; ++i) {
    const float a = head[i];
    const float b = head[half + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[half + i] = a * sines[i] + b * cosines[i];
  }
}

GreedyResult greedy(const float* logits, std::int64_t count) {
  const F32 d;
  const V lowest = hn::Set(d, -__builtin_huge_valf());
  V best = lowest;
  auto nan = hn::FirstN(d, 0);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const V x = hn::LoadU(d, logits + i);
    nan = hn::Or(nan, hn::IsNaN(x));
    best = hn::Max(best, x);
  }
  if (i < count) {
    const V x = load_tail(logits + i, count - i, -__builtin_huge_valf());
    nan = hn::Or(nan, hn::IsNaN(x));
    best = hn::Max(best, x);
  }
  GreedyResult result;
  result.has_nan = !hn::AllFalse(d, nan);
  if (result.has_nan) return result;
  result.maximum = max_of(best);
  const V maximum = hn::Set(d, result.maximum);
  // Sums of at most 64 vectors in float, those in double.
  for (i = 0; i < count;) {
    V sum = zero();
    const std::int64_t end = count - i < 64 * kLanes ? count : i + 64 * kLanes;
    for (; i < end; i += kLanes) {
      const V x =
          i + kLanes <= count ? hn::LoadU(d, logits + i) : load_tail(logits + i, count - i, -__builtin_huge_valf());
      sum = hn::Add(sum, exp_of(hn::Sub(x, maximum)));
      if (result.index < 0) {
        const auto at = hn::FindFirstTrue(d, hn::Eq(x, maximum));
        if (at >= 0) result.index = i + at;
      }
    }
    result.sum += static_cast<double>(sum_of(sum));
  }
  return result;
}

void bf16_to_f32(const std::uint16_t* in, std::int64_t count, float* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(load_bf16(in + i), F32(), out + i);
  if (i < count) {
    std::uint16_t last[kLanes] = {};
    std::memcpy(last, in + i, static_cast<std::size_t>(count - i) * 2);
    store_tail(load_bf16(last), out + i, count - i);
  }
}

void f32_to_bf16(const float* in, std::int64_t count, std::uint16_t* out) {
  const F32 d;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_bf16(hn::LoadU(d, in + i), out + i);
  if (i < count) {
    std::uint16_t last[kLanes];
    store_bf16(load_tail(in + i, count - i, 0.0f), last);
    std::memcpy(out + i, last, static_cast<std::size_t>(count - i) * 2);
  }
}

void f8_to_f32(const std::uint8_t* in, std::int64_t count, float* out) {
  const V unscale = hn::Set(F32(), kF8Unscale);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::Mul(load_f8_unscaled(in + i), unscale), F32(), out + i);
  if (i < count) {
    std::uint8_t last[kLanes] = {};
    std::memcpy(last, in + i, static_cast<std::size_t>(count - i));
    store_tail(hn::Mul(load_f8_unscaled(last), unscale), out + i, count - i);
  }
}

void f32_to_f8(const float* in, float scale, std::int64_t count, std::uint8_t* out) {
  const F32 d;
  const U8Quarter d8;
  const V divisor = hn::Set(d, scale);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::TruncateTo(d8, f8_bits(hn::Div(hn::LoadU(d, in + i), divisor))), d8, out + i);
  }
  if (i < count) {
    std::uint8_t last[kLanes];
    hn::StoreU(hn::TruncateTo(d8, f8_bits(hn::Div(load_tail(in + i, count - i, 0.0f), divisor))), d8, last);
    std::memcpy(out + i, last, static_cast<std::size_t>(count - i));
  }
}

float largest_magnitude(const float* in, std::int64_t count) {
  const F32 d;
  const U32 du;
  // As integers, so that NaN, whose bits are above infinity's, counts as the largest of all.
  auto best = hn::Zero(du);
  const auto mask = hn::Set(du, 0x7fffffffu);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    best = hn::Max(best, hn::And(hn::BitCast(du, hn::LoadU(d, in + i)), mask));
  }
  if (i < count) best = hn::Max(best, hn::And(hn::BitCast(du, load_tail(in + i, count - i, 0.0f)), mask));
  const std::uint32_t bits = hn::GetLane(hn::MaxOfLanes(du, best));
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
HWY_AFTER_NAMESPACE();
