// A loop over tasks whose threads have working memory of their own, cut beforehand from what an op's caller brought.
#pragma once

#include <atomic>
#include <cstdint>

#include "tessera/backends/cpu/simd/thread_pool.h"

namespace tessera::backends::cpu::simd {

// Calls run(task, slot) once for every task in [0, count). Tasks that run at the same time have different slots, all
// below pool.threads(). Which task gets which slot is anyone's guess.
template <typename Run>
void for_each_task(ThreadPool& pool, std::int64_t count, const Run& run) {
  std::atomic<std::int64_t> next{0};
  pool.parallel_for(pool.threads(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t slot = begin; slot < end; ++slot) {
      for (std::int64_t task = next.fetch_add(1); task < count; task = next.fetch_add(1)) run(task, slot);
    }
  });
}

}  // namespace tessera::backends::cpu::simd
