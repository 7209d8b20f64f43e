// XXH3-64 with a seed, computed by one warp over bytes in shared memory. The function is xxHash's (version 0.8, whose
// specification and constants these are); digests of KV rows are defined by it (ops/page_transfer.h), so the host can
// check what the device wrote.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

inline constexpr int kXxh3SecretWords = 24;

// xxHash's default secret as little-endian words.
static __constant__ std::uint64_t kXxh3Secret[kXxh3SecretWords] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
    0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
    0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

inline constexpr std::uint64_t kPrime32_1 = 0x9e3779b1;
inline constexpr std::uint64_t kPrime32_2 = 0x85ebca77;
inline constexpr std::uint64_t kPrime32_3 = 0xc2b2ae3d;
inline constexpr std::uint64_t kPrime64_1 = 0x9e3779b185ebca87;
inline constexpr std::uint64_t kPrime64_2 = 0xc2b2ae3d27d4eb4f;
inline constexpr std::uint64_t kPrime64_3 = 0x165667b19e3779f9;
inline constexpr std::uint64_t kPrime64_4 = 0x85ebca77c2b2ae63;
inline constexpr std::uint64_t kPrime64_5 = 0x27d4eb2f165667c5;

__device__ __forceinline__ std::uint32_t read32(const std::byte* at) {
  std::uint32_t value = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(at[i]) << (8 * i);
  return value;
}

// Eight bytes at any address.
__device__ __forceinline__ std::uint64_t read64(const std::byte* at) {
  if (reinterpret_cast<std::uintptr_t>(at) % 8 == 0) return *reinterpret_cast<const std::uint64_t*>(at);
  return read32(at) | static_cast<std::uint64_t>(read32(at + 4)) << 32;
}

// Eight bytes of a secret, at a byte offset.
__device__ __forceinline__ std::uint64_t secret_at(const std::uint64_t* secret, int offset) {
  const int shift = offset % 8 * 8;
  const std::uint64_t low = secret[offset / 8];
  return shift == 0 ? low : low >> shift | secret[offset / 8 + 1] << (64 - shift);
}

__device__ __forceinline__ std::uint64_t fold_product(std::uint64_t a, std::uint64_t b) {
  return (a * b) ^ __umul64hi(a, b);
}

__device__ __forceinline__ std::uint64_t xxh3_avalanche(std::uint64_t h) {
  h ^= h >> 37;
  h *= 0x165667919e3779f9;
  return h ^ (h >> 32);
}

__device__ __forceinline__ std::uint64_t xxh64_avalanche(std::uint64_t h) {
  h ^= h >> 33;
  h *= kPrime64_2;
  h ^= h >> 29;
  h *= kPrime64_3;
  return h ^ (h >> 32);
}

__device__ __forceinline__ std::uint64_t mix16(const std::byte* at, int secret_offset, std::uint64_t seed) {
  return fold_product(read64(at) ^ (secret_at(kXxh3Secret, secret_offset) + seed),
                      read64(at + 8) ^ (secret_at(kXxh3Secret, secret_offset + 8) - seed));
}

__device__ inline std::uint64_t xxh3_up_to_16(const std::byte* in, int length, std::uint64_t seed) {
  if (length > 8) {
    const std::uint64_t flip1 = (kXxh3Secret[3] ^ kXxh3Secret[4]) + seed;
    const std::uint64_t flip2 = (kXxh3Secret[5] ^ kXxh3Secret[6]) - seed;
    const std::uint64_t low = read64(in) ^ flip1;
    const std::uint64_t high = read64(in + length - 8) ^ flip2;
    const std::uint64_t swapped = static_cast<std::uint64_t>(__byte_perm(static_cast<std::uint32_t>(low), 0, 0x0123))
                                      << 32 |
                                  __byte_perm(static_cast<std::uint32_t>(low >> 32), 0, 0x0123);
    return xxh3_avalanche(static_cast<std::uint64_t>(length) + swapped + high + fold_product(low, high));
  }
  if (length >= 4) {
    seed ^= static_cast<std::uint64_t>(__byte_perm(static_cast<std::uint32_t>(seed), 0, 0x0123)) << 32;
    const std::uint64_t flip = (kXxh3Secret[1] ^ kXxh3Secret[2]) - seed;
    std::uint64_t h = (read32(in + length - 4) + (static_cast<std::uint64_t>(read32(in)) << 32)) ^ flip;
    h ^= (h << 49 | h >> 15) ^ (h << 24 | h >> 40);
    h *= 0x9fb21c651e98df25;
    h ^= (h >> 35) + static_cast<std::uint64_t>(length);
    h *= 0x9fb21c651e98df25;
    return h ^ (h >> 28);
  }
  if (length > 0) {
    const std::uint32_t combined = static_cast<std::uint32_t>(in[0]) << 16 |
                                   static_cast<std::uint32_t>(in[length >> 1]) << 24 |
                                   static_cast<std::uint32_t>(in[length - 1]) | static_cast<std::uint32_t>(length) << 8;
    const auto flip = static_cast<std::uint32_t>(kXxh3Secret[0]) ^ static_cast<std::uint32_t>(kXxh3Secret[0] >> 32);
    return xxh64_avalanche(combined ^ (flip + seed));
  }
  return xxh64_avalanche(seed ^ kXxh3Secret[7] ^ kXxh3Secret[8]);
}

__device__ inline std::uint64_t xxh3_up_to_240(const std::byte* in, int length, std::uint64_t seed) {
  std::uint64_t h = static_cast<std::uint64_t>(length) * kPrime64_1;
  if (length <= 128) {
    // Pairs from both ends toward the middle.
    const int pairs = (length - 1) / 32 + 1;
    for (int i = pairs - 1; i >= 0; --i) {
      h += mix16(in + 16 * i, 32 * i, seed) + mix16(in + length - 16 * (i + 1), 32 * i + 16, seed);
    }
    return xxh3_avalanche(h);
  }
  for (int i = 0; i < 8; ++i) h += mix16(in + 16 * i, 16 * i, seed);
  h = xxh3_avalanche(h);
  for (int i = 8; i < length / 16; ++i) h += mix16(in + 16 * i, 16 * (i - 8) + 3, seed);
  return xxh3_avalanche(h + mix16(in + length - 16, 136 - 17, seed));
}

// All lanes call it with the same arguments and get the hash. `in` is 16-byte aligned; `secret` is kXxh3SecretWords of
// shared memory of this warp's own.
__device__ inline std::uint64_t warp_xxh3(const std::byte* in, int length, std::uint64_t seed, std::uint64_t* secret,
                                          int lane) {
  if (length <= 16) return xxh3_up_to_16(in, length, seed);
  if (length <= 240) return xxh3_up_to_240(in, length, seed);

  if (lane < kXxh3SecretWords) secret[lane] = kXxh3Secret[lane] + (lane % 2 == 0 ? seed : 0 - seed);
  __syncwarp();
  // Eight accumulators, one a lane, in four copies: copy g adds up every fourth stripe of a block.
  constexpr int kStripe = 64;
  constexpr int kStripesABlock = (kXxh3SecretWords * 8 - kStripe) / 8;
  const int i = lane % 8;
  const int copy = lane / 8;
  const std::uint64_t initial[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                    kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  std::uint64_t sum = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (i == j) sum = initial[j];
  }
  const auto stripe = [&](const std::byte* at, int secret_offset) {
    const std::uint64_t own = read64(at + 8 * i);
    const std::uint64_t key = own ^ secret_at(secret, secret_offset + 8 * i);
    return read64(at + 8 * (i ^ 1)) + (key & 0xffffffff) * (key >> 32);
  };
  const int blocks = (length - 1) / (kStripe * kStripesABlock);
  for (int b = 0; b <= blocks; ++b) {
    const std::byte* block = in + b * kStripe * kStripesABlock;
    const int stripes = b < blocks ? kStripesABlock : (length - 1 - b * kStripe * kStripesABlock) / kStripe;
    std::uint64_t added = 0;
    for (int s = copy; s < stripes; s += 4) added += stripe(block + s * kStripe, 8 * s);
    added += __shfl_xor_sync(kFullWarp, added, 8);
    added += __shfl_xor_sync(kFullWarp, added, 16);
    sum += added;
    if (b < blocks) sum = (sum ^ (sum >> 47) ^ secret[kXxh3SecretWords - 8 + i]) * kPrime32_1;
  }
  sum += stripe(in + length - kStripe, kXxh3SecretWords * 8 - kStripe - 7);

  std::uint64_t hash = static_cast<std::uint64_t>(length) * kPrime64_1;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const std::uint64_t a = __shfl_sync(kFullWarp, sum, 2 * pair);
    const std::uint64_t b = __shfl_sync(kFullWarp, sum, 2 * pair + 1);
    hash += fold_product(a ^ secret_at(secret, 11 + 16 * pair), b ^ secret_at(secret, 11 + 16 * pair + 8));
  }
  __syncwarp();
  return xxh3_avalanche(hash);
}

}  // namespace tessera::backends::cuda
