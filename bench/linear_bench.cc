// Linear: rows x K times [N, K], weights beyond the caches.
#include "bench/op_bench.h"

namespace tessera::bench {
namespace {

void linear(benchmark::State& state, ops::WeightFormat format) {
  const std::int64_t rows = state.range(0);
  const std::int64_t k = state.range(1);
  const std::int64_t n = state.range(2);
  const std::vector<ops::Weight> weights = weights_beyond_caches(format, n, k);
  std::vector<float> in = random_floats(rows * k, 1);
  std::vector<float> out(static_cast<std::size_t>(rows * n));
  const auto stream = backend().make_stream();
  std::size_t next = 0;
  const double bytes = static_cast<double>(n * k) * (format == ops::WeightFormat::kBF16 ? 2 : 4);
  run_op(state, bytes, 2.0 * static_cast<double>(rows * n * k), [&] {
    backend().linear(*stream, {ops::f32_matrix(in.data(), rows, k), &weights[next], nullptr,
                               ops::f32_matrix(out.data(), rows, n), ops::OutputMode::kOverwrite});
    next = (next + 1) % weights.size();
  });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "k", "n"})->UseManualTime()->Unit(benchmark::kMicrosecond);
  for (const std::int64_t rows : {1, 8, 32, 512}) {
    b->Args({rows, kHidden, kHidden});
    b->Args({rows, kHidden, kFfn});
    b->Args({rows, kFfn, kHidden});
  }
  b->Args({1, kHidden, kVocabulary});
  b->Args({1, 4096, 4096});
  b->Args({512, 4096, 4096});
}
BENCHMARK_CAPTURE(linear, bf16, ops::WeightFormat::kBF16)->Apply(shapes);
BENCHMARK_CAPTURE(linear, f32, ops::WeightFormat::kF32)
    ->ArgNames({"rows", "k", "n"})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Args({1, kHidden, kFfn})
    ->Args({512, kHidden, kFfn});

}  // namespace
}  // namespace tessera::bench
