// Device side of device_fault.h.
#pragma once

#include <cuda_runtime.h>

#include "tessera/backends/cuda/device_fault.h"

namespace tessera::backends::cuda {

// The first report of the stream is kept.
__device__ inline void report_fault(DeviceFault* fault, FaultKind kind, std::int64_t a, std::int64_t b,
                                    std::int64_t c = 0) {
  if (atomicCAS(&fault->kind, 0u, static_cast<unsigned>(kind)) != 0u) return;
  fault->values[0] = a;
  fault->values[1] = b;
  fault->values[2] = c;
  __threadfence_system();
}

}  // namespace tessera::backends::cuda
