// What every benchmark of the CUDA backend starts from: timing, memory, random numbers, and sequences in checked pages.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/kv_cache/verifier.h"
#include "tessera/ops/backend.h"

namespace tessera::bench {

// More than the L2 cache of the devices that we know, with room.
inline constexpr std::int64_t kBeyondCaches = std::int64_t{400} << 20;

struct Work {
  double bytes = 0.0;
  double flops = 0.0;
};

class CudaBench {
 public:
  explicit CudaBench(ops::Backend& backend) : backend_(backend), stream_(backend.make_stream()) {}
  ops::Backend& backend() { return backend_; }
  ops::Stream& stream() { return *stream_; }

  // Runs body(i) for i = 0, 1, ... and prints the median over five rounds of the time of one.
  void measure(const std::string& op, const std::string& shape, const Work& work,
               const std::function<void(std::int64_t)>& body) {
    using Clock = std::chrono::steady_clock;
    const auto round = [&](std::int64_t count) {
      const auto begin = Clock::now();
      for (std::int64_t i = 0; i < count; ++i) body(next_++);
      stream_->synchronize();
      return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(count);
    };
    round(2);
    // About 20 ms a round.
    const std::int64_t count = std::clamp<std::int64_t>(static_cast<std::int64_t>(0.02 / round(3)), 3, 2000);
    std::vector<double> seconds(5);
    for (double& second : seconds) second = round(count);
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[2];
    if (op == "copy") copy_rate_ = work.bytes / median;
    fmt::print(R"({{"op": "{}", "shape": "{}", "us": {:.2f}, "us_min": {:.2f}, "gb_per_s": {:.1f}, )"
               R"("of_copy": {:.3f}, "tflop_per_s": {:.2f}}})"
               "\n",
               op, shape, median * 1e6, seconds[0] * 1e6, work.bytes / median * 1e-9,
               copy_rate_ > 0 ? work.bytes / median / copy_rate_ : 0.0, work.flops / median * 1e-12);
    std::fflush(stdout);
    TESSERA_CHECK(backend_.health().ok(), backend_.health().to_string());
  }

  ops::Buffer allocate(std::int64_t bytes) {
    auto buffer = backend_.allocate(bytes, "benchmark");
    TESSERA_CHECK(buffer.has_value(), buffer.error().to_string());
    return std::move(*buffer);
  }
  // Small numbers of both signs.
  static std::vector<float> random_floats(std::int64_t count, std::uint64_t seed) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& x : out) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      x = static_cast<float>(static_cast<std::int32_t>(seed >> 32)) * 0x1.0p-31f;
    }
    return out;
  }
  ops::Buffer random_buffer(std::int64_t floats, std::uint64_t seed) {
    const std::vector<float> host = random_floats(floats, seed);
    ops::Buffer buffer = allocate(floats * 4);
    backend_.copy_to_device(*stream_, buffer.data(), host.data(), floats * 4);
    return buffer;
  }
  ops::Weight random_weight(ops::WeightFormat format, ops::WeightUsage usage, std::int64_t rows, std::int64_t cols) {
    const std::vector<float> host = random_floats(rows * cols, 7);
    std::vector<base::BF16> rounded;
    ops::WeightSource source{format, usage, rows, cols, host.data(), nullptr, false};
    if (format == ops::WeightFormat::kBF16) {
      for (const float x : host) rounded.push_back(base::to_bf16(x));
      source.data = rounded.data();
    }
    auto weight = backend_.prepare_weight(source);
    TESSERA_CHECK(weight.has_value(), weight.error().to_string());
    return std::move(*weight);
  }

  template <typename T>
  ops::Buffer upload(const std::vector<T>& host) {
    const auto bytes = static_cast<std::int64_t>(host.size() * sizeof(T));
    ops::Buffer buffer = allocate(bytes);
    backend_.copy_to_device(*stream_, buffer.data(), host.data(), bytes);
    return buffer;
  }

  void copy() {
    constexpr std::int64_t kRows = 1 << 15;
    constexpr std::int64_t kCols = 1 << 14;
    const ops::Buffer from = allocate(kRows * kCols * 4);
    const ops::Buffer to = allocate(kRows * kCols * 4);
    backend_.fill_zero(*stream_, from.data(), from.bytes());
    measure("copy", fmt::format("{} bytes", from.bytes()), {2.0 * static_cast<double>(from.bytes()), 0.0},
            [&](std::int64_t) {
              backend_.copy_matrix(*stream_, ops::f32_matrix(from.as<float>(), kRows, kCols),
                                   ops::f32_matrix(to.as<float>(), kRows, kCols));
            });
  }

 private:
  ops::Backend& backend_;
  std::unique_ptr<ops::Stream> stream_;
  std::int64_t next_ = 0;
  double copy_rate_ = 0.0;
};

// Sequences of equal length whose last `queries` tokens are this step's, in pages that lie far apart, as they do in a
// pool that has served for a while; checked.
class BenchPages {
 public:
  static constexpr std::int32_t kPageSize = 64;
  BenchPages(CudaBench& bench, std::int64_t rows, std::int32_t length, std::int32_t queries)
      : rows_(rows), row_pages_(base::ceil_div(length, kPageSize)) {
    std::vector<std::uint64_t> tags(static_cast<std::size_t>(num_pages()));
    std::vector<std::uint64_t> owners(tags.size());
    std::vector<std::int32_t> positions(tags.size(), -1);
    const std::vector<std::int32_t> lease_counts(tags.size(), 1);
    std::vector<std::int32_t> table;
    std::vector<std::vector<kv_cache::Lease>> leases(static_cast<std::size_t>(rows));
    std::vector<kv_cache::RowExpectation> expectations;
    std::vector<std::int32_t> token_rows;
    std::vector<std::int32_t> token_positions;
    std::vector<std::int64_t> slots;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t j = 0; j < row_pages_; ++j) {
        const auto page = static_cast<std::int32_t>(1 + j * rows + (r + j * 7) % rows);
        const auto at = static_cast<std::size_t>(page);
        tags[at] = static_cast<std::uint64_t>(page) * 3;
        owners[at] = kv_cache::owner_of_sequence(static_cast<std::uint64_t>(r));
        positions[at] = static_cast<std::int32_t>(j);
        leases[static_cast<std::size_t>(r)].push_back({page, tags[at], owners[at]});
        table.push_back(page);
      }
      expectations.push_back({leases[static_cast<std::size_t>(r)], length, length - queries});
      for (std::int32_t p = length - queries; p < length; ++p) {
        token_rows.push_back(static_cast<std::int32_t>(r));
        token_positions.push_back(p);
        const auto page = leases[static_cast<std::size_t>(r)][static_cast<std::size_t>(p / kPageSize)].page;
        slots.push_back(static_cast<std::int64_t>(page) * kPageSize + p % kPageSize);
      }
      cu_.push_back(cu_.back() + queries);
    }
    tags_ = bench.upload(tags);
    owners_ = bench.upload(owners);
    positions_ = bench.upload(positions);
    leases_ = bench.upload(lease_counts);
    table_ = bench.upload(table);
    const std::int64_t tokens = rows * queries;
    auto verifier = kv_cache::Verifier::create(bench.backend(), {rows, row_pages_, tokens});
    TESSERA_CHECK(verifier.has_value());
    const kv_cache::CheckInput input{
        .records = {tags_.as<std::uint64_t>(), owners_.as<std::uint64_t>(), positions_.as<std::int32_t>(),
                    leases_.as<std::int32_t>(), num_pages()},
        .page_size = kPageSize,
        .page_table = table_.as<std::int32_t>(),
        .max_pages_per_row = row_pages_,
        .rows = expectations,
        .token_rows = token_rows,
        .token_positions = token_positions,
        .slot_mapping = slots};
    verifier_ = std::move(*verifier);
    checked_.emplace(verifier_->check_before(bench.stream(), input));
    for (const ops::RowVerdict& verdict : verifier_->read_verdicts(bench.stream()))
      TESSERA_CHECK(verdict.failed_checks == 0);
  }
  std::int64_t num_pages() const { return 1 + rows_ * row_pages_; }
  std::int64_t row_pages() const { return row_pages_; }
  const std::vector<std::int32_t>& cu_seqlens_q() const { return cu_; }
  const kv_cache::CheckedPages& checked() const { return *checked_; }
  kv_cache::Verifier& verifier() { return *verifier_; }

 private:
  std::int64_t rows_;
  std::int64_t row_pages_;
  std::vector<std::int32_t> cu_ = {0};
  ops::Buffer tags_;
  ops::Buffer owners_;
  ops::Buffer positions_;
  ops::Buffer leases_;
  ops::Buffer table_;
  std::unique_ptr<kv_cache::Verifier> verifier_;
  std::optional<kv_cache::CheckedPages> checked_;
};

// Routed experts, quantized products, latent attention and its selection (cuda_mixture_bench.cc).
void measure_mixtures(CudaBench& bench);

}  // namespace tessera::bench
