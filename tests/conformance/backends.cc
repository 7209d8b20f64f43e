#include "tests/conformance/backends.h"

#include "tessera/backends/cpu/reference/reference_backend.h"

namespace tessera::conformance {

const std::vector<BackendUnderTest>& backends_under_test() {
  static const std::vector<BackendUnderTest> all = {
      {"reference", Arithmetic::kDouble, [](const std::string&) { return backends::cpu::make_reference_backend(); }},
  };
  return all;
}

}  // namespace tessera::conformance
