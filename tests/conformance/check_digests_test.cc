#include <set>

#include "tests/conformance/page_scene.h"

namespace tessera::conformance {
namespace {

using Entries = std::vector<ops::PageTableEntry>;

class CheckDigestsTest : public BackendTest {
 protected:
  std::vector<ops::RowVerdict> check(PagedKv& kv, std::span<const Window> windows,
                                     const std::vector<std::uint64_t>& recorded, const Entries& entries) {
    return check(kv, kv.check(windows), recorded, entries);
  }

  // Against views that were checked before.
  std::vector<ops::RowVerdict> check(PagedKv& kv, const kv_cache::CheckedPages& checked,
                                     const std::vector<std::uint64_t>& recorded, const Entries& entries) {
    const auto device_recorded = device_.upload(recorded);
    const auto device_entries = device_.upload(entries);
    const auto verdicts = device_.upload(std::vector<ops::RowVerdict>(entries.size(), {12345, 1, 1, 1, 1}));
    backend().check_digests(stream(), {checked.pages, kv.cache(), kDigestKey, device_recorded.data(),
                                       std::ssize(entries), device_entries.data(), verdicts.data()});
    return device_.download(verdicts);
  }

  // What a pool would have recorded of sequences that are this long; of pages that nobody has, anything.
  static std::vector<std::uint64_t> recorded(PagedKv& kv, std::span<const Window> windows) {
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(kv.cache().num_pages));
    std::vector<Window> written;
    for (const Window& window : windows) written.push_back({window.sequence, window.kv_len, window.kv_len});
    add_row_digests(kv, written, 0, kv.layout().num_layers, kDigestKey, sums);
    return sums;
  }

  static void expect_clean(const ops::RowVerdict& verdict) {
    EXPECT_EQ(verdict.failed_checks, 0u);
    EXPECT_EQ(verdict.logical_page, -1);
    EXPECT_EQ(verdict.page_id, -1);
    EXPECT_EQ(verdict.found, 0u);
    EXPECT_EQ(verdict.expected, 0u);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, CheckDigestsTest, all_backends(), backend_case_name);

TEST_P(CheckDigestsTest, WhatWasRecordedPassesAndAnythingElseIsNamed) {
  constexpr std::uint64_t kSeed = 1601;
  for_each_layout(kv_formats(), kSeed, [&](const ops::KvLayout& layout) {
    const std::int32_t page_size = layout.page_size;
    const auto kv = page_scene(device_, layout, {1, 63, 64, 65, 129}, kSeed);
    const std::vector<Window> windows = {{4, 129, 1}, {0, 1, 1}, {3, 65, 0}, {1, 63, 0}, {2, 64, 0}};
    std::vector<std::uint64_t> sums = recorded(*kv, windows);
    // All pages in any order, one of them twice.
    Entries entries;
    for (std::int32_t row = 4; row >= 0; --row) {
      const std::int32_t length = windows[static_cast<std::size_t>(row)].kv_len;
      for (std::int32_t j = 0; j * page_size < length; ++j) entries.push_back({row, j});
    }
    entries.push_back({0, 1});
    for (const ops::RowVerdict& verdict : check(*kv, windows, sums, entries)) expect_clean(verdict);

    // One record is wrong: its page is named, and no other.
    const std::int32_t page = kv->leases[4][1].page;
    const std::uint64_t right = sums[static_cast<std::size_t>(page)];
    for (const int bit : {0, 31, 32, 63}) {
      sums[static_cast<std::size_t>(page)] = right ^ (1ull << bit);
      const std::vector<ops::RowVerdict> verdicts = check(*kv, windows, sums, entries);
      for (std::size_t i = 0; i < entries.size(); ++i) {
        if (!(entries[i] == ops::PageTableEntry{0, 1})) {
          expect_clean(verdicts[i]);
          continue;
        }
        EXPECT_EQ(verdicts[i].failed_checks, ops::kCheckDigest);
        EXPECT_EQ(verdicts[i].logical_page, 1);
        EXPECT_EQ(verdicts[i].page_id, page);
        EXPECT_EQ(verdicts[i].found, right);
        EXPECT_EQ(verdicts[i].expected, right ^ (1ull << bit));
      }
    }
    EXPECT_TRUE(check(*kv, windows, sums, {}).empty());
  });
}

TEST_P(CheckDigestsTest, EveryFlippedByteInUseIsSeenAndNoOther) {
  constexpr std::uint64_t kSeed = 1602;
  ops::LayerSet second;
  second.insert(1);
  for (const ops::KvFormat format : kv_formats()) {
    // K and V; latents, with index keys in one of the layers.
    for (const ops::KvLayout& layout :
         {ops::gqa_kv_layout(format, 2, 16, 2, 8), ops::mla_kv_layout(format, 2, 16, 9, 3, 5, second)}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", "
                                      << layout.parts[0].elements << " elements");
      const auto kv = page_scene(device_, layout, {27}, kSeed);
      constexpr std::int32_t kLength = 27;
      const std::vector<Window> windows = {{0, kLength, 0}};
      const std::vector<std::uint64_t> sums = recorded(*kv, windows);
      const std::vector<std::byte> clean = kv->bytes();
      std::vector<std::byte> bytes = clean;
      const ops::KvCacheView view = kv->view_of(bytes);
      // Which bytes of the cache are rows in use of its first and of its second page.
      std::array<std::set<std::size_t>, 2> in_use;
      for (int layer = 0; layer < layout.num_layers; ++layer) {
        for (int p = 0; p < layout.layer_parts(layer); ++p) {
          for (std::size_t j = 0; j < 2; ++j) {
            const std::int64_t page = kv->leases[0][j].page;
            const std::int64_t slots = j == 0 ? 16 : kLength - 16;
            for (std::int64_t i = 0; i < slots * layout.row_bytes(p); ++i) {
              in_use[j].insert(static_cast<std::size_t>(view.page_data(layer, p, page) + i - bytes.data()));
            }
            for (std::int64_t i = 0; i < slots * layout.row_scale_bytes(p); ++i) {
              in_use[j].insert(static_cast<std::size_t>(view.page_scales(layer, p, page) + i - bytes.data()));
            }
          }
        }
      }
      const kv_cache::CheckedPages checked = kv->check(windows);
      for (std::size_t i = 0; i < clean.size(); ++i) {
        bytes[i] ^= std::byte{0x10};
        kv->set_bytes(bytes);
        const auto verdicts = check(*kv, checked, sums, Entries{{0, 0}, {0, 1}});
        for (std::size_t j = 0; j < 2; ++j) {
          ASSERT_EQ(verdicts[j].failed_checks, in_use[j].contains(i) ? ops::kCheckDigest : 0u) << "byte " << i;
        }
        bytes[i] = clean[i];
      }
    }
  }
}

TEST_P(CheckDigestsTest, RowsAndLayersThatChangedPlacesAreSeen) {
  constexpr std::uint64_t kSeed = 1603;
  const ops::KvLayout layout = ops::gqa_kv_layout(ops::KvFormat::kBF16, 2, 16, 2, 8);
  const auto kv = page_scene(device_, layout, {16}, kSeed);
  const std::vector<Window> windows = {{0, 16, 0}};
  const std::vector<std::uint64_t> sums = recorded(*kv, windows);
  const std::vector<std::byte> clean = kv->bytes();
  const std::int64_t page = kv->leases[0][0].page;
  const std::int64_t row = layout.row_bytes(0);
  std::vector<std::byte> bytes = clean;
  for (int p = 0; p < 2; ++p) {
    std::byte* data = kv->view_of(bytes).page_data(0, p, page);
    std::swap_ranges(data + 2 * row, data + 3 * row, data + 7 * row);
  }
  kv->set_bytes(bytes);
  EXPECT_EQ(check(*kv, windows, sums, {{0, 0}})[0].failed_checks, ops::kCheckDigest);
  bytes = clean;
  for (int p = 0; p < 2; ++p) {
    std::byte* data = kv->view_of(bytes).page_data(0, p, page);
    std::swap_ranges(data, data + 16 * row, kv->view_of(bytes).page_data(1, p, page));
  }
  kv->set_bytes(bytes);
  EXPECT_EQ(check(*kv, windows, sums, {{0, 0}})[0].failed_checks, ops::kCheckDigest);
  kv->set_bytes(clean);
  EXPECT_EQ(check(*kv, windows, sums, {{0, 0}})[0].failed_checks, 0u);
}

TEST_P(CheckDigestsTest, ARowThatFailedItsCheckIsNotReadAndPasses) {
  const auto kv = page_scene(device_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, 16, 2, 8), {40, 40}, 1604);
  const std::vector<Window> windows = {{0, 40, 0}, {1, 40, 0}};
  std::vector<std::uint64_t> sums = recorded(*kv, windows);
  sums[0] = 99;  // Of the null page, which nobody compares.
  sums[static_cast<std::size_t>(kv->leases[0][1].page)] ^= 1;
  sums[static_cast<std::size_t>(kv->leases[1][1].page)] ^= 1;
  kv->toggle_tag(0, 2);
  const auto verdicts = check(*kv, windows, sums, {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}});
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    EXPECT_EQ(verdicts[i].failed_checks, i == 4 ? ops::kCheckDigest : 0u) << i;
  }
}

}  // namespace
}  // namespace tessera::conformance
