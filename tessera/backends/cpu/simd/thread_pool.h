// The threads of the SIMD backend. parallel_for cuts a loop into chunks that the caller and the pool's workers claim
// one by one; nothing that runs here may let its result depend on who ran a chunk, or on how many chunks there were.
//
// Any number of threads may call. One of them at a time gets the workers; the others run their loop alone, at once, so
// that two engines that share the pool never wait for each other. Idle workers spin for a few microseconds (the gap
// between two ops of a layer), then sleep in the kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace tessera::backends::cpu::simd {

class ThreadPool {
 public:
  // threads >= 1, the caller's own counted: ThreadPool(1) starts none.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) for disjoint ranges that cover [0, count), each at most `chunk` long, and returns when all
  // are done. body must not throw. A call from inside a body runs alone.
  template <typename Body>
  void parallel_for(std::int64_t count, std::int64_t chunk, const Body& body) {
    run(count, chunk, Loop{&body, [](const void* context, std::int64_t begin, std::int64_t end) {
                             (*static_cast<const Body*>(context))(begin, end);
                           }});
  }

 private:
  struct Loop {
    const void* context = nullptr;
    void (*call)(const void* context, std::int64_t begin, std::int64_t end) = nullptr;
  };
  struct Job {
    Loop loop;
    std::int64_t count = 0;
    std::int64_t chunk = 0;
  };

  void run(std::int64_t count, std::int64_t chunk, Loop loop);
  void work(const std::stop_token& stop);
  // Claims and runs chunks until none is left.
  void drain();

  // The current job's number of chunks in the upper half, the next chunk to claim in the lower. A claim is one
  // fetch_add, so a worker that comes late claims a chunk of whatever job is current, or none.
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::int64_t> unfinished_{0};  // Chunks of the current job that are not done.
  alignas(64) std::atomic<bool> taken_{false};           // Some caller has the workers.
  alignas(64) std::atomic<std::uint32_t> wakeups_{0};    // What sleeping workers wait on.
  std::atomic<int> sleeping_{0};
  Job job_;  // Written by the caller that holds taken_, before it publishes a ticket with chunks to claim.
  std::vector<std::jthread> workers_;
};

// Physical cores that this process may run on; at least 1.
int usable_physical_cores();

}  // namespace tessera::backends::cpu::simd
