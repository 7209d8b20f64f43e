#include <cmath>
#include <cstring>
#include <limits>

#include "tests/conformance/independent.h"
#include "tests/conformance/page_scene.h"

namespace tessera::conformance {
namespace {

class GatherPagesTest : public BackendTest {
 protected:
  // What gather should give for pages first .. first + count of a sequence of which kv_len tokens are read.
  static Gathered expected(PagedKv& kv, int sequence, std::int32_t kv_len, int layer, ops::KvFormat format,
                           std::int32_t first_page, std::int32_t num_pages) {
    std::vector<std::byte> bytes = kv.bytes();
    const ops::KvCacheView view = kv.view_of(bytes);
    const ops::KvLayout& from = kv.layout();
    ops::KvLayout to = from;
    to.format = format;
    Gathered out;
    for (std::int32_t page = first_page; page < first_page + num_pages; ++page) {
      std::vector<std::byte> image(static_cast<std::size_t>(to.page_layer_bytes(layer)), std::byte{0});
      std::uint64_t digest = 0;
      for (std::int32_t i = 0; i < to.page_size && page * to.page_size + i < kv_len; ++i) {
        const std::int64_t slot = kv.slot(sequence, page * to.page_size + i);
        std::vector<std::byte> row_bytes;
        for (int p = 0; p < to.layer_parts(layer); ++p) {
          const std::byte* data =
              view.page_data(layer, p, slot / from.page_size) + slot % from.page_size * from.row_bytes(p);
          const std::byte* scales =
              view.page_scales(layer, p, slot / from.page_size) + slot % from.page_size * from.row_scale_bytes(p);
          StoredRow row{{data, data + from.row_bytes(p)}, {scales, scales + from.row_scale_bytes(p)}, {}};
          // Index keys are stored alike in BF16 and FP8 layouts.
          const bool index_keys = to.parts[static_cast<std::size_t>(p)].kind == ops::KvPartKind::kIndexKeys;
          const bool converts =
              index_keys ? from.format == ops::KvFormat::kF32 && format != from.format : format != from.format;
          if (converts) row = store_row(to, p, values(from.format, row.data));
          std::memcpy(image.data() + to.image_data_offset(p) + i * to.row_bytes(p), row.data.data(), row.data.size());
          row_bytes.insert(row_bytes.end(), row.data.begin(), row.data.end());
          if (!row.scales.empty()) {
            std::memcpy(image.data() + to.image_scale_offset(p) + i * to.row_scale_bytes(p), row.scales.data(),
                        row.scales.size());
            row_bytes.insert(row_bytes.end(), row.scales.begin(), row.scales.end());
          }
        }
        digest += row_digest(kDigestKey, layer, i, row_bytes);
      }
      out.images.insert(out.images.end(), image.begin(), image.end());
      out.digests.push_back(digest);
    }
    return out;
  }
  static std::vector<float> values(ops::KvFormat format, const std::vector<std::byte>& data) {
    const std::size_t bytes = format == ops::KvFormat::kF32 ? 4 : 2;
    std::vector<float> out;
    for (std::size_t i = 0; i < data.size(); i += bytes) {
      std::uint32_t bits = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&bits) + (4 - bytes), data.data() + i, bytes);
      float value;
      std::memcpy(&value, &bits, sizeof value);
      out.push_back(value);
    }
    return out;
  }
  // The conversions that the backend can do.
  std::vector<std::pair<ops::KvFormat, ops::KvFormat>> conversions() {
    std::vector<std::pair<ops::KvFormat, ops::KvFormat>> out;
    for (const ops::KvFormat format : kv_formats()) out.emplace_back(format, format);
    out.emplace_back(ops::KvFormat::kBF16, ops::KvFormat::kF8E4M3);
    if (backend().supports(ops::KvFormat::kF32)) out.emplace_back(ops::KvFormat::kF32, ops::KvFormat::kBF16);
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, GatherPagesTest, all_backends(), backend_case_name);

TEST_P(GatherPagesTest, ImagesAndDigestsAreTheIndependentOnes) {
  constexpr std::uint64_t kSeed = 1001;
  for (const auto& [from, to] : conversions()) {
    for (const std::int32_t page_size : {16, 64}) {
      // The last layer of each, and a layer without index keys of the one in which others have them.
      std::vector<std::pair<ops::KvLayout, int>> cases;
      for (const auto& [kv_heads, head_dim] : {std::pair{3, 64}, {1, 80}, {2, 20}, {1, 7}}) {
        cases.emplace_back(ops::gqa_kv_layout(from, 2, page_size, kv_heads, head_dim), 1);
      }
      cases.emplace_back(indexed_layout(from, page_size), 2);
      cases.emplace_back(indexed_layout(from, page_size), 0);
      for (const auto& [layout, layer] : cases) {
        SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(from) << " to "
                                        << ops::kv_format_name(to) << ", page size " << page_size << ", layer " << layer
                                        << ", parts of " << layout.parts[0].elements << " and "
                                        << layout.parts[1].elements);
        const auto kv = page_scene(device_, layout, {1, 63, 64, 65, 128, 129}, kSeed);
        for (const Window& window : {Window{0, 1}, {1, 63}, {2, 64}, {3, 65}, {4, 128}, {5, 129}, {5, 70}}) {
          const auto pages = static_cast<std::int32_t>(base::ceil_div(window.kv_len, page_size));
          // From the first page on, from the second on, and one page more than the row has.
          for (const auto& [first, count] : {std::pair{0, pages}, {1, pages - 1}, {0, pages + 1}, {0, 0}}) {
            const Gathered got = gather(device_, *kv, std::vector<Window>{{0, 1}, window}, 1, layer, to, first, count);
            const Gathered want = expected(*kv, window.sequence, window.kv_len, layer, to, first, count);
            ASSERT_TRUE(got.images == want.images) << window.kv_len << " tokens, " << count << " pages from " << first;
            ASSERT_EQ(got.digests, want.digests) << window.kv_len << " tokens, " << count << " pages from " << first;
          }
        }
      }
    }
  }
}

TEST_P(GatherPagesTest, ARowThatFailedItsCheckGivesNothing) {
  constexpr std::uint64_t kSeed = 1002;
  for (const auto& [from, to] : conversions()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(from) << " to "
                                    << ops::kv_format_name(to));
    const auto kv = page_scene(device_, ops::gqa_kv_layout(from, 2, 16, 2, 32), {40, 40}, kSeed);
    kv->toggle_tag(1, 1);
    const Gathered got = gather(device_, *kv, std::vector<Window>{{0, 40}, {1, 40}}, 1, 0, to, 0, 3);
    EXPECT_TRUE(got.images == std::vector<std::byte>(got.images.size(), std::byte{0}));
    EXPECT_EQ(got.digests, std::vector<std::uint64_t>(3, 0));
    const Gathered neighbour = gather(device_, *kv, std::vector<Window>{{0, 40}, {1, 40}}, 0, 0, to, 0, 3);
    EXPECT_EQ(neighbour.digests, expected(*kv, 0, 40, 0, to, 0, 3).digests);
  }
}

TEST_P(GatherPagesTest, DamagedValuesCannotPassTheConversion) {
  // Only memory damaged after the write holds NaN or infinity. Its scale group must read as NaN afterwards.
  constexpr std::uint64_t kSeed = 1003;
  for (const std::uint16_t damage :
       {std::uint16_t{0x7fc0}, std::uint16_t{0xff81}, std::uint16_t{0x7f80}, std::uint16_t{0xff80}}) {
    for (const std::int64_t element : {0, 31, 32, 63}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", bits " << damage << ", element " << element);
      const auto kv = page_scene(device_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, 16, 2, 32), {20}, kSeed);
      const Gathered clean = gather(device_, *kv, std::vector<Window>{{0, 20}}, 0, 0, ops::KvFormat::kF8E4M3, 0, 2);
      std::vector<std::byte> bytes = kv->bytes();
      const std::int64_t slot = kv->slot(0, 3);
      const ops::KvCacheView view = kv->view_of(bytes);
      std::memcpy(view.page_data(0, ops::kPartV, slot / 16) + slot % 16 * 128 + element * 2, &damage, 2);
      kv->set_bytes(bytes);
      const Gathered got = gather(device_, *kv, std::vector<Window>{{0, 20}}, 0, 0, ops::KvFormat::kF8E4M3, 0, 2);

      ops::KvLayout to = kv->layout();
      to.format = ops::KvFormat::kF8E4M3;
      Gathered want = clean;
      const std::int64_t group = element / 32;
      std::memset(want.images.data() + to.image_data_offset(ops::kPartV) + 3 * 64 + group * 32, 0, 32);
      const std::uint16_t nan_scale = 0x7fc0;
      std::memcpy(want.images.data() + to.image_scale_offset(ops::kPartV) + 3 * 4 + group * 2, &nan_scale, 2);
      EXPECT_TRUE(got.images == want.images);
      EXPECT_NE(got.digests[0], clean.digests[0]);
      EXPECT_EQ(got.digests[1], clean.digests[1]);
    }
  }
}

TEST_P(GatherPagesTest, DamagedLatentsCannotPassTheConversionAndDamagedIndexKeysAreCopied) {
  constexpr std::uint64_t kSeed = 1004;
  constexpr int kLayer = 2;
  const ops::KvLayout layout = indexed_layout(ops::KvFormat::kBF16, 16);
  ops::KvLayout to = layout;
  to.format = ops::KvFormat::kF8E4M3;
  const std::vector<Window> windows = {{0, 20}};
  for (const std::int64_t element : {0, 23, 24, 33}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", element " << element);
    const auto kv = page_scene(device_, layout, {20}, kSeed);
    const Gathered clean = gather(device_, *kv, windows, 0, kLayer, to.format, 0, 2);
    std::vector<std::byte> bytes = kv->bytes();
    const std::int64_t slot = kv->slot(0, 3);
    const ops::KvCacheView view = kv->view_of(bytes);
    const std::uint16_t damage = 0x7f80;
    std::memcpy(view.page_data(kLayer, ops::kPartLatent, slot / 16) + slot % 16 * 68 + element * 2, &damage, 2);
    kv->set_bytes(bytes);
    const Gathered got = gather(device_, *kv, windows, 0, kLayer, to.format, 0, 2);
    // The latent's 24 elements, or the 10 of the rope dimensions.
    const std::int64_t group = element < 24 ? 0 : 1;
    Gathered want = clean;
    std::memset(want.images.data() + to.image_data_offset(ops::kPartLatent) + 3 * 34 + group * 24, 0,
                group == 0 ? 24 : 10);
    const std::uint16_t nan_scale = 0x7fc0;
    std::memcpy(want.images.data() + to.image_scale_offset(ops::kPartLatent) + 3 * 4 + group * 2, &nan_scale, 2);
    EXPECT_TRUE(got.images == want.images);
    EXPECT_NE(got.digests[0], clean.digests[0]);
    EXPECT_EQ(got.digests[1], clean.digests[1]);
  }
  // Index keys are stored alike in both formats: what they hold, NaN or not, arrives.
  const auto kv = page_scene(device_, layout, {20}, kSeed);
  const Gathered clean = gather(device_, *kv, windows, 0, kLayer, to.format, 0, 2);
  std::vector<std::byte> bytes = kv->bytes();
  const std::int64_t slot = kv->slot(0, 3);
  const ops::KvCacheView view = kv->view_of(bytes);
  const std::uint32_t nan_scale = 0x7fc0'0000;
  view.page_data(kLayer, ops::kPartIndexKeys, slot / 16)[slot % 16 * 20 + 7] ^= std::byte{0x40};
  std::memcpy(view.page_scales(kLayer, ops::kPartIndexKeys, slot / 16) + slot % 16 * 4, &nan_scale, 4);
  kv->set_bytes(bytes);
  const Gathered got = gather(device_, *kv, windows, 0, kLayer, to.format, 0, 2);
  Gathered want = clean;
  want.images[static_cast<std::size_t>(to.image_data_offset(ops::kPartIndexKeys) + 3 * 20 + 7)] ^= std::byte{0x40};
  std::memcpy(want.images.data() + to.image_scale_offset(ops::kPartIndexKeys) + 3 * 4, &nan_scale, 4);
  EXPECT_TRUE(got.images == want.images);
  EXPECT_NE(got.digests[0], clean.digests[0]);
  EXPECT_EQ(got.digests[1], clean.digests[1]);
}

TEST_P(GatherPagesTest, DamagedIndexKeysCannotPassTheirConversion) {
  if (!backend().supports(ops::KvFormat::kF32)) return;  // Index keys are converted from F32 alone.
  constexpr std::uint64_t kSeed = 1005;
  constexpr int kLayer = 1;
  const ops::KvLayout layout = indexed_layout(ops::KvFormat::kF32, 16);
  ops::KvLayout to = layout;
  to.format = ops::KvFormat::kBF16;
  const std::vector<Window> windows = {{0, 20}};
  for (const std::uint32_t damage : {0x7fc0'0000u, 0xff80'0001u, 0x7f80'0000u, 0xff80'0000u}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", bits " << damage);
    const auto kv = page_scene(device_, layout, {20}, kSeed);
    const Gathered clean = gather(device_, *kv, windows, 0, kLayer, to.format, 0, 2);
    std::vector<std::byte> bytes = kv->bytes();
    const std::int64_t slot = kv->slot(0, 3);
    const ops::KvCacheView view = kv->view_of(bytes);
    std::memcpy(view.page_data(kLayer, ops::kPartIndexKeys, slot / 16) + slot % 16 * 80 + 19 * 4, &damage, 4);
    kv->set_bytes(bytes);
    const Gathered got = gather(device_, *kv, windows, 0, kLayer, to.format, 0, 2);
    Gathered want = clean;
    std::memset(want.images.data() + to.image_data_offset(ops::kPartIndexKeys) + 3 * 20, 0, 20);
    const std::uint32_t nan_scale = 0x7fc0'0000;
    std::memcpy(want.images.data() + to.image_scale_offset(ops::kPartIndexKeys) + 3 * 4, &nan_scale, 4);
    EXPECT_TRUE(got.images == want.images);
    EXPECT_NE(got.digests[0], clean.digests[0]);
    EXPECT_EQ(got.digests[1], clean.digests[1]);
  }
}

}  // namespace
}  // namespace tessera::conformance
