// What a build without a CUDA compiler has in place of the backend.
#include "tessera/backends/cuda/cuda_backend.h"

namespace tessera::backends::cuda {

base::Status cuda_availability() { return base::unimplemented("this build has no CUDA backend: nvcc was not found"); }

base::Result<std::unique_ptr<ops::Backend>> make_cuda_backend(const CudaOptions&) {
  return base::failure(cuda_availability());
}

base::Result<base::MachineMemory> cuda_memory(const CudaOptions&) { return base::failure(cuda_availability()); }

}  // namespace tessera::backends::cuda
