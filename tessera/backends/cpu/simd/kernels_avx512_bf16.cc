// The kernels for processors with AVX-512 and its BF16 dot product.
#define HWY_COMPILE_ONLY_STATIC
#define HWY_BASELINE_TARGETS HWY_AVX3
#define TESSERA_SIMD_BF16_DOT 1
#define TESSERA_SIMD_TARGET avx512_bf16

#include "tessera/backends/cpu/simd/kernel_table-inl.h"
