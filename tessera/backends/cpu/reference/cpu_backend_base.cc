#include "tessera/backends/cpu/reference/cpu_backend_base.h"

#include <fmt/format.h>

#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

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

base::Result<ops::ExpertStack> CpuBackendBase::prepare_experts(const ops::ExpertSources& sources) {
  ops::check_sources(sources);
  ops::ExpertStack stack;
  stack.experts = std::ssize(sources.gate);
  stack.hidden = sources.gate[0].cols;
  stack.intermediate = sources.gate[0].rows;
  stack.format = sources.gate[0].format;
  const auto prepare = [this](std::span<const ops::WeightSource> from, std::string_view what,
                              std::vector<ops::Weight>& to) -> base::Status {
    for (std::int64_t e = 0; e < std::ssize(from); ++e) {
      auto weight = prepare_weight(from[static_cast<std::size_t>(e)]);
      if (!weight.has_value()) return weight.error().with_context(fmt::format("{} of expert {}", what, e));
      to.push_back(std::move(*weight));
    }
    return base::ok_status();
  };
  TESSERA_RETURN_IF_ERROR(prepare(sources.gate, "gate projection", stack.gate));
  TESSERA_RETURN_IF_ERROR(prepare(sources.up, "up projection", stack.up));
  TESSERA_RETURN_IF_ERROR(prepare(sources.down, "down projection", stack.down));
  return stack;
}

base::Result<ops::MlaUpProjection> CpuBackendBase::prepare_mla_up(const ops::WeightSource& source,
                                                                  const ops::MlaShape& shape) {
  ops::check_sources(source, shape);
  ops::MlaUpProjection up;
  TESSERA_ASSIGN_OR_RETURN(up.weight, prepare_row_major_weight(source));
  up.shape = shape;
  up.format = source.format;
  return up;
}

void CpuBackendBase::copy_matrix(ops::Stream&, ops::ConstMatrix from, ops::Matrix to) {
  ops::check_copy_matrix(from, to);
  const std::int64_t element = base::dtype_size(from.dtype);
  for (std::int64_t r = 0; r < from.rows; ++r) {
    copy(static_cast<std::byte*>(to.data) + r * to.row_stride * element,
         static_cast<const std::byte*>(from.data) + r * from.row_stride * element, from.cols * element);
  }
}

}  // namespace tessera::backends::cpu
