// The elementwise ops of a layer: what matters is that they stay small beside the products.
#include "bench/op_bench.h"

namespace tessera::bench {
namespace {

void rows_of_tokens(benchmark::internal::Benchmark* b) {
  b->ArgName("tokens")->UseManualTime()->Unit(benchmark::kMicrosecond)->Arg(1)->Arg(32)->Arg(512);
}

void rms_norm(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  const ops::Weight weight = random_weight(ops::WeightFormat::kF32, ops::WeightUsage::kVector, 1, kHidden, 1);
  std::vector<float> in = random_floats(tokens * kHidden, 2);
  std::vector<float> out(in.size());
  const auto stream = backend().make_stream();
  run_op(state, 8.0 * static_cast<double>(tokens * kHidden), 0.0, [&] {
    backend().rms_norm(*stream, {ops::f32_matrix(in.data(), tokens, kHidden), &weight, 1e-5f,
                                 ops::f32_matrix(out.data(), tokens, kHidden)});
  });
}
BENCHMARK(rms_norm)->Apply(rows_of_tokens);

void rope(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  const std::int64_t width = std::int64_t{kHeads} * kHeadDim;
  std::vector<float> x = random_floats(tokens * width, 3);
  std::vector<float> frequencies;
  frequencies.reserve(kHeadDim / 2);
  for (int i = 0; i < kHeadDim / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(1 << (i / 2)));
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < tokens; ++t)
    positions[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t + 1000);
  const auto stream = backend().make_stream();
  run_op(state, 8.0 * static_cast<double>(tokens * width), 0.0, [&] {
    backend().rope(*stream, {.x = ops::f32_matrix(x.data(), tokens, width),
                             .positions = positions,
                             .inverse_frequencies = frequencies,
                             .heads = kHeads,
                             .head_dim = kHeadDim,
                             .rotary_dim = kHeadDim});
  });
}
BENCHMARK(rope)->Apply(rows_of_tokens);

void swiglu(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  std::vector<float> gate = random_floats(tokens * kFfn, 4);
  std::vector<float> up = random_floats(tokens * kFfn, 5);
  std::vector<float> out(gate.size());
  const auto stream = backend().make_stream();
  run_op(state, 12.0 * static_cast<double>(tokens * kFfn), 0.0, [&] {
    backend().swiglu(*stream, {ops::f32_matrix(gate.data(), tokens, kFfn), ops::f32_matrix(up.data(), tokens, kFfn),
                               ops::f32_matrix(out.data(), tokens, kFfn)});
  });
}
BENCHMARK(swiglu)->Apply(rows_of_tokens);

void embedding(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  const ops::Weight table =
      random_weight(ops::WeightFormat::kBF16, ops::WeightUsage::kEmbedding, kVocabulary, kHidden, 6);
  std::vector<std::int32_t> ids;
  ids.reserve(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>(t * 7919 % kVocabulary));
  std::vector<float> out(static_cast<std::size_t>(tokens * kHidden));
  const auto stream = backend().make_stream();
  run_op(state, 6.0 * static_cast<double>(tokens * kHidden), 0.0,
         [&] { backend().embedding(*stream, {&table, ids, ops::f32_matrix(out.data(), tokens, kHidden)}); });
}
BENCHMARK(embedding)->Apply(rows_of_tokens);

}  // namespace
}  // namespace tessera::bench
