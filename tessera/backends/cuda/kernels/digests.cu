#include <algorithm>

#include "tessera/backends/cuda/kernels/digests.h"
#include "tessera/backends/cuda/kernels/fault_device.h"
#include "tessera/backends/cuda/kernels/row_hash_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kWarpsMax = 8;

// A sum modulo 2^64: the order of the additions does not matter.
__device__ __forceinline__ void add_to(std::uint64_t* sum, std::uint64_t term) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(term));
}

__device__ __forceinline__ std::byte* room_of_warp(uint4* shared, std::int32_t row_bytes) {
  return reinterpret_cast<std::byte*>(shared) + threadIdx.x / 32 * row_hash_bytes(row_bytes);
}

// One warp a token, in layer first_layer + blockIdx.y.
__global__ void __launch_bounds__(kWarpsMax * 32) digest_tokens_kernel(DigestTokensKernel p, DeviceFault* fault) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (token >= p.tokens) return;
  const std::int64_t slot = p.slots[token];
  if (slot == ops::kNullSlot) return;
  const std::int64_t page_size = p.cache.first.page_size;
  if (slot < page_size || slot >= p.num_pages * page_size) {
    if (lane == 0) report_fault(fault, FaultKind::kSlot, token, slot, p.num_pages * page_size);
    return;
  }
  const std::int64_t page = slot / page_size;
  const std::uint64_t hash = warp_row_hash(p.cache, p.first_layer + static_cast<std::int32_t>(blockIdx.y), page,
                                           static_cast<std::int32_t>(slot % page_size), p.digest_key,
                                           room_of_warp(shared, p.cache.first.row_bytes), lane);
  if (lane == 0) add_to(p.digests + page, hash);
}

// The page that entry i stands for; the null page for one outside of the table.
__device__ __forceinline__ std::int32_t page_of(const CheckDigestsKernel& p, const ops::PageTableEntry& entry) {
  if (entry.row < 0 || entry.row >= p.rows || entry.index < 0 || entry.index >= p.max_pages_per_row) {
    return ops::kNullPage;
  }
  return p.table[entry.row * p.max_pages_per_row + entry.index];
}

// One block a page (blockIdx.x) in one layer (blockIdx.y), a warp a slot. The sums meet where the verdict is to be.
__global__ void __launch_bounds__(kWarpsMax * 32) sum_digests_kernel(CheckDigestsKernel p) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const std::int64_t i = blockIdx.x;
  const ops::PageTableEntry entry = p.entries[i];
  const std::int32_t page = page_of(p, entry);
  if (page == ops::kNullPage) return;
  const std::int64_t page_size = p.cache.first.page_size;
  const std::int64_t slots = std::min(p.kv_lens[entry.row] - entry.index * page_size, page_size);
  std::byte* room = room_of_warp(shared, p.cache.first.row_bytes);
  std::uint64_t sum = 0;
  for (auto slot = static_cast<std::int32_t>(threadIdx.x / 32); slot < slots; slot += warps) {
    sum += warp_row_hash(p.cache, static_cast<std::int32_t>(blockIdx.y), page, slot, p.digest_key, room, lane);
  }
  if (lane == 0 && sum != 0) add_to(&p.verdicts[i].found, sum);
}

// One thread a page.
__global__ void __launch_bounds__(kWarpsMax * 32) compare_digests_kernel(CheckDigestsKernel p, DeviceFault* fault) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  const ops::PageTableEntry entry = p.entries[i];
  if (entry.row < 0 || entry.row >= p.rows || entry.index < 0 || entry.index >= p.max_pages_per_row) {
    report_fault(fault, FaultKind::kPageTableEntry, i, entry.row, entry.index);
  }
  const std::int32_t page = page_of(p, entry);
  const std::uint64_t found = p.verdicts[i].found;
  ops::RowVerdict verdict;
  if (page != ops::kNullPage && found != p.recorded[page]) {
    verdict.failed_checks = ops::kCheckDigest;
    verdict.logical_page = entry.index;
    verdict.page_id = page;
    verdict.found = found;
    verdict.expected = p.recorded[page];
  }
  p.verdicts[i] = verdict;
}

// How many warps of a block have room for their rows, and what shared memory they take.
struct Rooms {
  int warps = 1;
  int shared_bytes = 0;
};

template <typename Kernel>
Rooms rooms_of(Kernel* kernel, std::int32_t row_bytes) {
  Rooms rooms;
  rooms.warps = std::clamp((96 * 1024) / row_hash_bytes(row_bytes), 1, kWarpsMax);
  rooms.shared_bytes = rooms.warps * row_hash_bytes(row_bytes);
  if (rooms.shared_bytes > 48 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, rooms.shared_bytes);
  }
  return rooms;
}

unsigned blocks_of(std::int64_t items, std::int64_t items_a_block) {
  return static_cast<unsigned>((items + items_a_block - 1) / items_a_block);
}

}  // namespace

void launch_digest_tokens(const DigestTokensKernel& kernel, const Launch& launch) {
  if (kernel.tokens == 0 || kernel.num_layers == 0) return;
  const Rooms rooms = rooms_of(digest_tokens_kernel, kernel.cache.first.row_bytes);
  const dim3 grid(blocks_of(kernel.tokens, rooms.warps), static_cast<unsigned>(kernel.num_layers));
  digest_tokens_kernel<<<grid, rooms.warps * 32, rooms.shared_bytes, launch.stream>>>(kernel, launch.fault);
}

void launch_check_digests(const CheckDigestsKernel& kernel, const Launch& launch) {
  if (kernel.count == 0) return;
  cudaMemsetAsync(kernel.verdicts, 0, static_cast<std::size_t>(kernel.count) * sizeof(ops::RowVerdict), launch.stream);
  const Rooms rooms = rooms_of(sum_digests_kernel, kernel.cache.first.row_bytes);
  const dim3 grid(static_cast<unsigned>(kernel.count), static_cast<unsigned>(kernel.num_layers));
  sum_digests_kernel<<<grid, rooms.warps * 32, rooms.shared_bytes, launch.stream>>>(kernel);
  constexpr int kThreads = kWarpsMax * 32;
  compare_digests_kernel<<<blocks_of(kernel.count, kThreads), kThreads, 0, launch.stream>>>(kernel, launch.fault);
}

}  // namespace tessera::backends::cuda
