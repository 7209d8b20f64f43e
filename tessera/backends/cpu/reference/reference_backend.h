// The judge: every op written as its formula, accumulating in double, one loop after another. Slow on purpose.
#pragma once

#include <memory>

#include "tessera/ops/backend.h"

namespace tessera::backends::cpu {

// Supports KV pages in F32, BF16 and FP8. Weights that outlive it are used in place.
std::unique_ptr<ops::Backend> make_reference_backend();

}  // namespace tessera::backends::cpu
