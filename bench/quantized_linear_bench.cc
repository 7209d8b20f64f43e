// Products with FP8 and INT4 weights at a large model's shapes, weights beyond the caches. bytes/s counts the weight as
// the backend holds it, scales included.
#include "bench/large_weights.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::bench {
namespace {

constexpr std::int64_t kBeyondCpuCaches = 256 << 20;

void quantized_linear(benchmark::State& state, ops::WeightFormat format, std::int32_t group_size) {
  const std::int64_t rows = state.range(0);
  const std::int64_t k = state.range(1);
  const std::int64_t n = state.range(2);
  const HostWeight host = random_host_weight(format, group_size, n, k, 1);
  std::vector<ops::Weight> weights;
  const auto bytes = static_cast<std::int64_t>(host.data.size() + host.scales.size());
  for (std::int64_t i = 0; i < base::ceil_div(kBeyondCpuCaches, bytes); ++i) {
    auto weight = backend().prepare_weight(host.source);
    TESSERA_CHECK(weight.has_value(), weight.error().to_string());
    weights.push_back(std::move(*weight));
  }
  std::vector<float> in = random_floats(rows * k, 2);
  std::vector<float> out(static_cast<std::size_t>(rows * n));
  const auto stream = backend().make_stream();
  std::size_t next = 0;
  run_op(state, static_cast<double>(weights[0].storage.bytes()), 2.0 * static_cast<double>(rows * n * k), [&] {
    backend().linear(*stream, {ops::f32_matrix(in.data(), rows, k), &weights[next], nullptr,
                               ops::f32_matrix(out.data(), rows, n), ops::OutputMode::kOverwrite});
    next = (next + 1) % weights.size();
  });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "k", "n"})->UseManualTime()->Unit(benchmark::kMicrosecond);
  for (const std::int64_t rows : {1, 8, 32, 512}) {
    b->Args({rows, kLargeHidden, kExpertWidth});
    b->Args({rows, kExpertWidth, kLargeHidden});
  }
}
BENCHMARK_CAPTURE(quantized_linear, f8_block128, ops::WeightFormat::kF8Block128, 0)->Apply(shapes);
BENCHMARK_CAPTURE(quantized_linear, f8_channel, ops::WeightFormat::kF8Channel, 0)->Apply(shapes);
BENCHMARK_CAPTURE(quantized_linear, int4_group32, ops::WeightFormat::kInt4Group, 32)->Apply(shapes);
BENCHMARK_CAPTURE(quantized_linear, int4_group128, ops::WeightFormat::kInt4Group, 128)->Apply(shapes);

}  // namespace
}  // namespace tessera::bench
