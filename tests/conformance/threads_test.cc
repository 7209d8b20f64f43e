// A CPU backend against itself with other numbers of threads, at the sizes of a real model.
#include "tests/conformance/threads.h"

#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tests/conformance/model_sizes.h"
#include "tests/conformance/page_scene.h"
#include "tests/conformance/quantized_weight.h"

namespace tessera::conformance {
namespace {

// A product with a weight as it is stored, and what two experts of such weights add to zeros.
HostMatrix stored_linear(Device& device, const HostMatrix& in, const StoredWeight& stored) {
  const auto weight = device.backend().prepare_weight(stored.source());
  EXPECT_TRUE(weight.has_value());
  const DeviceMatrix device_in = device.upload_matrix(in);
  const DeviceMatrix out = device.output_matrix(in.rows, stored.rows);
  device.backend().linear(device.stream(),
                          {device_in.view(), &*weight, nullptr, out.view(), ops::OutputMode::kOverwrite});
  return device.download_matrix(out);
}

HostMatrix two_experts(Device& device, const HostMatrix& in, const StoredWeight& up, const StoredWeight& down) {
  const std::vector<ops::WeightSource> ups(2, up.source());
  const std::vector<ops::WeightSource> downs(2, down.source());
  const auto stack = device.backend().prepare_experts({ups, ups, downs});
  EXPECT_TRUE(stack.has_value());
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  for (std::int64_t t = 0; t < in.rows; ++t) {
    ids.push_back(static_cast<std::int32_t>(t % 2));
    weights.push_back(0.5f);
  }
  const DeviceMatrix device_in = device.upload_matrix(in);
  const DeviceMatrix out = device.upload_matrix(HostMatrix(in.rows, in.cols));
  const auto device_ids = device.upload(ids);
  const auto device_weights = device.upload(weights);
  auto scratch = device.backend().allocate(device.backend().moe_experts_scratch_bytes(*stack, 1, in.rows), "scratch");
  EXPECT_TRUE(scratch.has_value());
  ops::MoeExpertsParams params;
  params.in = device_in.view();
  params.experts = &*stack;
  params.expert_ids = device_ids.data();
  params.expert_weights = device_weights.data();
  params.out = out.view();
  params.scratch = scratch->data();
  device.backend().moe_experts(device.stream(), params);
  return device.download_matrix(out);
}

class ThreadsTest : public SimdThreads {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ThreadsTest);
INSTANTIATE_TEST_SUITE_P(Simd, ThreadsTest, simd_targets(), simd_target_case);

TEST_P(ThreadsTest, TheirNumberChangesNoBit) {
  constexpr std::uint64_t kSeed = 1404;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Device single = device_of(1);
  Random random(kSeed);
  const HostMatrix x = random_matrix(random, 37, kHidden);
  const HostMatrix norm_weight = random_matrix(random, 1, kHidden);
  const HostMatrix weight = random_bf16_matrix(random, 1003, kHidden);
  const HostMatrix logits = random_matrix(random, 9, 49152, 3.0f);
  const std::vector<ops::SampleRow> rows = sample_rows(random, 9);
  for (const int threads : {2, 3, 8}) {
    SCOPED_TRACE(testing::Message() << threads << " threads");
    Device several = device_of(threads);
    for (const auto format : {ops::WeightFormat::kF32, ops::WeightFormat::kBF16}) {
      EXPECT_TRUE(same_bits(linear(several, x, weight, format), linear(single, x, weight, format)));
      EXPECT_TRUE(
          same_bits(linear(several, x.slice(5, 6), weight, format), linear(single, x.slice(5, 6), weight, format)));
    }
    for (const WeightCase& c : weight_cases()) {
      SCOPED_TRACE(case_text(c));
      Random draw(kSeed + static_cast<std::uint64_t>(c.group_size));
      const StoredWeight up = random_stored_weight(draw, c.format, 256, 384, c.group_size);
      const StoredWeight down = random_stored_weight(draw, c.format, 384, 256, c.group_size);
      const HostMatrix in = random_matrix(draw, 41, 384);
      EXPECT_TRUE(same_bits(stored_linear(several, in, up), stored_linear(single, in, up)));
      EXPECT_TRUE(same_bits(stored_linear(several, in.slice(3, 4), up), stored_linear(single, in.slice(3, 4), up)));
      EXPECT_TRUE(same_bits(two_experts(several, in, up, down), two_experts(single, in, up, down)));
      EXPECT_TRUE(
          same_bits(two_experts(several, in.slice(3, 4), up, down), two_experts(single, in.slice(3, 4), up, down)));
    }
    EXPECT_TRUE(same_bits(rms_norm(several, x, norm_weight), rms_norm(single, x, norm_weight)));
    for (const ops::KvFormat format : {ops::KvFormat::kBF16, ops::KvFormat::kF8E4M3}) {
      EXPECT_TRUE(same_bits(attention(several, format, kSeed), attention(single, format, kSeed)));
    }
    const Sampled actual = sample(several, logits, rows);
    const Sampled expected = sample(single, logits, rows);
    EXPECT_EQ(actual.tokens, expected.tokens);
    EXPECT_EQ(actual.logprobs, expected.logprobs);
  }
}

// Many threads that add to one page lose nothing.
TEST(DigestTokensThreads, TheirNumberChangesNoSum) {
  Device device({"threads", Arithmetic::kFloat, "",
                 [] { return std::move(backends::cpu::make_simd_backend({.threads = 8}).value()); }});
  const ops::KvLayout layout = ops::gqa_kv_layout(ops::KvFormat::kBF16, 6, 512, 2, 8);
  const auto kv = page_scene(device, layout, {512}, 1505);
  const std::vector<Window> windows = {{0, 512, 512}};
  std::vector<std::uint64_t> want(static_cast<std::size_t>(kv->cache().num_pages));
  add_row_digests(*kv, windows, 0, 6, kDigestKey, want);
  const kv_cache::CheckedPages checked = kv->check(windows);
  for (int round = 0; round < 20; ++round) {
    const auto recorded = device.upload(std::vector<std::uint64_t>(want.size()));
    device.backend().digest_tokens(device.stream(), {checked.slots, kv->cache(), 0, 6, kDigestKey, recorded.data()});
    ASSERT_EQ(device.download(recorded), want) << "round " << round;
  }
}

}  // namespace
}  // namespace tessera::conformance
