// Making the backend; memory and copies.
#include "tessera/backends/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "tessera/backends/cuda/cuda_ops.h"
#include "tessera/backends/cuda/kernels/device_check.h"
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

}  // namespace

base::Status cuda_availability() {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return base::unavailable(fmt::format("no CUDA device: {}", cudaGetErrorString(error)));
  }
  return devices > 0 ? base::ok_status() : base::unavailable("no CUDA device");
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
  if (!succeeded(find_kernels())) {
    return base::failure(base::unimplemented(
        fmt::format("CUDA device {} ({}, compute capability {}.{}): this build has no kernels for it", options.device,
                    properties.name, properties.major, properties.minor)));
  }
  return std::make_unique<CudaBackend>(options, fmt::format("cuda ({})", properties.name),
                                       properties.multiProcessorCount);
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
