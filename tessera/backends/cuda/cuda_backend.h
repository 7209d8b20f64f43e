// The backend of NVIDIA GPUs: own kernels for Hopper (sm_90a). Builds without a CUDA compiler have this header too, and
// make_cuda_backend then says so.
//
// Every op is batch-invariant: a row's bits depend on the row alone, so split counts follow its own length. Activations
// are F32; products with BF16 weights round them to BF16. An error of the device, and what only a kernel can see to be
// wrong (a token id outside its table), make health() fail at the stream's next synchronize.
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

// Whether this build has the backend.
bool cuda_is_built();

// Ok where a device of this machine runs this build's kernels. `unavailable`: no device, or no driver; `unimplemented`:
// this build has no backend, or no kernels for any device; `internal`: anything else, which tests must not pass over.
base::Status cuda_availability();

// What of a model the kernels bound, beside latent attention, whose weights prepare_mla_up refuses. 0: it has none.
struct CudaModelSizes {
  std::int64_t vocab_size = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t index_n_heads = 0;
  std::int64_t index_head_dim = 0;
  std::int64_t n_routed_experts = 0;
};
// `unimplemented`, naming the field and its limit, for a model that the ops would refuse. To be asked before it is
// loaded.
base::Status check_cuda_model(const CudaModelSizes& sizes);

// What the device has in place of the machine's memory; what the driver and other processes took is in use.
base::Result<base::MachineMemory> cuda_memory(const CudaOptions& options);

}  // namespace tessera::backends::cuda
