#include "tessera/backends/cpu/simd/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace tessera::backends::cpu::simd {
namespace {

// Runs a loop that counts every index once and returns how many indices were not counted exactly once.
std::int64_t miscounted(ThreadPool& pool, std::int64_t count, std::int64_t chunk) {
  std::vector<std::int64_t> seen(static_cast<std::size_t>(count), 0);
  pool.parallel_for(count, chunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
  });
  std::int64_t wrong = 0;
  for (const std::int64_t times : seen) wrong += times == 1 ? 0 : 1;
  return wrong;
}

TEST(ThreadPool, EveryIndexIsVisitedOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const std::int64_t chunk : {1, 3, 64, 5000}) {
        EXPECT_EQ(miscounted(pool, count, chunk), 0) << threads << " threads, " << count << " by " << chunk;
      }
    }
  }
}

TEST(ThreadPool, ChunksStayWithinTheirLength) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> too_long{0};
  pool.parallel_for(1001, 10, [&](std::int64_t begin, std::int64_t end) {
    if (end - begin > 10 || begin >= end) ++too_long;
  });
  EXPECT_EQ(too_long.load(), 0);
}

TEST(ThreadPool, WorkersTakePart) {
  ThreadPool pool(2);
  // Two chunks that wait for each other: done only if two threads run them.
  std::atomic<int> arrived{0};
  pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(ThreadPool, SleepingWorkersWakeUp) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // Longer than a worker spins.
    std::atomic<int> arrived{0};
    pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
      ++arrived;
      while (arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 2);
  }
}

TEST(ThreadPool, NestedLoopsRunAlone) {
  ThreadPool pool(4);
  std::atomic<std::int64_t> sum{0};
  pool.parallel_for(16, 1, [&](std::int64_t begin, std::int64_t) {
    const auto outer = std::this_thread::get_id();
    pool.parallel_for(8, 1, [&](std::int64_t inner, std::int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      sum += begin * 8 + inner;
    });
  });
  EXPECT_EQ(sum.load(), 127 * 128 / 2);
}

TEST(ThreadPool, ConcurrentCallersEachFinishTheirOwnLoop) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> wrong{0};
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 500; ++round) wrong += miscounted(pool, 1 + (round * 7 + caller) % 97, 1 + round % 5);
    });
  }
  callers.clear();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPool, CountsPhysicalCores) {
  EXPECT_GE(usable_physical_cores(), 1);
  EXPECT_LE(usable_physical_cores(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace tessera::backends::cpu::simd
