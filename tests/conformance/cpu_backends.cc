#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/base/check.h"
#include "tests/conformance/backends.h"

namespace tessera::conformance {

namespace {

std::unique_ptr<ops::Backend> make_simd(backends::cpu::SimdTarget target) {
  // More threads than this machine may have cores, so that work is cut up in earnest.
  auto backend = backends::cpu::make_simd_backend({.threads = 3, .target = target});
  TESSERA_CHECK(backend.has_value(), backend.error().to_string());
  return std::move(*backend);
}

}  // namespace

const std::vector<BackendUnderTest>& backends_under_test() {
  static const std::vector<BackendUnderTest> all = [] {
    std::vector<BackendUnderTest> list;
    list.push_back({"reference", Arithmetic::kDouble, "", backends::cpu::make_reference_backend});
    for (const backends::cpu::SimdTarget target : backends::cpu::available_simd_targets()) {
      list.push_back({"simd_" + backends::cpu::simd_target_name(target), Arithmetic::kFloat, "",
                      [target] { return make_simd(target); }});
    }
    return list;
  }();
  return all;
}

}  // namespace tessera::conformance
