// The backends that the conformance suite runs against on this machine, defined by the file of the program:
// cpu_backends.cc or cuda_backends.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/ops/backend.h"

namespace tessera::conformance {

// How exactly a backend computes; the tests' tolerances follow from it.
enum class Arithmetic {
  kDouble,  // Accumulates in double: differs from the formula by one rounding to F32.
  kFloat,   // Accumulates in F32, and may round activations to BF16 in products with BF16 weights.
};

struct BackendUnderTest {
  std::string name;  // Of letters, digits and underscores: it becomes part of the cases' names.
  Arithmetic arithmetic;
  std::string missing;  // Why it cannot run here, if so: its cases are skipped. Empty: it can.
  std::function<std::unique_ptr<ops::Backend>()> make;
};

// The reference first.
const std::vector<BackendUnderTest>& backends_under_test();

}  // namespace tessera::conformance
