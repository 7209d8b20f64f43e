#include "tests/conformance/page_scene.h"

namespace tessera::conformance {
namespace {

// Runs the op over what a check of the windows lets through. `sums` is what is recorded before and after, [num_pages].
void add(Device& device, PagedKv& kv, std::span<const Window> windows, std::int32_t first_layer,
         std::int32_t num_layers, std::vector<std::uint64_t>& sums, std::uint64_t key = kDigestKey) {
  const kv_cache::CheckedPages checked = kv.check(windows);
  const auto recorded = device.upload(sums);
  device.backend().digest_tokens(device.stream(),
                                 {checked.slots, kv.cache(), first_layer, num_layers, key, recorded.data()});
  sums = device.download(recorded);
}

// As a pool that is in use would have them: nothing but sums can be right.
std::vector<std::uint64_t> some_sums(const PagedKv& kv, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(kv.cache().num_pages));
  for (std::uint64_t& sum : sums) sum = random.bits();
  return sums;
}

class DigestTokensTest : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, DigestTokensTest, all_backends(), backend_case_name);

TEST_P(DigestTokensTest, AddsTheRowsOfTheSlotsAndTouchesNoOtherPage) {
  constexpr std::uint64_t kSeed = 1501;
  for_each_layout(kv_formats(), kSeed, [&](const ops::KvLayout& layout) {
    const auto kv = page_scene(device_, layout, {1, 63, 64, 65, 129}, kSeed);
    // A prompt's first and second chunk, decoding, a row that only reads, and a whole prompt of several pages.
    const std::vector<Window> windows = {{0, 1, 1}, {1, 63, 40}, {2, 64, 1}, {3, 65, 0}, {4, 129, 129}};
    for (const std::uint64_t key : {kDigestKey, std::uint64_t{0}, ~std::uint64_t{0}}) {
      std::vector<std::uint64_t> sums = some_sums(*kv, kSeed);
      std::vector<std::uint64_t> want = sums;
      add(device_, *kv, windows, 0, layout.num_layers, sums, key);
      add_row_digests(*kv, windows, 0, layout.num_layers, key, want);
      EXPECT_EQ(sums, want);
    }
    for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
      std::vector<std::uint64_t> sums = some_sums(*kv, kSeed);
      std::vector<std::uint64_t> want = sums;
      add(device_, *kv, windows, layer, 1, sums);
      add_row_digests(*kv, windows, layer, 1, kDigestKey, want);
      EXPECT_EQ(sums, want) << "layer " << layer;
    }
  });
}

TEST_P(DigestTokensTest, OneTokenAtATimeGivesTheDigestOfThePage) {
  constexpr std::uint64_t kSeed = 1502;
  const ops::KvLayout layout = indexed_layout(ops::KvFormat::kF8E4M3, 16);
  const auto kv = page_scene(device_, layout, {37}, kSeed);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(kv->cache().num_pages));
  for (std::int32_t length = 1; length <= 37; ++length) {
    add(device_, *kv, std::vector<Window>{{0, length, 1}}, 0, layout.num_layers, sums);
    std::vector<std::uint64_t> want(3);
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      const auto digests = digest(device_, *kv, std::vector<Window>{{0, length, 0}}, 0, layer, 0, 3);
      for (std::size_t j = 0; j < 3; ++j) want[j] += digests[j];
    }
    for (std::size_t j = 0; j < 3; ++j) {
      ASSERT_EQ(sums[static_cast<std::size_t>(kv->leases[0][j].page)], want[j]) << length << " tokens, page " << j;
    }
  }
}

TEST_P(DigestTokensTest, ARowThatFailedItsCheckAddsNothing) {
  const auto kv = page_scene(device_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 2, 16, 2, 8), {40, 40, 40}, 1503);
  kv->toggle_tag(1, 2);
  std::vector<std::uint64_t> sums = some_sums(*kv, 1503);
  std::vector<std::uint64_t> want = sums;
  add(device_, *kv, std::vector<Window>{{0, 40, 40}, {1, 40, 40}, {2, 40, 3}}, 0, 2, sums);
  add_row_digests(*kv, std::vector<Window>{{0, 40, 40}, {2, 40, 3}}, 0, 2, kDigestKey, want);
  EXPECT_EQ(sums, want);
}

TEST_P(DigestTokensTest, TakesNoTokensAndNoLayers) {
  const auto kv = page_scene(device_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 2, 16, 2, 8), {40}, 1504);
  std::vector<std::uint64_t> sums = some_sums(*kv, 1504);
  const std::vector<std::uint64_t> before = sums;
  add(device_, *kv, std::vector<Window>{{0, 40, 0}}, 0, 2, sums);
  EXPECT_EQ(sums, before);
  add(device_, *kv, std::vector<Window>{{0, 40, 40}}, 2, 0, sums);
  EXPECT_EQ(sums, before);
}

}  // namespace
}  // namespace tessera::conformance
