// The page check (ops/verify.h has the rules) as one kernel: one block a row.
#pragma once

#include "tessera/backends/cuda/launch.h"
#include "tessera/ops/verify.h"

namespace tessera::backends::cuda {

// All pointers of the parameters are device memory.
void launch_verify_pages(const ops::VerifyPagesParams& params, const Launch& launch);

}  // namespace tessera::backends::cuda
