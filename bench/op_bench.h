// What the op benchmarks share: the backend under test, random activations and weights, and pages to attend to.
#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bench/machine_ceiling.h"
#include "tessera/kv_cache/verifier.h"
#include "tessera/ops/backend.h"

namespace tessera::bench {

// The shapes of SmolLM2-135M, which is what the targets are about.
inline constexpr std::int64_t kHidden = 576;
inline constexpr std::int64_t kFfn = 1536;
inline constexpr std::int32_t kHeads = 9;
inline constexpr std::int32_t kKvHeads = 3;
inline constexpr std::int32_t kHeadDim = 64;
inline constexpr std::int64_t kKvDim = kKvHeads * kHeadDim;
inline constexpr int kLayers = 30;
inline constexpr std::int64_t kVocabulary = 49152;

// Threads that the backend uses: one for each physical core.
int backend_threads();
// The best backend of this processor; made once.
ops::Backend& backend();

// Small numbers of both signs.
std::vector<float> random_floats(std::int64_t count, std::uint64_t seed);
ops::Weight random_weight(ops::WeightFormat format, ops::WeightUsage usage, std::int64_t rows, std::int64_t cols,
                          std::uint64_t seed);

// Enough distinct weights of one shape that a loop over them reads memory, not caches.
std::vector<ops::Weight> weights_beyond_caches(ops::WeightFormat format, std::int64_t rows, std::int64_t cols);

// Sequences of equal length in a cache, filled with random numbers in every layer.
class PagedSequences {
 public:
  PagedSequences(const ops::KvLayout& layout, int sequences, std::int32_t length);
  // Keys and values of SmolLM2's shape.
  PagedSequences(ops::KvFormat format, int num_layers, int sequences, std::int32_t length)
      : PagedSequences(ops::gqa_kv_layout(format, num_layers, 64, kKvHeads, kHeadDim), sequences, length) {}

  // Each sequence with its last new_tokens tokens as queries (and as slots to write). Valid until the next call.
  kv_cache::CheckedPages check(std::int32_t new_tokens);
  const ops::KvCacheView& cache() const { return cache_; }
  std::span<const std::int32_t> cu_seqlens_q() const { return cu_seqlens_q_; }
  std::span<const std::int32_t> positions() const { return token_positions_; }

 private:
  void fill(int layer, std::uint64_t seed);

  const std::int32_t length_;
  ops::Buffer storage_;
  ops::KvCacheView cache_;
  std::int64_t pages_a_row_ = 0;
  std::unique_ptr<ops::Stream> stream_;
  std::unique_ptr<kv_cache::Verifier> verifier_;
  std::vector<std::vector<kv_cache::Lease>> leases_;
  std::vector<std::uint64_t> tags_;
  std::vector<std::uint64_t> owners_;
  std::vector<std::int32_t> page_positions_;
  std::vector<std::int32_t> lease_counts_;
  std::vector<std::int32_t> table_;
  std::vector<std::int32_t> cu_seqlens_q_;
  std::vector<std::int32_t> token_rows_;
  std::vector<std::int32_t> token_positions_;
  std::vector<std::int64_t> slots_;
};

// Times the iterations of a benchmark by the clock on the wall, since the backend's own threads do the work, and
// reports the counters. bytes and flops are of one iteration.
template <typename Body>
void run_op(benchmark::State& state, double bytes, double flops, const Body& body) {
  const CeilingCounters counters(backend_threads());
  body();
  double seconds = 0.0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    state.SetIterationTime(elapsed);
    seconds += elapsed;
  }
  counters.report(state, bytes, flops, seconds);
}

}  // namespace tessera::bench
