#include "bench/machine_ceiling.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace tessera::bench {

namespace {

constexpr std::int64_t kReadBytes = 256 << 20;
constexpr int kPasses = 4;
constexpr std::int64_t kFmaSteps = 2'000'000;

// Seconds that the slowest of the threads took, the best of the passes.
double best_seconds(int threads, const std::function<void(int)>& work) {
  double best = 1e9;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::barrier gate(threads);
    std::vector<double> seconds(static_cast<std::size_t>(threads));
    const auto run = [&](int thread) {
      gate.arrive_and_wait();
      const auto begin = std::chrono::steady_clock::now();
      work(thread);
      seconds[static_cast<std::size_t>(thread)] =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    {
      std::vector<std::jthread> others;
      for (int t = 1; t < threads; ++t) others.emplace_back(run, t);
      run(0);
    }
    best = std::min(best, *std::max_element(seconds.begin(), seconds.end()));
  }
  return best;
}

__attribute__((target("avx2"))) void read_avx2(const std::byte* from, std::int64_t bytes) {
  __m256i sums[4] = {};
  for (std::int64_t i = 0; i + 128 <= bytes; i += 128) {
    const auto* at = reinterpret_cast<const __m256i*>(from + i);
    for (int j = 0; j < 4; ++j) sums[j] = _mm256_add_epi64(sums[j], _mm256_load_si256(at + j));
  }
  benchmark::DoNotOptimize(sums);
}

__attribute__((target("avx2,fma"))) void fma_avx2() {
  __m256 sums[12];
  for (__m256& sum : sums) sum = _mm256_set1_ps(1.0f);
  const __m256 x = _mm256_set1_ps(0.999f);
  const __m256 y = _mm256_set1_ps(0.001f);
  for (std::int64_t i = 0; i < kFmaSteps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sums[j] = _mm256_fmadd_ps(sums[j], x, y);
  }
  for (__m256& sum : sums) benchmark::DoNotOptimize(sum);
}

__attribute__((target("avx512f"))) void fma_avx512() {
  __m512 sums[12];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0f);
  const __m512 x = _mm512_set1_ps(0.999f);
  const __m512 y = _mm512_set1_ps(0.001f);
  for (std::int64_t i = 0; i < kFmaSteps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sums[j] = _mm512_fmadd_ps(sums[j], x, y);
  }
  for (__m512& sum : sums) benchmark::DoNotOptimize(sum);
}

}  // namespace

MachineCeiling measure_ceiling(int threads) {
  static std::vector<std::byte> memory(static_cast<std::size_t>(kReadBytes) + 64, std::byte{1});
  const std::byte* from = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  const std::int64_t each = kReadBytes / threads / 128 * 128;
  MachineCeiling ceiling;
  ceiling.read_bytes_per_second =
      static_cast<double>(each) * threads / best_seconds(threads, [&](int t) { read_avx2(from + t * each, each); });
  const bool wide = __builtin_cpu_supports("avx512f");
  const double flops = static_cast<double>(kFmaSteps) * 12 * 2 * (wide ? 16 : 8) * threads;
  ceiling.fma_flops_per_second = flops / best_seconds(threads, [&](int) { wide ? fma_avx512() : fma_avx2(); });
  return ceiling;
}

void CeilingCounters::report(benchmark::State& state, double bytes, double flops, double seconds) const {
  const MachineCeiling after = measure_ceiling(threads_);
  const double iterations = static_cast<double>(state.iterations());
  if (bytes > 0.0) {
    const double rate = bytes * iterations / seconds;
    const double ceiling = (before_.read_bytes_per_second + after.read_bytes_per_second) / 2.0;
    state.counters["bytes/s"] = benchmark::Counter(rate);
    state.counters["read_ceiling"] = benchmark::Counter(ceiling);
    state.counters["of_read_bandwidth"] = rate / ceiling;
  }
  if (flops > 0.0) {
    const double rate = flops * iterations / seconds;
    const double ceiling = (before_.fma_flops_per_second + after.fma_flops_per_second) / 2.0;
    state.counters["FLOP/s"] = benchmark::Counter(rate);
    state.counters["fma_ceiling"] = benchmark::Counter(ceiling);
    state.counters["of_fma_peak"] = rate / ceiling;
  }
}

}  // namespace tessera::bench
