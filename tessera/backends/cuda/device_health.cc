#include "tessera/backends/cuda/device_health.h"

#include <string>
#include <utility>

#include "tessera/base/logging.h"

namespace tessera::backends::cuda {

base::Status DeviceHealth::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void DeviceHealth::fail(std::string_view what, cudaError_t error) {
  fail(base::internal_error("CUDA: " + std::string(what) + ": " + cudaGetErrorName(error) + ": " +
                            cudaGetErrorString(error)));
}

void DeviceHealth::fail(base::Status status) {
  const std::lock_guard lock(mutex_);
  if (!status_.ok()) return;
  status_ = std::move(status);
  failed_.store(true, std::memory_order_release);
  base::log().error("the device has failed: {}", status_.message());
}

}  // namespace tessera::backends::cuda
