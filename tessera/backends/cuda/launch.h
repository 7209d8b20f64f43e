// What every kernel's launch function takes. C++20, plain: both the kernels and their callers include it.
#pragma once

#include <cuda_runtime_api.h>

#include "tessera/backends/cuda/device_fault.h"

namespace tessera::backends::cuda {

struct Launch {
  cudaStream_t stream = nullptr;
  DeviceFault* fault = nullptr;  // The stream's record.
  int multiprocessors = 1;
};

}  // namespace tessera::backends::cuda
