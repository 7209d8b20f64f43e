// KV write in both formats, gather with conversion and digest, scatter, the digests, and the page check.
#include "bench/op_bench.h"

namespace tessera::bench {
namespace {

constexpr std::uint64_t kDigestKey = 12345;

void kv_write(benchmark::State& state, ops::KvFormat format) {
  const auto tokens = static_cast<std::int32_t>(state.range(0));
  PagedSequences kv(format, 1, 1, tokens);
  const kv_cache::CheckedPages checked = kv.check(tokens);
  std::vector<float> k = random_floats(tokens * kKvDim, 1);
  std::vector<float> v = random_floats(tokens * kKvDim, 2);
  std::vector<std::uint8_t> nonfinite(static_cast<std::size_t>(tokens));
  const auto stream = backend().make_stream();
  const double bytes = 8.0 * static_cast<double>(tokens * kKvDim);
  run_op(state, bytes, 0.0, [&] {
    backend().kv_write(*stream, {checked.slots,
                                 {ops::f32_matrix(k.data(), tokens, kKvDim), ops::f32_matrix(v.data(), tokens, kKvDim)},
                                 kv.cache(),
                                 0,
                                 nonfinite.data()});
  });
}
void tokens_written(benchmark::internal::Benchmark* b) {
  b->ArgName("tokens")->UseManualTime()->Unit(benchmark::kMicrosecond)->Arg(1)->Arg(512);
}
BENCHMARK_CAPTURE(kv_write, bf16, ops::KvFormat::kBF16)->Apply(tokens_written);
BENCHMARK_CAPTURE(kv_write, fp8, ops::KvFormat::kF8E4M3)->Apply(tokens_written);

void gather_pages(benchmark::State& state, ops::KvFormat target_format) {
  constexpr std::int32_t kTokens = 2048;
  PagedSequences kv(ops::KvFormat::kBF16, 1, 1, kTokens);
  const kv_cache::CheckedPages checked = kv.check(0);
  ops::KvLayout target = kv.cache().layout;
  target.format = target_format;
  const std::int32_t pages = kTokens / target.page_size;
  std::vector<std::byte> images(static_cast<std::size_t>(pages * target.page_layer_bytes(0)));
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(pages));
  const auto stream = backend().make_stream();
  const double bytes = static_cast<double>(kv.cache().layout.token_layer_bytes(0)) * kTokens;
  run_op(state, bytes, 0.0, [&] {
    backend().gather_pages(
        *stream, {checked.pages, kv.cache(), target, 0, 0, 0, pages, kDigestKey, images.data(), digests.data()});
  });
}
BENCHMARK_CAPTURE(gather_pages, to_bf16, ops::KvFormat::kBF16)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(gather_pages, to_fp8, ops::KvFormat::kF8E4M3)->UseManualTime()->Unit(benchmark::kMicrosecond);

// What a decode engine does with the images that it is handed: every token of a sequence's pages, in one layer.
void scatter_pages(benchmark::State& state, ops::KvFormat format) {
  constexpr std::int32_t kTokens = 2048;
  PagedSequences kv(format, 1, 1, kTokens);
  const kv_cache::CheckedPages checked = kv.check(kTokens);
  const ops::KvLayout& layout = kv.cache().layout;
  const std::int32_t pages = kTokens / layout.page_size;
  std::vector<std::byte> images(static_cast<std::size_t>(pages * layout.page_layer_bytes(0)));
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(pages));
  const auto stream = backend().make_stream();
  backend().gather_pages(
      *stream, {checked.pages, kv.cache(), layout, 0, 0, 0, pages, kDigestKey, images.data(), digests.data()});
  const double bytes = static_cast<double>(layout.token_layer_bytes(0)) * kTokens;
  run_op(state, bytes, 0.0, [&] { backend().scatter_pages(*stream, {checked.slots, kv.cache(), 0, images.data()}); });
}
BENCHMARK_CAPTURE(scatter_pages, bf16, ops::KvFormat::kBF16)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(scatter_pages, fp8, ops::KvFormat::kF8E4M3)->UseManualTime()->Unit(benchmark::kMicrosecond);

void digest_pages(benchmark::State& state, ops::KvFormat format) {
  constexpr std::int32_t kTokens = 2048;
  PagedSequences kv(format, 1, 1, kTokens);
  const kv_cache::CheckedPages checked = kv.check(0);
  const ops::KvLayout& layout = kv.cache().layout;
  const std::int32_t pages = kTokens / layout.page_size;
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(pages));
  const auto stream = backend().make_stream();
  const double bytes = static_cast<double>(layout.token_layer_bytes(0)) * kTokens;
  run_op(state, bytes, 0.0, [&] {
    backend().digest_pages(*stream, {checked.pages, kv.cache(), 0, 0, 0, pages, kDigestKey, digests.data()});
  });
}
BENCHMARK_CAPTURE(digest_pages, bf16, ops::KvFormat::kBF16)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(digest_pages, fp8, ops::KvFormat::kF8E4M3)->UseManualTime()->Unit(benchmark::kMicrosecond);

// What a decode step of a batch adds to the recorded digests: a token of each sequence, in all layers.
void digest_tokens(benchmark::State& state, ops::KvFormat format) {
  constexpr int kRows = 32;
  constexpr int kLayers = 30;
  PagedSequences kv(format, kLayers, kRows, 64);
  const kv_cache::CheckedPages checked = kv.check(1);
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(kv.cache().num_pages));
  const auto stream = backend().make_stream();
  run_op(state, kRows * static_cast<double>(kv.cache().layout.token_bytes()), 0.0, [&] {
    backend().digest_tokens(*stream, {checked.slots, kv.cache(), 0, kLayers, kDigestKey, digests.data()});
  });
}
BENCHMARK_CAPTURE(digest_tokens, bf16, ops::KvFormat::kBF16)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(digest_tokens, fp8, ops::KvFormat::kF8E4M3)->UseManualTime()->Unit(benchmark::kMicrosecond);

// Every page that a decode step of a batch reads, in some of its layers: more than caches hold.
void check_digests(benchmark::State& state, ops::KvFormat format) {
  constexpr int kRows = 32;
  constexpr std::int32_t kTokens = 2048;
  constexpr int kLayers = 4;
  PagedSequences kv(format, kLayers, kRows, kTokens);
  const kv_cache::CheckedPages checked = kv.check(0);
  std::vector<ops::PageTableEntry> entries;
  for (std::int32_t row = 0; row < kRows; ++row) {
    for (std::int32_t j = 0; j < kTokens / kv.cache().layout.page_size; ++j) entries.push_back({row, j});
  }
  std::vector<ops::RowVerdict> verdicts(entries.size());
  const std::vector<std::uint64_t> recorded(static_cast<std::size_t>(kv.cache().num_pages));
  const auto stream = backend().make_stream();
  run_op(state, kRows * kTokens * static_cast<double>(kv.cache().layout.token_bytes()), 0.0, [&] {
    backend().check_digests(*stream, {checked.pages, kv.cache(), kDigestKey, recorded.data(), std::ssize(entries),
                                      entries.data(), verdicts.data()});
  });
}
BENCHMARK_CAPTURE(check_digests, bf16, ops::KvFormat::kBF16)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(check_digests, fp8, ops::KvFormat::kF8E4M3)->UseManualTime()->Unit(benchmark::kMillisecond);

// One decode step's check of a batch, host work of the verifier included.
void verify_pages(benchmark::State& state) {
  constexpr int kRows = 32;
  const auto length = static_cast<std::int32_t>(state.range(0));
  PagedSequences kv(ops::KvFormat::kBF16, 1, kRows, length);
  // What the check reads. A page: its table entry, two tags, two owners and its position. A row: kv_len, write_start,
  // and, of its one token, row, position, slot and the lease count of the page.
  constexpr double kPageBytes = 4 + 2 * 8 + 2 * 8 + 4;
  constexpr double kRowBytes = 4 + 4 + 4 + 4 + 8 + 4;
  const std::int64_t pages_a_row = length / kv.cache().layout.page_size;
  run_op(state, kRows * (static_cast<double>(pages_a_row) * kPageBytes + kRowBytes), 0.0, [&] { kv.check(1); });
}
BENCHMARK(verify_pages)->ArgName("context")->UseManualTime()->Unit(benchmark::kMicrosecond)->Arg(512)->Arg(8192);

}  // namespace
}  // namespace tessera::bench
