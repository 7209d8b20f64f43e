#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "tests/conformance/independent.h"
#include "tests/conformance/paged_kv.h"

namespace tessera::conformance {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class KvWriteTest : public BackendTest {
 protected:
  // Puts one token's parts, as they should be stored, into a host copy of the cache.
  static void place(const ops::KvCacheView& host_view, int layer, std::int64_t slot,
                    const std::vector<const HostMatrix*>& parts, std::int64_t t) {
    const ops::KvLayout& layout = host_view.layout;
    const std::int64_t page = slot / layout.page_size;
    const std::int64_t row = slot % layout.page_size;
    for (int p = 0; p < layout.layer_parts(layer); ++p) {
      const HostMatrix& x = *parts[static_cast<std::size_t>(p)];
      const StoredRow stored = store_row(layout, p, {x.row(t), static_cast<std::size_t>(x.cols)});
      std::memcpy(host_view.page_data(layer, p, page) + row * layout.row_bytes(p), stored.data.data(),
                  stored.data.size());
      if (!stored.scales.empty()) {
        std::memcpy(host_view.page_scales(layer, p, page) + row * layout.row_scale_bytes(p), stored.scales.data(),
                    stored.scales.size());
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, KvWriteTest, all_backends(), backend_case_name);

TEST_P(KvWriteTest, StoresEveryByteAsDefinedAndTouchesNoOther) {
  constexpr std::uint64_t kSeed = 701;
  for (const ops::KvFormat format : kv_formats()) {
    for (const std::int32_t page_size : {16, 64}) {
      for (const auto& [kv_heads, head_dim] : {std::pair{1, 7}, {3, 64}, {2, 80}, {4, 20}, {1, 128}}) {
        SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", page size "
                                        << page_size << ", " << kv_heads << " heads of " << head_dim);
        Random random(kSeed);
        PagedKv kv(device_, ops::gqa_kv_layout(format, 3, page_size, kv_heads, head_dim), {129, 1, 65, 16}, kSeed);
        const std::vector<Window> windows = {{0, 129, 100}, {1, 1, 1}, {2, 64, 1}, {3, 16, 0}};
        const HostMatrix k = random_matrix(random, new_tokens(windows), kv_heads * head_dim, 4.0f);
        const HostMatrix v = random_matrix(random, new_tokens(windows), kv_heads * head_dim, 0.01f);
        std::vector<std::byte> expected = kv.bytes();
        std::int64_t t = 0;
        for (const Window& window : windows) {
          for (std::int32_t i = window.kv_len - window.new_tokens; i < window.kv_len; ++i) {
            place(kv.view_of(expected), 1, kv.slot(window.sequence, i), {&k, &v}, t++);
          }
        }
        const std::vector<std::uint8_t> nonfinite = kv.write(1, windows, k, v);
        EXPECT_EQ(nonfinite, std::vector<std::uint8_t>(nonfinite.size(), 0));
        ASSERT_TRUE(kv.bytes() == expected);
      }
    }
  }
}

TEST_P(KvWriteTest, StoresLatentRowsAndIndexKeysOfTheLayersThatHaveThem) {
  constexpr std::uint64_t kSeed = 708;
  for (const ops::KvFormat format : kv_formats()) {
    for (const std::int32_t page_size : {16, 64}) {
      for (const auto& [rank, rope, index] : {std::tuple{512, 64, 128}, {24, 10, 20}, {7, 2, 5}, {40, 8, 0}}) {
        SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", page size "
                                        << page_size << ", [" << rank << " | " << rope << "], index keys of " << index);
        Random random(kSeed);
        ops::LayerSet index_layers;
        index_layers.insert(0);
        index_layers.insert(2);
        const ops::KvLayout layout = ops::mla_kv_layout(format, 4, page_size, rank, rope, index, index_layers);
        PagedKv kv(device_, layout, {70, 16}, kSeed);
        const std::vector<Window> windows = {{0, 70, 69}, {1, 16, 2}};
        std::vector<std::byte> expected = kv.bytes();
        for (int layer = 0; layer < 4; ++layer) {
          std::vector<HostMatrix> parts = {random_matrix(random, 71, rank + rope, 3.0f)};
          if (layout.layer_parts(layer) == 2) parts.push_back(random_matrix(random, 71, index, 0.2f));
          std::vector<std::uint8_t> flags(71, 0);
          if (layer % 2 == 0 && index > 0) {
            parts[1].at(3, index - 1) = kNaN;  // Damage in one part is damage to the token.
            flags[3] = 1;
            for (std::int64_t i = 0; i < index; ++i) {
              parts[1].at(4, i) = 0.0f;
              parts[1].at(5, i) = static_cast<float>(i) * std::numeric_limits<float>::denorm_min();
              parts[1].at(6, i) = 1e30f * random.normal();
            }
          }
          parts[0].at(10, rank + rope - 1) = -kInfinity;
          flags[10] = 1;
          std::int64_t t = 0;
          for (const Window& window : windows) {
            for (std::int32_t i = window.kv_len - window.new_tokens; i < window.kv_len; ++i, ++t) {
              std::vector<HostMatrix> rows;
              for (const HostMatrix& part : parts) {
                rows.push_back(flags[static_cast<std::size_t>(t)] != 0 ? HostMatrix(1, part.cols)
                                                                       : part.slice(t, t + 1));
              }
              std::vector<const HostMatrix*> row_views;
              for (const HostMatrix& row : rows) row_views.push_back(&row);
              place(kv.view_of(expected), layer, kv.slot(window.sequence, i), row_views, 0);
            }
          }
          EXPECT_EQ(kv.write(layer, windows, parts), flags);
          ASSERT_TRUE(kv.bytes() == expected) << "layer " << layer;
        }
      }
    }
  }
}

TEST_P(KvWriteTest, RoundsHardValuesAsDefined) {
  constexpr std::uint64_t kSeed = 702;
  constexpr int kHeadDim = 32;
  Random random(kSeed);
  // Each row is one head: zeros, negative zeros, subnormals, ties of both formats, large values, one huge among tiny.
  std::vector<std::vector<float>> rows(10, std::vector<float>(kHeadDim, 0.0f));
  for (int i = 0; i < kHeadDim; ++i) {
    rows[1][i] = -0.0f;
    rows[2][i] = static_cast<float>(i) * std::numeric_limits<float>::denorm_min();
    rows[3][i] = 1e-40f * random.normal();
    // Ties between neighbours of bfloat16; of e4m3 too, because the largest is 448 and so the scale 1.
    rows[4][i] = 1.0f + static_cast<float>(2 * i + 1) * 0x1.0p-8f;
    rows[5][i] = i == 0 ? 448.0f : 16.0f + static_cast<float>(i) + 0.0f;
    rows[6][i] = i == 0 ? -448.0f : static_cast<float>(2 * i + 1) * 0x1.0p-10f;  // Ties of e4m3 subnormals.
    rows[7][i] = 1e37f * random.normal();
    rows[8][i] = i == 5 ? 3.0e30f : random.normal();
    rows[9][i] = std::ldexp(random.normal(), i * 2 - 32);
  }
  rows[2][0] = rows[2][1];
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    PagedKv kv(device_, ops::gqa_kv_layout(format, 1, 16, 1, kHeadDim), {10}, kSeed);
    HostMatrix k(10, kHeadDim);
    HostMatrix v(10, kHeadDim);
    for (int t = 0; t < 10; ++t) {
      for (int i = 0; i < kHeadDim; ++i) {
        k.at(t, i) = rows[t][i];
        v.at(t, i) = rows[9 - t][i];
      }
    }
    std::vector<std::byte> expected = kv.bytes();
    for (int t = 0; t < 10; ++t) place(kv.view_of(expected), 0, kv.slot(0, t), {&k, &v}, t);
    const std::vector<Window> windows = {{0, 10, 10}};
    EXPECT_EQ(kv.write(0, windows, k, v), std::vector<std::uint8_t>(10, 0));
    std::vector<std::byte> actual = kv.bytes();
    for (int t = 0; t < 10; ++t) {
      EXPECT_TRUE(token_bytes(kv.view_of(actual), 0, kv.slot(0, t)) ==
                  token_bytes(kv.view_of(expected), 0, kv.slot(0, t)))
          << "row " << t;
    }
    EXPECT_TRUE(actual == expected);
  }
}

TEST_P(KvWriteTest, EveryStoredFp8ValueIsTheNearest) {
  // Judged in real numbers, without the F32 quotient of the definition: half a step of the code, and 1e-6 for it.
  constexpr std::uint64_t kSeed = 703;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  constexpr int kHeadDim = 128;
  Random random(kSeed);
  PagedKv kv(device_, ops::gqa_kv_layout(ops::KvFormat::kF8E4M3, 1, 64, 1, kHeadDim), {64}, kSeed);
  HostMatrix k(64, kHeadDim);
  for (std::int64_t t = 0; t < 64; ++t) {
    for (std::int64_t i = 0; i < kHeadDim; ++i) {
      k.at(t, i) = std::ldexp(random.normal(), static_cast<int>(t) - 32);
    }
  }
  const std::vector<Window> windows = {{0, 64, 64}};
  kv.write(0, windows, k, k);
  std::vector<std::byte> bytes = kv.bytes();
  const ops::KvCacheView view = kv.view_of(bytes);
  for (std::int32_t t = 0; t < 64; ++t) {
    const std::int64_t slot = kv.slot(0, t);
    const std::byte* codes = view.page_data(0, ops::kPartK, slot / 64) + slot % 64 * kHeadDim;
    base::BF16 scale_bits;
    std::memcpy(&scale_bits, view.page_scales(0, ops::kPartK, slot / 64) + slot % 64 * 2, 2);
    const double scale = base::to_float(scale_bits);
    double largest = 0.0;
    for (std::int64_t i = 0; i < kHeadDim; ++i) largest = std::max(largest, std::abs(static_cast<double>(k.at(t, i))));
    EXPECT_GE(scale * 448.0 * (1 + 1e-7), largest);
    EXPECT_LE(scale * 448.0, largest * (1 + 0x1.0p-7));
    for (std::int64_t i = 0; i < kHeadDim; ++i) {
      const double x = static_cast<double>(k.at(t, i)) / scale;
      const double stored = e4m3_value(static_cast<std::uint8_t>(codes[i]));
      const double step = std::max(std::ldexp(1.0, std::ilogb(std::max(std::abs(x), 1e-30)) - 3), 0x1.0p-9);
      EXPECT_LE(std::abs(x - stored), step / 2 * (1 + 1e-6)) << "row " << t << ", element " << i;
    }
  }
}

TEST_P(KvWriteTest, NonFiniteTokensAreStoredAsZerosAndReported) {
  constexpr std::uint64_t kSeed = 704;
  constexpr int kHeads = 3;
  constexpr int kHeadDim = 20;
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Random random(kSeed);
    PagedKv kv(device_, ops::gqa_kv_layout(format, 1, 16, kHeads, kHeadDim), {8}, kSeed);
    HostMatrix k = random_matrix(random, 8, kHeads * kHeadDim);
    HostMatrix v = random_matrix(random, 8, kHeads * kHeadDim);
    k.at(1, 0) = kNaN;
    v.at(2, 59) = kNaN;
    k.at(3, 33) = kInfinity;
    v.at(4, 19) = -kInfinity;
    k.at(5, 7) = std::numeric_limits<float>::max();  // Rounds to infinity in BF16 only.
    const bool overflows = format == ops::KvFormat::kBF16;
    std::vector<std::uint8_t> flags = {0, 1, 1, 1, 1, static_cast<std::uint8_t>(overflows ? 1 : 0), 0, 0};
    const std::vector<Window> windows = {{0, 8, 8}};
    std::vector<std::byte> expected = kv.bytes();
    for (std::int32_t t = 0; t < 8; ++t) {
      const HostMatrix zeros(8, kHeads * kHeadDim);
      const bool bad = flags[static_cast<std::size_t>(t)] != 0;
      place(kv.view_of(expected), 0, kv.slot(0, t), {bad ? &zeros : &k, bad ? &zeros : &v}, t);
    }
    EXPECT_EQ(kv.write(0, windows, k, v), flags);
    EXPECT_TRUE(kv.bytes() == expected);
  }
}

TEST_P(KvWriteTest, ARowThatFailedItsCheckWritesNothing) {
  constexpr std::uint64_t kSeed = 705;
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Random random(kSeed);
    PagedKv kv(device_, ops::gqa_kv_layout(format, 1, 16, 2, 16), {20, 20, 20}, kSeed);
    const std::vector<Window> windows = {{0, 20, 5}, {1, 20, 5}, {2, 20, 5}};
    HostMatrix k = random_matrix(random, 15, 32);
    const HostMatrix v = random_matrix(random, 15, 32);
    k.at(7, 3) = kNaN;  // In the failed row: nothing is written, so nothing is reported.
    std::vector<std::byte> expected = kv.bytes();
    for (std::int32_t i = 0; i < 5; ++i) {
      place(kv.view_of(expected), 0, kv.slot(0, 15 + i), {&k, &v}, i);
      place(kv.view_of(expected), 0, kv.slot(2, 15 + i), {&k, &v}, 10 + i);
    }
    kv.toggle_tag(1, 0);
    EXPECT_EQ(kv.write(0, windows, k, v), std::vector<std::uint8_t>(15, 0));
    EXPECT_TRUE(kv.bytes() == expected);
    // Token 15 lies in the failed page, so its slot is refused as well.
    EXPECT_EQ(kv.verdicts()[1].failed_checks, ops::kCheckTag | ops::kCheckSlot);
  }
}

TEST_P(KvWriteTest, TakesNoTokens) {
  PagedKv kv(device_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, 16, 2, 16), {20}, 706);
  const std::vector<std::byte> before = kv.bytes();
  const std::vector<Window> windows = {{0, 20, 0}};
  EXPECT_TRUE(kv.write(0, windows, HostMatrix(0, 32), HostMatrix(0, 32)).empty());
  EXPECT_TRUE(kv.write(0, {}, HostMatrix(0, 32), HostMatrix(0, 32)).empty());
  EXPECT_TRUE(kv.bytes() == before);
}

TEST_P(KvWriteTest, BytesDoNotDependOnTheBatch) {
  constexpr std::uint64_t kSeed = 707;
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Random random(kSeed);
    const ops::KvLayout layout = ops::gqa_kv_layout(format, 1, 16, 3, 64);
    const HostMatrix k = random_matrix(random, 33, 192);
    const HostMatrix v = random_matrix(random, 33, 192);
    PagedKv whole(device_, layout, {33}, kSeed);
    PagedKv single(device_, layout, {33}, kSeed);
    whole.write(0, std::vector<Window>{{0, 33, 33}}, k, v);
    for (std::int32_t t = 0; t < 33; ++t) {
      single.write(0, std::vector<Window>{{0, t + 1, 1}}, k.slice(t, t + 1), v.slice(t, t + 1));
    }
    EXPECT_TRUE(whole.bytes() == single.bytes());
  }
}

}  // namespace
}  // namespace tessera::conformance
