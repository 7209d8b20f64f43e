// What a build without a CUDA compiler has in place of the backend.
#include "tessera/backends/cuda/cuda_backend.h"

namespace tessera::backends::cuda {

bool cuda_is_built() { return false; }

base::Status cuda_availability() { return base::unimplemented("this build has no CUDA backend"); }

base::Result<std::unique_ptr<ops::Backend>> make_cuda_backend(const CudaOptions&) {
  return base::failure(cuda_availability());
}

base::Status check_cuda_model(const CudaModelSizes&) { return cuda_availability(); }

base::Result<base::MachineMemory> cuda_memory(const CudaOptions&) { return base::failure(cuda_availability()); }

}  // namespace tessera::backends::cuda
