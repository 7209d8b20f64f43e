#include "tessera/backends/cpu/simd/thread_pool.h"

#include <hwloc.h>

#include <algorithm>
#include <chrono>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::backends::cpu::simd {

namespace {

constexpr std::int64_t kChunksMax = std::int64_t{1} << 30;

constexpr std::uint64_t next_chunk(std::uint64_t ticket) { return ticket & 0xffffffffu; }
constexpr bool has_chunks(std::uint64_t ticket) { return next_chunk(ticket) < (ticket >> 32); }

// How long an idle worker looks for the next job before it sleeps. Between two ops of a decode step lie a few
// microseconds of the caller's own work; waking a sleeper costs more than that.
constexpr std::chrono::microseconds kSpin{8};

// Spins of a caller that waits for the last chunks, before it offers its processor to whoever holds them.
constexpr int kSpinsBeforeYield = 2000;

void pause() { __builtin_ia32_pause(); }

}  // namespace

ThreadPool::ThreadPool(int threads) {
  TESSERA_CHECK(threads >= 1);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

ThreadPool::~ThreadPool() {
  for (std::jthread& worker : workers_) worker.request_stop();
  wakeups_.fetch_add(1);
  wakeups_.notify_all();
}

void ThreadPool::run(std::int64_t count, std::int64_t chunk, Loop loop) {
  TESSERA_CHECK(count >= 0 && chunk >= 1);
  if (count == 0) return;
  chunk = std::max(chunk, base::ceil_div(count, kChunksMax));
  const std::int64_t chunks = base::ceil_div(count, chunk);
  if (chunks == 1 || workers_.empty() || taken_.exchange(true, std::memory_order_acquire)) {
    for (std::int64_t begin = 0; begin < count; begin += chunk) {
      loop.call(loop.context, begin, std::min(begin + chunk, count));
    }
    return;
  }
  job_ = Job{loop, count, chunk};
  unfinished_.store(chunks, std::memory_order_relaxed);
  ticket_.store(static_cast<std::uint64_t>(chunks) << 32);
  // A worker counts itself as sleeping before it looks at the ticket for the last time: either it sees the new ticket,
  // or it is seen here. Both orders need sequential consistency.
  if (sleeping_.load() > 0) {
    wakeups_.fetch_add(1);
    wakeups_.notify_all();
  }
  drain();
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpinsBeforeYield) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
  taken_.store(false, std::memory_order_release);
}

void ThreadPool::drain() {
  while (has_chunks(ticket_.load(std::memory_order_relaxed))) {
    const std::uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (!has_chunks(ticket)) return;
    // This chunk is claimed and not done, so the job cannot end and job_ cannot change until it is.
    const Job job = job_;
    const std::int64_t begin = static_cast<std::int64_t>(next_chunk(ticket)) * job.chunk;
    job.loop.call(job.loop.context, begin, std::min(begin + job.chunk, job.count));
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    drain();
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    bool found = false;
    while (!found && std::chrono::steady_clock::now() < deadline) {
      for (int i = 0; i < 16 && !found; ++i) {
        pause();
        found = has_chunks(ticket_.load(std::memory_order_relaxed));
      }
    }
    if (found) continue;
    const std::uint32_t seen = wakeups_.load();
    sleeping_.fetch_add(1);
    if (!has_chunks(ticket_.load()) && !stop.stop_requested()) wakeups_.wait(seen);
    sleeping_.fetch_sub(1);
  }
}

int usable_physical_cores() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return 1;
  int cores = 0;
  if (hwloc_topology_load(topology) == 0) {
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (allowed != nullptr && hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) == 0) {
      for (hwloc_obj_t core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, nullptr); core != nullptr;
           core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) {
        if (hwloc_bitmap_intersects(core->cpuset, allowed)) ++cores;
      }
    }
    hwloc_bitmap_free(allowed);
  }
  hwloc_topology_destroy(topology);
  return std::max(cores, 1);
}

}  // namespace tessera::backends::cpu::simd
