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

base::Result<ops::Weight> CpuBackendBase::prepare_plain_weight(const ops::WeightSource& source) {
  TESSERA_CHECK(source.data != nullptr);
  if (source.format != ops::WeightFormat::kF32 && source.format != ops::WeightFormat::kBF16) {
    return base::failure(base::unimplemented(
        fmt::format("weight format {} is not supported by backend {}; it computes with {} and {}",
                    ops::weight_format_name(source.format), name(), ops::weight_format_name(ops::WeightFormat::kF32),
                    ops::weight_format_name(ops::WeightFormat::kBF16))));
  }
  const std::int64_t element = source.format == ops::WeightFormat::kF32 ? 4 : 2;
  const auto count = base::checked_mul(source.rows, source.cols);
  const auto bytes = count.has_value() ? base::checked_mul(*count, 4) : std::nullopt;
  if (!bytes.has_value() || *count == 0 || (source.usage == ops::WeightUsage::kVector && source.rows != 1)) {
    return base::failure(base::invalid_argument(
        fmt::format("weight of shape [{}, {}]: expected {}", source.rows, source.cols,
                    source.usage == ops::WeightUsage::kVector ? "[1, n]" : "two positive dimensions")));
  }

  ops::Weight weight;
  weight.format = source.format;
  weight.usage = source.usage;
  weight.rows = source.rows;
  weight.cols = source.cols;
  if (source.usage == ops::WeightUsage::kVector && source.format == ops::WeightFormat::kBF16) {
    TESSERA_ASSIGN_OR_RETURN(weight.storage, allocate(*bytes, "vector weight"));
    for (std::int64_t i = 0; i < *count; ++i) {
      base::BF16 value;
      std::memcpy(&value, static_cast<const std::byte*>(source.data) + i * element, sizeof value);
      weight.storage.as<float>()[i] = base::to_float(value);
    }
    weight.format = ops::WeightFormat::kF32;
    weight.data = weight.storage.data();
    return weight;
  }
  const bool aligned = reinterpret_cast<std::uintptr_t>(source.data) % static_cast<std::uintptr_t>(element) == 0;
  if (source.outlives_backend && aligned) {
    weight.data = source.data;
    return weight;
  }
  TESSERA_ASSIGN_OR_RETURN(weight.storage, allocate(*count * element, "weight"));
  copy(weight.storage.data(), source.data, *count * element);
  weight.data = weight.storage.data();
  return weight;
}

}  // namespace tessera::backends::cpu
