#include "bench/op_bench.h"

#include <algorithm>

#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/backends/cpu/simd/thread_pool.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::bench {

namespace {

constexpr std::int64_t kBeyondCpuCaches = 256 << 20;

}  // namespace

int backend_threads() {
  static const int threads = backends::cpu::simd::usable_physical_cores();
  return threads;
}

ops::Backend& backend() {
  static const std::unique_ptr<ops::Backend> instance = [] {
    auto made = backends::cpu::make_simd_backend({});
    TESSERA_CHECK(made.has_value(), made.error().to_string());
    benchmark::AddCustomContext("backend", std::string((*made)->name()));
    return std::move(*made);
  }();
  return *instance;
}

std::vector<float> random_floats(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (float& value : values) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    value = static_cast<float>(static_cast<std::int64_t>(state >> 40) - (1 << 23)) * 0x1.0p-23f;
  }
  return values;
}

ops::Weight random_weight(ops::WeightFormat format, ops::WeightUsage usage, std::int64_t rows, std::int64_t cols,
                          std::uint64_t seed) {
  const std::vector<float> values = random_floats(rows * cols, seed);
  std::vector<base::BF16> narrow;
  const void* data = values.data();
  if (format == ops::WeightFormat::kBF16) {
    narrow.resize(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), base::to_bf16);
    data = narrow.data();
  }
  auto weight = backend().prepare_weight({format, usage, rows, cols, data});
  TESSERA_CHECK(weight.has_value(), weight.error().to_string());
  return std::move(*weight);
}

std::vector<ops::Weight> weights_beyond_caches(ops::WeightFormat format, std::int64_t rows, std::int64_t cols) {
  const std::int64_t bytes = rows * cols * (format == ops::WeightFormat::kBF16 ? 2 : 4);
  std::vector<ops::Weight> weights;
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, base::ceil_div(kBeyondCpuCaches, bytes)); ++i) {
    weights.push_back(random_weight(format, ops::WeightUsage::kLinear, rows, cols, static_cast<std::uint64_t>(i)));
  }
  return weights;
}

PagedSequences::PagedSequences(const ops::KvLayout& layout, int sequences, std::int32_t length)
    : length_(length), stream_(backend().make_stream()) {
  pages_a_row_ = base::ceil_div(length, layout.page_size);
  const std::int64_t num_pages = 1 + sequences * pages_a_row_;
  auto storage = backend().allocate(layout.pool_bytes(num_pages), "benchmark pages");
  TESSERA_CHECK(storage.has_value(), storage.error().to_string());
  storage_ = std::move(*storage);
  cache_ = ops::KvCacheView{layout, storage_.data(), num_pages};
  auto verifier =
      kv_cache::Verifier::create(backend(), {sequences, pages_a_row_, static_cast<std::int64_t>(sequences) * length});
  TESSERA_CHECK(verifier.has_value(), verifier.error().to_string());
  verifier_ = std::move(*verifier);

  tags_.resize(static_cast<std::size_t>(num_pages));
  owners_.resize(tags_.size());
  page_positions_.assign(tags_.size(), -1);
  lease_counts_.resize(tags_.size());
  // A stride through the pool, so that neighbouring pages of a sequence are not neighbours in memory.
  std::int64_t next = 0;
  const std::int64_t used = num_pages - 1;
  const std::int64_t stride = used % 7 == 0 ? 11 : 7;
  for (int s = 0; s < sequences; ++s) {
    leases_.emplace_back();
    for (std::int64_t j = 0; j < pages_a_row_; ++j, next += stride) {
      // Where the stride divides the pool's size the walk repeats; the next free page is taken then.
      auto page = static_cast<std::size_t>(1 + next % used);
      while (tags_[page] != 0) page = page == static_cast<std::size_t>(used) ? 1 : page + 1;
      tags_[page] = page + 1000;
      owners_[page] = kv_cache::owner_of_sequence(static_cast<std::uint64_t>(s) + 1);
      page_positions_[page] = static_cast<std::int32_t>(j);
      lease_counts_[page] = 1;
      leases_.back().push_back({static_cast<kv_cache::PageId>(page), tags_[page], owners_[page]});
      table_.push_back(static_cast<std::int32_t>(page));
    }
  }
  for (int layer = 0; layer < layout.num_layers; ++layer) fill(layer, static_cast<std::uint64_t>(layer) + 7);
}

void PagedSequences::fill(int layer, std::uint64_t seed) {
  const kv_cache::CheckedPages checked = check(length_);
  const std::int64_t tokens = std::ssize(slots_);
  std::vector<std::uint8_t> nonfinite(static_cast<std::size_t>(tokens));
  ops::KvWriteParams params{
      .slots = checked.slots, .parts = {}, .cache = cache_, .layer = layer, .nonfinite_rows = nonfinite.data()};
  std::vector<std::vector<float>> values;
  for (int part = 0; part < cache_.layout.layer_parts(layer); ++part) {
    const std::int64_t elements = cache_.layout.parts[static_cast<std::size_t>(part)].elements;
    values.push_back(random_floats(tokens * elements, seed + static_cast<std::uint64_t>(part) * 1000));
    params.parts[static_cast<std::size_t>(part)] = ops::f32_matrix(values.back().data(), tokens, elements);
  }
  backend().kv_write(*stream_, params);
}

kv_cache::CheckedPages PagedSequences::check(std::int32_t new_tokens) {
  std::vector<kv_cache::RowExpectation> rows;
  cu_seqlens_q_ = {0};
  token_rows_.clear();
  token_positions_.clear();
  slots_.clear();
  for (std::size_t s = 0; s < leases_.size(); ++s) {
    rows.push_back({leases_[s], length_, length_ - new_tokens});
    cu_seqlens_q_.push_back(cu_seqlens_q_.back() + new_tokens);
    for (std::int32_t position = length_ - new_tokens; position < length_; ++position) {
      const std::int32_t page_size = cache_.layout.page_size;
      token_rows_.push_back(static_cast<std::int32_t>(s));
      token_positions_.push_back(position);
      slots_.push_back(std::int64_t{leases_[s][static_cast<std::size_t>(position / page_size)].page} * page_size +
                       position % page_size);
    }
  }
  kv_cache::CheckInput input;
  input.records = {tags_.data(), owners_.data(), page_positions_.data(), lease_counts_.data(), cache_.num_pages};
  input.page_size = cache_.layout.page_size;
  input.page_table = table_.data();
  input.max_pages_per_row = pages_a_row_;
  input.rows = rows;
  input.token_rows = token_rows_;
  input.token_positions = token_positions_;
  input.slot_mapping = slots_;
  const kv_cache::CheckedPages checked = verifier_->check_before(*stream_, input);
  for (const ops::RowVerdict& verdict : verifier_->read_verdicts(*stream_)) TESSERA_CHECK(verdict.failed_checks == 0);
  return checked;
}

}  // namespace tessera::bench
