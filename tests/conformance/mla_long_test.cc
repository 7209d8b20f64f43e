// Latent attention and its selection over contexts that backends cut into pieces: against the reference, and one
// backend against itself with other numbers of threads.
#include <cmath>

#include "tests/conformance/guarded_scratch.h"
#include "tests/conformance/mla_scene.h"
#include "tests/conformance/quantized_weight.h"
#include "tests/conformance/threads.h"

namespace tessera::conformance {
namespace {

enum class Seen { kAll, kSelected };

// Sixteen heads, so that heads are cut too. Prompts in the middle of their prefill beside sequences that decode.
HostMatrix attention(Device& device, ops::KvFormat format, Seen seen, const std::vector<Window>& windows,
                     const std::vector<ops::MlaForm>& forms, std::uint64_t seed) {
  const ops::MlaShape shape{16, 32, 8, 12, 10};
  const std::vector<std::int32_t> lengths = {2500, 1030, 90};
  const ops::KvLayout layout =
      ops::mla_kv_layout(format, 1, 16, shape.kv_lora_rank, shape.qk_rope_head_dim, 0, ops::LayerSet());
  Random random(seed);
  PagedKv kv(device, layout, lengths, seed);
  for (int s = 0; s < 3; ++s) {
    const std::int32_t length = lengths[static_cast<std::size_t>(s)];
    kv.write(0, std::vector<Window>{{s, length, length}}, {random_matrix(random, length, 40)});
  }
  const StoredWeight stored =
      random_stored_weight(random, ops::WeightFormat::kBF16, 16 * (12 + 10), shape.kv_lora_rank, 0, 0.2);
  auto up = device.backend().prepare_mla_up(stored.source(), shape);
  EXPECT_TRUE(up.has_value());
  const kv_cache::CheckedPages checked = kv.check(windows);
  const std::vector<std::int32_t> cu = cumulative(windows);
  const HostMatrix q = random_matrix(random, cu.back(), 16 * (12 + 8));
  const DeviceMatrix device_q = device.upload_matrix(q);
  const DeviceMatrix out = device.output_matrix(q.rows, 16 * 10);
  const GuardedScratch scratch(device, device.backend().mla_attention_scratch_bytes(shape, q.rows, 2500));

  // About half of all positions, up to the last of the row.
  ops::TokenSelection selection;
  selection.width = 1300;
  std::vector<std::int32_t> positions(static_cast<std::size_t>(q.rows * selection.width), -1);
  std::vector<std::int32_t> counts;
  for (const Window& window : windows) {
    for (std::int32_t i = 0; i < window.new_tokens; ++i) {
      const std::int64_t first = std::ssize(counts) * selection.width;
      std::int32_t count = 0;
      for (std::int32_t j = 0; j < window.kv_len && count < selection.width; ++j) {
        if (random.below(2) == 0) positions[static_cast<std::size_t>(first + count++)] = j;
      }
      counts.push_back(count);
    }
  }
  const auto device_positions = device.upload(positions);
  const auto device_counts = device.upload(counts);
  selection.positions = device_positions.data();
  selection.counts = device_counts.data();

  device.backend().mla_attention(device.stream(), {.q = device_q.view(),
                                                   .cu_seqlens_q = cu,
                                                   .forms = forms,
                                                   .pages = checked.pages,
                                                   .cache = kv.cache(),
                                                   .up = &*up,
                                                   .softmax_scale = 0.25f,
                                                   .selection = seen == Seen::kSelected ? &selection : nullptr,
                                                   .out = out.view(),
                                                   .scratch = scratch.data()});
  scratch.expect_guards_whole();
  return device.download_matrix(out);
}

struct Batch {
  const char* name = "";
  std::vector<Window> windows;
  std::vector<ops::MlaForm> forms;
};

std::vector<Batch> batches() {
  constexpr auto kAbsorbed = ops::MlaForm::kAbsorbed;
  constexpr auto kExpanded = ops::MlaForm::kExpanded;
  return {{"one token", {{0, 2500, 1}}, {kAbsorbed}},
          {"decode", {{0, 2500, 1}, {1, 1030, 1}, {2, 90, 1}}, {kAbsorbed, kAbsorbed, kAbsorbed}},
          {"recompute", {{1, 1030, 40}, {2, 90, 3}}, {kAbsorbed, kAbsorbed}},
          {"mixed", {{0, 2500, 33}, {1, 1030, 1}, {2, 90, 90}}, {kExpanded, kAbsorbed, kExpanded}},
          {"long chunk", {{1, 1030, 530}}, {kExpanded}}};
}

// The positions that each of the windows' tokens selects. All numbers are such that scores are exact in F32.
std::vector<std::vector<std::int32_t>> selection(Device& device, const std::vector<Window>& windows, std::int32_t topk,
                                                 std::uint64_t seed) {
  constexpr std::int32_t kHeads = 5;
  constexpr std::int32_t kDim = 16;
  ops::LayerSet index_layers;
  index_layers.insert(0);
  const ops::KvLayout layout = ops::mla_kv_layout(ops::KvFormat::kBF16, 1, 64, 24, 8, kDim, index_layers);
  Random random(seed);
  const std::vector<std::int32_t> lengths = {5000, 1500};
  PagedKv kv(device, layout, lengths, seed);
  for (int s = 0; s < 2; ++s) {
    const std::int32_t length = lengths[static_cast<std::size_t>(s)];
    HostMatrix keys(length, kDim);
    for (float& value : keys.values) value = static_cast<float>(random.below(9) - 4);
    // So the scale is 1; queries have a zero there.
    for (std::int64_t j = 0; j < length; ++j) keys.at(j, 0) = 448.0f;
    kv.write(0, std::vector<Window>{{s, length, length}}, {random_matrix(random, length, 32), keys});
  }
  const std::int64_t tokens = new_tokens(windows);
  HostMatrix q(tokens, std::int64_t{kHeads} * kDim);
  HostMatrix weights(tokens, kHeads);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < q.cols; ++i)
      q.at(t, i) = i % kDim == 0 ? 0.0f : static_cast<float>(random.below(7) - 3);
    for (std::int64_t h = 0; h < kHeads; ++h) weights.at(t, h) = static_cast<float>(random.below(7) - 2);
  }
  const kv_cache::CheckedPages checked = kv.check(windows);
  const std::vector<std::int32_t> cu = cumulative(windows);
  const DeviceMatrix device_q = device.upload_matrix(q);
  const DeviceMatrix device_weights = device.upload_matrix(weights);
  const auto positions = device.upload(std::vector<std::int32_t>(static_cast<std::size_t>(tokens * topk), -9));
  const auto counts = device.upload(std::vector<std::int32_t>(static_cast<std::size_t>(tokens), -9));
  const GuardedScratch scratch(device, device.backend().dsa_select_scratch_bytes(kHeads, kDim, tokens, 5000));
  device.backend().dsa_select(device.stream(), {.q = device_q.view(),
                                                .weights = device_weights.view(),
                                                .cu_seqlens_q = cu,
                                                .pages = checked.pages,
                                                .cache = kv.cache(),
                                                .index_n_heads = kHeads,
                                                .index_head_dim = kDim,
                                                .softmax_scale = 0.25f,
                                                .selection = {positions.data(), counts.data(), topk},
                                                .scratch = scratch.data()});
  scratch.expect_guards_whole();
  const std::vector<std::int32_t> host = device.download(positions);
  std::vector<std::vector<std::int32_t>> selected;
  for (const std::int32_t count : device.download(counts)) {
    const auto begin = host.begin() + std::ssize(selected) * topk;
    selected.emplace_back(begin, begin + count);
  }
  return selected;
}

const std::vector<Window>& selecting_windows() {
  static const std::vector<Window> windows = {{0, 5000, 1}, {1, 1500, 70}, {0, 2049, 5}};
  return windows;
}

class MlaLongTest : public BackendTest {
 protected:
  Device reference_{backends_under_test().front()};
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MlaLongTest);  // A machine may run the reference alone.
INSTANTIATE_TEST_SUITE_P(Backends, MlaLongTest, testing::Range<std::size_t>(1, backends_under_test().size()),
                         backend_case_name);

TEST_P(MlaLongTest, AttentionMatchesTheReference) {
  constexpr std::uint64_t kSeed = 2201;
  for (const ops::KvFormat format : {ops::KvFormat::kBF16, ops::KvFormat::kF8E4M3}) {
    for (const Seen seen : {Seen::kAll, Seen::kSelected}) {
      for (const Batch& batch : batches()) {
        SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", " << batch.name
                                        << (seen == Seen::kAll ? "" : ", selected"));
        EXPECT_TRUE(near(attention(device_, format, seen, batch.windows, batch.forms, kSeed),
                         attention(reference_, format, seen, batch.windows, batch.forms, kSeed), {1e-5, 1e-3, 1e-9}));
      }
    }
  }
}

TEST_P(MlaLongTest, SelectionIsTheReferences) {
  constexpr std::uint64_t kSeed = 2202;
  for (const std::int32_t topk : {1, 64, 1000, 2048, 4999}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", top " << topk);
    EXPECT_EQ(selection(device_, selecting_windows(), topk, kSeed),
              selection(reference_, selecting_windows(), topk, kSeed));
  }
}

class MlaThreadsTest : public SimdThreads {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MlaThreadsTest);
INSTANTIATE_TEST_SUITE_P(Simd, MlaThreadsTest, simd_targets(), simd_target_case);

TEST_P(MlaThreadsTest, TheirNumberChangesNoBit) {
  constexpr std::uint64_t kSeed = 2203;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Device single = device_of(1);
  for (const int threads : {2, 3, 8}) {
    Device several = device_of(threads);
    for (const Seen seen : {Seen::kAll, Seen::kSelected}) {
      for (const Batch& batch : batches()) {
        SCOPED_TRACE(testing::Message() << threads << " threads, " << batch.name
                                        << (seen == Seen::kAll ? "" : ", selected"));
        constexpr auto kFormat = ops::KvFormat::kF8E4M3;
        EXPECT_TRUE(same_bits(attention(several, kFormat, seen, batch.windows, batch.forms, kSeed),
                              attention(single, kFormat, seen, batch.windows, batch.forms, kSeed)));
      }
    }
    EXPECT_EQ(selection(several, selecting_windows(), 1000, kSeed),
              selection(single, selecting_windows(), 1000, kSeed));
  }
}

}  // namespace
}  // namespace tessera::conformance
