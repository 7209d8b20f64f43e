#include <algorithm>
#include <cmath>

#include "tests/conformance/independent.h"
#include "tests/conformance/paged_kv.h"

namespace tessera::conformance {
namespace {

struct Heads {
  std::int32_t heads;
  std::int32_t kv_heads;
  std::int32_t head_dim;
  std::int64_t q_cols() const { return static_cast<std::int64_t>(heads) * head_dim; }
  std::int64_t kv_cols() const { return static_cast<std::int64_t>(kv_heads) * head_dim; }
};

class PagedAttentionTest : public BackendTest {
 protected:
  static constexpr int kLayers = 2;
  static constexpr int kLayer = 1;

  HostMatrix attend(PagedKv& kv, const Heads& heads, std::span<const Window> windows, const HostMatrix& q) {
    const kv_cache::CheckedPages checked = kv.check(windows);
    std::vector<std::int32_t> cu = {0};
    for (const Window& window : windows) cu.push_back(cu.back() + window.new_tokens);
    const DeviceMatrix device_q = device_.upload_matrix(q, 3);
    const DeviceMatrix out = device_.output_matrix(q.rows, q.cols, 5);
    ops::PagedAttentionParams params{device_q.view(), cu,          checked.pages,  kv.cache(),
                                     kLayer,          heads.heads, heads.kv_heads, heads.head_dim,
                                     scale(heads),    out.view()};
    backend().paged_attention(stream(), params);
    return device_.download_matrix(out);
  }

  // Dense softmax over unpaged arrays: keys and values [tokens, kv_cols] of one sequence as they read back.
  static void formula(const Heads& heads, const HostMatrix& k, const HostMatrix& v, const Window& window,
                      const HostMatrix& q, std::int64_t first_query, std::vector<double>& out) {
    for (std::int64_t i = 0; i < window.new_tokens; ++i) {
      const std::int64_t keys = window.kv_len - window.new_tokens + i + 1;
      for (std::int32_t h = 0; h < heads.heads; ++h) {
        const std::int64_t kv_column = static_cast<std::int64_t>(h / (heads.heads / heads.kv_heads)) * heads.head_dim;
        std::vector<long double> weights;
        long double largest = -INFINITY;
        for (std::int64_t j = 0; j < keys; ++j) {
          long double score = 0.0L;
          for (std::int64_t d = 0; d < heads.head_dim; ++d) {
            score += static_cast<long double>(q.at(first_query + i, h * heads.head_dim + d)) *
                     static_cast<long double>(k.at(j, kv_column + d));
          }
          weights.push_back(score * static_cast<long double>(scale(heads)));
          largest = std::max(largest, weights.back());
        }
        long double total = 0.0L;
        for (long double& weight : weights) total += (weight = std::exp(weight - largest));
        for (std::int64_t d = 0; d < heads.head_dim; ++d) {
          long double sum = 0.0L;
          for (std::int64_t j = 0; j < keys; ++j) {
            sum += weights[static_cast<std::size_t>(j)] * static_cast<long double>(v.at(j, kv_column + d));
          }
          out.push_back(static_cast<double>(sum / total));
        }
      }
    }
  }
  static float scale(const Heads& heads) { return 1.0f / std::sqrt(static_cast<float>(heads.head_dim)); }

  static HostMatrix as_stored(const ops::KvLayout& layout, const HostMatrix& x) {
    HostMatrix out(x.rows, x.cols);
    for (std::int64_t t = 0; t < x.rows; ++t) {
      const StoredRow row = store_row(layout, 0, {x.row(t), static_cast<std::size_t>(x.cols)});
      std::copy(row.values.begin(), row.values.end(), out.values.begin() + t * x.cols);
    }
    return out;
  }

  // Sequences with their keys and values written.
  struct Scene {
    std::unique_ptr<PagedKv> kv;
    std::vector<HostMatrix> k;  // As they read back.
    std::vector<HostMatrix> v;
  };
  Scene make_scene(const ops::KvLayout& layout, const std::vector<std::int32_t>& lengths, std::uint64_t seed,
                   std::uint64_t page_seed, std::uint8_t garbage = 0xff) {
    Random random(seed);
    Scene scene;
    scene.kv = std::make_unique<PagedKv>(device_, layout, lengths, page_seed, garbage);
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
      const std::int32_t length = lengths[static_cast<std::size_t>(s)];
      const HostMatrix k = random_matrix(random, length, layout.parts[0].elements);
      const HostMatrix v = random_matrix(random, length, layout.parts[1].elements);
      if (length > 0) scene.kv->write(kLayer, std::vector<Window>{{s, length, length}}, k, v);
      scene.k.push_back(as_stored(layout, k));
      scene.v.push_back(as_stored(layout, v));
    }
    return scene;
  }
  std::vector<double> formula(const Heads& heads, const Scene& scene, std::span<const Window> windows,
                              const HostMatrix& q) {
    std::vector<double> out;
    std::int64_t first = 0;
    for (const Window& window : windows) {
      const auto s = static_cast<std::size_t>(window.sequence);
      formula(heads, scene.k[s], scene.v[s], window, q, first, out);
      first += window.new_tokens;
    }
    return out;
  }
  Tolerance allowed() const { return tolerance({1e-12, 0x1.0p-23, 1e-13}, {2e-5, 2e-5, 1e-9}); }
};
INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionTest, all_backends(), backend_case_name);

TEST_P(PagedAttentionTest, MatchesDenseSoftmaxAtEveryPageBoundary) {
  constexpr std::uint64_t kSeed = 801;
  for (const ops::KvFormat format : kv_formats()) {
    for (const std::int32_t page_size : {16, 64}) {
      for (const Heads& heads : {Heads{9, 3, 64}, {4, 4, 80}, {4, 1, 128}, {2, 2, 20}, {3, 1, 7}}) {
        SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", page size "
                                        << page_size << ", heads " << heads.heads << "/" << heads.kv_heads << " of "
                                        << heads.head_dim);
        Random random(kSeed);
        const ops::KvLayout layout = ops::gqa_kv_layout(format, kLayers, page_size, heads.kv_heads, heads.head_dim);
        const std::vector<std::int32_t> lengths = {1, 15, 16, 17, 63, 64, 65, 128, 129};
        const Scene scene = make_scene(layout, lengths, kSeed, kSeed + 1);
        std::vector<Window> decode;
        for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
          decode.push_back({s, lengths[static_cast<std::size_t>(s)], 1});
        }
        const HostMatrix q = random_matrix(random, new_tokens(decode), heads.q_cols());
        ASSERT_TRUE(near(attend(*scene.kv, heads, decode, q), formula(heads, scene, decode, q), allowed()));
      }
    }
  }
}

TEST_P(PagedAttentionTest, MatchesDenseSoftmaxOverRaggedBatches) {
  constexpr std::uint64_t kSeed = 802;
  for (const ops::KvFormat format : kv_formats()) {
    for (const std::int32_t page_size : {16, 64}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", page size "
                                      << page_size);
      Random random(kSeed);
      const Heads heads{6, 2, 64};
      const ops::KvLayout layout = ops::gqa_kv_layout(format, kLayers, page_size, heads.kv_heads, heads.head_dim);
      // The sequences are longer than what the windows read, so that written tokens lie past every kv_len.
      const Scene scene = make_scene(layout, {70, 140, 33, 64, 5, 100}, kSeed, kSeed + 1);
      const std::vector<Window> windows = {{0, 65, 65}, {1, 129, 1}, {2, 33, 7}, {3, 64, 0}, {4, 1, 1}, {5, 97, 40}};
      const HostMatrix q = random_matrix(random, new_tokens(windows), heads.q_cols());
      ASSERT_TRUE(near(attend(*scene.kv, heads, windows, q), formula(heads, scene, windows, q), allowed()));
    }
  }
}

TEST_P(PagedAttentionTest, LargeScoresDoNotOverflow) {
  constexpr std::uint64_t kSeed = 803;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const Heads heads{2, 1, 64};
  const ops::KvLayout layout = ops::gqa_kv_layout(ops::KvFormat::kBF16, kLayers, 16, 1, 64);
  const Scene scene = make_scene(layout, {100}, kSeed, kSeed);
  const std::vector<Window> windows = {{0, 100, 50}};
  const HostMatrix q = random_matrix(random, 50, heads.q_cols(), 100.0f);  // Scores of several hundred.
  EXPECT_TRUE(near(attend(*scene.kv, heads, windows, q), formula(heads, scene, windows, q),
                   tolerance({1e-11, 0x1.0p-22, 1e-12}, {1e-3, 1e-3, 1e-6})));
}

TEST_P(PagedAttentionTest, WhatLiesInUnusedSlotsAndPagesDoesNotMatter) {
  constexpr std::uint64_t kSeed = 804;
  const Heads heads{4, 2, 64};
  const std::vector<Window> windows = {{0, 17, 17}, {1, 65, 1}, {2, 1, 1}};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Random random(kSeed);
    const ops::KvLayout layout = ops::gqa_kv_layout(format, kLayers, 16, heads.kv_heads, heads.head_dim);
    const HostMatrix q = random_matrix(random, new_tokens(windows), heads.q_cols());
    const Scene zeros = make_scene(layout, {17, 65, 1}, kSeed, kSeed, 0x00);
    const HostMatrix expected = attend(*zeros.kv, heads, windows, q);
    for (const std::uint8_t garbage : {std::uint8_t{0xff}, std::uint8_t{0x7f}}) {
      const Scene scene = make_scene(layout, {17, 65, 1}, kSeed, kSeed, garbage);
      EXPECT_TRUE(same_bits(attend(*scene.kv, heads, windows, q), expected)) << "garbage " << int{garbage};
    }
    // Nor does where the pages are.
    const Scene elsewhere = make_scene(layout, {17, 65, 1}, kSeed, kSeed + 99);
    EXPECT_TRUE(same_bits(attend(*elsewhere.kv, heads, windows, q), expected));
  }
}

TEST_P(PagedAttentionTest, ChunkingChangesNoBit) {
  constexpr std::uint64_t kSeed = 805;
  for (const ops::KvFormat format : kv_formats()) {
    for (const std::int32_t page_size : {16, 64}) {
      for (const Heads& heads : {Heads{6, 2, 64}, {2, 1, 80}}) {
        SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", page size "
                                        << page_size << ", head dim " << heads.head_dim);
        Random random(kSeed);
        constexpr std::int32_t kLength = 133;
        const ops::KvLayout layout = ops::gqa_kv_layout(format, kLayers, page_size, heads.kv_heads, heads.head_dim);
        const Scene scene = make_scene(layout, {kLength}, kSeed, kSeed);
        const HostMatrix q = random_matrix(random, kLength, heads.q_cols());
        const HostMatrix whole = attend(*scene.kv, heads, std::vector<Window>{{0, kLength, kLength}}, q);
        for (const std::int32_t chunk : {1, 2, 7, 16, 33, 64, 100}) {
          for (std::int32_t begin = 0; begin < kLength; begin += chunk) {
            const std::int32_t end = std::min(begin + chunk, kLength);
            const HostMatrix part =
                attend(*scene.kv, heads, std::vector<Window>{{0, end, end - begin}}, q.slice(begin, end));
            ASSERT_TRUE(same_bits(part, whole.slice(begin, end))) << "chunk of " << chunk << " from " << begin;
          }
        }
      }
    }
  }
}

TEST_P(PagedAttentionTest, RowDoesNotDependOnTheBatch) {
  constexpr std::uint64_t kSeed = 806;
  const Heads heads{6, 2, 64};
  const std::vector<Window> windows = {{0, 65, 20}, {1, 129, 1}, {2, 33, 1}, {3, 64, 64}, {4, 1, 1}, {5, 97, 2}};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Random random(kSeed);
    const ops::KvLayout layout = ops::gqa_kv_layout(format, kLayers, 16, heads.kv_heads, heads.head_dim);
    const Scene scene = make_scene(layout, {65, 129, 33, 64, 1, 97}, kSeed, kSeed);
    const HostMatrix q = random_matrix(random, new_tokens(windows), heads.q_cols());
    const HostMatrix together = attend(*scene.kv, heads, windows, q);
    std::int64_t begin = 0;
    for (const Window& window : windows) {
      const std::int64_t end = begin + window.new_tokens;
      const HostMatrix alone = attend(*scene.kv, heads, std::vector<Window>{window}, q.slice(begin, end));
      EXPECT_TRUE(same_bits(alone, together.slice(begin, end))) << "sequence " << window.sequence;
      begin = end;
    }
  }
}

TEST_P(PagedAttentionTest, ARowThatFailedItsCheckGivesZerosAndLeavesItsNeighboursAlone) {
  constexpr std::uint64_t kSeed = 807;
  const Heads heads{4, 2, 64};
  const std::vector<Window> windows = {{0, 40, 3}, {1, 50, 4}, {2, 60, 1}};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Random random(kSeed);
    const ops::KvLayout layout = ops::gqa_kv_layout(format, kLayers, 16, heads.kv_heads, heads.head_dim);
    const Scene scene = make_scene(layout, {40, 50, 60}, kSeed, kSeed);
    const HostMatrix q = random_matrix(random, new_tokens(windows), heads.q_cols());
    const HostMatrix clean = attend(*scene.kv, heads, windows, q);
    scene.kv->toggle_tag(1, 2);
    const HostMatrix out = attend(*scene.kv, heads, windows, q);
    EXPECT_TRUE(same_bits(out.slice(0, 3), clean.slice(0, 3)));
    EXPECT_TRUE(same_bits(out.slice(3, 7), HostMatrix(4, heads.q_cols())));
    EXPECT_TRUE(same_bits(out.slice(7, 8), clean.slice(7, 8)));
  }
}

TEST_P(PagedAttentionTest, TakesEmptyBatches) {
  const Heads heads{4, 2, 64};
  const ops::KvLayout layout = ops::gqa_kv_layout(ops::KvFormat::kBF16, kLayers, 16, heads.kv_heads, heads.head_dim);
  const Scene scene = make_scene(layout, {20, 0}, 808, 808);
  EXPECT_TRUE(attend(*scene.kv, heads, {}, HostMatrix(0, heads.q_cols())).values.empty());
  EXPECT_TRUE(attend(*scene.kv, heads, std::vector<Window>{{0, 20, 0}, {1, 0, 0}}, HostMatrix(0, heads.q_cols()))
                  .values.empty());
}

}  // namespace
}  // namespace tessera::conformance
