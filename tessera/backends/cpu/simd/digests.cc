// The digests that a pool records of its pages: rows hashed by all threads, their hashes added in any order.
#include <fmt/format.h>
#include <xxh_x86dispatch.h>  // Gives XXH3_64bits_withSeed the instruction set that the processor has.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

namespace {

// Rows of one task, and rows that are worth another thread.
constexpr std::int64_t kTokensATask = 16;
constexpr std::int64_t kRowsAChunk = 64;

// Hashes the rows of one layer. A row is one to six arrays (data and scales of each part) that lie apart and are hashed
// as one.
class LayerHasher {
 public:
  LayerHasher(const ops::KvCacheView& cache, std::int32_t layer, std::uint64_t key)
      : layer_(layer), key_(key), page_size_(cache.layout.page_size) {
    for (int p = 0; p < cache.layout.layer_parts(layer); ++p) {
      add(cache.page_data(layer, p, 0), cache.layout.row_bytes(p));
      add(cache.page_scales(layer, p, 0), cache.layout.row_scale_bytes(p));
    }
  }

  // `scratch` holds the bytes of a row.
  std::uint64_t hash(std::int64_t page, std::int32_t slot, std::byte* scratch) const {
    const std::int64_t row = page * page_size_ + slot;
    const std::uint64_t seed = ops::digest_seed(key_, layer_, slot);
    if (arrays_ == 1) {
      return XXH3_64bits_withSeed(begin_[0] + row * bytes_[0], static_cast<std::size_t>(bytes_[0]), seed);
    }
    std::size_t length = 0;
    for (std::size_t a = 0; a < arrays_; ++a) {
      std::memcpy(scratch + length, begin_[a] + row * bytes_[a], static_cast<std::size_t>(bytes_[a]));
      length += static_cast<std::size_t>(bytes_[a]);
    }
    return XXH3_64bits_withSeed(scratch, length, seed);
  }

 private:
  void add(const std::byte* begin, std::int64_t row_bytes) {
    if (row_bytes == 0) return;
    begin_[arrays_] = begin;
    bytes_[arrays_] = row_bytes;
    ++arrays_;
  }

  static constexpr std::size_t kArraysMax = 2 * std::size_t{ops::KvLayout::kPartsMax};
  const std::int32_t layer_;
  const std::uint64_t key_;
  const std::int32_t page_size_;
  std::size_t arrays_ = 0;
  std::array<const std::byte*, kArraysMax> begin_{};
  std::array<std::int64_t, kArraysMax> bytes_{};  // Of one row.
};

void add_to(std::uint64_t& sum, std::uint64_t term) { std::atomic_ref(sum).fetch_add(term, std::memory_order_relaxed); }

}  // namespace

void choose_row_hash() {
  const std::array<std::byte, 256> long_row{};
  XXH3_64bits_withSeed(long_row.data(), long_row.size(), 1);
}

void SimdBackend::digest_tokens(ops::Stream&, const ops::DigestTokensParams& params) {
  ops::check_params(params);
  const ops::KvLayout& layout = params.cache.layout;
  TESSERA_CHECK(supports(layout.format));
  const std::int64_t tokens = params.slots.tokens();
  if (tokens == 0) return;
  const std::int64_t row_bytes_max = layout.page_layer_bytes_max() / layout.page_size;
  // A task is some tokens in one layer.
  const std::int64_t tasks_a_layer = base::ceil_div(tokens, kTokensATask);
  const std::int64_t tasks_a_chunk = base::ceil_div(kRowsAChunk, std::min(tokens, kTokensATask));
  threads_.parallel_for(params.num_layers * tasks_a_layer, tasks_a_chunk, [&](std::int64_t begin, std::int64_t end) {
    const ScratchPool::Loan loan = scratch_.borrow(row_bytes_max);
    for (std::int64_t task = begin; task < end; ++task) {
      const auto layer = static_cast<std::int32_t>(params.first_layer + task / tasks_a_layer);
      const LayerHasher hasher(params.cache, layer, params.digest_key);
      const std::int64_t first = task % tasks_a_layer * kTokensATask;
      // Neighbouring tokens lie in the same page, whose sum other threads add to as well.
      std::int64_t page = 0;
      std::uint64_t sum = 0;
      for (std::int64_t t = first; t < std::min(first + kTokensATask, tokens); ++t) {
        const std::int64_t slot = params.slots.slots()[t];
        if (slot == ops::kNullSlot) continue;
        TESSERA_CHECK(slot >= layout.page_size && slot < params.cache.num_pages * layout.page_size,
                      fmt::format("slot {}", slot));
        if (slot / layout.page_size != page) {
          if (page != 0) add_to(params.digests[page], sum);
          page = slot / layout.page_size;
          sum = 0;
        }
        sum += hasher.hash(page, static_cast<std::int32_t>(slot % layout.page_size), loan.as<std::byte>());
      }
      if (page != 0) add_to(params.digests[page], sum);
    }
  });
}

void SimdBackend::check_digests(ops::Stream&, const ops::CheckDigestsParams& params) {
  ops::check_params(params);
  const ops::KvLayout& layout = params.cache.layout;
  TESSERA_CHECK(supports(layout.format));
  if (params.count == 0) return;
  const auto page_of = [&](const ops::PageTableEntry& entry) {
    return params.pages.table()[entry.row * params.pages.max_pages_per_row() + entry.index];
  };
  const std::int64_t row_bytes_max = layout.page_layer_bytes_max() / layout.page_size;
  std::fill_n(params.verdicts, params.count, ops::RowVerdict{});
  // A task is one page in one layer; its sum is gathered where the verdict is to be.
  const std::int64_t tasks_a_chunk = base::ceil_div(kRowsAChunk, std::int64_t{layout.page_size});
  threads_.parallel_for(params.count * layout.num_layers, tasks_a_chunk, [&](std::int64_t begin, std::int64_t end) {
    const ScratchPool::Loan loan = scratch_.borrow(row_bytes_max);
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t i = task / layout.num_layers;
      const ops::PageTableEntry& entry = params.entries[i];
      const std::int32_t page = page_of(entry);
      if (page == ops::kNullPage) continue;
      const std::int64_t slots = std::clamp<std::int64_t>(
          params.pages.kv_lens()[entry.row] - std::int64_t{entry.index} * layout.page_size, 0, layout.page_size);
      const LayerHasher hasher(params.cache, static_cast<std::int32_t>(task % layout.num_layers), params.digest_key);
      std::uint64_t sum = 0;
      for (std::int32_t slot = 0; slot < slots; ++slot) sum += hasher.hash(page, slot, loan.as<std::byte>());
      add_to(params.verdicts[i].found, sum);
    }
  });
  for (std::int64_t i = 0; i < params.count; ++i) {
    const std::int32_t page = page_of(params.entries[i]);
    const std::uint64_t found = params.verdicts[i].found;
    if (page == ops::kNullPage || found == params.recorded[page]) {
      params.verdicts[i] = ops::RowVerdict{};
    } else {
      params.verdicts[i] = {ops::kCheckDigest, params.entries[i].index, page, found, params.recorded[page]};
    }
  }
}

}  // namespace tessera::backends::cpu::simd
