// The backend of NVIDIA GPUs: own kernels for Hopper (sm_90a). Builds without a CUDA compiler have this header too, and
// make_cuda_backend then says so.
//
// Every op is batch-invariant: a row's bits depend on the row alone, so split counts follow its own length. Activations
// are F32; products with BF16 weights round them to BF16. Faults that only the device can see (a token id outside its
// table) abort at the stream's next synchronize; an error of the device itself does not abort but makes health() fail.
#pragma once

#include <cstdint>
#include <memory>

#include "tessera/base/machine_memory.h"
#include "tessera/base/status.h"
#include "tessera/ops/backend.h"

namespace tessera::backends::cuda {

struct CudaOptions {
  int device = 0;
  // Of each stream: partial results of attention that is split along the context. Where a batch needs more, its context
  // is not split, with the same result to the bit.
  std::int64_t attention_workspace_bytes = std::int64_t{64} << 20;
};

// Supports KV pages in BF16 and FP8. `unavailable` when there is no such device; `unimplemented` when this build has no
// kernels for it.
base::Result<std::unique_ptr<ops::Backend>> make_cuda_backend(const CudaOptions& options);

// Why make_cuda_backend would fail for every device of this machine; ok where there is one to try.
base::Status cuda_availability();

// What the device has in place of the machine's memory; what the driver and other processes took is in use.
base::Result<base::MachineMemory> cuda_memory(const CudaOptions& options);

}  // namespace tessera::backends::cuda
