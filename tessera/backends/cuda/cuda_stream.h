// A CUDA stream with what its ops need beside it: pinned memory through which the host's bytes pass in both directions,
// the record of device faults, and the workspace of attention. All of it is allocated when the stream is made.
//
// Copies to the device take the host's bytes before the call returns. Copies to the host arrive when synchronize
// returns, and not before; when the device has failed they arrive as 0xff bytes instead.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/backends/cuda/device_health.h"
#include "tessera/backends/cuda/launch.h"
#include "tessera/ops/stream.h"

namespace tessera::backends::cuda {

struct StreamConfig {
  int device = 0;
  int multiprocessors = 1;
  std::int64_t workspace_bytes = 0;
};

class CudaStream final : public ops::Stream {
 public:
  // A stream that could not be made has a health that says so, and does nothing.
  CudaStream(std::shared_ptr<DeviceHealth> health, const StreamConfig& config);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void synchronize() override;
  void copy_to_device(void* device, const void* host, std::int64_t bytes);
  void copy_to_host(void* host, const void* device, std::int64_t bytes);

  // A device copy of a host array, for the work that is enqueued next; it may be overwritten by what is staged
  // kStageBytesMax later. At most kStageBytesMax bytes (checked). Null for an empty array and after a failure.
  template <typename T>
  const T* stage(std::span<const T> host) {
    return static_cast<const T*>(stage_bytes(host.data(), static_cast<std::int64_t>(host.size_bytes())));
  }

  // Makes the stream's device current. Whether work may be enqueued.
  bool begin();
  // Keeps the error of what was just launched, if any.
  void launched(std::string_view what) { health_->check(cudaGetLastError(), what); }

  Launch launch() const { return {handle_, fault_, config_.multiprocessors}; }
  cudaStream_t handle() const { return handle_; }
  std::byte* workspace() const { return workspace_; }
  std::int64_t workspace_bytes() const { return config_.workspace_bytes; }
  DeviceHealth& health() const { return *health_; }

  static constexpr std::int64_t kStageBytesMax = std::int64_t{2} << 20;

 private:
  static constexpr int kSegments = 4;
  static constexpr std::int64_t kReadbackBytes = std::int64_t{4} << 20;
  struct Readback {
    void* host;
    std::int64_t offset;
    std::int64_t bytes;
  };
  bool make();
  const void* stage_bytes(const void* host, std::int64_t bytes);
  // Room for `bytes` in the upload ring; its offset, or -1 after a failure.
  std::int64_t reserve_upload(std::int64_t bytes);
  void deliver_readbacks(bool arrived);
  // What a kernel found wrong with the numbers that it was given; ok if nothing.
  base::Status device_fault() const;

  const std::shared_ptr<DeviceHealth> health_;
  const StreamConfig config_;
  cudaStream_t handle_ = nullptr;
  DeviceFault* fault_ = nullptr;
  std::byte* workspace_ = nullptr;
  // The upload ring: pinned, and its twin on the device for staged arrays. Segment i is free again when event i is
  // done.
  std::byte* upload_ = nullptr;
  std::byte* upload_twin_ = nullptr;
  std::array<cudaEvent_t, kSegments> segment_done_{};
  int segment_ = 0;
  std::int64_t segment_used_ = 0;
  std::byte* readback_ = nullptr;
  std::int64_t readback_used_ = 0;
  std::vector<Readback> readbacks_;
};

}  // namespace tessera::backends::cuda
