// Times the CUDA backend's ops at the shapes of large models, one JSON line each on standard output.
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/cuda_bench.h"
#include "tessera/backends/cuda/cuda_backend.h"

namespace tessera::bench {
namespace {

class OpsBench : public CudaBench {
 public:
  using CudaBench::CudaBench;

  void linear(std::int64_t k, std::int64_t n, const std::vector<std::int64_t>& token_counts) {
    const std::int64_t copies = 1 + kBeyondCaches / (k * n * 2);
    std::vector<ops::Weight> weights;
    weights.reserve(static_cast<std::size_t>(copies));
    for (std::int64_t i = 0; i < copies; ++i) {
      weights.push_back(random_weight(ops::WeightFormat::kBF16, ops::WeightUsage::kLinear, n, k));
    }
    for (const std::int64_t tokens : token_counts) {
      const ops::Buffer in = random_buffer(tokens * k, 1);
      const ops::Buffer out = allocate(tokens * n * 4);
      const Work work{static_cast<double>(k * n * 2 + tokens * (k + n) * 4),
                      2.0 * static_cast<double>(tokens) * static_cast<double>(k) * static_cast<double>(n)};
      measure("linear_bf16", fmt::format("K {} N {} tokens {}", k, n, tokens), work, [&](std::int64_t i) {
        backend().linear(stream(),
                         {ops::f32_matrix(in.as<float>(), tokens, k), &weights[static_cast<std::size_t>(i % copies)],
                          nullptr, ops::f32_matrix(out.as<float>(), tokens, n), ops::OutputMode::kOverwrite});
      });
    }
  }

  void elementwise(std::int64_t tokens, std::int64_t width) {
    const std::int64_t copies = 1 + kBeyondCaches / (tokens * width * 4);
    const ops::Buffer x = random_buffer(copies * tokens * width, 3);
    const ops::Buffer y = allocate(tokens * width * 4);
    const ops::Weight weight = random_weight(ops::WeightFormat::kF32, ops::WeightUsage::kVector, 1, width);
    const auto input = [&](std::int64_t i) {
      return ops::f32_matrix(x.as<float>() + i % copies * tokens * width, tokens, width);
    };
    const ops::Matrix out = ops::f32_matrix(y.as<float>(), tokens, width);
    const std::string shape = fmt::format("tokens {} width {}", tokens, width);
    const double matrix_bytes = static_cast<double>(tokens * width * 4);
    measure("rms_norm", shape, {2 * matrix_bytes, 0.0},
            [&](std::int64_t i) { backend().rms_norm(stream(), {input(i), &weight, 1e-5f, out}); });
    measure("swiglu", shape, {3 * matrix_bytes, 0.0},
            [&](std::int64_t i) { backend().swiglu(stream(), {input(i), input(i + 1), out}); });
  }

  void sample(std::int64_t rows, std::int64_t vocab, float temperature, float top_p, std::int32_t top_k) {
    const ops::Buffer logits = allocate(rows * vocab * 4);
    std::vector<float> host = random_floats(rows * vocab, 11);
    for (float& x : host) x = 12.0f * x * x * x;
    backend().copy_to_device(stream(), logits.data(), host.data(), rows * vocab * 4);
    const ops::Buffer out = allocate(rows * static_cast<std::int64_t>(sizeof(ops::SampledToken)));
    ops::SampleRow row;
    row.temperature = temperature;
    row.top_p = top_p;
    row.top_k = top_k;
    const std::vector<ops::SampleRow> all(static_cast<std::size_t>(rows), row);
    measure(
        "sample_tokens",
        fmt::format("rows {} vocabulary {} temperature {} top_p {} top_k {}", rows, vocab, temperature, top_p, top_k),
        {static_cast<double>(rows * vocab * 4), 0.0}, [&](std::int64_t) {
          backend().sample_tokens(stream(), {ops::f32_matrix(logits.as<float>(), rows, vocab), all, 0,
                                             out.as<ops::SampledToken>(), nullptr, nullptr});
        });
  }

  // Sequences of equal length in a cache of several layers, which take turns.
  void pages(ops::KvFormat format, std::int64_t rows, std::int32_t length, std::int32_t kv_heads, std::int32_t group,
             std::int32_t head_dim, std::int32_t queries) {
    BenchPages bench_pages(*this, rows, length, queries);
    const std::int64_t row_pages = bench_pages.row_pages();
    const kv_cache::CheckedPages& checked = bench_pages.checked();
    const std::vector<std::int32_t>& cu = bench_pages.cu_seqlens_q();
    const std::int64_t tokens = rows * queries;
    ops::KvLayout layout = ops::gqa_kv_layout(format, 1, BenchPages::kPageSize, kv_heads, head_dim);
    const std::int64_t layer_bytes = layout.token_layer_bytes(0) * rows * length;
    layout.num_layers = static_cast<std::int32_t>(1 + kBeyondCaches / layer_bytes);
    const std::int64_t num_pages = bench_pages.num_pages();
    const ops::Buffer storage = allocate(layout.pool_bytes(num_pages));
    // Small exact numbers in every format; all scales are such as well.
    const std::vector<std::byte> pattern(static_cast<std::size_t>(storage.bytes()), std::byte{0x38});
    backend().copy_to_device(stream(), storage.data(), pattern.data(), storage.bytes());
    const ops::KvCacheView cache{layout, storage.data(), num_pages};

    const std::string shape =
        fmt::format("{} rows {} context {} kv_heads {} group {} head_dim {} queries {}", ops::kv_format_name(format),
                    rows, length, kv_heads, group, head_dim, queries);
    const std::int64_t width = static_cast<std::int64_t>(kv_heads) * group * head_dim;
    const ops::Buffer q = random_buffer(tokens * width, 5);
    const ops::Buffer out = allocate(tokens * width * 4);
    const double pairs = static_cast<double>(tokens) * (length - (queries - 1) / 2.0);
    measure("paged_attention", shape,
            {static_cast<double>(layer_bytes + 2 * tokens * width * 4), 4.0 * pairs * static_cast<double>(width)},
            [&](std::int64_t i) {
              backend().paged_attention(
                  stream(), {ops::f32_matrix(q.as<float>(), tokens, width), cu, checked.pages, cache,
                             static_cast<std::int32_t>(i % layout.num_layers), kv_heads * group, kv_heads, head_dim,
                             0.125f, ops::f32_matrix(out.as<float>(), tokens, width)});
            });
    if (queries == 1) {
      measure("verify_pages", shape, {static_cast<double>(rows * row_pages * (4 + 8 + 8 + 20)), 0.0},
              [&](std::int64_t) { bench_pages.verifier().check_after(stream()); });
      const std::int64_t kv_width = static_cast<std::int64_t>(kv_heads) * head_dim;
      const ops::Buffer kv = random_buffer(tokens * kv_width, 6);
      const ops::Buffer flags = allocate(tokens);
      measure("kv_write", shape, {static_cast<double>(tokens * (2 * kv_width * 4 + layout.token_layer_bytes(0))), 0.0},
              [&](std::int64_t i) {
                const ops::Matrix x = ops::f32_matrix(kv.as<float>(), tokens, kv_width);
                backend().kv_write(stream(), {checked.slots,
                                              {x, x},
                                              cache,
                                              static_cast<std::int32_t>(i % layout.num_layers),
                                              flags.as<std::uint8_t>()});
              });
      ops::KvLayout target = layout;
      target.format = ops::KvFormat::kF8E4M3;
      const ops::Buffer images = allocate(target.page_layer_bytes(0) * row_pages);
      const ops::Buffer digests = allocate(row_pages * 8);
      measure("gather_pages_to_fp8", shape,
              {static_cast<double>((layout.token_layer_bytes(0) + target.token_layer_bytes(0)) * length), 0.0},
              [&](std::int64_t i) {
                backend().gather_pages(
                    stream(), {checked.pages, cache, target, static_cast<std::int32_t>(i % layout.num_layers), i % rows,
                               0, static_cast<std::int32_t>(row_pages), 9, images.data(), digests.as<std::uint64_t>()});
              });
      measure("digest_pages", shape, {static_cast<double>(layout.token_layer_bytes(0) * length), 0.0},
              [&](std::int64_t i) {
                backend().digest_pages(
                    stream(), {checked.pages, cache, static_cast<std::int32_t>(i % layout.num_layers), i % rows, 0,
                               static_cast<std::int32_t>(row_pages), 9, digests.as<std::uint64_t>()});
              });
      // A step of all layers: what it wrote, and every page that it reads.
      const ops::Buffer recorded = allocate(num_pages * 8);
      backend().fill_zero(stream(), recorded.data(), recorded.bytes());
      measure("digest_tokens_all_layers", fmt::format("{} layers {}", layout.num_layers, shape),
              {static_cast<double>(layout.token_bytes() * tokens), 0.0}, [&](std::int64_t) {
                backend().digest_tokens(stream(),
                                        {checked.slots, cache, 0, layout.num_layers, 9, recorded.as<std::uint64_t>()});
              });
      std::vector<ops::PageTableEntry> entries;
      for (std::int32_t r = 0; r < rows; ++r) {
        for (std::int32_t j = 0; j < row_pages; ++j) entries.push_back({r, j});
      }
      const ops::Buffer device_entries = upload(entries);
      const ops::Buffer verdicts = allocate(std::ssize(entries) * static_cast<std::int64_t>(sizeof(ops::RowVerdict)));
      measure("check_digests", fmt::format("{} layers {}", layout.num_layers, shape),
              {static_cast<double>(layout.token_bytes() * rows * length), 0.0}, [&](std::int64_t) {
                backend().check_digests(stream(),
                                        {checked.pages, cache, 9, recorded.as<std::uint64_t>(), std::ssize(entries),
                                         device_entries.as<ops::PageTableEntry>(), verdicts.as<ops::RowVerdict>()});
              });
    }
  }
};

int run() {
  auto backend = backends::cuda::make_cuda_backend({});
  if (!backend.has_value()) {
    fmt::print(stderr, "{}\n", backend.error().to_string());
    return 1;
  }
  fmt::print(R"({{"backend": "{}"}})"
             "\n",
             (*backend)->name());
  OpsBench bench(**backend);
  bench.copy();
  for (const auto format : {ops::KvFormat::kBF16, ops::KvFormat::kF8E4M3}) {
    bench.pages(format, 1, 8192, 8, 8, 128, 1);
    bench.pages(format, 8, 8192, 8, 8, 128, 1);
    bench.pages(format, 32, 8192, 8, 8, 128, 1);
    bench.pages(format, 8, 65536, 1, 8, 128, 1);
    bench.pages(format, 32, 1024, 3, 3, 64, 1);
    bench.pages(format, 1, 4096, 8, 8, 128, 2048);
  }
  bench.linear(7168, 2048, {1, 8, 16, 32, 64, 256, 2048});
  bench.linear(2048, 7168, {1, 8});
  bench.linear(576, 1536, {1, 8, 64});
  bench.elementwise(1, 7168);
  bench.elementwise(64, 7168);
  bench.elementwise(4096, 7168);
  bench.sample(64, 163840, 0.0f, 1.0f, 0);
  bench.sample(64, 163840, 1.0f, 1.0f, 0);
  bench.sample(64, 163840, 1.0f, 0.95f, 0);
  bench.sample(64, 163840, 0.6f, 0.95f, 40);
  measure_mixtures(bench);
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main() { return tessera::bench::run(); }
