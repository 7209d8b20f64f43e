#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/backends/cuda/cuda_backend.h"
#include "tessera/base/check.h"
#include "tests/conformance/backends.h"

namespace tessera::conformance {

namespace {

std::unique_ptr<ops::Backend> make_cuda() {
  auto backend = backends::cuda::make_cuda_backend({});
  TESSERA_CHECK(backend.has_value(), backend.error().to_string());
  return std::move(*backend);
}

}  // namespace

// The reference is there to be compared with; its own cases are conformance_test's.
const std::vector<BackendUnderTest>& backends_under_test() {
  static const std::vector<BackendUnderTest> all = {
      {"reference", Arithmetic::kDouble, "", backends::cpu::make_reference_backend},
      {"cuda", Arithmetic::kFloat,
       backends::cuda::cuda_availability().ok() ? "" : backends::cuda::cuda_availability().message(), make_cuda}};
  return all;
}

}  // namespace tessera::conformance
