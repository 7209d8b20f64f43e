// Weights on their way to the device.
#include "tessera/backends/cuda/cuda_weights.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tessera/backends/cuda/cuda_ops.h"
#include "tessera/backends/cuda/kernels/linear.h"
#include "tessera/backends/cuda/kernels/moe_experts.h"
#include "tessera/backends/cuda/kernels/quantized_linear.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cuda {

namespace {

using ops::WeightFormat;
using ops::WeightUsage;

constexpr std::int64_t kBlock = 128;

// Reads element `index` of an array that may lie at any byte of a mapped file.
template <typename T>
T load(const void* from, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(from) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// A source's scales in the order of product_weight.h: rows padded to the pitch, INT4 groups cut to 32.
std::vector<std::byte> arranged_scales(const ops::WeightSource& source, std::int64_t pitch) {
  std::vector<std::byte> out(static_cast<std::size_t>(product_scale_bytes(source.format, source.rows, pitch)));
  const auto* from = static_cast<const std::byte*>(source.scales);
  switch (source.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
      break;
    case WeightFormat::kF8Block128:
    case WeightFormat::kF8Channel:
      std::memcpy(out.data(), from, out.size());  // As many, since the pitch is a whole number of blocks.
      break;
    case WeightFormat::kInt4Group: {
      const std::int64_t groups = source.cols / source.group_size;
      const std::int64_t repeats = source.group_size / kScaleGroup;
      for (std::int64_t n = 0; n < source.rows; ++n) {
        std::byte* row = out.data() + n * (pitch / kScaleGroup) * 2;
        for (std::int64_t g = 0; g < groups * repeats; ++g) {
          std::memcpy(row + g * 2, from + (n * groups + g / repeats) * 2, 2);
        }
      }
      break;
    }
  }
  return out;
}

// Copies a weight's rows to `data`, `pitch` elements apart, with zeros past each row, and its scales to `scales`. Ends
// when the source may die. The null stream of the device orders the copies.
bool upload_weight(DeviceHealth& health, const ops::WeightSource& source, std::int64_t pitch, std::byte* data,
                   std::byte* scales) {
  const auto good = [&](cudaError_t error) { return health.check(error, "copying a weight"); };
  const auto row_bytes = static_cast<std::size_t>(product_row_bytes(source.format, source.cols));
  const auto step = static_cast<std::size_t>(product_row_bytes(source.format, pitch));
  const auto rows = static_cast<std::size_t>(source.rows);
  if (step == row_bytes) {
    if (!good(cudaMemcpy(data, source.data, step * rows, cudaMemcpyHostToDevice))) return false;
  } else if (!good(cudaMemset(data, 0, step * rows)) ||
             !good(cudaMemcpy2D(data, step, source.data, row_bytes, row_bytes, rows, cudaMemcpyHostToDevice))) {
    return false;
  }
  if (source.format == WeightFormat::kInt4Group) {
    launch_arrange_int4(data, source.rows * (pitch / kProductChunk), Launch{});
    if (!good(cudaGetLastError())) return false;
  }
  if (is_quantized(source.format)) {
    const std::vector<std::byte> arranged = arranged_scales(source, pitch);
    if (!good(cudaMemcpy(scales, arranged.data(), arranged.size(), cudaMemcpyHostToDevice))) return false;
  }
  return good(cudaStreamSynchronize(nullptr));
}

}  // namespace

std::int64_t weight_pitch(WeightFormat format, WeightUsage usage, std::int64_t cols) {
  if (is_quantized(format)) return base::round_up(cols, kProductChunk);
  return format == WeightFormat::kBF16 && usage == WeightUsage::kLinear ? base::round_up(cols, kLinearPitch) : cols;
}

std::int64_t expert_pitch(WeightFormat format, std::int64_t cols) {
  return format == WeightFormat::kF32 ? cols : base::round_up(cols, kProductChunk);
}

ProductWeight product_weight(const ops::Weight& weight) {
  return {.format = weight.format,
          .data = static_cast<const std::byte*>(weight.data),
          .scales = static_cast<const std::byte*>(weight.scales),
          .n = weight.rows,
          .k = weight.cols,
          .pitch = weight_pitch(weight.format, weight.usage, weight.cols)};
}

ExpertLayout expert_layout(WeightFormat format, std::int64_t experts, std::int64_t hidden, std::int64_t intermediate) {
  ExpertLayout layout;
  const auto place = [&](std::int64_t n, std::int64_t k) {
    ExpertLayout::Part part;
    part.n = n;
    part.k = k;
    part.pitch = expert_pitch(format, k);
    part.data_stride = base::round_up(n * product_row_bytes(format, part.pitch), kBufferAlignment);
    part.scale_stride = base::round_up(product_scale_bytes(format, n, part.pitch), kBufferAlignment);
    part.data_offset = layout.bytes;
    part.scale_offset = layout.bytes + part.data_stride * experts;
    layout.bytes += (part.data_stride + part.scale_stride) * experts;
    return part;
  };
  layout.gate = place(intermediate, hidden);
  layout.up = place(intermediate, hidden);
  layout.down = place(hidden, intermediate);
  return layout;
}

std::vector<float> decode_weight(const ops::WeightSource& source) {
  const std::int64_t rows = source.rows;
  const std::int64_t cols = source.cols;
  std::vector<float> out(static_cast<std::size_t>(rows * cols));
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t k = 0; k < cols; ++k) {
      const std::int64_t i = n * cols + k;
      float& value = out[static_cast<std::size_t>(i)];
      switch (source.format) {
        case WeightFormat::kF32:
          value = load<float>(source.data, i);
          break;
        case WeightFormat::kBF16:
          value = base::to_float(load<base::BF16>(source.data, i));
          break;
        case WeightFormat::kF8Block128:
          value = base::to_float(load<base::F8E4M3>(source.data, i)) *
                  load<float>(source.scales, n / kBlock * base::ceil_div(cols, kBlock) + k / kBlock);
          break;
        case WeightFormat::kF8Channel:
          value = base::to_float(load<base::F8E4M3>(source.data, i)) * load<float>(source.scales, n);
          break;
        case WeightFormat::kInt4Group: {
          // Two elements a byte, the lower first (docs/checkpoints.md).
          const auto pair = load<std::uint8_t>(source.data, i / 2);
          const int code = i % 2 == 0 ? pair & 15 : pair >> 4;
          value =
              static_cast<float>(code - 8) *
              base::to_float(load<base::BF16>(source.scales, n * (cols / source.group_size) + k / source.group_size));
          break;
        }
      }
    }
  }
  return out;
}

base::Result<ops::Weight> CudaBackend::prepare_weight(const ops::WeightSource& source) {
  TESSERA_CHECK(source.data != nullptr);
  TESSERA_RETURN_IF_ERROR(ops::check_source(source, name_, kElementBytesMax));
  ops::Weight weight;
  weight.format = source.format;
  weight.usage = source.usage;
  weight.rows = source.rows;
  weight.cols = source.cols;
  weight.group_size = source.format == WeightFormat::kInt4Group ? source.group_size : 0;
  ops::WeightSource from = source;
  std::vector<float> widened;
  if ((source.usage == WeightUsage::kVector || source.usage == WeightUsage::kRouter) &&
      source.format == WeightFormat::kBF16) {
    widened = decode_weight(source);
    weight.format = from.format = WeightFormat::kF32;
    from.data = widened.data();
  }
  const std::int64_t pitch = weight_pitch(weight.format, weight.usage, weight.cols);
  const std::int64_t scales_at =
      base::round_up(product_row_bytes(weight.format, pitch) * weight.rows, kBufferAlignment);
  TESSERA_ASSIGN_OR_RETURN(weight.storage,
                           allocate(scales_at + product_scale_bytes(weight.format, weight.rows, pitch), "weight"));
  weight.data = weight.storage.data();
  if (is_quantized(weight.format)) weight.scales = weight.storage.data() + scales_at;
  if (!upload_weight(*health_, from, pitch, weight.storage.data(), weight.storage.data() + scales_at)) {
    return base::failure(health_->status());
  }
  return weight;
}

base::Result<ops::ExpertStack> CudaBackend::prepare_experts(const ops::ExpertSources& sources) {
  ops::check_sources(sources);
  ops::ExpertStack stack;
  stack.experts = std::ssize(sources.gate);
  stack.hidden = sources.gate[0].cols;
  stack.intermediate = sources.gate[0].rows;
  stack.format = sources.gate[0].format;
  struct Kind {
    std::span<const ops::WeightSource> from;
    std::string_view name;
    const ExpertLayout::Part* part;
  };
  const ExpertLayout layout = expert_layout(stack.format, stack.experts, stack.hidden, stack.intermediate);
  const Kind kinds[] = {{sources.gate, "gate projection", &layout.gate},
                        {sources.up, "up projection", &layout.up},
                        {sources.down, "down projection", &layout.down}};
  for (const Kind& kind : kinds) {
    for (std::int64_t e = 0; e < stack.experts; ++e) {
      const base::Status status = ops::check_source(kind.from[static_cast<std::size_t>(e)], name_, kElementBytesMax);
      if (!status.ok()) return base::failure(status.with_context(fmt::format("{} of expert {}", kind.name, e)));
    }
  }
  if (stack.experts > kExpertsMax) {
    return base::failure(base::unimplemented(fmt::format("{} experts: at most {}", stack.experts, kExpertsMax)));
  }
  TESSERA_ASSIGN_OR_RETURN(stack.storage, allocate(layout.bytes, "experts"));
  for (const Kind& kind : kinds) {
    for (std::int64_t e = 0; e < stack.experts; ++e) {
      if (!upload_weight(*health_, kind.from[static_cast<std::size_t>(e)], kind.part->pitch,
                         stack.storage.data() + kind.part->data_offset + e * kind.part->data_stride,
                         stack.storage.data() + kind.part->scale_offset + e * kind.part->scale_stride)) {
        return base::failure(health_->status());
      }
    }
  }
  return stack;
}

}  // namespace tessera::backends::cuda
