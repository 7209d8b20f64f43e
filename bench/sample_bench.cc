// Sampling a token from SmolLM2's vocabulary.
#include "bench/op_bench.h"

namespace tessera::bench {
namespace {

void sample_tokens(benchmark::State& state, ops::SampleRow row) {
  const std::int64_t rows = state.range(0);
  std::vector<float> logits = random_floats(rows * kVocabulary, 1);
  for (float& logit : logits) logit *= 12.0f;
  std::vector<ops::SampleRow> params(static_cast<std::size_t>(rows), row);
  std::vector<ops::SampledToken> out(params.size());
  const auto stream = backend().make_stream();
  std::uint64_t position = 0;
  run_op(state, 4.0 * static_cast<double>(rows * kVocabulary), 0.0, [&] {
    for (ops::SampleRow& p : params) p.position = position++;
    backend().sample_tokens(
        *stream, {.logits = ops::f32_matrix(logits.data(), rows, kVocabulary), .rows = params, .out = out.data()});
  });
}

void rows_of_logits(benchmark::internal::Benchmark* b) {
  b->ArgName("rows")->UseManualTime()->Unit(benchmark::kMicrosecond)->Arg(1)->Arg(32);
}
BENCHMARK_CAPTURE(sample_tokens, greedy, ops::SampleRow{})->Apply(rows_of_logits);
BENCHMARK_CAPTURE(sample_tokens, temperature, ops::SampleRow{.temperature = 1.0f})->Apply(rows_of_logits);
BENCHMARK_CAPTURE(sample_tokens, top_p, ops::SampleRow{.temperature = 1.0f, .top_p = 0.95f})->Apply(rows_of_logits);
BENCHMARK_CAPTURE(sample_tokens, top_k, ops::SampleRow{.temperature = 1.0f, .top_k = 50})->Apply(rows_of_logits);

}  // namespace
}  // namespace tessera::bench
