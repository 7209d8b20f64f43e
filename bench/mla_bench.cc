// Latent attention at the large models' shape (64 heads, latents of 512 and 64), decode and prefill, over BF16 and FP8
// pages; the indexer's selection.
#include <algorithm>

#include "bench/op_bench.h"
#include "tessera/base/check.h"

namespace tessera::bench {
namespace {

constexpr ops::MlaShape kShape{64, 512, 64, 128, 128};
constexpr std::int32_t kIndexHeads = 32;
constexpr std::int32_t kIndexDim = 128;

ops::KvLayout layout_of(ops::KvFormat format, int layers) {
  ops::LayerSet index_layers;
  for (int layer = 0; layer < layers; ++layer) index_layers.insert(layer);
  return ops::mla_kv_layout(format, layers, 64, kShape.kv_lora_rank, kShape.qk_rope_head_dim, kIndexDim, index_layers);
}

// Random up projections in BF16, so many that a loop over them reads memory.
const std::vector<ops::MlaUpProjection>& up_projections() {
  static const std::vector<ops::MlaUpProjection> all = [] {
    std::vector<ops::MlaUpProjection> made;
    const std::int64_t rows = std::int64_t{kShape.heads} * (kShape.qk_nope_head_dim + kShape.v_head_dim);
    for (std::uint64_t i = 0; i < 8; ++i) {
      const std::vector<float> values = random_floats(rows * kShape.kv_lora_rank, i);
      std::vector<base::BF16> narrow(values.size());
      std::transform(values.begin(), values.end(), narrow.begin(), base::to_bf16);
      auto up = backend().prepare_mla_up({.format = ops::WeightFormat::kBF16,
                                          .usage = ops::WeightUsage::kLinear,
                                          .rows = rows,
                                          .cols = kShape.kv_lora_rank,
                                          .data = narrow.data()},
                                         kShape);
      TESSERA_CHECK(up.has_value(), up.error().to_string());
      made.push_back(std::move(*up));
    }
    return made;
  }();
  return all;
}

// `queries` tokens at the end of a context. Bytes are the latents that are read and the up projection once; FLOPs are
// those of the products.
void mla(benchmark::State& state, ops::KvFormat format, ops::MlaForm form) {
  const auto length = static_cast<std::int32_t>(state.range(0));
  const auto queries = static_cast<std::int32_t>(state.range(1));
  const auto selected = static_cast<std::int32_t>(state.range(2));  // 0: every position.
  const int layers = std::max(1, 65536 / length);
  PagedSequences kv(layout_of(format, layers), 1, length);
  const kv_cache::CheckedPages checked = kv.check(queries);
  const std::int64_t q_width = std::int64_t{kShape.heads} * (kShape.qk_nope_head_dim + kShape.qk_rope_head_dim);
  const std::int64_t out_width = std::int64_t{kShape.heads} * kShape.v_head_dim;
  std::vector<float> q = random_floats(queries * q_width, 3);
  std::vector<float> out(static_cast<std::size_t>(queries * out_width));
  auto scratch = backend().allocate(backend().mla_attention_scratch_bytes(kShape, queries, length), "scratch");
  TESSERA_CHECK(scratch.has_value());
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> counts(static_cast<std::size_t>(queries), selected);
  for (std::int32_t t = 0; t < queries; ++t) {
    // Spread over what the first query sees.
    for (std::int64_t i = 0; i < selected; ++i) {
      positions.push_back(static_cast<std::int32_t>(i * (length - queries + 1) / selected));
    }
  }
  const ops::TokenSelection selection{positions.data(), counts.data(), selected};
  const auto stream = backend().make_stream();
  const std::vector<ops::MlaForm> forms = {form};
  const std::vector<ops::MlaUpProjection>& ups = up_projections();
  std::size_t next = 0;
  ops::MlaAttentionParams params{.q = ops::f32_matrix(q.data(), queries, q_width),
                                 .cu_seqlens_q = kv.cu_seqlens_q(),
                                 .forms = forms,
                                 .pages = checked.pages,
                                 .cache = kv.cache(),
                                 .softmax_scale = 0.07f,
                                 .selection = selected > 0 ? &selection : nullptr,
                                 .out = ops::f32_matrix(out.data(), queries, out_width),
                                 .scratch = scratch->data()};
  const double keys = selected > 0 ? selected : length - (queries - 1) / 2.0;  // Of a query.
  const double up_elements =
      static_cast<double>(kShape.heads) * (kShape.qk_nope_head_dim + kShape.v_head_dim) * kShape.kv_lora_rank;
  const bool absorbed = form == ops::MlaForm::kAbsorbed;
  const double pair = absorbed ? 2 * kShape.kv_lora_rank + kShape.qk_rope_head_dim
                               : kShape.qk_nope_head_dim + kShape.qk_rope_head_dim + kShape.v_head_dim;
  const double flops = 2.0 * up_elements * (absorbed ? queries : length) + 2.0 * pair * kShape.heads * keys * queries;
  const ops::KvLayout& layout = kv.cache().layout;
  const double row_bytes =
      static_cast<double>(layout.row_bytes(ops::kPartLatent) + layout.row_scale_bytes(ops::kPartLatent));
  run_op(state, row_bytes * (selected > 0 ? keys : length) + 2.0 * up_elements, flops, [&] {
    params.up = &ups[next];
    backend().mla_attention(*stream, params);
    params.layer = (params.layer + 1) % layers;
    next = (next + 1) % ups.size();
  });
}

void decodes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"context", "queries", "selected"})->UseManualTime()->Unit(benchmark::kMillisecond);
  b->Args({4096, 1, 0})->Args({32768, 1, 0})->Args({32768, 1, 2048});
}
void prefills(benchmark::internal::Benchmark* b) {
  b->ArgNames({"context", "queries", "selected"})->UseManualTime()->Unit(benchmark::kMillisecond);
  b->Args({512, 512, 0})->Args({4096, 512, 0})->Args({4096, 256, 2048});
}
BENCHMARK_CAPTURE(mla, decode_bf16, ops::KvFormat::kBF16, ops::MlaForm::kAbsorbed)->Apply(decodes);
BENCHMARK_CAPTURE(mla, decode_fp8, ops::KvFormat::kF8E4M3, ops::MlaForm::kAbsorbed)->Apply(decodes);
BENCHMARK_CAPTURE(mla, prefill_bf16, ops::KvFormat::kBF16, ops::MlaForm::kExpanded)->Apply(prefills);
BENCHMARK_CAPTURE(mla, prefill_fp8, ops::KvFormat::kF8E4M3, ops::MlaForm::kExpanded)->Apply(prefills);

void dsa_select(benchmark::State& state) {
  constexpr std::int32_t kTop = 2048;
  const auto length = static_cast<std::int32_t>(state.range(0));
  const auto queries = static_cast<std::int32_t>(state.range(1));
  const int layers = std::max(1, 65536 / length);
  PagedSequences kv(layout_of(ops::KvFormat::kF8E4M3, layers), 1, length);
  const kv_cache::CheckedPages checked = kv.check(queries);
  std::vector<float> q = random_floats(std::int64_t{queries} * kIndexHeads * kIndexDim, 3);
  std::vector<float> weights = random_floats(std::int64_t{queries} * kIndexHeads, 4);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(queries) * kTop);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(queries));
  auto scratch =
      backend().allocate(backend().dsa_select_scratch_bytes(kIndexHeads, kIndexDim, queries, length), "scratch");
  TESSERA_CHECK(scratch.has_value());
  const auto stream = backend().make_stream();
  ops::DsaSelectParams params{.q = ops::f32_matrix(q.data(), queries, std::int64_t{kIndexHeads} * kIndexDim),
                              .weights = ops::f32_matrix(weights.data(), queries, kIndexHeads),
                              .cu_seqlens_q = kv.cu_seqlens_q(),
                              .pages = checked.pages,
                              .cache = kv.cache(),
                              .index_n_heads = kIndexHeads,
                              .index_head_dim = kIndexDim,
                              .softmax_scale = 0.08f,
                              .selection = {positions.data(), counts.data(), kTop},
                              .scratch = scratch->data()};
  const ops::KvLayout& layout = kv.cache().layout;
  const double bytes =
      static_cast<double>(layout.row_bytes(ops::kPartIndexKeys) + layout.row_scale_bytes(ops::kPartIndexKeys)) * length;
  const double pairs = queries * (length - (queries - 1) / 2.0);
  run_op(state, bytes, 2.0 * pairs * kIndexHeads * kIndexDim, [&] {
    backend().dsa_select(*stream, params);
    params.layer = (params.layer + 1) % layers;
  });
}
BENCHMARK(dsa_select)
    ->ArgNames({"context", "queries"})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Args({4096, 1})
    ->Args({32768, 1})
    ->Args({8192, 64});

}  // namespace
}  // namespace tessera::bench
