#include "tests/conformance/paged_kv.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::conformance {

PagedKv::PagedKv(Device& device, const ops::KvLayout& layout, const std::vector<std::int32_t>& capacities,
                 std::uint64_t seed, std::uint8_t garbage)
    : device_(device) {
  Random random(seed);
  std::int64_t used = 0;
  for (const std::int32_t capacity : capacities) {
    const std::int64_t pages = base::ceil_div(capacity, layout.page_size);
    used += pages;
    width_ = std::max(width_, pages);
  }
  width_ += 2;  // A table is wider than what its rows use.
  const std::int64_t num_pages = 1 + used + 3;
  storage_ = device_.allocate(layout.pool_bytes(num_pages));
  cache_ = ops::KvCacheView{layout, storage_.data(), num_pages};
  set_bytes(std::vector<std::byte>(static_cast<std::size_t>(storage_.bytes()), static_cast<std::byte>(garbage)));

  tags.resize(static_cast<std::size_t>(num_pages));
  owners.resize(tags.size());
  positions.assign(tags.size(), -1);
  lease_counts.resize(tags.size());
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_pages - 1));
  std::iota(order.begin(), order.end(), 1);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  std::size_t next = 0;
  for (std::size_t s = 0; s < capacities.size(); ++s) {
    leases.emplace_back();
    for (std::int32_t j = 0; j < base::ceil_div(capacities[s], layout.page_size); ++j) {
      const std::int32_t page = order[next++];
      const kv_cache::Lease lease{page, random.bits() | 1, kv_cache::owner_of_sequence(s + 1)};
      leases.back().push_back(lease);
      tags[static_cast<std::size_t>(page)] = lease.tag;
      owners[static_cast<std::size_t>(page)] = lease.owner;
      positions[static_cast<std::size_t>(page)] = j;
      lease_counts[static_cast<std::size_t>(page)] = 1;
    }
  }

  std::int64_t tokens_max = 1;
  for (const std::int32_t capacity : capacities) tokens_max += capacity;
  auto verifier = kv_cache::Verifier::create(
      device_.backend(), {std::max<std::int64_t>(2 * std::ssize(capacities), 1), width_, 2 * tokens_max});
  TESSERA_CHECK(verifier.has_value());
  verifier_ = std::move(*verifier);
}

std::int64_t PagedKv::slot(int sequence, std::int32_t position) const {
  const std::int64_t page_size = cache_.layout.page_size;
  const auto& pages = leases[static_cast<std::size_t>(sequence)];
  return pages[static_cast<std::size_t>(position / page_size)].page * page_size + position % page_size;
}

void PagedKv::toggle_tag(int sequence, std::int32_t logical_page) {
  const auto page = leases[static_cast<std::size_t>(sequence)][static_cast<std::size_t>(logical_page)].page;
  tags[static_cast<std::size_t>(page)] ^= 1ull << 40;
}

kv_cache::CheckedPages PagedKv::check(std::span<const Window> windows) {
  std::vector<std::int32_t> table(static_cast<std::size_t>(std::ssize(windows) * width_), ops::kNullPage);
  std::vector<kv_cache::RowExpectation> rows;
  std::vector<std::int32_t> token_rows;
  std::vector<std::int32_t> token_positions;
  std::vector<std::int64_t> slots;
  for (std::size_t r = 0; r < windows.size(); ++r) {
    const Window& window = windows[r];
    const auto& pages = leases[static_cast<std::size_t>(window.sequence)];
    for (std::size_t j = 0; j < pages.size(); ++j) table[r * static_cast<std::size_t>(width_) + j] = pages[j].page;
    rows.push_back({pages, window.kv_len, window.kv_len - window.new_tokens});
    for (std::int32_t position = window.kv_len - window.new_tokens; position < window.kv_len; ++position) {
      token_rows.push_back(static_cast<std::int32_t>(r));
      token_positions.push_back(position);
      slots.push_back(slot(window.sequence, position));
    }
  }
  device_tags_ = device_.upload(tags);
  device_owners_ = device_.upload(owners);
  device_positions_ = device_.upload(positions);
  device_lease_counts_ = device_.upload(lease_counts);
  device_table_ = device_.upload(table);
  kv_cache::CheckInput input;
  input.records = {device_tags_.data(), device_owners_.data(), device_positions_.data(), device_lease_counts_.data(),
                   cache_.num_pages};
  input.page_size = cache_.layout.page_size;
  input.page_table = device_table_.data();
  input.max_pages_per_row = width_;
  input.rows = rows;
  input.token_rows = token_rows;
  input.token_positions = token_positions;
  input.slot_mapping = slots;
  return verifier_->check_before(device_.stream(), input);
}

std::vector<std::uint8_t> PagedKv::write(int layer, std::span<const Window> windows,
                                         const std::vector<HostMatrix>& parts) {
  const kv_cache::CheckedPages checked = check(windows);
  std::vector<DeviceMatrix> device_parts;
  std::array<ops::ConstMatrix, ops::KvLayout::kPartsMax> views;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    device_parts.push_back(device_.upload_matrix(parts[p], 3 + 2 * static_cast<std::int64_t>(p)));
    views[p] = device_parts.back().view();
  }
  const auto nonfinite =
      device_.upload(std::vector<std::uint8_t>(static_cast<std::size_t>(new_tokens(windows)), std::uint8_t{0}));
  ops::KvWriteParams params{checked.slots, views, cache_, layer, nonfinite.data()};
  device_.backend().kv_write(device_.stream(), params);
  return device_.download(nonfinite);
}

std::vector<std::byte> PagedKv::bytes() { return device_.download(storage_.data(), storage_.bytes()); }

ops::KvCacheView PagedKv::view_of(std::vector<std::byte>& host_bytes) const {
  return ops::KvCacheView{cache_.layout, host_bytes.data(), cache_.num_pages};
}

void PagedKv::set_bytes(const std::vector<std::byte>& host_bytes) {
  device_.backend().copy_to_device(device_.stream(), storage_.data(), host_bytes.data(), storage_.bytes());
}

void PagedKv::make_nan(int layer, int part, RowField field, int sequence, std::span<const std::int32_t> at) {
  std::vector<std::byte> host = bytes();
  const ops::KvCacheView view = view_of(host);
  const bool elements = field == RowField::kElements;
  const std::int64_t row_bytes = elements ? layout().row_bytes(part) : layout().row_scale_bytes(part);
  for (const std::int32_t position : at) {
    const std::int64_t row = slot(sequence, position);
    const std::int64_t page = row / layout().page_size;
    std::byte* rows = elements ? view.page_data(layer, part, page) : view.page_scales(layer, part, page);
    std::memset(rows + row % layout().page_size * row_bytes, 0xff, static_cast<std::size_t>(row_bytes));
  }
  set_bytes(host);
}

std::int64_t new_tokens(std::span<const Window> windows) {
  std::int64_t sum = 0;
  for (const Window& window : windows) sum += window.new_tokens;
  return sum;
}

std::vector<std::byte> token_bytes(const ops::KvCacheView& host_view, int layer, std::int64_t slot) {
  const ops::KvLayout& layout = host_view.layout;
  const std::int64_t page = slot / layout.page_size;
  const std::int64_t row = slot % layout.page_size;
  std::vector<std::byte> out;
  for (int p = 0; p < layout.layer_parts(layer); ++p) {
    const std::byte* data = host_view.page_data(layer, p, page) + row * layout.row_bytes(p);
    out.insert(out.end(), data, data + layout.row_bytes(p));
    const std::byte* scales = host_view.page_scales(layer, p, page) + row * layout.row_scale_bytes(p);
    out.insert(out.end(), scales, scales + layout.row_scale_bytes(p));
  }
  return out;
}

}  // namespace tessera::conformance
