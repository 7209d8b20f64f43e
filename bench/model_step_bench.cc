// A whole forward pass of SmolLM2-135M's shape, op by op as the model calls them, with distinct BF16 weights in every
// layer: what the sum of the ops costs, their dispatch and the threads' waking included.
#include "bench/op_bench.h"

namespace tessera::bench {
namespace {

struct Layer {
  ops::Weight input_norm, q, k, v, o, post_norm, gate, up, down;
};

struct Model {
  std::vector<Layer> layers;
  ops::Weight embedding, final_norm, head;
  double bytes = 0.0;  // Of all products' weights.
  double flops_a_token = 0.0;
};

ops::Weight product(Model& model, std::int64_t n, std::int64_t k) {
  model.bytes += 2.0 * static_cast<double>(n * k);
  model.flops_a_token += 2.0 * static_cast<double>(n * k);
  ops::Weight weight = random_weight(ops::WeightFormat::kBF16, ops::WeightUsage::kLinear, n, k, 1);
  return weight;
}

const Model& model() {
  static const Model instance = [] {
    Model m;
    const auto norm = [] { return random_weight(ops::WeightFormat::kF32, ops::WeightUsage::kVector, 1, kHidden, 2); };
    for (int i = 0; i < kLayers; ++i) {
      Layer layer;
      layer.input_norm = norm();
      layer.q = product(m, kHidden, kHidden);
      layer.k = product(m, kKvDim, kHidden);
      layer.v = product(m, kKvDim, kHidden);
      layer.o = product(m, kHidden, kHidden);
      layer.post_norm = norm();
      layer.gate = product(m, kFfn, kHidden);
      layer.up = product(m, kFfn, kHidden);
      layer.down = product(m, kHidden, kFfn);
      m.layers.push_back(std::move(layer));
    }
    m.embedding = random_weight(ops::WeightFormat::kBF16, ops::WeightUsage::kEmbedding, kVocabulary, kHidden, 3);
    m.final_norm = norm();
    m.head = product(m, kVocabulary, kHidden);
    return m;
  }();
  return instance;
}

// sequences x queries tokens, at the end of contexts of `context` tokens. As an engine does it, logits are computed
// only for each sequence's last token.
void model_step(benchmark::State& state, ops::KvFormat format) {
  const auto sequences = static_cast<int>(state.range(0));
  const auto context = static_cast<std::int32_t>(state.range(1));
  const auto queries = static_cast<std::int32_t>(state.range(2));
  const Model& m = model();
  PagedSequences kv(format, kLayers, sequences, context);
  const kv_cache::CheckedPages checked = kv.check(queries);
  const std::int64_t tokens = std::int64_t{sequences} * queries;
  std::vector<std::vector<float>> storage;
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    storage.emplace_back(static_cast<std::size_t>(rows * cols));
    return ops::f32_matrix(storage.back().data(), rows, cols);
  };
  const ops::Matrix residual = matrix(tokens, kHidden);
  const ops::Matrix normed = matrix(tokens, kHidden);
  const ops::Matrix q = matrix(tokens, kHidden);
  const ops::Matrix k = matrix(tokens, kKvDim);
  const ops::Matrix v = matrix(tokens, kKvDim);
  const ops::Matrix attended = matrix(tokens, kHidden);
  const ops::Matrix gate = matrix(tokens, kFfn);
  const ops::Matrix up = matrix(tokens, kFfn);
  const ops::Matrix last = matrix(sequences, kHidden);
  const ops::Matrix logits = matrix(sequences, kVocabulary);
  std::vector<std::uint8_t> nonfinite(static_cast<std::size_t>(tokens));
  std::vector<std::int32_t> ids;
  ids.reserve(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>(t * 7919 % kVocabulary));
  std::vector<float> frequencies;
  frequencies.reserve(kHeadDim / 2);
  for (int i = 0; i < kHeadDim / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(1 << (i / 2)));
  std::vector<ops::SampleRow> rows(static_cast<std::size_t>(sequences));
  std::vector<ops::SampledToken> sampled(rows.size());
  const auto stream = backend().make_stream();
  ops::Backend& b = backend();
  const auto linear = [&](const ops::Matrix& in, const ops::Weight& weight, const ops::Matrix& out,
                          ops::OutputMode mode = ops::OutputMode::kOverwrite) {
    b.linear(*stream, {in, &weight, nullptr, out, mode});
  };
  const auto rope = [&](const ops::Matrix& x, std::int32_t heads) {
    b.rope(*stream, {.x = x,
                     .positions = kv.positions(),
                     .inverse_frequencies = frequencies,
                     .heads = heads,
                     .head_dim = kHeadDim,
                     .rotary_dim = kHeadDim});
  };
  const double kv_bytes =
      static_cast<double>(kv.cache().layout.token_bytes()) * static_cast<double>(sequences) * context;
  const double head_flops = 2.0 * static_cast<double>(kVocabulary * kHidden);
  const double flops = (m.flops_a_token - head_flops) * static_cast<double>(tokens) + head_flops * sequences;
  run_op(state, m.bytes + kv_bytes, flops, [&] {
    b.embedding(*stream, {&m.embedding, ids, residual});
    int index = 0;
    for (const Layer& layer : m.layers) {
      b.rms_norm(*stream, {residual, &layer.input_norm, 1e-5f, normed});
      linear(normed, layer.q, q);
      linear(normed, layer.k, k);
      linear(normed, layer.v, v);
      rope(q, kHeads);
      rope(k, kKvHeads);
      b.kv_write(*stream, {checked.slots, {k, v}, kv.cache(), index, nonfinite.data()});
      b.paged_attention(*stream, {.q = q,
                                  .cu_seqlens_q = kv.cu_seqlens_q(),
                                  .pages = checked.pages,
                                  .cache = kv.cache(),
                                  .layer = index++,
                                  .heads = kHeads,
                                  .kv_heads = kKvHeads,
                                  .head_dim = kHeadDim,
                                  .softmax_scale = 0.125f,
                                  .out = attended});
      linear(attended, layer.o, residual, ops::OutputMode::kAdd);
      b.rms_norm(*stream, {residual, &layer.post_norm, 1e-5f, normed});
      linear(normed, layer.gate, gate);
      linear(normed, layer.up, up);
      b.swiglu(*stream, {gate, up, gate});
      linear(gate, layer.down, residual, ops::OutputMode::kAdd);
    }
    const ops::Matrix ends{residual.f32() + (queries - 1) * kHidden, ops::DType::kF32, sequences, kHidden,
                           queries * kHidden};
    b.rms_norm(*stream, {ends, &m.final_norm, 1e-5f, last});
    linear(last, m.head, logits);
    b.sample_tokens(*stream, {.logits = logits, .rows = rows, .out = sampled.data()});
  });
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate);
}

void steps(benchmark::internal::Benchmark* b) {
  b->ArgNames({"sequences", "context", "queries"})->UseManualTime()->Unit(benchmark::kMillisecond);
  for (const std::int64_t sequences : {1, 8, 32}) b->Args({sequences, 256, 1});
  b->Args({1, 2048, 1});
  b->Args({1, 512, 512});
}
BENCHMARK_CAPTURE(model_step, bf16, ops::KvFormat::kBF16)->Apply(steps);
BENCHMARK_CAPTURE(model_step, fp8, ops::KvFormat::kF8E4M3)->Apply(steps);

}  // namespace
}  // namespace tessera::bench
