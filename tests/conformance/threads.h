// A CPU backend against itself with other numbers of threads.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tests/conformance/backend_test.h"

namespace tessera::conformance {

// For every instruction set of this machine; a suite instantiates itself with simd_targets() and simd_target_case.
class SimdThreads : public testing::TestWithParam<backends::cpu::SimdTarget> {
 protected:
  static Device device_of(int threads) {
    return Device({"threads", Arithmetic::kFloat, "", [threads] {
                     return std::move(
                         backends::cpu::make_simd_backend({.threads = threads, .target = GetParam()}).value());
                   }});
  }
};

inline auto simd_targets() { return testing::ValuesIn(backends::cpu::available_simd_targets()); }
inline std::string simd_target_case(const testing::TestParamInfo<backends::cpu::SimdTarget>& test) {
  return backends::cpu::simd_target_name(test.param);
}

}  // namespace tessera::conformance
