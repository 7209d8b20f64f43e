// This step's keys and values (or latents and index keys) into their slots (ops/transformer.h, KvWriteParams), and page
// images into slots (ops/page_transfer.h, ScatterPagesParams). All pointers are device memory. A slot outside the cache
// is not written, and is a fault.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/kernels/kv_rows.h"
#include "tessera/backends/cuda/launch.h"

namespace tessera::backends::cuda {

struct KvWriteKernel {
  const std::int64_t* slots = nullptr;  // [tokens]
  std::int64_t tokens = 0;
  const float* x[ops::KvLayout::kPartsMax] = {};  // Of each part: [tokens, elements of the part]
  std::int64_t x_stride[ops::KvLayout::kPartsMax] = {};
  KvRows cache;
  std::int64_t num_pages = 0;
  std::uint8_t* nonfinite_rows = nullptr;  // [tokens]
};
void launch_kv_write(const KvWriteKernel& kernel, const Launch& launch);

struct ScatterKernel {
  const std::int64_t* slots = nullptr;  // [tokens]
  std::int64_t tokens = 0;
  KvRows images;  // Token i is row i % page_size of image i / page_size.
  KvRows cache;
  std::int64_t num_pages = 0;
};
void launch_scatter_pages(const ScatterKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
