// Whether a device still works. CUDA's errors are sticky: after the first one nothing that the process asks of the
// device can be trusted, so the first is kept, told once in the log, and nothing further is enqueued.
//
// Thread-safe: streams of one backend share it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::backends::cuda {

class DeviceHealth {
 public:
  bool ok() const { return !failed_.load(std::memory_order_acquire); }
  base::Status status() const;
  // Keeps the first failure.
  void fail(std::string_view what, cudaError_t error);
  void fail(base::Status status);
  // Whether the call succeeded; keeps its failure if not.
  bool check(cudaError_t error, std::string_view what) {
    if (error == cudaSuccess) [[likely]]
      return true;
    fail(what, error);
    return false;
  }

 private:
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  base::Status status_;
};

}  // namespace tessera::backends::cuda
