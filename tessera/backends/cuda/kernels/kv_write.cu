#include "tessera/backends/cuda/kernels/fault_device.h"
#include "tessera/backends/cuda/kernels/kv_rows_device.h"
#include "tessera/backends/cuda/kernels/kv_write.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// Whether the token may be written: its slot is not null and lies in the cache, past the null page.
__device__ __forceinline__ bool writable(std::int64_t token, std::int64_t slot, std::int64_t page_size,
                                         std::int64_t num_pages, bool reports, DeviceFault* fault) {
  if (slot == ops::kNullSlot) return false;
  if (slot >= page_size && slot < num_pages * page_size) return true;
  if (reports) report_fault(fault, FaultKind::kSlot, token, slot, num_pages * page_size);
  return false;
}

// One block a token: first, whether the format can store all of it; then, a warp a scale group.
__global__ void __launch_bounds__(kThreads) kv_write_kernel(KvWriteKernel p, DeviceFault* fault) {
  const std::int64_t token = blockIdx.x;
  const std::int64_t slot = p.slots[token];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  if (!writable(token, slot, p.cache.page_size, p.num_pages, threadIdx.x == 0, fault)) return;

  bool storable = true;
  for (int part = 0; part < p.cache.num_parts; ++part) {
    const float* x = p.x[part] + token * p.x_stride[part];
    const bool bf16 = p.cache.parts[part].element == KvElement::kBF16;
    for (std::int32_t i = threadIdx.x; i < p.cache.parts[part].elements; i += kThreads) {
      storable = storable && isfinite(bf16 ? __bfloat162float(__float2bfloat16_rn(x[i])) : x[i]);
    }
  }
  storable = __syncthreads_and(storable) != 0;
  if (!storable && threadIdx.x == 0) p.nonfinite_rows[token] = 1;

  const std::int64_t page = slot / p.cache.page_size;
  const std::int64_t row = slot % p.cache.page_size;
  for (int i = 0; i < p.cache.num_parts; ++i) {
    const KvRowsPart& part = p.cache.parts[i];
    const float* x = p.x[i] + token * p.x_stride[i];
    std::byte* data = row_data(part, page, row);
    if (part.element == KvElement::kBF16) {
      auto* to = reinterpret_cast<__nv_bfloat16*>(data);
      for (std::int32_t e = threadIdx.x; e < part.elements; e += kThreads) {
        to[e] = __float2bfloat16_rn(storable ? x[e] : 0.0f);
      }
      continue;
    }
    std::byte* scales = row_scales(part, page, row);
    for (std::int32_t g = warp; g < part.groups; g += kWarps) {
      warp_store_fp8_group(part, g, [&](std::int32_t e) { return storable ? x[e] : 0.0f; }, data, scales, lane);
    }
  }
}

// One warp a token.
__global__ void __launch_bounds__(kThreads) scatter_kernel(ScatterKernel p, DeviceFault* fault) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= p.tokens) return;
  const std::int64_t slot = p.slots[token];
  const std::int64_t page_size = p.cache.page_size;
  if (!writable(token, slot, page_size, p.num_pages, lane == 0, fault)) return;
  for (int i = 0; i < p.cache.num_parts; ++i) {
    const KvRowsPart& from = p.images.parts[i];
    const KvRowsPart& to = p.cache.parts[i];
    warp_copy(row_data(to, slot / page_size, slot % page_size), row_data(from, token / page_size, token % page_size),
              to.row_bytes, lane);
    if (to.row_scale_bytes == 0) continue;
    warp_copy(row_scales(to, slot / page_size, slot % page_size),
              row_scales(from, token / page_size, token % page_size), to.row_scale_bytes, lane);
  }
}

}  // namespace

void launch_kv_write(const KvWriteKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  kv_write_kernel<<<static_cast<unsigned>(kernel.tokens), kThreads, 0, launch.stream>>>(kernel, launch.fault);
}

void launch_scatter_pages(const ScatterKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0) return;
  const auto blocks = static_cast<unsigned>((kernel.tokens + kWarps - 1) / kWarps);
  scatter_kernel<<<blocks, kThreads, 0, launch.stream>>>(kernel, launch.fault);
}

}  // namespace tessera::backends::cuda
