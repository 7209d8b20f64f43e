// Pages to page images with conversion and digest, and digests of what is stored (ops/page_transfer.h). All pointers
// are device memory; images may also be pinned host memory, which the device writes through.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/kernels/kv_rows.h"
#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

struct PageImagesKernel {
  const std::int32_t* table = nullptr;   // The row's page ids.
  const std::int32_t* kv_len = nullptr;  // The row's length.
  KvRows source;
  KvRows images;  // In the target's format; only described where write_images is false.
  bool write_images = false;
  std::int32_t layer = 0;
  std::int32_t first_page = 0;
  std::int32_t num_pages = 0;
  std::uint64_t digest_key = 0;
  std::uint64_t* digests = nullptr;  // [num_pages]
};

// The largest row, in all parts, that the kernel takes.
inline constexpr std::int32_t kPageRowBytesMax = 128 * 1024;

void launch_page_images(const PageImagesKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
