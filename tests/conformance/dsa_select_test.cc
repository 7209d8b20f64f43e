#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "tests/conformance/guarded_scratch.h"
#include "tests/conformance/mla_scene.h"

namespace tessera::conformance {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kLayer = 1;

struct Shape {
  std::int32_t heads = 1;
  std::int32_t head_dim = 1;
};

class DsaSelectTest : public BackendTest {
 protected:
  // Layer 0 has no index keys, layer 1 has, layer 2 has none.
  static ops::KvLayout layout_of(const Shape& shape, ops::KvFormat format, std::int32_t page_size) {
    ops::LayerSet index_layers;
    index_layers.insert(kLayer);
    return ops::mla_kv_layout(format, 3, page_size, 24, 10, shape.head_dim, index_layers);
  }

  // The selected positions of each new token. Every list is ascending and no longer than topk.
  std::vector<std::vector<std::int32_t>> run(MlaScene& scene, const Shape& shape, std::span<const Window> windows,
                                             const HostMatrix& q, const HostMatrix& weights, std::int32_t topk,
                                             int layer = kLayer) {
    const kv_cache::CheckedPages checked = scene.kv->check(windows);
    const std::vector<std::int32_t> cu = cumulative(windows);
    const DeviceMatrix device_q = device_.upload_matrix(q, 3);
    const DeviceMatrix device_weights = device_.upload_matrix(weights, 5);
    const auto positions = device_.upload(std::vector<std::int32_t>(static_cast<std::size_t>(q.rows * topk), -9));
    const auto counts = device_.upload(std::vector<std::int32_t>(static_cast<std::size_t>(q.rows), -9));
    ScratchSize size = scratch_;
    size.tokens = std::max(size.tokens, q.rows);
    for (const Window& window : windows) size.context = std::max<std::int64_t>(size.context, window.kv_len);
    const GuardedScratch scratch(
        device_, backend().dsa_select_scratch_bytes(shape.heads, shape.head_dim, size.tokens, size.context));
    backend().dsa_select(stream(), {.q = device_q.view(),
                                    .weights = device_weights.view(),
                                    .cu_seqlens_q = cu,
                                    .pages = checked.pages,
                                    .cache = scene.kv->cache(),
                                    .layer = layer,
                                    .index_n_heads = shape.heads,
                                    .index_head_dim = shape.head_dim,
                                    .softmax_scale = scale_.value_or(scale_of(shape)),
                                    .selection = {positions.data(), counts.data(), topk},
                                    .scratch = scratch.data()});
    scratch.expect_guards_whole();
    const std::vector<std::int32_t> host = device_.download(positions);
    const std::vector<std::int32_t> host_counts = device_.download(counts);
    std::vector<std::vector<std::int32_t>> selected;
    for (std::size_t t = 0; t < host_counts.size(); ++t) {
      EXPECT_GE(host_counts[t], 0);
      EXPECT_LE(host_counts[t], topk);
      const auto begin = host.begin() + static_cast<std::int64_t>(t) * topk;
      selected.emplace_back(begin, begin + std::clamp(host_counts[t], 0, topk));
      for (std::size_t i = 1; i < selected.back().size(); ++i) {
        EXPECT_LT(selected.back()[i - 1], selected.back()[i]) << "token " << t;
      }
    }
    return selected;
  }
  static float scale_of(const Shape& shape) { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }
  ScratchSize scratch_;
  std::optional<float> scale_;  // Instead of scale_of.

  // One position's score, and how far a kernel's may be from it: not at all where relu surely makes every head zero.
  struct Score {
    double value = 0.0;
    double error = 0.0;
  };
  // Scores of positions 0 .. count - 1 for token t.
  std::vector<Score> scores(const Shape& shape, const HostMatrix& keys, std::int64_t count, const HostMatrix& q,
                            const HostMatrix& weights, std::int64_t t) const {
    const bool exact = device_.arithmetic() == Arithmetic::kDouble;
    const auto scale = static_cast<double>(scale_of(shape));
    std::vector<Score> out;
    for (std::int64_t j = 0; j < count; ++j) {
      Score score;
      double squares = 0.0;
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        double product = 0.0;
        double terms = 0.0;
        double squares_of_terms = 0.0;
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
          const double term = static_cast<double>(q.at(t, h * shape.head_dim + d)) * static_cast<double>(keys.at(j, d));
          product += term;
          terms += std::abs(term);
          squares_of_terms += term * term;
        }
        // Products may be taken in BF16: a term is off by 2^-8 of itself at most, and terms point anywhere, so that
        // their sum is off by 2^-8 of the root of their squares, hardly ever more than twice that.
        const double off = exact ? 1e-13 * terms : 0x1.0p-7 * std::sqrt(squares_of_terms);
        if (product + off <= 0.0) continue;
        const auto weight = static_cast<double>(weights.at(t, h));
        score.value += weight * std::max(product, 0.0) * scale;
        squares += off * off * weight * weight * scale * scale;
      }
      score.error = std::sqrt(squares) + (exact ? 0.0 : 0x1.0p-20 * std::abs(score.value));
      out.push_back(score);
    }
    return out;
  }

  struct Compared {
    std::int64_t positions = 0;  // Of tokens that have a choice.
    std::int64_t excused = 0;    // Of these, so near to the last one selected that rounding decides.
  };
  // The right set. Whether a position is in it is certain where, with every score anywhere within its error, fewer than
  // topk others beat it, or topk others do.
  static void expect_best(const std::vector<std::int32_t>& selected, const std::vector<Score>& score, std::int32_t topk,
                          Compared& compared) {
    ASSERT_EQ(std::ssize(selected), std::min<std::int64_t>(topk, std::ssize(score)));
    if (std::ssize(score) <= topk) return;
    // In the order of selection: by score descending, then by position.
    std::vector<std::pair<double, std::size_t>> highest;
    std::vector<std::pair<double, std::size_t>> lowest;
    for (std::size_t j = 0; j < score.size(); ++j) {
      highest.emplace_back(-(score[j].value + score[j].error), j);
      lowest.emplace_back(-(score[j].value - score[j].error), j);
    }
    const auto at_highest = highest;
    const auto at_lowest = lowest;
    std::sort(highest.begin(), highest.end());
    std::sort(lowest.begin(), lowest.end());
    const std::set<std::int32_t> set(selected.begin(), selected.end());
    for (std::size_t j = 0; j < score.size(); ++j) {
      // Itself is among those that may beat it where its highest score is above its lowest.
      const std::int64_t may_beat = std::lower_bound(highest.begin(), highest.end(), at_lowest[j]) - highest.begin() -
                                    (at_highest[j] < at_lowest[j] ? 1 : 0);
      const std::int64_t surely_beat = std::lower_bound(lowest.begin(), lowest.end(), at_highest[j]) - lowest.begin();
      ++compared.positions;
      if (may_beat >= topk && surely_beat < topk) {
        ++compared.excused;
        continue;
      }
      EXPECT_EQ(set.contains(static_cast<std::int32_t>(j)), may_beat < topk)
          << "position " << j << " of score " << score[j].value << " +- " << score[j].error << ": " << surely_beat
          << " others are surely better, " << may_beat << " may be";
    }
  }
  // The selections of all the windows' tokens.
  Compared expect_all_best(const MlaScene& scene, const Shape& shape, std::span<const Window> windows,
                           const HostMatrix& q, const HostMatrix& weights, std::int32_t topk,
                           const std::vector<std::vector<std::int32_t>>& selected) const {
    Compared compared;
    std::int64_t t = 0;
    for (const Window& window : windows) {
      const HostMatrix& keys = scene.index_keys[static_cast<std::size_t>(window.sequence)];
      for (std::int32_t p = window.kv_len - window.new_tokens; p < window.kv_len; ++p, ++t) {
        SCOPED_TRACE(testing::Message() << "token " << t << ", top " << topk);
        expect_best(selected[static_cast<std::size_t>(t)], scores(shape, keys, p + 1, q, weights, t), topk, compared);
      }
    }
    // Doubles leave nothing to rounding. Else a kernel that picks at random must not be excused.
    const std::int64_t excused_max = device_.arithmetic() == Arithmetic::kDouble ? 0 : compared.positions / 20;
    EXPECT_LE(compared.excused, excused_max) << "of " << compared.positions << " positions";
    return compared;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, DsaSelectTest, all_backends(), backend_case_name);

TEST_P(DsaSelectTest, TakesTheBest) {
  std::uint64_t seed = 2001;
  for (const ops::KvFormat format : kv_formats()) {
    for (const std::int32_t page_size : {16, 64}) {
      for (const Shape& shape : {Shape{1, 1}, {2, 20}, {4, 64}, {32, 128}, {3, 7}}) {
        SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << ops::kv_format_name(format) << ", page size "
                                        << page_size << ", " << shape.heads << " heads of " << shape.head_dim);
        MlaScene scene =
            random_mla_scene(device_, layout_of(shape, format, page_size), kLayer, {1, 63, 64, 65, 200}, seed);
        Random random(seed + 7);
        const std::vector<Window> windows = {{0, 1, 1}, {1, 63, 5}, {2, 64, 1}, {3, 65, 40}, {4, 200, 3}, {4, 130, 0}};
        const std::int64_t tokens = new_tokens(windows);
        const HostMatrix q = random_matrix(random, tokens, std::int64_t{shape.heads} * shape.head_dim);
        const HostMatrix weights = random_matrix(random, tokens, shape.heads);  // Also negative ones.
        for (const std::int32_t topk : {1, 8, 64, 256}) {
          const auto selected = run(scene, shape, windows, q, weights, topk);
          expect_all_best(scene, shape, windows, q, weights, topk, selected);
        }
      }
    }
  }
}

TEST_P(DsaSelectTest, UpToTopkTokensAreAllSelected) {
  constexpr std::uint64_t kSeed = 2100;
  const Shape shape{4, 32};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    MlaScene scene = random_mla_scene(device_, layout_of(shape, format, 16), kLayer, {48}, kSeed);
    Random random(kSeed + 7);
    HostMatrix q = random_matrix(random, 48, 128);
    const HostMatrix weights = random_matrix(random, 48, 4);
    q.at(5, 0) = kNaN;  // There is no choice, so scores do not matter.
    const auto selected = run(scene, shape, std::vector<Window>{{0, 48, 48}}, q, weights, 48);
    for (std::int32_t t = 0; t < 48; ++t) {
      ASSERT_EQ(std::ssize(selected[static_cast<std::size_t>(t)]), t + 1);
      for (std::int32_t j = 0; j <= t; ++j) {
        EXPECT_EQ(selected[static_cast<std::size_t>(t)][static_cast<std::size_t>(j)], j);
      }
    }
  }
}

TEST_P(DsaSelectTest, TiesGoToTheLowerPosition) {
  constexpr std::uint64_t kSeed = 2110;
  const Shape shape{2, 16};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Random random(kSeed);
    // Three kinds of keys, each many times: the best ones at 5, 6, 16, 17, 40, 63, the next ones at every third.
    HostMatrix keys(64, 16);
    for (std::int64_t j = 0; j < 64; ++j) {
      for (std::int64_t d = 0; d < 16; ++d) keys.at(j, d) = j % 3 == 0 ? 1.0f : 0.5f;
    }
    for (const std::int64_t j : {5, 6, 16, 17, 40, 63}) {
      for (std::int64_t d = 0; d < 16; ++d) keys.at(j, d) = 2.0f;
    }
    MlaScene scene =
        mla_scene(device_, layout_of(shape, format, 16), kLayer, {random_matrix(random, 64, 34)}, {keys}, kSeed);
    HostMatrix q(1, 32);
    for (float& value : q.values) value = 0.25f;
    HostMatrix weights(1, 2);
    weights.at(0, 0) = 0.5f;
    weights.at(0, 1) = 0.25f;
    const std::vector<Window> windows = {{0, 64, 1}};
    const auto best = [&](std::int32_t topk) { return run(scene, shape, windows, q, weights, topk)[0]; };
    EXPECT_EQ(best(1), (std::vector<std::int32_t>{5}));
    EXPECT_EQ(best(4), (std::vector<std::int32_t>{5, 6, 16, 17}));
    EXPECT_EQ(best(6), (std::vector<std::int32_t>{5, 6, 16, 17, 40, 63}));
    EXPECT_EQ(best(9), (std::vector<std::int32_t>{0, 3, 5, 6, 9, 16, 17, 40, 63}));
    // Nothing passes the relu: all scores are zero, whatever the sign of the weights.
    for (float& value : q.values) value = -0.25f;
    weights.at(0, 1) = -0.25f;
    EXPECT_EQ(best(3), (std::vector<std::int32_t>{0, 1, 2}));
    const HostMatrix zeros(1, 2);
    EXPECT_EQ(run(scene, shape, windows, q, zeros, 3)[0], (std::vector<std::int32_t>{0, 1, 2}));
  }
}

TEST_P(DsaSelectTest, NaNIsSelectedLast) {
  constexpr std::uint64_t kSeed = 2120;
  const Shape shape{2, 16};
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  MlaScene scene = random_mla_scene(device_, layout_of(shape, ops::KvFormat::kBF16, 16), kLayer, {40}, kSeed);
  Random random(kSeed + 7);
  const std::vector<Window> windows = {{0, 40, 3}};
  HostMatrix q = random_matrix(random, 3, 32);
  HostMatrix weights = random_matrix(random, 3, 2);
  const auto sound = run(scene, shape, windows, q, weights, 5);
  q.at(1, 20) = kNaN;
  const auto damaged = run(scene, shape, windows, q, weights, 5);
  EXPECT_EQ(damaged[0], sound[0]);
  EXPECT_EQ(damaged[1], (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(damaged[2], sound[2]);
  // One key that was damaged in memory: its scale is NaN.
  std::vector<std::byte> bytes = scene.kv->bytes();
  const ops::KvCacheView view = scene.kv->view_of(bytes);
  const std::int32_t victim = sound[0][2];
  const std::int64_t slot = scene.kv->slot(0, victim);
  std::fill_n(view.page_scales(kLayer, ops::kPartIndexKeys, slot / 16) + slot % 16 * 4, 4, std::byte{0xff});
  scene.kv->set_bytes(bytes);
  const auto without = run(scene, shape, windows, q, weights, 5);
  for (const std::int32_t j : sound[0]) {
    EXPECT_EQ(std::count(without[0].begin(), without[0].end(), j), j == victim ? 0 : 1) << "position " << j;
  }
}

TEST_P(DsaSelectTest, AFailedRowSelectsNothingAndDisturbsNobody) {
  constexpr std::uint64_t kSeed = 2130;
  const Shape shape{4, 20};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    MlaScene scene = random_mla_scene(device_, layout_of(shape, format, 16), kLayer, {20, 40, 30}, kSeed);
    Random random(kSeed + 7);
    const std::vector<Window> windows = {{0, 20, 5}, {1, 40, 3}, {2, 30, 1}};
    const HostMatrix q = random_matrix(random, 9, 80);
    const HostMatrix weights = random_matrix(random, 9, 4);
    const auto sound = run(scene, shape, windows, q, weights, 6);
    scene.kv->toggle_tag(1, 2);
    const auto damaged = run(scene, shape, windows, q, weights, 6);
    for (std::size_t t = 0; t < 9; ++t) {
      EXPECT_EQ(damaged[t], t >= 5 && t < 8 ? std::vector<std::int32_t>{} : sound[t]) << "token " << t;
    }
    EXPECT_TRUE(run(scene, shape, {}, HostMatrix(0, 80), HostMatrix(0, 4), 6).empty());
  }
}

TEST_P(DsaSelectTest, ATokensSelectionDependsOnNeitherBatchNorChunks) {
  constexpr std::uint64_t kSeed = 2140;
  const Shape shape{8, 64};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    MlaScene scene = random_mla_scene(device_, layout_of(shape, format, 16), kLayer, {90, 50}, kSeed);
    Random random(kSeed + 7);
    const HostMatrix q = random_matrix(random, 90, 512);
    const HostMatrix weights = random_matrix(random, 90, 8);
    const auto whole = run(scene, shape, std::vector<Window>{{0, 90, 90}}, q, weights, 16);
    for (const auto& [begin, end] : {std::pair{0, 33}, {33, 90}, {89, 90}, {16, 17}}) {
      const auto chunk = run(scene, shape, std::vector<Window>{{0, end, end - begin}}, q.slice(begin, end),
                             weights.slice(begin, end), 16);
      for (int t = begin; t < end; ++t) {
        EXPECT_EQ(chunk[static_cast<std::size_t>(t - begin)], whole[static_cast<std::size_t>(t)]) << "token " << t;
      }
    }
    const auto batch = run(scene, shape, std::vector<Window>{{1, 50, 10}, {0, 90, 80}}, q, weights, 16);
    const auto again = run(scene, shape, std::vector<Window>{{0, 90, 80}}, q.slice(10, 90), weights.slice(10, 90), 16);
    EXPECT_EQ(std::vector(batch.begin() + 10, batch.end()), again);
  }
}

TEST_P(DsaSelectTest, TheLargeModelsWidthOverContextsAroundIt) {
  constexpr std::uint64_t kSeed = 2145;
  constexpr std::int32_t kTopk = 2048;
  const Shape shape{4, 128};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    MlaScene scene = random_mla_scene(device_, layout_of(shape, format, 64), kLayer, {2048, 2049, 2112, 5000}, kSeed);
    Random random(kSeed + 7);
    // The first has no choice, the second's last token one position too many, the third's chunk passes the width in its
    // middle.
    const std::vector<Window> chunks = {{0, 2048, 3}, {1, 2049, 2}, {2, 2112, 66}, {3, 5000, 5}};
    const std::int64_t tokens = new_tokens(chunks);
    const HostMatrix q = random_matrix(random, tokens, std::int64_t{shape.heads} * shape.head_dim);
    const HostMatrix weights = random_matrix(random, tokens, shape.heads);
    const auto selected = run(scene, shape, chunks, q, weights, kTopk);
    const Compared compared = expect_all_best(scene, shape, chunks, q, weights, kTopk, selected);
    EXPECT_GE(compared.positions, 2049 + 5 * 4996);
    // Each chunk alone, each chunk's last token alone, and these together, in another order.
    std::vector<Window> decode;
    HostMatrix decode_q(4, q.cols);
    HostMatrix decode_weights(4, weights.cols);
    std::vector<std::vector<std::int32_t>> decoded;
    std::int64_t end = tokens;
    for (std::size_t w = 4; w-- > 0;) {
      const Window& chunk = chunks[w];
      const std::int64_t begin = end - chunk.new_tokens;
      const auto alone =
          run(scene, shape, std::vector<Window>{chunk}, q.slice(begin, end), weights.slice(begin, end), kTopk);
      EXPECT_EQ(alone, std::vector(selected.begin() + begin, selected.begin() + end)) << chunk.kv_len << " tokens";
      const Window last{chunk.sequence, chunk.kv_len, 1};
      const auto one =
          run(scene, shape, std::vector<Window>{last}, q.slice(end - 1, end), weights.slice(end - 1, end), kTopk);
      EXPECT_EQ(one[0], selected[static_cast<std::size_t>(end - 1)]) << chunk.kv_len << " tokens";
      std::copy_n(q.row(end - 1), q.cols, decode_q.values.begin() + std::ssize(decode) * q.cols);
      std::copy_n(weights.row(end - 1), weights.cols,
                  decode_weights.values.begin() + std::ssize(decode) * weights.cols);
      decode.push_back(last);
      decoded.push_back(one[0]);
      end = begin;
    }
    EXPECT_EQ(run(scene, shape, decode, decode_q, decode_weights, kTopk), decoded);
  }
}

TEST_P(DsaSelectTest, ScratchMayBeForMoreTokensAndLongerContexts) {
  constexpr std::uint64_t kSeed = 2147;
  const Shape shape{8, 64};
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  MlaScene scene = random_mla_scene(device_, layout_of(shape, ops::KvFormat::kBF16, 16), kLayer, {90, 50}, kSeed);
  Random random(kSeed + 7);
  const std::vector<Window> windows = {{0, 90, 70}, {1, 50, 1}};
  const HostMatrix q = random_matrix(random, 71, 512);
  const HostMatrix weights = random_matrix(random, 71, 8);
  const auto own = run(scene, shape, windows, q, weights, 16);
  scratch_ = {300, 4096};
  EXPECT_EQ(run(scene, shape, windows, q, weights, 16), own);
}

TEST_P(DsaSelectTest, ScratchIsBoundedOverTheWholeContext) {
  const auto bytes = [&](std::int64_t tokens, std::int64_t context) {
    return backend().dsa_select_scratch_bytes(32, 128, tokens, context);
  };
  for (const std::int64_t tokens : {1, 64, 576, 8192}) {
    EXPECT_LE(bytes(tokens, 1 << 20) - bytes(tokens, 64), kScratchBytesAContextToken << 20) << tokens << " tokens";
  }
}

using DsaSelectDeathTest = DsaSelectTest;
INSTANTIATE_TEST_SUITE_P(Backends, DsaSelectDeathTest, all_backends(), backend_case_name);

TEST_P(DsaSelectDeathTest, RefusesALayerWithoutIndexKeysAndOtherHeads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Shape shape{2, 16};
  MlaScene scene = random_mla_scene(device_, layout_of(shape, ops::KvFormat::kBF16, 16), kLayer, {20}, 2150);
  const std::vector<Window> windows = {{0, 20, 1}};
  const HostMatrix q(1, 32);
  const HostMatrix weights(1, 2);
  EXPECT_DEATH(run(scene, shape, windows, q, weights, 4, 0), "layer 0 has no index keys");
  EXPECT_DEATH(run(scene, shape, windows, q, weights, 4, 3), "layer 3 of 3");
  EXPECT_DEATH(run(scene, {2, 8}, windows, HostMatrix(1, 16), weights, 4), "2 heads of 8 over index keys of 16");
  EXPECT_DEATH(run(scene, shape, windows, q, HostMatrix(1, 3), 4), "expected \\[1, 2\\]");
  EXPECT_DEATH(run(scene, shape, windows, q, weights, 0), "width");
  // relu(a x) = a relu(x), and the order of scores, need a > 0.
  for (const float scale : {0.0f, -1.0f, kNaN, std::numeric_limits<float>::infinity()}) {
    scale_ = scale;
    EXPECT_DEATH(run(scene, shape, windows, q, weights, 4), "softmax_scale .*, expected more than 0");
  }
}

}  // namespace
}  // namespace tessera::conformance
