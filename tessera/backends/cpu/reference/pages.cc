// The ops that move and digest pages: gather with conversion and digest, scatter, digests.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tessera/backends/cpu/reference/cpu_backend_base.h"
#include "tessera/backends/cpu/reference/kv_row.h"
#include "tessera/backends/cpu/reference/page_rows.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

namespace {

// How many slots of a logical page hold tokens of a row of kv_len.
std::int32_t slots_in_use(std::int64_t kv_len, std::int64_t logical_page, std::int32_t page_size) {
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(kv_len - logical_page * page_size, 0, static_cast<std::int64_t>(page_size)));
}

std::uint64_t row_hash(const ops::KvLayout& layout, const PageRows<std::byte>& rows, std::int32_t slot,
                       std::uint64_t key, std::int32_t layer, std::vector<std::byte>& scratch) {
  scratch.resize(static_cast<std::size_t>(layout.token_layer_bytes(layer)));
  std::byte* to = scratch.data();
  for (int p = 0; p < layout.layer_parts(layer); ++p) {
    const std::int64_t bytes = layout.row_bytes(p);
    std::memcpy(to, rows.data[p] + slot * bytes, static_cast<std::size_t>(bytes));
    to += bytes;
    const std::int64_t scale_bytes = layout.row_scale_bytes(p);
    std::memcpy(to, rows.scales[p] + slot * scale_bytes, static_cast<std::size_t>(scale_bytes));
    to += scale_bytes;
  }
  return XXH3_64bits_withSeed(scratch.data(), scratch.size(), ops::digest_seed(key, layer, slot));
}

}  // namespace

void read_tokens(const ops::KvCacheView& cache, std::int32_t layer, int part, const ops::VerifiedPages& pages,
                 std::int64_t row, std::int64_t first, std::int64_t count, std::vector<float>& out) {
  const ops::KvLayout& layout = cache.layout;
  const std::int32_t* table = pages.table() + row * pages.max_pages_per_row();
  const std::int64_t kv_len = pages.kv_lens()[row];
  out.resize(static_cast<std::size_t>(kv_len * count));
  for (std::int64_t j = 0; j < kv_len; ++j) {
    const PageRows<std::byte> page = rows_in_cache(cache, layer, table[j / layout.page_size]);
    const std::int64_t slot = j % layout.page_size;
    decode_kv_row(layout, part, page.data[part] + slot * layout.row_bytes(part),
                  page.scales[part] + slot * layout.row_scale_bytes(part), first, count, out.data() + j * count);
  }
}

std::uint64_t digest_rows(const ops::KvLayout& layout, const PageRows<std::byte>& rows, std::int32_t slots,
                          std::uint64_t key, std::int32_t layer, std::vector<std::byte>& scratch) {
  std::uint64_t digest = 0;
  for (std::int32_t slot = 0; slot < slots; ++slot) digest += row_hash(layout, rows, slot, key, layer, scratch);
  return digest;
}

void CpuBackendBase::gather_pages(ops::Stream&, const ops::GatherPagesParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.source.layout.format) && supports(params.target.format));
  const ops::KvLayout& from = params.source.layout;
  const ops::KvLayout& to = params.target;
  const std::int32_t* table = params.pages.table() + params.row * params.pages.max_pages_per_row();
  const std::int32_t kv_len = params.pages.kv_lens()[params.row];
  std::vector<float> row;
  std::vector<std::byte> scratch;
  for (std::int32_t i = 0; i < params.num_pages; ++i) {
    const std::int64_t logical_page = params.first_page + i;
    const std::int32_t slots = slots_in_use(kv_len, logical_page, from.page_size);
    std::byte* image = params.images + i * to.page_layer_bytes(params.layer);
    std::memset(image, 0, static_cast<std::size_t>(to.page_layer_bytes(params.layer)));
    const PageRows<std::byte> source = rows_in_cache(params.source, params.layer, table[logical_page]);
    const PageRows<std::byte> target = rows_in_image(to, params.layer, image);
    for (int p = 0; p < from.layer_parts(params.layer); ++p) {
      if (from.part_dtype(p) == to.part_dtype(p)) {
        std::memcpy(target.data[p], source.data[p], static_cast<std::size_t>(from.row_bytes(p) * slots));
        std::memcpy(target.scales[p], source.scales[p], static_cast<std::size_t>(from.row_scale_bytes(p) * slots));
        continue;
      }
      const std::int64_t elements = from.parts[p].elements;
      row.resize(static_cast<std::size_t>(elements));
      for (std::int32_t slot = 0; slot < slots; ++slot) {
        decode_kv_row(from, p, source.data[p] + slot * from.row_bytes(p),
                      source.scales[p] + slot * from.row_scale_bytes(p), 0, elements, row.data());
        encode_kv_row(to, p, row.data(), target.data[p] + slot * to.row_bytes(p),
                      target.scales[p] + slot * to.row_scale_bytes(p));
      }
    }
    params.digests[i] = digest_rows(to, target, slots, params.digest_key, params.layer, scratch);
  }
}

void CpuBackendBase::scatter_pages(ops::Stream&, const ops::ScatterPagesParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.target.layout.format));
  const ops::KvLayout& layout = params.target.layout;
  const std::int64_t page_size = layout.page_size;
  const LayerRows target_rows(params.target, params.layer);
  for (std::int64_t t = 0; t < params.slots.tokens(); ++t) {
    const std::int64_t slot = params.slots.slots()[t];
    if (slot == ops::kNullSlot) continue;
    TESSERA_CHECK(slot >= page_size && slot < params.target.num_pages * page_size, fmt::format("slot {}", slot));
    const PageRows<const std::byte> source =
        rows_in_image(layout, params.layer, params.images + t / page_size * layout.page_layer_bytes(params.layer));
    const PageRows<std::byte> target = target_rows.in_page(slot / page_size);
    for (int p = 0; p < layout.layer_parts(params.layer); ++p) {
      const std::int64_t bytes = layout.row_bytes(p);
      std::memcpy(target.data[p] + slot % page_size * bytes, source.data[p] + t % page_size * bytes,
                  static_cast<std::size_t>(bytes));
      const std::int64_t scale_bytes = layout.row_scale_bytes(p);
      std::memcpy(target.scales[p] + slot % page_size * scale_bytes, source.scales[p] + t % page_size * scale_bytes,
                  static_cast<std::size_t>(scale_bytes));
    }
  }
}

void CpuBackendBase::digest_pages(ops::Stream&, const ops::DigestPagesParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  const ops::KvLayout& layout = params.cache.layout;
  const std::int32_t* table = params.pages.table() + params.row * params.pages.max_pages_per_row();
  const std::int32_t kv_len = params.pages.kv_lens()[params.row];
  std::vector<std::byte> scratch;
  for (std::int32_t i = 0; i < params.num_pages; ++i) {
    const std::int64_t logical_page = params.first_page + i;
    params.digests[i] =
        digest_rows(layout, rows_in_cache(params.cache, params.layer, table[logical_page]),
                    slots_in_use(kv_len, logical_page, layout.page_size), params.digest_key, params.layer, scratch);
  }
}

void CpuBackendBase::digest_tokens(ops::Stream&, const ops::DigestTokensParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  const ops::KvLayout& layout = params.cache.layout;
  std::vector<std::byte> scratch;
  for (std::int64_t t = 0; t < params.slots.tokens(); ++t) {
    const std::int64_t slot = params.slots.slots()[t];
    if (slot == ops::kNullSlot) continue;
    const std::int64_t page = slot / layout.page_size;
    const auto row = static_cast<std::int32_t>(slot % layout.page_size);
    TESSERA_CHECK(page >= 1 && page < params.cache.num_pages, fmt::format("slot {}", slot));
    for (std::int32_t layer = params.first_layer; layer < params.first_layer + params.num_layers; ++layer) {
      const PageRows<std::byte> rows = rows_in_cache(params.cache, layer, page);
      params.digests[page] += row_hash(layout, rows, row, params.digest_key, layer, scratch);
    }
  }
}

void CpuBackendBase::check_digests(ops::Stream&, const ops::CheckDigestsParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  const ops::KvLayout& layout = params.cache.layout;
  std::vector<std::byte> scratch;
  for (std::int64_t i = 0; i < params.count; ++i) {
    const ops::PageTableEntry entry = params.entries[i];
    const std::int32_t page = params.pages.table()[entry.row * params.pages.max_pages_per_row() + entry.index];
    params.verdicts[i] = ops::RowVerdict{};
    if (page == ops::kNullPage) continue;
    const std::int32_t slots = slots_in_use(params.pages.kv_lens()[entry.row], entry.index, layout.page_size);
    std::uint64_t found = 0;
    for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
      found += digest_rows(layout, rows_in_cache(params.cache, layer, page), slots, params.digest_key, layer, scratch);
    }
    if (found != params.recorded[page]) {
      params.verdicts[i] = {ops::kCheckDigest, entry.index, page, found, params.recorded[page]};
    }
  }
}

}  // namespace tessera::backends::cpu
