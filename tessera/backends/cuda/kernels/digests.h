// The digests that a pool records of its pages: added to as rows are written, compared when they are to be trusted
// (ops/page_transfer.h). All pointers are device memory.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/kernels/kv_rows.h"
#include "tessera/backends/cuda/launch.h"
#include "tessera/ops/page_transfer.h"

namespace tessera::backends::cuda {

struct DigestTokensKernel {
  KvLayers cache;
  const std::int64_t* slots = nullptr;  // [tokens]
  std::int64_t tokens = 0;
  std::int64_t num_pages = 0;
  std::int32_t first_layer = 0;
  std::int32_t num_layers = 0;  // At most 65535.
  std::uint64_t digest_key = 0;
  std::uint64_t* digests = nullptr;  // [num_pages], added to.
};

struct CheckDigestsKernel {
  KvLayers cache;
  const std::int32_t* table = nullptr;    // [rows, max_pages_per_row]
  const std::int32_t* kv_lens = nullptr;  // [rows]
  std::int64_t rows = 0;
  std::int64_t max_pages_per_row = 0;
  std::int32_t num_layers = 0;  // At most 65535.
  std::uint64_t digest_key = 0;
  const std::uint64_t* recorded = nullptr;  // [pages of the cache]
  std::int64_t count = 0;
  const ops::PageTableEntry* entries = nullptr;  // [count]
  ops::RowVerdict* verdicts = nullptr;           // [count]
};

void launch_digest_tokens(const DigestTokensKernel& kernel, const Launch& launch);
void launch_check_digests(const CheckDigestsKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
