// What only the CUDA backend promises of latent attention and its selection: that splitting the context among blocks
// changes no bit, that sums stay accurate over long contexts, and that long rows and large batches are selected from
// exactly.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/conformance/mla_attention_test.h"

namespace tessera::conformance {
namespace {

using ops::MlaForm;

class CudaMlaTest : public MlaAttentionTest {};
INSTANTIATE_TEST_SUITE_P(Backends, CudaMlaTest, testing::Range<std::size_t>(1, 2), backend_case_name);

TEST_P(CudaMlaTest, SplittingTheContextChangesNoBit) {
  constexpr std::uint64_t kSeed = 2501;
  constexpr std::int32_t kLength = 2300;
  const ops::MlaShape shape{3, 64, 16, 24, 20};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Problem p = make(shape, {ops::WeightFormat::kBF16, 0}, layout_of(shape, format, 64), 1, {kLength}, kSeed);
    Random random(kSeed + 7);
    // More tokens than multiprocessors: their blocks take all splits.
    constexpr std::int32_t kTokens = 400;
    const HostMatrix q = random_matrix(random, kTokens, p.query_width());
    const HostMatrix whole = run(p, std::vector<Window>{{0, kLength, kTokens}}, {MlaForm::kAbsorbed}, q);
    for (const std::int32_t t : {0, 1, 147, 148, 149, 399}) {
      const std::vector<Window> window = {{0, kLength - kTokens + t + 1, 1}};
      EXPECT_TRUE(same_bits(run(p, window, {MlaForm::kAbsorbed}, q.slice(t, t + 1)), whole.slice(t, t + 1)))
          << "token " << t;
    }
    const HostMatrix expanded = run(p, std::vector<Window>{{0, kLength, kTokens}}, {MlaForm::kExpanded}, q);
    EXPECT_TRUE(near(whole, expanded, allowed()));
  }
}

TEST_P(CudaMlaTest, ALongContextIsExpandedInChunks) {
  // So many heads that 64 MiB hold the keys and values of 1152 positions.
  constexpr std::uint64_t kSeed = 2505;
  constexpr std::int32_t kLength = 2600;
  const ops::MlaShape shape{64, 32, 8, 192, 256};
  Problem p =
      make(shape, {ops::WeightFormat::kBF16, 0}, layout_of(shape, ops::KvFormat::kF8E4M3, 64), 0, {kLength}, kSeed);
  Random random(kSeed + 7);
  // Queries on both sides of the end of a chunk, and at the end of the context.
  for (const std::int32_t end : {1170, kLength}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", context " << end);
    const HostMatrix q = random_matrix(random, 36, p.query_width());
    const std::vector<Window> windows = {{0, end, 36}};
    const HostMatrix expanded = run(p, windows, {MlaForm::kExpanded}, q);
    EXPECT_TRUE(near(run(p, windows, {MlaForm::kAbsorbed}, q), expanded, allowed()));
    EXPECT_TRUE(same_bits(run(p, std::vector<Window>{{0, end, 1}}, {MlaForm::kExpanded}, q.slice(35, 36)),
                          expanded.slice(35, 36)));
    HostSelection all{kLength, {}};
    HostSelection some{kLength, {}};
    for (std::int32_t position = end - 36; position < end; ++position) {
      all.positions.emplace_back();
      some.positions.emplace_back();
      for (std::int32_t j = 0; j <= position; ++j) {
        all.positions.back().push_back(j);
        if (j % 3 == position % 3) some.positions.back().push_back(j);
      }
    }
    EXPECT_TRUE(same_bits(run(p, windows, {MlaForm::kExpanded}, q, all), expanded));
    EXPECT_TRUE(near(run(p, windows, {MlaForm::kExpanded}, q, some), run(p, windows, {MlaForm::kAbsorbed}, q, some),
                     allowed()));
  }
}

TEST_P(CudaMlaTest, TheLargestHead) {
  // GLM-5.2's, whose values are twice as wide as others'.
  constexpr std::uint64_t kSeed = 2504;
  const ops::MlaShape shape{1, 512, 64, 192, 256};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Problem p = make(shape, {ops::WeightFormat::kBF16, 0}, layout_of(shape, format, 64), 0, {130}, kSeed);
    Random random(kSeed + 7);
    const std::vector<Window> windows = {{0, 130, 3}};
    const HostMatrix q = random_matrix(random, 3, p.query_width());
    HostSelection selection{100, {}};
    for (int t = 0; t < 3; ++t) {
      selection.positions.emplace_back();
      for (std::int32_t j = t; j < 130; j += 2) selection.positions.back().push_back(j);
    }
    const std::vector<double> dense = formula(p, windows, q);
    const std::vector<double> sparse = formula(p, windows, q, selection);
    for (const MlaForm form : {MlaForm::kExpanded, MlaForm::kAbsorbed}) {
      EXPECT_TRUE(near(run(p, windows, {form}, q), dense, allowed()));
      EXPECT_TRUE(near(run(p, windows, {form}, q, selection), sparse, allowed()));
    }
  }
}

TEST_P(CudaMlaTest, StaysAccurateOverLongContexts) {
  constexpr std::uint64_t kSeed = 2502;
  constexpr std::int32_t kLength = 131072;
  constexpr std::int32_t kNeedle = 77777;
  const ops::MlaShape shape{4, 64, 8, 8, 16};
  // Keys are the latent's first element, values the next sixteen.
  StoredWeight up;
  up.format = ops::WeightFormat::kF32;
  up.rows = std::int64_t{shape.heads} * (shape.qk_nope_head_dim + shape.v_head_dim);
  up.cols = shape.kv_lora_rank;
  up.values = HostMatrix(up.rows, up.cols);
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    const std::int64_t first = h * (shape.qk_nope_head_dim + shape.v_head_dim);
    up.values.at(first, 0) = 1.0f;
    for (std::int64_t d = 0; d < shape.v_head_dim; ++d) up.values.at(first + shape.qk_nope_head_dim + d, 1 + d) = 1.0f;
  }
  up.data.resize(up.values.values.size() * sizeof(float));
  std::memcpy(up.data.data(), up.values.values.data(), up.data.size());
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Problem p;
    p.shape = shape;
    auto prepared = backend().prepare_mla_up(up.source(), shape);
    ASSERT_TRUE(prepared.has_value());
    p.prepared = std::move(*prepared);
    p.softmax_scale = 1.0f;
    p.scene.kv = std::make_unique<PagedKv>(
        device_, ops::mla_kv_layout(format, 1, 64, shape.kv_lora_rank, shape.qk_rope_head_dim),
        std::vector<std::int32_t>{kLength}, kSeed);
    // Numbers that every format stores as they are (448 times powers of two, and half of that).
    HostMatrix latents(kLength, shape.kv_lora_rank + shape.qk_rope_head_dim);
    for (std::int64_t t = 0; t < kLength; ++t) {
      for (std::int64_t d = 0; d < shape.v_head_dim; ++d) {
        latents.at(t, 1 + d) = t == kNeedle ? 56.0f : (t + d) % 2 == 0 ? 0.875f : 1.75f;
      }
    }
    latents.at(kNeedle, 0) = 7.0f;
    p.scene.kv->write(0, std::vector<Window>{{0, kLength, kLength}}, std::vector<HostMatrix>{latents});
    // Head 0 sees all keys alike; head 1 gives the needle e^7 times the weight of another, head 2 nearly all of it,
    // head 3 next to nothing.
    const std::vector<double> scores = {0.0, 7.0, 35.0, -35.0};
    HostMatrix q(1, p.query_width());
    for (std::size_t h = 0; h < scores.size(); ++h) {
      q.at(0, static_cast<std::int64_t>(h) * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)) =
          static_cast<float>(scores[h] / 7.0);
    }
    for (const MlaForm form : {MlaForm::kAbsorbed, MlaForm::kExpanded}) {
      const HostMatrix out = run(p, std::vector<Window>{{0, kLength, 1}}, {form}, q);
      // The absorbed form rounds the summed latents to BF16 before its last product.
      const double relative = form == MlaForm::kAbsorbed ? 0x1.0p-8 : 1e-4;
      for (std::size_t h = 0; h < scores.size(); ++h) {
        const double needle = std::exp(scores[h]);
        for (std::int64_t d = 0; d < shape.v_head_dim; ++d) {
          const double instead = (kNeedle + d) % 2 == 0 ? 0.875 : 1.75;
          const double expected = (1.3125 * kLength - instead + 56.0 * needle) / (kLength - 1 + needle);
          EXPECT_NEAR(out.at(0, static_cast<std::int64_t>(h) * shape.v_head_dim + d), expected, relative * expected)
              << "head " << h << ", element " << d << (form == MlaForm::kAbsorbed ? ", absorbed" : ", expanded");
        }
      }
    }
  }
}

class CudaDsaTest : public BackendTest {
 protected:
  struct Selected {
    std::vector<std::int32_t> positions;
    std::vector<std::int32_t> counts;
  };
  static Selected select(Device& device, const ops::KvLayout& layout, const HostMatrix& latents, const HostMatrix& keys,
                         const HostMatrix& q, const HostMatrix& weights, std::int32_t topk) {
    const auto length = static_cast<std::int32_t>(keys.rows);
    PagedKv kv(device, layout, {length}, 1);
    kv.write(0, std::vector<Window>{{0, length, length}}, std::vector<HostMatrix>{latents, keys});
    const std::vector<Window> windows = {{0, length, static_cast<std::int32_t>(q.rows)}};
    const kv_cache::CheckedPages checked = kv.check(windows);
    const std::vector<std::int32_t> cu = cumulative(windows);
    const DeviceMatrix device_q = device.upload_matrix(q);
    const DeviceMatrix device_weights = device.upload_matrix(weights);
    const auto positions = device.upload(std::vector<std::int32_t>(static_cast<std::size_t>(q.rows * topk), -1));
    const auto counts = device.upload(std::vector<std::int32_t>(static_cast<std::size_t>(q.rows), -1));
    const auto heads = static_cast<std::int32_t>(weights.cols);
    const auto head_dim = static_cast<std::int32_t>(keys.cols);
    const ops::Buffer scratch =
        device.allocate(device.backend().dsa_select_scratch_bytes(heads, head_dim, q.rows, length));
    device.backend().dsa_select(device.stream(), {.q = device_q.view(),
                                                  .weights = device_weights.view(),
                                                  .cu_seqlens_q = cu,
                                                  .pages = checked.pages,
                                                  .cache = kv.cache(),
                                                  .layer = 0,
                                                  .index_n_heads = heads,
                                                  .index_head_dim = head_dim,
                                                  .softmax_scale = 0.125f,
                                                  .selection = {positions.data(), counts.data(), topk},
                                                  .scratch = scratch.data()});
    return {device.download(positions), device.download(counts)};
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, CudaDsaTest, testing::Range<std::size_t>(1, 2), backend_case_name);

TEST_P(CudaDsaTest, SelectsWhatTheReferenceDoesTiesIncluded) {
  // Numbers whose scores every backend computes exactly, so that there are many ties; more tokens than are scored at a
  // time, and more positions than a block of the selection looks at.
  constexpr std::uint64_t kSeed = 2503;
  constexpr std::int32_t kLength = 3000;
  constexpr std::int32_t kTokens = 300;
  constexpr std::int32_t kTopk = 64;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  ops::LayerSet index_layers;
  index_layers.insert(0);
  const ops::KvLayout layout = ops::mla_kv_layout(ops::KvFormat::kBF16, 1, 64, 16, 8, 16, index_layers);
  HostMatrix keys(kLength, 16);
  for (std::int64_t t = 0; t < kLength; ++t) {
    for (std::int64_t d = 0; d < 16; ++d) keys.at(t, d) = 3.5f * static_cast<float>(random.below(5) - 2);
    keys.at(t, 15) = 7.0f;  // The largest, which makes the scale a power of two; no query looks at it.
  }
  HostMatrix q(kTokens, 32);
  HostMatrix weights(kTokens, 2);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t d = 0; d < 32; ++d) q.at(t, d) = d % 16 == 15 ? 0.0f : static_cast<float>(random.below(5) - 2);
    weights.at(t, 0) = 0.5f;
    weights.at(t, 1) = t % 2 == 0 ? 0.25f : -0.25f;
  }
  const HostMatrix latents = random_matrix(random, kLength, 24);
  Device reference(backends_under_test().front());
  const Selected actual = select(device_, layout, latents, keys, q, weights, kTopk);
  const Selected expected = select(reference, layout, latents, keys, q, weights, kTopk);
  EXPECT_EQ(actual.counts, expected.counts);
  EXPECT_EQ(actual.positions, expected.positions);
}

}  // namespace
}  // namespace tessera::conformance
