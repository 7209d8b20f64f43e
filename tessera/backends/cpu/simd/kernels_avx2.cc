// The kernels for processors with AVX2, FMA and F16C.
#define HWY_COMPILE_ONLY_STATIC
#define HWY_BASELINE_TARGETS HWY_AVX2
#define TESSERA_SIMD_TARGET avx2

#include "tessera/backends/cpu/simd/kernel_table-inl.h"
