#include "tessera/backends/cpu/simd/simd_backend.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/check.h"

namespace tessera::backends::cpu {

namespace {

constexpr int kThreadsMax = 1024;

// The compiler's functions also ask whether the operating system saves the registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

const simd::Kernels& kernels_of(SimdTarget target) {
  switch (target) {
    case SimdTarget::kAvx512Bf16:
      return simd::avx512_bf16_kernels();
    case SimdTarget::kAvx512:
      return simd::avx512_kernels();
    case SimdTarget::kAvx2:
    case SimdTarget::kBest:
      break;
  }
  return simd::avx2_kernels();
}

}  // namespace

std::vector<SimdTarget> available_simd_targets() {
  std::vector<SimdTarget> targets;
  if (has_avx512_bf16()) targets.push_back(SimdTarget::kAvx512Bf16);
  if (has_avx512()) targets.push_back(SimdTarget::kAvx512);
  if (has_avx2()) targets.push_back(SimdTarget::kAvx2);
  return targets;
}

std::string simd_target_name(SimdTarget target) {
  return target == SimdTarget::kBest ? "best" : kernels_of(target).name;
}

base::Result<std::unique_ptr<ops::Backend>> make_simd_backend(const SimdOptions& options) {
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return base::failure(
        base::invalid_argument(fmt::format("{} CPU threads: expected 0 (all) to {}", options.threads, kThreadsMax)));
  }
  const std::vector<SimdTarget> available = available_simd_targets();
  if (available.empty()) {
    return base::failure(
        base::unavailable("this processor has no AVX2 with FMA and F16C, which the simd backend needs at least"));
  }
  SimdTarget target = options.target;
  if (target == SimdTarget::kBest) target = available.front();
  if (std::find(available.begin(), available.end(), target) == available.end()) {
    return base::failure(base::unavailable(fmt::format("this processor cannot run {} kernels; its best are {}",
                                                       simd_target_name(target), simd_target_name(available.front()))));
  }
  const int threads = options.threads == 0 ? std::min(simd::usable_physical_cores(), kThreadsMax) : options.threads;
  return std::make_unique<simd::SimdBackend>(kernels_of(target), threads);
}

}  // namespace tessera::backends::cpu
