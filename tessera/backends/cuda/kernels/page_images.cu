#include <algorithm>

#include "tessera/backends/cuda/kernels/kv_rows_device.h"
#include "tessera/backends/cuda/kernels/page_images.h"
#include "tessera/backends/cuda/kernels/row_hash_device.h"
#include "tessera/ops/page_transfer.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kWarpsMax = 8;

// One warp a row, in the target's format: slot blockIdx.y * warps + warp of logical page first_page + blockIdx.x. The
// row is put together in shared memory, so that it is read from the cache once however it is used.
__global__ void __launch_bounds__(kWarpsMax * 32) page_images_kernel(PageImagesKernel p) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const auto slot = static_cast<std::int32_t>(blockIdx.y * (blockDim.x / 32) + warp);
  const std::int64_t image = blockIdx.x;
  if (slot >= p.source.page_size) return;
  const std::int64_t logical_page = p.first_page + image;
  const bool used = logical_page * p.source.page_size + slot < *p.kv_len;
  if (!used) {
    for (int i = 0; p.write_images && i < p.images.num_parts; ++i) {
      const KvRowsPart& to = p.images.parts[i];
      warp_zero(row_data(to, image, slot), to.row_bytes, lane);
      if (to.row_scale_bytes > 0) warp_zero(row_scales(to, image, slot), to.row_scale_bytes, lane);
    }
    return;
  }

  const std::int64_t page = p.table[logical_page];
  std::byte* row = reinterpret_cast<std::byte*>(shared) + warp * row_hash_bytes(p.images.row_bytes);
  std::byte* at = row;
  for (int i = 0; i < p.source.num_parts; ++i) {
    const KvRowsPart& from = p.source.parts[i];
    const KvRowsPart& to = p.images.parts[i];
    std::byte* scales = at + to.row_bytes;
    if (from.element == to.element) {
      warp_copy(at, row_data(from, page, slot), from.row_bytes, lane);
      if (from.row_scale_bytes > 0) warp_copy(scales, row_scales(from, page, slot), from.row_scale_bytes, lane);
    } else {  // BF16 to FP8, the only conversion there is between the formats here.
      const auto* x = reinterpret_cast<const __nv_bfloat16*>(row_data(from, page, slot));
      for (std::int32_t g = 0; g < to.groups; ++g) {
        warp_store_fp8_group(to, g, [&](std::int32_t e) { return __bfloat162float(x[e]); }, at, scales, lane);
      }
    }
    at += to.row_bytes + to.row_scale_bytes;
  }
  __syncwarp();

  at = row;
  for (int i = 0; p.write_images && i < p.images.num_parts; ++i) {
    const KvRowsPart& to = p.images.parts[i];
    warp_copy(row_data(to, image, slot), at, to.row_bytes, lane);
    if (to.row_scale_bytes > 0) warp_copy(row_scales(to, image, slot), at + to.row_bytes, to.row_scale_bytes, lane);
    at += to.row_bytes + to.row_scale_bytes;
  }
  const std::uint64_t hash = warp_hash(row, p.images.row_bytes, ops::digest_seed(p.digest_key, p.layer, slot), lane);
  // A sum modulo 2^64: the order of the additions does not matter.
  if (lane == 0) atomicAdd(reinterpret_cast<unsigned long long*>(p.digests + image), hash);
}

}  // namespace

void launch_page_images(const PageImagesKernel& kernel, const Launch& launch) {
  if (kernel.num_pages == 0) return;
  cudaMemsetAsync(kernel.digests, 0, static_cast<std::size_t>(kernel.num_pages) * sizeof(std::uint64_t), launch.stream);
  const std::int32_t bytes = row_hash_bytes(kernel.images.row_bytes);
  const int warps = std::clamp((96 * 1024) / bytes, 1, kWarpsMax);
  const int shared_bytes = warps * bytes;
  if (shared_bytes > 48 * 1024) {
    cudaFuncSetAttribute(page_images_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  }
  const dim3 grid(static_cast<unsigned>(kernel.num_pages),
                  static_cast<unsigned>((kernel.source.page_size + warps - 1) / warps));
  page_images_kernel<<<grid, warps * 32, shared_bytes, launch.stream>>>(kernel);
}

}  // namespace tessera::backends::cuda
