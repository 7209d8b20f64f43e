#include <algorithm>

#include "tests/conformance/independent.h"
#include "tests/conformance/page_scene.h"

namespace tessera::conformance {
namespace {

class ScatterPagesTest : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, ScatterPagesTest, all_backends(), backend_case_name);

TEST_P(ScatterPagesTest, WhatWasGatheredArrivesAndNothingElseChanges) {
  constexpr std::uint64_t kSeed = 1101;
  for (const ops::KvFormat format : kv_formats()) {
    for (const std::int32_t page_size : {16, 64}) {
      for (const std::int32_t length : {1, 63, 64, 65, 129}) {
        SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", page size "
                                        << page_size << ", length " << length);
        for (const bool indexed : {false, true}) {
          SCOPED_TRACE(indexed ? "index keys" : "K and V");
          const ops::KvLayout layout =
              indexed ? indexed_layout(format, page_size) : ops::gqa_kv_layout(format, 2, page_size, 3, 20);
          const auto from = page_scene(device_, layout, {length}, kSeed);
          // The receiver has other pages, and garbage in all of them.
          PagedKv to(device_, layout, {17, length, 40}, kSeed + 5);
          const auto pages = static_cast<std::int32_t>(base::ceil_div(length, page_size));
          const std::vector<Window> sent = {{0, length, 0}};
          const std::vector<Window> received = {{1, length, length}};
          std::vector<std::byte> expected = to.bytes();
          std::vector<std::byte> source = from->bytes();
          for (int layer = 0; layer < layout.num_layers; ++layer) {
            const Gathered gathered = gather(device_, *from, sent, 0, layer, format, 0, pages);
            scatter(device_, to, received, layer, gathered.images);
            EXPECT_EQ(digest(device_, to, received, 0, layer, 0, pages), gathered.digests);
            EXPECT_EQ(digest(device_, *from, sent, 0, layer, 0, pages), gathered.digests);
            const ops::KvCacheView view = to.view_of(expected);
            for (std::int32_t i = 0; i < length; ++i) {
              const std::int64_t a = from->slot(0, i);
              const std::int64_t b = to.slot(1, i);
              for (int p = 0; p < layout.layer_parts(layer); ++p) {
                std::copy_n(
                    from->view_of(source).page_data(layer, p, a / page_size) + a % page_size * layout.row_bytes(p),
                    layout.row_bytes(p), view.page_data(layer, p, b / page_size) + b % page_size * layout.row_bytes(p));
                std::copy_n(from->view_of(source).page_scales(layer, p, a / page_size) +
                                a % page_size * layout.row_scale_bytes(p),
                            layout.row_scale_bytes(p),
                            view.page_scales(layer, p, b / page_size) + b % page_size * layout.row_scale_bytes(p));
              }
            }
          }
          EXPECT_TRUE(to.bytes() == expected);
        }
      }
    }
  }
}

TEST_P(ScatterPagesTest, ConvertedPagesArriveWithTheirDigests) {
  constexpr std::uint64_t kSeed = 1102;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const ops::KvLayout bf16 = ops::gqa_kv_layout(ops::KvFormat::kBF16, 2, 16, 3, 64);
  const ops::KvLayout fp8 = ops::gqa_kv_layout(ops::KvFormat::kF8E4M3, 2, 16, 3, 64);
  const auto from = page_scene(device_, bf16, {70}, kSeed);
  PagedKv to(device_, fp8, {70}, kSeed + 1);
  for (int layer = 0; layer < 2; ++layer) {
    const Gathered gathered =
        gather(device_, *from, std::vector<Window>{{0, 70, 0}}, 0, layer, ops::KvFormat::kF8E4M3, 0, 5);
    scatter(device_, to, std::vector<Window>{{0, 70, 70}}, layer, gathered.images);
    EXPECT_EQ(digest(device_, to, std::vector<Window>{{0, 70, 0}}, 0, layer, 0, 5), gathered.digests);
  }
}

TEST_P(ScatterPagesTest, ARowThatFailedItsCheckIsNotWritten) {
  constexpr std::uint64_t kSeed = 1103;
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    PagedKv kv(device_, ops::gqa_kv_layout(format, 1, 16, 2, 16), {32}, kSeed);
    const std::vector<std::byte> before = kv.bytes();
    const std::vector<std::byte> images(static_cast<std::size_t>(2 * kv.layout().page_layer_bytes(0)), std::byte{1});
    kv.toggle_tag(0, 1);
    scatter(device_, kv, std::vector<Window>{{0, 32, 32}}, 0, images);
    EXPECT_TRUE(kv.bytes() == before);
    kv.toggle_tag(0, 1);
    scatter(device_, kv, std::vector<Window>{{0, 32, 32}}, 0, images);
    EXPECT_FALSE(kv.bytes() == before);
  }
}

TEST_P(ScatterPagesTest, NullSlotsAreSkippedAndTheRestArrives) {
  constexpr std::uint64_t kSeed = 1105;
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    const ops::KvLayout layout = ops::gqa_kv_layout(format, 1, 16, 2, 16);
    const auto from = page_scene(device_, layout, {32, 21}, kSeed);
    std::vector<std::byte> images = gather(device_, *from, std::vector<Window>{{0, 32}}, 0, 0, format, 0, 2).images;
    const Gathered second = gather(device_, *from, std::vector<Window>{{1, 21}}, 0, 0, format, 0, 2);
    images.insert(images.end(), second.images.begin(), second.images.end());
    PagedKv to(device_, layout, {32, 21}, kSeed + 1);
    to.toggle_tag(0, 0);
    const std::vector<Window> windows = {{0, 32, 32}, {1, 21, 21}};
    const std::vector<std::byte> before = to.bytes();
    scatter(device_, to, windows, 0, images);
    EXPECT_EQ(digest(device_, to, windows, 1, 0, 0, 2), second.digests);
    to.toggle_tag(0, 0);  // Readable again: the first sequence's bytes are what they were.
    std::vector<std::byte> after = to.bytes();
    std::vector<std::byte> untouched = before;
    for (std::int32_t i = 0; i < 32; ++i) {
      EXPECT_TRUE(token_bytes(to.view_of(after), 0, to.slot(0, i)) ==
                  token_bytes(to.view_of(untouched), 0, to.slot(0, i)));
    }
  }
}

TEST_P(ScatterPagesTest, TakesNoTokens) {
  PagedKv kv(device_, ops::gqa_kv_layout(ops::KvFormat::kF8E4M3, 1, 16, 2, 16), {32}, 1104);
  const std::vector<std::byte> before = kv.bytes();
  scatter(device_, kv, std::vector<Window>{{0, 32, 0}}, 0, {});
  EXPECT_TRUE(kv.bytes() == before);
}

}  // namespace
}  // namespace tessera::conformance
