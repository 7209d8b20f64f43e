// Times what mixtures of experts and latent attention are made of, at the shapes of one of eight ranks of Kimi K2.6 and
// GLM-5.2.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/cuda_bench.h"

namespace tessera::bench {

namespace {

constexpr std::int32_t kGroup = 32;

// A quantized weight in host memory, which as many weights as wanted may be made of.
struct Stored {
  ops::WeightSource source;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  Stored(ops::WeightFormat format, std::int64_t rows, std::int64_t cols) {
    const bool int4 = format == ops::WeightFormat::kInt4Group;
    data.resize(static_cast<std::size_t>(int4 ? rows * cols / 2 : rows * cols));
    std::uint64_t state = 1;
    for (std::byte& byte : data) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      byte = static_cast<std::byte>(state >> 33 & 0xb7);  // No NaN in e4m3.
    }
    // Small scales: 2^-7 in BF16, twice of it a number near that in F32.
    const std::int64_t blocks = base::ceil_div(rows, 128) * base::ceil_div(cols, 128);
    scales.resize(static_cast<std::size_t>(int4 ? rows * (cols / kGroup) * 2 : blocks * 4));
    for (std::size_t i = 0; i < scales.size(); i += 2) {
      scales[i] = std::byte{0x00};
      scales[i + 1] = std::byte{0x3c};
    }
    source.format = format;
    source.rows = rows;
    source.cols = cols;
    source.data = data.data();
    source.scales = scales.data();
    source.group_size = int4 ? kGroup : 0;
  }
  double bytes() const { return static_cast<double>(data.size() + scales.size()); }
};

void linear(CudaBench& bench, ops::WeightFormat format, std::int64_t k, std::int64_t n) {
  const Stored stored(format, n, k);
  const auto copies = 1 + static_cast<std::int64_t>(kBeyondCaches / stored.bytes());
  std::vector<ops::Weight> weights;
  for (std::int64_t i = 0; i < copies; ++i) {
    auto weight = bench.backend().prepare_weight(stored.source);
    TESSERA_CHECK(weight.has_value());
    weights.push_back(std::move(*weight));
  }
  for (const std::int64_t tokens : {1, 8, 64, 512}) {
    const ops::Buffer in = bench.random_buffer(tokens * k, 1);
    const ops::Buffer out = bench.allocate(tokens * n * 4);
    bench.measure(fmt::format("linear_{}", ops::weight_format_name(format)),
                  fmt::format("K {} N {} tokens {}", k, n, tokens),
                  {stored.bytes() + static_cast<double>(tokens * (k + n) * 4),
                   2.0 * static_cast<double>(tokens) * static_cast<double>(k) * static_cast<double>(n)},
                  [&](std::int64_t i) {
                    bench.backend().linear(bench.stream(), {.in = ops::f32_matrix(in.as<float>(), tokens, k),
                                                            .weight = &weights[static_cast<std::size_t>(i % copies)],
                                                            .out = ops::f32_matrix(out.as<float>(), tokens, n)});
                  });
  }
}

// Tokens take experts evenly.
void experts(CudaBench& bench, ops::WeightFormat format, std::int64_t count, std::int64_t hidden,
             std::int64_t intermediate) {
  constexpr std::int32_t kTaken = 8;
  const Stored wide(format, intermediate, hidden);
  const Stored narrow(format, hidden, intermediate);
  const std::vector<ops::WeightSource> wides(static_cast<std::size_t>(count), wide.source);
  const std::vector<ops::WeightSource> narrows(static_cast<std::size_t>(count), narrow.source);
  auto stack = bench.backend().prepare_experts({wides, wides, narrows});
  TESSERA_CHECK(stack.has_value(), stack.error().to_string());
  for (const std::int64_t tokens : {1, 8, 32, 64, 1024}) {
    std::vector<std::int32_t> ids;
    ids.reserve(static_cast<std::size_t>(tokens * kTaken));
    for (std::int64_t place = 0; place < tokens * kTaken; ++place) {
      ids.push_back(static_cast<std::int32_t>(place * 37 % count));
    }
    const ops::Buffer d_ids = bench.upload(ids);
    const ops::Buffer weights = bench.upload(std::vector<float>(ids.size(), 0.1f));
    const ops::Buffer in = bench.random_buffer(tokens * hidden, 2);
    const ops::Buffer out = bench.allocate(tokens * hidden * 4);
    bench.backend().fill_zero(bench.stream(), out.data(), out.bytes());
    const ops::Buffer scratch = bench.allocate(bench.backend().moe_experts_scratch_bytes(*stack, kTaken, tokens));
    const double distinct = static_cast<double>(std::min<std::int64_t>(count, tokens * kTaken));
    bench.measure(fmt::format("moe_experts_{}", ops::weight_format_name(format)),
                  fmt::format("{} experts hidden {} intermediate {} taken {} tokens {}", count, hidden, intermediate,
                              kTaken, tokens),
                  {distinct * (2 * wide.bytes() + narrow.bytes()),
                   6.0 * static_cast<double>(tokens * kTaken) * static_cast<double>(hidden * intermediate)},
                  [&](std::int64_t) {
                    ops::MoeExpertsParams params;
                    params.in = ops::f32_matrix(in.as<float>(), tokens, hidden);
                    params.experts = &*stack;
                    params.num_experts_per_tok = kTaken;
                    params.expert_ids = d_ids.as<std::int32_t>();
                    params.expert_weights = weights.as<float>();
                    params.out = ops::f32_matrix(out.as<float>(), tokens, hidden);
                    params.scratch = scratch.data();
                    bench.backend().moe_experts(bench.stream(), params);
                  });
  }
}

struct LatentCase {
  ops::KvFormat format;
  std::int64_t rows;
  std::int32_t length;
  std::int32_t queries;
  ops::MlaForm form;
};

void latent_attention(CudaBench& bench, const ops::MlaShape& shape, const LatentCase& c) {
  constexpr std::int32_t kIndexHeads = 32;
  constexpr std::int32_t kIndexDim = 128;
  constexpr std::int32_t kTopk = 2048;
  BenchPages pages(bench, c.rows, c.length, c.queries);
  ops::LayerSet index_layers;
  index_layers.insert(0);
  ops::KvLayout layout = ops::mla_kv_layout(c.format, 1, BenchPages::kPageSize, shape.kv_lora_rank,
                                            shape.qk_rope_head_dim, kIndexDim, index_layers);
  const double row_bytes = static_cast<double>(layout.row_bytes(0) + layout.row_scale_bytes(0));
  const double key_bytes = static_cast<double>(layout.row_bytes(1) + layout.row_scale_bytes(1));
  const std::int64_t tokens = c.rows * c.queries;
  layout.num_layers = static_cast<std::int32_t>(1 + kBeyondCaches / (layout.token_layer_bytes(0) * c.rows * c.length));
  for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) layout.index_layers.insert(layer);
  const ops::Buffer storage = bench.allocate(layout.pool_bytes(pages.num_pages()));
  // Small positive numbers in every format, all different, or the selection would have to tell equals apart.
  std::vector<std::uint64_t> words(static_cast<std::size_t>(storage.bytes() / 8));
  std::uint64_t state = 1;
  for (std::uint64_t& word : words) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    word = 0x3030303030303030ull | ((state ^ state >> 29) & 0x0707070707070707ull);
  }
  bench.backend().copy_to_device(bench.stream(), storage.data(), words.data(), storage.bytes());
  const ops::KvCacheView cache{layout, storage.data(), pages.num_pages()};
  const std::int64_t up_rows = std::int64_t{shape.heads} * (shape.qk_nope_head_dim + shape.v_head_dim);
  const std::vector<float> up_host = CudaBench::random_floats(up_rows * shape.kv_lora_rank, 3);
  ops::WeightSource up_source;
  up_source.rows = up_rows;
  up_source.cols = shape.kv_lora_rank;
  up_source.data = up_host.data();
  auto up = bench.backend().prepare_mla_up(up_source, shape);
  TESSERA_CHECK(up.has_value());
  const std::int64_t q_width = std::int64_t{shape.heads} * (shape.qk_nope_head_dim + shape.qk_rope_head_dim);
  const std::int64_t out_width = std::int64_t{shape.heads} * shape.v_head_dim;
  const ops::Buffer q = bench.random_buffer(tokens * q_width, 5);
  const ops::Buffer out = bench.allocate(tokens * out_width * 4);
  const ops::Buffer scratch =
      bench.allocate(bench.backend().mla_attention_scratch_bytes(shape, tokens, c.length + BenchPages::kPageSize));
  const std::vector<ops::MlaForm> forms(static_cast<std::size_t>(c.rows), c.form);
  const bool expanded = c.form == ops::MlaForm::kExpanded;
  const std::string text =
      fmt::format("{} {} rows {} context {} queries {} heads {} v_head_dim {}", ops::kv_format_name(c.format),
                  expanded ? "expanded" : "absorbed", c.rows, c.length, c.queries, shape.heads, shape.v_head_dim);
  const double pairs = static_cast<double>(tokens) * (c.length - (c.queries - 1) / 2.0);
  const double width = expanded ? shape.qk_nope_head_dim + shape.qk_rope_head_dim + shape.v_head_dim
                                : 2 * shape.kv_lora_rank + shape.qk_rope_head_dim;
  ops::MlaAttentionParams params{.q = ops::f32_matrix(q.as<float>(), tokens, q_width),
                                 .cu_seqlens_q = pages.cu_seqlens_q(),
                                 .forms = forms,
                                 .pages = pages.checked().pages,
                                 .cache = cache,
                                 .layer = 0,
                                 .up = &*up,
                                 .softmax_scale = 0.07f,
                                 .out = ops::f32_matrix(out.as<float>(), tokens, out_width),
                                 .scratch = scratch.data()};
  bench.measure("mla_attention", text,
                {row_bytes * static_cast<double>(c.rows) * c.length, 2.0 * pairs * width * shape.heads},
                [&](std::int64_t i) {
                  params.layer = static_cast<std::int32_t>(i % layout.num_layers);
                  bench.backend().mla_attention(bench.stream(), params);
                });
  if (expanded) return;
  const ops::Buffer index_q = bench.random_buffer(tokens * kIndexHeads * kIndexDim, 6);
  const ops::Buffer index_weights = bench.random_buffer(tokens * kIndexHeads, 7);
  const ops::Buffer positions = bench.allocate(tokens * kTopk * 4);
  const ops::Buffer counts = bench.allocate(tokens * 4);
  const ops::Buffer select_scratch =
      bench.allocate(bench.backend().dsa_select_scratch_bytes(kIndexHeads, kIndexDim, tokens, c.length));
  const ops::TokenSelection selection{positions.as<std::int32_t>(), counts.as<std::int32_t>(), kTopk};
  bench.measure("dsa_select", text + " of 32 index heads",
                {key_bytes * static_cast<double>(c.rows) * c.length, 2.0 * pairs * kIndexHeads * kIndexDim},
                [&](std::int64_t i) {
                  bench.backend().dsa_select(
                      bench.stream(), {.q = ops::f32_matrix(index_q.as<float>(), tokens, kIndexHeads * kIndexDim),
                                       .weights = ops::f32_matrix(index_weights.as<float>(), tokens, kIndexHeads),
                                       .cu_seqlens_q = pages.cu_seqlens_q(),
                                       .pages = pages.checked().pages,
                                       .cache = cache,
                                       .layer = static_cast<std::int32_t>(i % layout.num_layers),
                                       .index_n_heads = kIndexHeads,
                                       .index_head_dim = kIndexDim,
                                       .softmax_scale = 0.02f,
                                       .selection = selection,
                                       .scratch = select_scratch.data()});
                });
  params.selection = &selection;
  const double selected = static_cast<double>(tokens) * std::min(kTopk, c.length);
  bench.measure("mla_attention_sparse", text, {row_bytes * selected, 2.0 * selected * width * shape.heads},
                [&](std::int64_t i) {
                  params.layer = static_cast<std::int32_t>(i % layout.num_layers);
                  bench.backend().mla_attention(bench.stream(), params);
                });
}

void route(CudaBench& bench, std::int64_t tokens, std::int64_t count) {
  const ops::Buffer logits = bench.random_buffer(tokens * count, 9);
  const ops::Buffer ids = bench.allocate(tokens * 8 * 4);
  const ops::Buffer weights = bench.allocate(tokens * 8 * 4);
  ops::MoeRouteParams params;
  params.logits = ops::f32_matrix(logits.as<float>(), tokens, count);
  params.num_experts_per_tok = 8;
  params.expert_ids = ids.as<std::int32_t>();
  params.expert_weights = weights.as<float>();
  bench.measure("moe_route", fmt::format("{} experts tokens {}", count, tokens),
                {static_cast<double>(tokens * count * 4), 0.0},
                [&](std::int64_t) { bench.backend().moe_route(bench.stream(), params); });
}

}  // namespace

void measure_mixtures(CudaBench& bench) {
  using ops::WeightFormat;
  for (const WeightFormat format : {WeightFormat::kF8Block128, WeightFormat::kInt4Group})
    linear(bench, format, 7168, 2048);
  route(bench, 64, 384);
  experts(bench, WeightFormat::kInt4Group, 384, 7168, 256);
  experts(bench, WeightFormat::kF8Block128, 256, 6144, 256);
  const ops::MlaShape kimi{8, 512, 64, 128, 128};
  const ops::MlaShape glm{8, 512, 64, 192, 256};
  for (const ops::KvFormat format : {ops::KvFormat::kF8E4M3, ops::KvFormat::kBF16}) {
    for (const std::int64_t rows : {1, 8, 16, 32, 64}) {
      latent_attention(bench, kimi, {format, rows, 8192, 1, ops::MlaForm::kAbsorbed});
    }
    for (const std::int64_t rows : {1, 8}) {
      latent_attention(bench, kimi, {format, rows, 65536, 1, ops::MlaForm::kAbsorbed});
    }
  }
  latent_attention(bench, kimi, {ops::KvFormat::kBF16, 1, 4096, 2048, ops::MlaForm::kExpanded});
  latent_attention(bench, glm, {ops::KvFormat::kBF16, 1, 4096, 2048, ops::MlaForm::kExpanded});
}

}  // namespace tessera::bench
