// The other backends against the reference, at the sizes of a real model: the cases of the ops' own files are small and
// odd. And one backend against itself with other numbers of threads.
#include <cmath>

#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tests/conformance/paged_kv.h"
#include "tests/conformance/quantized_weight.h"

namespace tessera::conformance {
namespace {

constexpr std::int64_t kHidden = 576;
constexpr std::int64_t kIntermediate = 1536;
constexpr std::int32_t kHeads = 9;
constexpr std::int32_t kKvHeads = 3;
constexpr std::int32_t kHeadDim = 64;

HostMatrix linear(Device& device, const HostMatrix& in, const HostMatrix& weight_values, ops::WeightFormat format) {
  const ops::Weight weight = device.weight(weight_values, format, ops::WeightUsage::kLinear);
  const DeviceMatrix device_in = device.upload_matrix(in);
  const DeviceMatrix out = device.output_matrix(in.rows, weight_values.rows);
  device.backend().linear(device.stream(),
                          {device_in.view(), &weight, nullptr, out.view(), ops::OutputMode::kOverwrite});
  return device.download_matrix(out);
}

HostMatrix rms_norm(Device& device, const HostMatrix& in, const HostMatrix& weight_values) {
  const ops::Weight weight = device.weight(weight_values, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
  const DeviceMatrix x = device.upload_matrix(in);
  device.backend().rms_norm(device.stream(), {x.view(), &weight, 1e-5f, x.view()});
  return device.download_matrix(x);
}

// Prompts of several lengths are written and attended to: one in the middle of its prefill, the others decoding.
HostMatrix attention(Device& device, ops::KvFormat format, std::uint64_t seed) {
  Random random(seed);
  const std::vector<std::int32_t> lengths = {700, 1, 130, 1030, 64};
  const ops::KvLayout layout = ops::gqa_kv_layout(format, 1, 64, kKvHeads, kHeadDim);
  PagedKv kv(device, layout, lengths, seed);
  for (int s = 0; s < 5; ++s) {
    const std::int32_t length = lengths[static_cast<std::size_t>(s)];
    const HostMatrix k = random_matrix(random, length, kKvHeads * kHeadDim);
    const HostMatrix v = random_matrix(random, length, kKvHeads * kHeadDim);
    kv.write(0, std::vector<Window>{{s, length, length}}, k, v);
  }
  const std::vector<Window> windows = {{0, 700, 60}, {1, 1, 1}, {2, 130, 1}, {3, 1030, 1}, {4, 64, 1}};
  const HostMatrix q = random_matrix(random, new_tokens(windows), kHeads * kHeadDim);
  const kv_cache::CheckedPages checked = kv.check(windows);
  const std::vector<std::int32_t> cu = {0, 60, 61, 62, 63, 64};
  const DeviceMatrix device_q = device.upload_matrix(q);
  const DeviceMatrix out = device.output_matrix(q.rows, q.cols);
  device.backend().paged_attention(device.stream(), {device_q.view(), cu, checked.pages, kv.cache(), 0, kHeads,
                                                     kKvHeads, kHeadDim, 0.125f, out.view()});
  return device.download_matrix(out);
}

struct Sampled {
  std::vector<std::int32_t> tokens;
  std::vector<float> logprobs;
};
Sampled sample(Device& device, const HostMatrix& logits, const std::vector<ops::SampleRow>& rows) {
  const DeviceMatrix device_logits = device.upload_matrix(logits);
  const auto out = device.upload(std::vector<ops::SampledToken>(rows.size()));
  device.backend().sample_tokens(device.stream(), {device_logits.view(), rows, 0, out.data(), nullptr, nullptr});
  Sampled sampled;
  for (const ops::SampledToken& token : device.download(out)) {
    sampled.tokens.push_back(token.token);
    sampled.logprobs.push_back(token.logprob);
  }
  return sampled;
}

std::vector<ops::SampleRow> sample_rows(Random& random, std::int64_t count) {
  std::vector<ops::SampleRow> rows(static_cast<std::size_t>(count));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    rows[r].temperature = r % 4 == 0 ? 0.0f : static_cast<float>(0.3 + random.uniform());
    rows[r].top_p = r % 3 == 0 ? 1.0f : 0.9f;
    rows[r].top_k = r % 2 == 0 ? 0 : 50;
    rows[r].seed = random.bits();
    rows[r].position = r;
  }
  return rows;
}

class AgainstReferenceTest : public BackendTest {
 protected:
  Device reference_{backends_under_test().front()};
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AgainstReferenceTest);  // A machine may run the reference alone.
INSTANTIATE_TEST_SUITE_P(Backends, AgainstReferenceTest, testing::Range<std::size_t>(1, backends_under_test().size()),
                         backend_case_name);

TEST_P(AgainstReferenceTest, Linear) {
  std::uint64_t seed = 1401;
  for (const auto format : {ops::WeightFormat::kF32, ops::WeightFormat::kBF16}) {
    for (const std::int64_t tokens : {1, 4, 40}) {
      for (const auto& [k, n] : {std::pair{kHidden, kIntermediate}, {kIntermediate, kHidden}}) {
        SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", tokens " << tokens << ", K " << k << ", N " << n);
        Random random(seed);
        const HostMatrix in = random_matrix(random, tokens, k);
        const HostMatrix weight = random_bf16_matrix(random, n, k);
        // The elements are near sqrt(K); rounding activations to BF16 is off by about 2^-10 of that.
        const double unit = std::sqrt(static_cast<double>(k));
        const Tolerance t = format == ops::WeightFormat::kBF16 ? Tolerance{0.01 * unit, 0.0, 1e-5}
                                                               : Tolerance{1e-5 * unit, 1e-6, 1e-12};
        EXPECT_TRUE(near(linear(device_, in, weight, format), linear(reference_, in, weight, format), t));
      }
    }
  }
}

TEST_P(AgainstReferenceTest, Attention) {
  constexpr std::uint64_t kSeed = 1402;
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    EXPECT_TRUE(near(attention(device_, format, kSeed), attention(reference_, format, kSeed), {1e-5, 1e-4, 1e-9}));
  }
}

TEST_P(AgainstReferenceTest, SampledTokensAreTheSame) {
  constexpr std::uint64_t kSeed = 1403;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const HostMatrix logits = random_matrix(random, 48, 49152, 3.0f);
  const std::vector<ops::SampleRow> rows = sample_rows(random, 48);
  const Sampled actual = sample(device_, logits, rows);
  const Sampled expected = sample(reference_, logits, rows);
  EXPECT_EQ(actual.tokens, expected.tokens);
  EXPECT_TRUE(
      near(std::span<const float>(actual.logprobs), std::span<const float>(expected.logprobs), 1, {1e-5, 1e-6, 1e-12}));
}

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

class ThreadsTest : public testing::TestWithParam<backends::cpu::SimdTarget> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ThreadsTest);
INSTANTIATE_TEST_SUITE_P(Simd, ThreadsTest, testing::ValuesIn(backends::cpu::available_simd_targets()),
                         [](const auto& param_info) { return backends::cpu::simd_target_name(param_info.param); });

TEST_P(ThreadsTest, TheirNumberChangesNoBit) {
  constexpr std::uint64_t kSeed = 1404;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const auto device_of = [&](int threads) {
    return Device({"threads", Arithmetic::kFloat, [threads] {
                     return std::move(
                         backends::cpu::make_simd_backend({.threads = threads, .target = GetParam()}).value());
                   }});
  };
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

}  // namespace
}  // namespace tessera::conformance
