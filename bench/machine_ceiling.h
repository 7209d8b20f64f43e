// What the machine gives at the moment: measured beside each benchmark, because shared machines drift within minutes.
#pragma once

#include <benchmark/benchmark.h>

namespace tessera::bench {

struct MachineCeiling {
  double read_bytes_per_second = 0.0;  // All threads reading memory beyond the caches.
  double fma_flops_per_second = 0.0;   // All threads, F32 fused multiply-adds of the widest vectors.
};

// The best of a few short passes; takes about a tenth of a second.
MachineCeiling measure_ceiling(int threads);

// Sets the counters of a benchmark from what one iteration reads and computes: bytes/s and FLOP/s, and their shares of
// the ceiling, of which the mean of before and after the iterations is taken. Zero leaves a counter out.
class CeilingCounters {
 public:
  explicit CeilingCounters(int threads) : threads_(threads), before_(measure_ceiling(threads)) {}
  void report(benchmark::State& state, double bytes, double flops, double seconds) const;

 private:
  int threads_;
  MachineCeiling before_;
};

}  // namespace tessera::bench
