#include "tessera/backends/cpu/reference/cpu_backend_base.h"

#include <fmt/format.h>

#include <cstring>
#include <new>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::backends::cpu {

namespace {

void copy(void* to, const void* from, std::int64_t bytes) {
  TESSERA_CHECK(bytes >= 0);
  if (bytes == 0) return;
  TESSERA_CHECK(to != nullptr && from != nullptr);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

base::Result<ops::Buffer> CpuBackendBase::allocate(std::int64_t bytes, std::string_view what) {
  TESSERA_CHECK(bytes >= 0, fmt::format("{}: {} bytes", what, bytes));
  void* memory = nullptr;
  if (bytes <= kBufferBytesMax) {
    const std::int64_t rounded = base::round_up(bytes == 0 ? 1 : bytes, kBufferAlignment);
    memory = ::operator new(static_cast<std::size_t>(rounded), std::align_val_t{kBufferAlignment}, std::nothrow);
  }
  if (memory == nullptr) {
    return base::failure(base::resource_exhausted(fmt::format("{}: no memory for {} bytes", what, bytes)));
  }
  return ops::Buffer(static_cast<std::byte*>(memory), bytes,
                     [](std::byte* data) { ::operator delete(data, std::align_val_t{kBufferAlignment}); });
}

std::unique_ptr<ops::Stream> CpuBackendBase::make_stream() { return std::make_unique<CpuStream>(); }

void CpuBackendBase::copy_to_device(ops::Stream&, void* device, const void* host, std::int64_t bytes) {
  copy(device, host, bytes);
}

void CpuBackendBase::copy_to_host(ops::Stream&, void* host, const void* device, std::int64_t bytes) {
  copy(host, device, bytes);
}

void CpuBackendBase::fill_zero(ops::Stream&, void* device, std::int64_t bytes) {
  TESSERA_CHECK(bytes >= 0);
  if (bytes == 0) return;
  TESSERA_CHECK(device != nullptr);
  std::memset(device, 0, static_cast<std::size_t>(bytes));
}

}  // namespace tessera::backends::cpu
