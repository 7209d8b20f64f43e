// The kernels for processors with AVX-512 (F, BW, DQ, VL).
#define HWY_COMPILE_ONLY_STATIC
#define HWY_BASELINE_TARGETS HWY_AVX3
#define TESSERA_SIMD_TARGET avx512

#include "tessera/backends/cpu/simd/kernel_table-inl.h"
