// Making the backend; memory and copies.
#include "tessera/backends/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "tessera/backends/cuda/cuda_ops.h"
#include "tessera/backends/cuda/kernels/device_check.h"
#include "tessera/backends/cuda/kernels/dsa_select.h"
#include "tessera/backends/cuda/kernels/moe_route.h"
#include "tessera/backends/cuda/kernels/page_images.h"
#include "tessera/backends/cuda/kernels/paged_attention.h"
#include "tessera/backends/cuda/kernels/sample_tokens.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cuda {

namespace {

base::Status device_error(int device, cudaError_t error) {
  static_cast<void>(cudaGetLastError());  // Told; not the next call's.
  return base::unavailable(fmt::format("CUDA device {}: {}", device, cudaGetErrorString(error)));
}

// Errors of a call that may fail without the device being lost, such as an allocation.
bool succeeded(cudaError_t error) {
  if (error == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());
  return false;
}

// Of find_kernels.
bool is_of_another_architecture(cudaError_t error) {
  return error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction;
}

}  // namespace

bool cuda_is_built() { return true; }

base::Status cuda_availability() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return base::unavailable("no CUDA driver");
  int devices = 0;
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && devices == 0)) {
    static_cast<void>(cudaGetLastError());
    return base::unavailable("no CUDA device");
  }
  for (int device = 0; device < devices && error == cudaSuccess; ++device) {
    error = cudaSetDevice(device);
    if (error != cudaSuccess) break;
    const cudaError_t found = find_kernels();
    if (found == cudaSuccess) return base::ok_status();
    if (!is_of_another_architecture(found)) error = found;
  }
  static_cast<void>(cudaGetLastError());
  if (error == cudaSuccess) return base::unimplemented("this build has no kernels for any CUDA device of this machine");
  return base::internal_error(fmt::format("CUDA: {}: {}", cudaGetErrorName(error), cudaGetErrorString(error)));
}

base::Result<std::unique_ptr<ops::Backend>> make_cuda_backend(const CudaOptions& options) {
  TESSERA_CHECK(options.attention_workspace_bytes >= 0);
  if (base::Status status = cuda_availability(); !status.ok()) return base::failure(std::move(status));
  if (const cudaError_t error = cudaSetDevice(options.device); error != cudaSuccess) {
    return base::failure(device_error(options.device, error));
  }
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, options.device); error != cudaSuccess) {
    return base::failure(device_error(options.device, error));
  }
  if (const cudaError_t error = find_kernels(); error != cudaSuccess) {
    if (!is_of_another_architecture(error)) return base::failure(device_error(options.device, error));
    static_cast<void>(cudaGetLastError());
    return base::failure(base::unimplemented(
        fmt::format("CUDA device {} ({}, compute capability {}.{}): this build has no kernels for it", options.device,
                    properties.name, properties.major, properties.minor)));
  }
  return std::make_unique<CudaBackend>(options, fmt::format("cuda ({})", properties.name),
                                       properties.multiProcessorCount);
}

base::Status check_cuda_model(const CudaModelSizes& sizes) {
  constexpr std::int64_t kBytesOfBF16 = 2;
  const struct {
    const char* field;
    std::int64_t value;
    std::int64_t max;
  } bounds[] = {
      {"vocab_size", sizes.vocab_size, kSampleVocabularyMax},
      {"head_dim", sizes.head_dim, kHeadDimMax},
      {"num_key_value_heads * head_dim", sizes.num_key_value_heads * sizes.head_dim, kPageRowBytesMax / kBytesOfBF16},
      {"index_n_heads", sizes.index_n_heads, kIndexHeadsMax},
      {"index_head_dim", sizes.index_head_dim, kIndexHeadDimMax},
      {"n_routed_experts", sizes.n_routed_experts, kRouteExpertsMax}};
  for (const auto& bound : bounds) {
    if (bound.value > bound.max) {
      return base::unimplemented(
          fmt::format("{} of {}: the CUDA backend takes up to {}", bound.field, bound.value, bound.max));
    }
  }
  return base::ok_status();
}

base::Result<base::MachineMemory> cuda_memory(const CudaOptions& options) {
  if (base::Status status = cuda_availability(); !status.ok()) return base::failure(std::move(status));
  std::size_t free = 0;
  std::size_t total = 0;
  cudaError_t error = cudaSetDevice(options.device);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
  if (error != cudaSuccess) return base::failure(device_error(options.device, error));
  return base::MachineMemory{
      static_cast<std::int64_t>(total), static_cast<std::int64_t>(free),
      fmt::format("CUDA device {}: {} of {} MiB are free", options.device, free >> 20, total >> 20)};
}

base::Result<ops::Buffer> CudaBackend::allocate(std::int64_t bytes, std::string_view what) {
  TESSERA_CHECK(bytes >= 0, fmt::format("{}: {} bytes", what, bytes));
  if (!health_->ok()) return base::failure(health_->status().with_context(what));
  const int device = options_.device;
  void* memory = nullptr;
  const std::int64_t rounded = base::round_up(bytes == 0 ? 1 : bytes, kBufferAlignment);
  if (!health_->check(cudaSetDevice(device), "cudaSetDevice") ||
      !succeeded(cudaMalloc(&memory, static_cast<std::size_t>(rounded)))) {
    return base::failure(
        base::resource_exhausted(fmt::format("{}: no memory for {} bytes on CUDA device {}", what, bytes, device)));
  }
  return ops::Buffer(static_cast<std::byte*>(memory), bytes, [device](std::byte* data) {
    // Waits for the device, so that nothing in flight still uses the memory. After a fault there is nothing to free.
    static_cast<void>(cudaSetDevice(device));
    static_cast<void>(cudaFree(data));
  });
}

std::unique_ptr<ops::Stream> CudaBackend::make_stream() {
  return std::make_unique<CudaStream>(
      health_, StreamConfig{options_.device, multiprocessors_, options_.attention_workspace_bytes});
}

void CudaBackend::copy_to_device(ops::Stream& stream, void* device, const void* host, std::int64_t bytes) {
  cuda_stream(stream).copy_to_device(device, host, bytes);
}

void CudaBackend::copy_to_host(ops::Stream& stream, void* host, const void* device, std::int64_t bytes) {
  cuda_stream(stream).copy_to_host(host, device, bytes);
}

void CudaBackend::fill_zero(ops::Stream& stream, void* device, std::int64_t bytes) {
  TESSERA_CHECK(bytes >= 0 && (bytes == 0 || device != nullptr));
  CudaStream& s = cuda_stream(stream);
  if (bytes == 0 || !s.begin()) return;
  health_->check(cudaMemsetAsync(device, 0, static_cast<std::size_t>(bytes), s.handle()), "fill_zero");
}

void CudaBackend::copy_matrix(ops::Stream& stream, ops::ConstMatrix from, ops::Matrix to) {
  ops::check_copy_matrix(from, to);
  CudaStream& s = cuda_stream(stream);
  if (from.rows == 0 || !s.begin()) return;
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements * base::dtype_size(from.dtype));
  };
  if (from.row_stride == from.cols && to.row_stride == to.cols) {
    // A plain copy is much faster than one row by row.
    health_->check(
        cudaMemcpyAsync(to.data, from.data, bytes(from.rows * from.cols), cudaMemcpyDeviceToDevice, s.handle()),
        "copy_matrix");
    return;
  }
  health_->check(cudaMemcpy2DAsync(to.data, bytes(to.row_stride), from.data, bytes(from.row_stride), bytes(from.cols),
                                   static_cast<std::size_t>(from.rows), cudaMemcpyDeviceToDevice, s.handle()),
                 "copy_matrix");
}

}  // namespace tessera::backends::cuda
