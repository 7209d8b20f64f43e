// Weights in every format, as checkpoints store them, with what each element means: computed in double from the codes,
// independently of the backends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/ops/weight.h"
#include "tests/conformance/backend_test.h"

namespace tessera::conformance {

struct StoredWeight {
  ops::WeightFormat format = ops::WeightFormat::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int32_t group_size = 0;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  HostMatrix values;  // What the elements mean.

  // Points into this object.
  ops::WeightSource source(ops::WeightUsage usage = ops::WeightUsage::kLinear) const;
};

// Random codes and scales; values of magnitude `spread`, about. FP8 codes are never NaN. group_size is for INT4 only.
StoredWeight random_stored_weight(Random& random, ops::WeightFormat format, std::int64_t rows, std::int64_t cols,
                                  std::int32_t group_size = 32, double spread = 1.0);

// Every format that products take, INT4 once for each size of its groups.
struct WeightCase {
  ops::WeightFormat format = ops::WeightFormat::kF32;
  std::int32_t group_size = 0;
};
std::vector<WeightCase> weight_cases();

// For traces.
std::string case_text(const WeightCase& weight_case);

}  // namespace tessera::conformance
