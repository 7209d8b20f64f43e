// One row of KV on the device: addresses, byte copies by a warp, and storing a scale group in FP8 (ops/transformer.h,
// KvWriteParams, has the rules).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "tessera/backends/cuda/kernels/kv_rows.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

__device__ __forceinline__ std::byte* row_data(const KvRowsPart& part, std::int64_t page, std::int64_t slot) {
  return part.data + page * part.page_stride + slot * part.row_bytes;
}
__device__ __forceinline__ std::byte* row_scales(const KvRowsPart& part, std::int64_t page, std::int64_t slot) {
  return part.scales + page * part.scale_page_stride + slot * part.row_scale_bytes;
}

// A row's kv_len, and never more than its part of the page table has room for, whatever stands in memory.
__device__ __forceinline__ std::int64_t kv_len_of(const std::int32_t* kv_lens, std::int64_t row,
                                                  std::int64_t max_pages_per_row, std::int32_t page_size) {
  return min(std::int64_t{kv_lens[row]}, max_pages_per_row * page_size);
}

// All lanes copy `bytes` bytes, in the widest words that both addresses and the length allow. Generic addresses.
__device__ inline void warp_copy(std::byte* to, const std::byte* from, std::int32_t bytes, int lane) {
  const auto bits =
      static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) |
      static_cast<std::uint32_t>(bytes);
  if (bits % 16 == 0) {
    for (std::int32_t i = lane; i < bytes / 16; i += 32) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  } else if (bits % 4 == 0) {
    for (std::int32_t i = lane; i < bytes / 4; i += 32) {
      reinterpret_cast<std::uint32_t*>(to)[i] = reinterpret_cast<const std::uint32_t*>(from)[i];
    }
  } else {
    for (std::int32_t i = lane; i < bytes; i += 32) to[i] = from[i];
  }
}

__device__ inline void warp_zero(std::byte* to, std::int32_t bytes, int lane) {
  const auto bits =
      static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(to)) | static_cast<std::uint32_t>(bytes);
  if (bits % 16 == 0) {
    for (std::int32_t i = lane; i < bytes / 16; i += 32) reinterpret_cast<uint4*>(to)[i] = uint4{0, 0, 0, 0};
  } else {
    for (std::int32_t i = lane; i < bytes; i += 32) to[i] = std::byte{0};
  }
}

// Elements of scale group g, and the first of them.
__device__ __forceinline__ std::int32_t group_size(const KvRowsPart& part, std::int32_t g) {
  return g == 0 ? part.first_group : part.other_groups;
}
__device__ __forceinline__ std::int32_t group_begin(const KvRowsPart& part, std::int32_t g) {
  return g == 0 ? 0 : part.first_group + (g - 1) * part.other_groups;
}

// The scale of a group whose largest magnitude is the finite amax: amax / 448 rounded up to BF16, at least the smallest
// positive one; 1 for an all-zero group. As bits.
__device__ __forceinline__ std::uint16_t fp8_scale_bits(float amax) {
  if (amax == 0.0f) return 0x3f80;
  const std::uint32_t bits = __float_as_uint(__fdiv_rn(amax, 448.0f));
  const std::uint32_t up = (bits + 0xffffu) >> 16;
  return static_cast<std::uint16_t>(up == 0 ? 1 : up);
}

__device__ __forceinline__ float bf16_bits_to_float(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

// The F32 scale of index keys: amax / 448 itself, at least the smallest positive F32; 1 for an all-zero row.
__device__ __forceinline__ float index_key_scale(float amax) {
  if (amax == 0.0f) return 1.0f;
  const float quotient = __fdiv_rn(amax, 448.0f);
  return quotient == 0.0f ? __uint_as_float(1) : quotient;
}

__device__ __forceinline__ int scale_bytes(KvScale scale) { return scale == KvScale::kF32 ? 4 : 2; }

// At any address.
__device__ __forceinline__ void store_scale(std::byte* to, KvScale scale, float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const int bytes = scale_bytes(scale);
  for (int i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(bits >> (8 * (4 - bytes + i)) & 0xff);
}

// One warp stores scale group g of a part in FP8. load(i) is element i of the row; data and scales are the row's. A
// group that is not all finite becomes zeros under a NaN scale.
template <typename Load>
__device__ inline void warp_store_fp8_group(const KvRowsPart& part, std::int32_t g, const Load& load, std::byte* data,
                                            std::byte* scales, int lane) {
  const std::int32_t begin = group_begin(part, g);
  const std::int32_t end = begin + group_size(part, g);
  float amax = 0.0f;
  bool finite = true;
  for (std::int32_t i = begin + lane; i < end; i += 32) {
    const float x = load(i);
    finite = finite && isfinite(x);
    amax = fmaxf(amax, fabsf(x));
  }
  finite = __all_sync(kFullWarp, finite);
  amax = warp_max(amax);
  const float scale = !finite                       ? __uint_as_float(0x7fc00000u)
                      : part.scale == KvScale::kF32 ? index_key_scale(amax)
                                                    : bf16_bits_to_float(fp8_scale_bits(amax));
  for (std::int32_t i = begin + lane; i < end; i += 32) {
    const __nv_fp8_storage_t code =
        finite ? __nv_cvt_float_to_fp8(__fdiv_rn(load(i), scale), __NV_SATFINITE, __NV_E4M3) : __nv_fp8_storage_t{0};
    data[i] = static_cast<std::byte>(code);
  }
  if (lane == 0) store_scale(scales + g * scale_bytes(part.scale), part.scale, scale);
}

}  // namespace tessera::backends::cuda
