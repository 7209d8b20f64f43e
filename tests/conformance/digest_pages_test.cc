#include <set>

#include "tests/conformance/independent.h"
#include "tests/conformance/page_scene.h"

namespace tessera::conformance {
namespace {

class DigestPagesTest : public BackendTest {
 protected:
  // The digests of a sequence's pages from the cache's bytes.
  static std::vector<std::uint64_t> expected(PagedKv& kv, int sequence, std::int32_t kv_len, int layer,
                                             std::uint64_t key) {
    std::vector<std::byte> bytes = kv.bytes();
    const std::int32_t page_size = kv.layout().page_size;
    std::vector<std::uint64_t> out(static_cast<std::size_t>(base::ceil_div(kv_len, page_size)));
    for (std::int32_t i = 0; i < kv_len; ++i) {
      out[static_cast<std::size_t>(i / page_size)] +=
          row_digest(key, layer, i % page_size, token_bytes(kv.view_of(bytes), layer, kv.slot(sequence, i)));
    }
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, DigestPagesTest, all_backends(), backend_case_name);

TEST_P(DigestPagesTest, IsTheSumOfTheRowsInUse) {
  constexpr std::uint64_t kSeed = 1201;
  for_each_layout(kv_formats(), kSeed, [&](const ops::KvLayout& layout) {
    const std::int32_t page_size = layout.page_size;
    const auto kv = page_scene(device_, layout, {1, 63, 64, 65, 129}, kSeed);
    const std::vector<std::int32_t> lengths = {1, 63, 64, 65, 129};
    for (int s = 0; s < 5; ++s) {
      const std::int32_t length = lengths[static_cast<std::size_t>(s)];
      const auto pages = static_cast<std::int32_t>(base::ceil_div(length, page_size));
      for (int layer = 0; layer < layout.num_layers; ++layer) {
        for (const std::uint64_t key : {kDigestKey, std::uint64_t{0}, ~std::uint64_t{0}}) {
          std::vector<std::uint64_t> want = expected(*kv, s, length, layer, key);
          const std::vector<Window> windows = {{s, length, 0}};
          EXPECT_EQ(digest(device_, *kv, windows, 0, layer, 0, pages, key), want);
          EXPECT_EQ(digest(device_, *kv, windows, 0, layer, pages - 1, 1, key),
                    std::vector<std::uint64_t>{want.back()});
          want.push_back(0);  // A page past the row's end.
          EXPECT_EQ(digest(device_, *kv, windows, 0, layer, 0, pages + 1, key), want);
        }
      }
    }
  });
}

TEST_P(DigestPagesTest, OneMoreTokenAddsOneRow) {
  constexpr std::uint64_t kSeed = 1202;
  const auto kv = page_scene(device_, ops::gqa_kv_layout(ops::KvFormat::kF8E4M3, 1, 16, 2, 32), {16}, kSeed);
  std::vector<std::byte> bytes = kv->bytes();
  std::uint64_t sum = 0;
  for (std::int32_t length = 1; length <= 16; ++length) {
    sum += row_digest(kDigestKey, 0, length - 1, token_bytes(kv->view_of(bytes), 0, kv->slot(0, length - 1)));
    EXPECT_EQ(digest(device_, *kv, std::vector<Window>{{0, length, 0}}, 0, 0, 0, 1)[0], sum) << length << " tokens";
  }
}

TEST_P(DigestPagesTest, EveryFlippedByteInUseIsSeenAndNoOther) {
  constexpr std::uint64_t kSeed = 1203;
  ops::LayerSet second;
  second.insert(1);
  for (const ops::KvFormat format : kv_formats()) {
    // K and V; latents; latents with index keys.
    for (const auto& [layout, layer] : {std::pair{ops::gqa_kv_layout(format, 1, 16, 2, 8), 0},
                                        {ops::mla_kv_layout(format, 2, 16, 9, 3, 5, second), 0},
                                        {ops::mla_kv_layout(format, 2, 16, 9, 3, 5, second), 1}}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", "
                                      << layout.parts[0].elements << " elements, layer " << layer);
      const auto kv = page_scene(device_, layout, {16}, kSeed);
      constexpr std::int32_t kLength = 11;
      const std::vector<Window> windows = {{0, kLength, 0}};
      const std::vector<std::byte> clean = kv->bytes();
      const std::uint64_t before = digest(device_, *kv, windows, 0, layer, 0, 1)[0];
      // Which bytes of the cache the page's first rows are.
      std::set<std::size_t> in_use;
      std::vector<std::byte> bytes = clean;
      const ops::KvCacheView view = kv->view_of(bytes);
      const std::int64_t page = kv->leases[0][0].page;
      for (int p = 0; p < layout.layer_parts(layer); ++p) {
        for (std::int64_t i = 0; i < kLength * layout.row_bytes(p); ++i) {
          in_use.insert(static_cast<std::size_t>(view.page_data(layer, p, page) + i - bytes.data()));
        }
        for (std::int64_t i = 0; i < kLength * layout.row_scale_bytes(p); ++i) {
          in_use.insert(static_cast<std::size_t>(view.page_scales(layer, p, page) + i - bytes.data()));
        }
      }
      for (std::size_t i = 0; i < clean.size(); ++i) {
        bytes[i] ^= std::byte{0x10};
        kv->set_bytes(bytes);
        ASSERT_EQ(digest(device_, *kv, windows, 0, layer, 0, 1)[0] != before, in_use.contains(i)) << "byte " << i;
        bytes[i] = clean[i];
      }
    }
  }
}

TEST_P(DigestPagesTest, RowsThatChangedPlacesAreSeen) {
  constexpr std::uint64_t kSeed = 1204;
  const ops::KvLayout layout = ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, 16, 2, 8);
  const auto kv = page_scene(device_, layout, {16}, kSeed);
  const std::vector<Window> windows = {{0, 16, 0}};
  const std::uint64_t before = digest(device_, *kv, windows, 0, 0, 0, 1)[0];
  std::vector<std::byte> bytes = kv->bytes();
  const std::int64_t page = kv->leases[0][0].page;
  for (int p = 0; p < 2; ++p) {
    std::byte* data = kv->view_of(bytes).page_data(0, p, page);
    std::swap_ranges(data + 2 * layout.row_bytes(p), data + 3 * layout.row_bytes(p), data + 7 * layout.row_bytes(p));
  }
  kv->set_bytes(bytes);
  EXPECT_NE(digest(device_, *kv, windows, 0, 0, 0, 1)[0], before);
}

TEST_P(DigestPagesTest, ARowThatFailedItsCheckHasNone) {
  const auto kv = page_scene(device_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, 16, 2, 8), {40, 40}, 1205);
  kv->toggle_tag(0, 2);
  const std::vector<Window> windows = {{0, 40, 0}, {1, 40, 0}};
  EXPECT_EQ(digest(device_, *kv, windows, 0, 0, 0, 3), std::vector<std::uint64_t>(3, 0));
  EXPECT_EQ(digest(device_, *kv, windows, 1, 0, 0, 3), expected(*kv, 1, 40, 0, kDigestKey));
  EXPECT_TRUE(digest(device_, *kv, windows, 1, 0, 0, 0).empty());
}

}  // namespace
}  // namespace tessera::conformance
