// Copies from device memory to shared memory that the copy engine makes while threads compute, and the barriers that
// say when they are there (mbarrier). A barrier's phases alternate between parities 0 and 1, the first is 0.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tessera/backends/cuda/kernels/mma_device.h"

namespace tessera::backends::cuda {

// One thread makes a barrier, for so many arrivals a phase; fence_barriers, then a barrier of the block, before its
// use.
__device__ __forceinline__ void make_barrier(std::uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// The phase also waits for so many bytes of bulk copies.
__device__ __forceinline__ void arrive_expecting(std::uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// An arrival once all of this thread's copy_async and copy_word_async of before are there.
__device__ __forceinline__ void arrive_after_copies(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Until the phase of that parity is complete.
__device__ __forceinline__ void wait_for_phase(std::uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n\t"
      ".reg .pred done;\n\t"
      "again_%=:\n\t"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n\t"
      "@!done bra again_%=;\n\t"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// `bytes` bytes, a multiple of 16, between addresses that are; counted by the barrier.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, unsigned bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Four bytes, without waiting; arrive_after_copies tells.
__device__ __forceinline__ void copy_word_async(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

// A barrier of some of a block's threads, whole warps; `name` from 1 to 15.
template <int kName, int kThreads>
__device__ __forceinline__ void barrier_of() {
  asm volatile("bar.sync %0, %1;" ::"n"(kName), "n"(kThreads) : "memory");
}

}  // namespace tessera::backends::cuda
