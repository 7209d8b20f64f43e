#include "tessera/backends/cuda/cuda_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::backends::cuda {

CudaStream::CudaStream(std::shared_ptr<DeviceHealth> health, const StreamConfig& config)
    : health_(std::move(health)), config_(config) {
  make();
}

bool CudaStream::make() {
  const auto good = [&](cudaError_t error) {
    if (error != cudaErrorMemoryAllocation) return health_->check(error, "making a stream");
    // The device works, but nothing can be done on it without a stream.
    static_cast<void>(cudaGetLastError());
    health_->fail(base::resource_exhausted(
        fmt::format("no memory for the buffers of a stream on CUDA device {}: {} MiB "
                    "there, of which {} for split attention, and {} pinned",
                    config_.device, (kSegments * kStageBytesMax + config_.workspace_bytes) >> 20,
                    config_.workspace_bytes >> 20, (kSegments * kStageBytesMax + kReadbackBytes) >> 20)));
    return false;
  };
  if (!health_->ok() || !good(cudaSetDevice(config_.device)) ||
      !good(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking)) ||
      !good(cudaHostAlloc(reinterpret_cast<void**>(&fault_), sizeof(DeviceFault), cudaHostAllocMapped)) ||
      !good(cudaHostAlloc(reinterpret_cast<void**>(&upload_), kSegments * kStageBytesMax, cudaHostAllocDefault)) ||
      !good(cudaMalloc(reinterpret_cast<void**>(&upload_twin_), kSegments * kStageBytesMax)) ||
      !good(cudaHostAlloc(reinterpret_cast<void**>(&readback_), kReadbackBytes, cudaHostAllocDefault))) {
    return false;
  }
  *fault_ = DeviceFault{};
  for (cudaEvent_t& event : segment_done_) {
    if (!good(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) return false;
  }
  return config_.workspace_bytes == 0 ||
         good(cudaMalloc(reinterpret_cast<void**>(&workspace_), static_cast<std::size_t>(config_.workspace_bytes)));
}

CudaStream::~CudaStream() {
  // Errors here are the device's last words, which health has heard or nobody needs.
  static_cast<void>(cudaSetDevice(config_.device));
  if (handle_ != nullptr) {
    static_cast<void>(cudaStreamSynchronize(handle_));
    static_cast<void>(cudaStreamDestroy(handle_));
  }
  for (cudaEvent_t event : segment_done_) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
  for (void* pinned : {static_cast<void*>(fault_), static_cast<void*>(upload_), static_cast<void*>(readback_)}) {
    static_cast<void>(cudaFreeHost(pinned));
  }
  static_cast<void>(cudaFree(upload_twin_));
  static_cast<void>(cudaFree(workspace_));
}

bool CudaStream::begin() { return health_->ok() && health_->check(cudaSetDevice(config_.device), "cudaSetDevice"); }

void CudaStream::synchronize() {
  bool arrived = begin() && health_->check(cudaStreamSynchronize(handle_), "synchronizing a stream");
  if (arrived) {
    if (base::Status fault = device_fault(); !fault.ok()) {
      health_->fail(std::move(fault));
      arrived = false;
    }
  }
  deliver_readbacks(arrived);
}

base::Status CudaStream::device_fault() const {
  const std::int64_t* v = fault_->values;
  const auto refused = [](const std::string& what) { return base::internal_error("CUDA: a kernel was given " + what); };
  switch (static_cast<FaultKind>(fault_->kind)) {
    case FaultKind::kNone:
      return base::ok_status();
    case FaultKind::kTokenId:
      return refused(fmt::format("token id {} of {}", v[0], v[1]));
    case FaultKind::kQueriesOverKeys:
      return refused(fmt::format("row {}: {} queries over {} tokens of KV", v[0], v[1], v[2]));
    case FaultKind::kTokenRow:
      return refused(fmt::format("token {} of row {} of {}", v[0], v[1], v[2]));
    case FaultKind::kSlot:
      return refused(fmt::format("token {}: slot {} of {}", v[0], v[1], v[2]));
    case FaultKind::kPageTableEntry:
      return refused(fmt::format("entry {}: row {}, index {} is outside of the page table", v[0], v[1], v[2]));
  }
  return refused(fmt::format("something wrong: device fault {}", fault_->kind));
}

void CudaStream::deliver_readbacks(bool arrived) {
  for (const Readback& readback : readbacks_) {
    if (arrived) {
      std::memcpy(readback.host, readback_ + readback.offset, static_cast<std::size_t>(readback.bytes));
    } else {
      std::memset(readback.host, 0xff, static_cast<std::size_t>(readback.bytes));
    }
  }
  readbacks_.clear();
  readback_used_ = 0;
}

std::int64_t CudaStream::reserve_upload(std::int64_t bytes) {
  TESSERA_CHECK(bytes > 0 && bytes <= kStageBytesMax, fmt::format("{} bytes to stage", bytes));
  if (segment_used_ + bytes > kStageBytesMax) {
    const auto current = static_cast<std::size_t>(segment_);
    segment_ = (segment_ + 1) % kSegments;
    segment_used_ = 0;
    // An event that was never recorded is done.
    if (!health_->check(cudaEventRecord(segment_done_[current], handle_), "cudaEventRecord") ||
        !health_->check(cudaEventSynchronize(segment_done_[static_cast<std::size_t>(segment_)]),
                        "waiting for an upload")) {
      return -1;
    }
  }
  const std::int64_t offset = segment_ * kStageBytesMax + segment_used_;
  segment_used_ = std::min(base::round_up(segment_used_ + bytes, 256), kStageBytesMax);
  return offset;
}

const void* CudaStream::stage_bytes(const void* host, std::int64_t bytes) {
  if (bytes == 0 || !begin()) return nullptr;
  const std::int64_t offset = reserve_upload(bytes);
  if (offset < 0) return nullptr;
  std::memcpy(upload_ + offset, host, static_cast<std::size_t>(bytes));
  if (!health_->check(cudaMemcpyAsync(upload_twin_ + offset, upload_ + offset, static_cast<std::size_t>(bytes),
                                      cudaMemcpyHostToDevice, handle_),
                      "staging parameters")) {
    return nullptr;
  }
  return upload_twin_ + offset;
}

void CudaStream::copy_to_device(void* device, const void* host, std::int64_t bytes) {
  TESSERA_CHECK(bytes >= 0 && (bytes == 0 || (device != nullptr && host != nullptr)));
  if (!begin()) return;
  for (std::int64_t done = 0; done < bytes;) {
    const std::int64_t piece = std::min(bytes - done, kStageBytesMax);
    const std::int64_t offset = reserve_upload(piece);
    if (offset < 0) return;
    std::memcpy(upload_ + offset, static_cast<const std::byte*>(host) + done, static_cast<std::size_t>(piece));
    if (!health_->check(cudaMemcpyAsync(static_cast<std::byte*>(device) + done, upload_ + offset,
                                        static_cast<std::size_t>(piece), cudaMemcpyHostToDevice, handle_),
                        "copying to the device")) {
      return;
    }
    done += piece;
  }
}

void CudaStream::copy_to_host(void* host, const void* device, std::int64_t bytes) {
  TESSERA_CHECK(bytes >= 0 && (bytes == 0 || (device != nullptr && host != nullptr)));
  for (std::int64_t done = 0; done < bytes;) {
    if (readback_used_ == kReadbackBytes) synchronize();
    const std::int64_t piece = std::min(bytes - done, kReadbackBytes - readback_used_);
    // Booked even when the device has failed, so that the target is filled with what nobody can take for a result.
    readbacks_.push_back({static_cast<std::byte*>(host) + done, readback_used_, piece});
    if (begin()) {
      health_->check(cudaMemcpyAsync(readback_ + readback_used_, static_cast<const std::byte*>(device) + done,
                                     static_cast<std::size_t>(piece), cudaMemcpyDeviceToHost, handle_),
                     "copying to the host");
    }
    readback_used_ = std::min(base::round_up(readback_used_ + piece, 16), kReadbackBytes);
    done += piece;
  }
}

}  // namespace tessera::backends::cuda
