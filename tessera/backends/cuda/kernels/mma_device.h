// Tensor-core instructions on BF16 and what feeds them: fragments from shared memory, asynchronous copies into it, and
// F32 numbers as sums of BF16 ones. In the comments a lane is (g, c) = (lane / 4, lane % 4).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace tessera::backends::cuda {

// D += A B, A [16, 16], B [16, 8], D [16, 8], in F32. Lane (g, c) holds of A: rows g (a0, a2) and g + 8 (a1, a3),
// columns 2c, 2c + 1 (a0, a1) and 2c + 8, 2c + 9 (a2, a3); of B: column g, rows 2c, 2c + 1 (b0) and 2c + 8, 2c + 9
// (b1); of D: row g (d[0], d[1]) and g + 8 (d[2], d[3]), columns 2c, 2c + 1.
__device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same with F16 numbers.
__device__ __forceinline__ void mma_f16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                        std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

// Four 8x8 matrices of 16-bit elements. Lane l gives the address (in shared memory's own space, or generic) of row l %
// 8 of matrix l / 8 (16 bytes each); register i of lane (g, c) is elements 2c, 2c + 1 of row g of matrix i.
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], const void* row) {
  load_matrices(r, shared_address(row));
}
// The same, of the transposed matrices: elements of rows 2c, 2c + 1 of column g.
__device__ __forceinline__ void load_transposed(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&r)[4], const void* row) {
  load_transposed(r, shared_address(row));
}

// 16 bytes to shared memory, or 16 zeros, without waiting.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool zeros) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(zeros ? 0 : 16)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `kPending` of the committed groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Two numbers rounded to BF16, the first in the lower half.
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

// Two e4m3, in the lower half, as two BF16.
__device__ __forceinline__ std::uint32_t widen_fp8(std::uint32_t codes) {
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  const float2 x = __half22float2(__half2(raw));
  return pack(x.x, x.y);
}

// Four e4m3 as F16, which holds every e4m3: `low` of the lower two. An instruction each, where widen_fp8 takes four;
// written so that the compiler sees that a half of a register is all that each needs.
__device__ __forceinline__ void widen_fp8_to_f16(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
  asm("{\n\t"
      ".reg .b16 lower, upper;\n\t"
      "mov.b32 {lower, upper}, %2;\n\t"
      "cvt.rn.f16x2.e4m3x2 %0, lower;\n\t"
      "cvt.rn.f16x2.e4m3x2 %1, upper;\n\t"
      "}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}

// The BF16 nearest to x; x becomes what is missing, exactly. Three times that is all of an F32's 24 bits.
__device__ __forceinline__ __nv_bfloat16 take_bf16(float& x) {
  const __nv_bfloat16 taken = __float2bfloat16_rn(x);
  x -= __bfloat162float(taken);
  return taken;
}
__device__ __forceinline__ std::uint32_t take_bf16_pair(float& low, float& high) {
  const __nv_bfloat162 both = __halves2bfloat162(take_bf16(low), take_bf16(high));
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
// The same with F16, twice of which is 22 bits while the number lies well inside F16's range.
__device__ __forceinline__ std::uint32_t take_f16_pair(float& low, float& high) {
  const __half2 both = __floats2half2_rn(low, high);
  low -= __low2float(both);
  high -= __high2float(both);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

}  // namespace tessera::backends::cuda
