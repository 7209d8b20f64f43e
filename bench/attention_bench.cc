// Paged attention, decode and prefill, over BF16 and FP8 pages.
#include <algorithm>

#include "bench/op_bench.h"

namespace tessera::bench {
namespace {

void attention(benchmark::State& state, ops::KvFormat format) {
  const auto sequences = static_cast<int>(state.range(0));
  const auto length = static_cast<std::int32_t>(state.range(1));
  const auto queries = static_cast<std::int32_t>(state.range(2));
  // Layers are taken in turn, so that long contexts come from memory.
  const std::int64_t layer_bytes =
      ops::gqa_kv_layout(format, 1, 64, kKvHeads, kHeadDim).token_layer_bytes(0) * sequences * length;
  const int layers = static_cast<int>(std::min<std::int64_t>(kLayers, 1 + (64 << 20) / layer_bytes));
  PagedSequences kv(format, layers, sequences, length);
  const kv_cache::CheckedPages checked = kv.check(queries);
  const std::int64_t tokens = std::int64_t{sequences} * queries;
  const std::int64_t width = std::int64_t{kHeads} * kHeadDim;
  std::vector<float> q = random_floats(tokens * width, 3);
  std::vector<float> out(q.size());
  const auto stream = backend().make_stream();
  ops::PagedAttentionParams params{.q = ops::f32_matrix(q.data(), tokens, width),
                                   .cu_seqlens_q = kv.cu_seqlens_q(),
                                   .pages = checked.pages,
                                   .cache = kv.cache(),
                                   .heads = kHeads,
                                   .kv_heads = kKvHeads,
                                   .head_dim = kHeadDim,
                                   .softmax_scale = 0.125f,
                                   .out = ops::f32_matrix(out.data(), tokens, width)};
  // Pairs of a query and a key that it sees.
  const double pairs = static_cast<double>(tokens) * (length - (queries - 1) / 2.0);
  run_op(state, static_cast<double>(layer_bytes), pairs * kHeads * kHeadDim * 4, [&] {
    backend().paged_attention(*stream, params);
    params.layer = (params.layer + 1) % layers;
  });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"sequences", "context", "queries"})->UseManualTime()->Unit(benchmark::kMicrosecond);
  for (const std::int64_t sequences : {1, 8}) {
    for (const std::int64_t context : {128, 512, 2048, 8192}) b->Args({sequences, context, 1});
  }
  b->Args({1, 512, 512});
  b->Args({1, 4096, 512});
}
BENCHMARK_CAPTURE(attention, bf16, ops::KvFormat::kBF16)->Apply(shapes);
BENCHMARK_CAPTURE(attention, fp8, ops::KvFormat::kF8E4M3)->Apply(shapes);

}  // namespace
}  // namespace tessera::bench
