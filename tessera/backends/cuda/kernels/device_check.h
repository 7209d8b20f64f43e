// Whether this build's kernels run on the current device.
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::backends::cuda {

// cudaSuccess, or why they do not (no machine code for it).
cudaError_t find_kernels();

}  // namespace tessera::backends::cuda
