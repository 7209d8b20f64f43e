// The CPU backend that serves: Highway kernels and a thread pool, the instruction set chosen at run time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/ops/backend.h"

namespace tessera::backends::cpu {

// Which instruction set the kernels use. kBest takes the best that the processor has.
enum class SimdTarget { kBest, kAvx2, kAvx512, kAvx512Bf16 };

struct SimdOptions {
  int threads = 0;  // 0: one for each physical core that the process may use.
  SimdTarget target = SimdTarget::kBest;
};

// The targets that this processor can run, best first.
std::vector<SimdTarget> available_simd_targets();
std::string simd_target_name(SimdTarget target);  // "avx2", "avx512", "avx512_bf16"

// Supports KV pages in BF16 and FP8. Several engines may share one backend: an op takes the pool's threads when they
// are idle and otherwise runs on its caller's own, with the same result to the bit.
base::Result<std::unique_ptr<ops::Backend>> make_simd_backend(const SimdOptions& options);

}  // namespace tessera::backends::cpu
