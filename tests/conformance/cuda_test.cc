// What only the CUDA backend promises: that splitting the context among blocks changes no bit, that sums stay accurate
// over long contexts, and that a device error fails closed.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "tessera/backends/cuda/cuda_backend.h"
#include "tests/conformance/paged_kv.h"

namespace tessera::conformance {
namespace {

class CudaTest : public BackendTest {
 protected:
  // The queries that a batch of windows has, with attention over layer 0.
  static HostMatrix attend(Device& device, PagedKv& kv, std::int32_t heads, std::int32_t kv_heads,
                           std::span<const Window> windows, const HostMatrix& q, float scale) {
    const kv_cache::CheckedPages checked = kv.check(windows);
    std::vector<std::int32_t> cu = {0};
    for (const Window& window : windows) cu.push_back(cu.back() + window.new_tokens);
    const DeviceMatrix device_q = device.upload_matrix(q);
    const DeviceMatrix out = device.output_matrix(q.rows, q.cols);
    device.backend().paged_attention(device.stream(),
                                     {device_q.view(), cu, checked.pages, kv.cache(), 0, heads, kv_heads,
                                      static_cast<std::int32_t>(q.cols / heads), scale, out.view()});
    return device.download_matrix(out);
  }
  // The same on every device: a sequence of random keys and values.
  static std::unique_ptr<PagedKv> sequence(Device& device, const ops::KvLayout& layout, std::int32_t length,
                                           std::uint64_t seed) {
    auto kv = std::make_unique<PagedKv>(device, layout, std::vector<std::int32_t>{length}, seed);
    Random random(seed);
    constexpr std::int32_t kPiece = 1000;
    for (std::int32_t end = std::min(length, kPiece);; end = std::min(length, end + kPiece)) {
      const std::int32_t count = end % kPiece == 0 ? kPiece : end % kPiece;
      const HostMatrix k = random_matrix(random, count, layout.parts[0].elements);
      const HostMatrix v = random_matrix(random, count, layout.parts[1].elements);
      kv->write(0, std::vector<Window>{{0, end, count}}, k, v);
      if (end == length) return kv;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, CudaTest, testing::Range<std::size_t>(1, 2), backend_case_name);

TEST_P(CudaTest, SplittingTheContextChangesNoBit) {
  constexpr std::uint64_t kSeed = 1501;
  constexpr std::int32_t kLength = 16500;
  // No workspace, no splitting.
  Device whole({"cuda", Arithmetic::kFloat, "",
                [] { return std::move(backends::cuda::make_cuda_backend({.attention_workspace_bytes = 0}).value()); }});
  for (const ops::KvFormat format : kv_formats()) {
    for (const auto& [heads, kv_heads, head_dim] : {std::tuple{6, 2, 64}, {5, 1, 128}, {2, 1, 200}}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", head dim "
                                      << head_dim);
      const ops::KvLayout layout = ops::gqa_kv_layout(format, 1, 64, kv_heads, head_dim);
      const auto kv = sequence(device_, layout, kLength, kSeed);
      const auto kv_whole = sequence(whole, layout, kLength, kSeed);
      Random random(kSeed + 1);
      const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
      const HostMatrix q = random_matrix(random, 40, static_cast<std::int64_t>(heads) * head_dim);
      // 40 queries around the length where splits grow from 512 keys to 1024, and single ones on both sides of it.
      const HostMatrix chunk = attend(device_, *kv, heads, kv_heads, std::vector<Window>{{0, 16404, 40}}, q, scale);
      EXPECT_TRUE(
          same_bits(attend(whole, *kv_whole, heads, kv_heads, std::vector<Window>{{0, 16404, 40}}, q, scale), chunk));
      for (const std::int32_t i : {0, 18, 19, 20, 39}) {
        const std::vector<Window> window = {{0, 16404 - 40 + i + 1, 1}};
        EXPECT_TRUE(
            same_bits(attend(device_, *kv, heads, kv_heads, window, q.slice(i, i + 1), scale), chunk.slice(i, i + 1)))
            << "query " << i;
      }
      for (const std::int32_t length : {1, 511, 512, 513, 700, 4097, 16383, 16384, 16385, kLength}) {
        const std::vector<Window> window = {{0, length, 1}};
        EXPECT_TRUE(same_bits(attend(device_, *kv, heads, kv_heads, window, q.slice(0, 1), scale),
                              attend(whole, *kv_whole, heads, kv_heads, window, q.slice(0, 1), scale)))
            << "length " << length;
      }
    }
  }
}

TEST_P(CudaTest, NaNInOneSplitReachesTheResultOfABlockThatWalksOverAll) {
  // Split among blocks, it is a case of every backend (attention_nan_test.cc).
  constexpr std::uint64_t kSeed = 1507;
  constexpr std::int32_t kLength = 1100;
  constexpr std::int32_t kHeadDim = 64;
  Device whole({"cuda", Arithmetic::kFloat, "",
                [] { return std::move(backends::cuda::make_cuda_backend({.attention_workspace_bytes = 0}).value()); }});
  for (const ops::KvFormat format : kv_formats()) {
    for (const std::int32_t begin : {0, 512, 1024}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", from " << begin);
      const auto kv = sequence(whole, ops::gqa_kv_layout(format, 1, 64, 1, kHeadDim), kLength, kSeed);
      std::vector<std::int32_t> at(static_cast<std::size_t>(std::min(512, kLength - begin)));
      std::iota(at.begin(), at.end(), begin);
      kv->make_nan(0, ops::kPartK, RowField::kElements, 0, at);
      Random random(kSeed);
      const HostMatrix q = random_matrix(random, 1, 2 * kHeadDim);
      const HostMatrix out = attend(whole, *kv, 2, 1, std::vector<Window>{{0, kLength, 1}}, q, 0.125f);
      for (const float x : out.values) ASSERT_TRUE(std::isnan(x));
    }
  }
}

TEST_P(CudaTest, StaysAccurateOverLongContexts) {
  constexpr std::uint64_t kSeed = 1502;
  constexpr std::int32_t kLength = 131072;
  constexpr std::int32_t kHeadDim = 64;
  constexpr std::int32_t kNeedle = 77777;
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    const ops::KvLayout layout = ops::gqa_kv_layout(format, 1, 64, 1, kHeadDim);
    PagedKv kv(device_, layout, {kLength}, kSeed);
    // Numbers that every format stores as they are (448 times powers of two, and half of that): keys of zero but the
    // needle's; values of 0.875 and 1.75 in turn.
    HostMatrix k(kLength, kHeadDim);
    HostMatrix v(kLength, kHeadDim);
    for (std::int64_t t = 0; t < kLength; ++t) {
      for (std::int64_t d = 0; d < kHeadDim; ++d) v.at(t, d) = (t + d) % 2 == 0 ? 0.875f : 1.75f;
    }
    k.at(kNeedle, 0) = 7.0f;
    for (std::int64_t d = 0; d < kHeadDim; ++d) v.at(kNeedle, d) = 56.0f;
    kv.write(0, std::vector<Window>{{0, kLength, kLength}}, k, v);
    // Head 0 sees all keys alike; head 1 gives the needle e^7 times the weight of another, head 2 nearly all of it,
    // head 3 next to nothing.
    const std::vector<double> scores = {0.0, 7.0, 35.0, -35.0};
    HostMatrix q(1, 4 * kHeadDim);
    for (std::size_t h = 0; h < scores.size(); ++h) {
      q.at(0, static_cast<std::int64_t>(h) * kHeadDim) = static_cast<float>(scores[h] / 7.0);
    }
    const HostMatrix out = attend(device_, kv, 4, 1, std::vector<Window>{{0, kLength, 1}}, q, 1.0f);
    for (std::size_t h = 0; h < scores.size(); ++h) {
      const double needle = std::exp(scores[h]);
      for (std::int64_t d = 0; d < kHeadDim; ++d) {
        // Half of the others hold 0.875, half 1.75; the needle stands in place of one of them.
        const double instead = (kNeedle + d) % 2 == 0 ? 0.875 : 1.75;
        const double expected = (1.3125 * kLength - instead + 56.0 * needle) / (kLength - 1 + needle);
        EXPECT_NEAR(out.at(0, static_cast<std::int64_t>(h) * kHeadDim + d), expected, 4e-6 * expected)
            << "head " << h << ", element " << d;
      }
    }
  }
}

TEST_P(CudaTest, EverySizeOfBatchGivesTheSameProducts) {
  // Sizes on both sides of every change of kernel, with rows that can be read 16 bytes at a time and rows that cannot.
  constexpr std::uint64_t kSeed = 1504;
  constexpr std::int64_t kTokens = 1100;
  for (const auto& [k, n] : {std::pair<std::int64_t, std::int64_t>{1000, 2050}, {130, 300}, {999, 65}}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", K " << k << ", N " << n);
    Random random(kSeed);
    const HostMatrix in = random_matrix(random, kTokens, k);
    const ops::Weight weight =
        device_.weight(random_matrix(random, n, k), ops::WeightFormat::kBF16, ops::WeightUsage::kLinear);
    const auto product = [&](std::int64_t begin, std::int64_t end) {
      const DeviceMatrix x = device_.upload_matrix(in.slice(begin, end));
      const DeviceMatrix out = device_.output_matrix(end - begin, n);
      backend().linear(stream(), {x.view(), &weight, nullptr, out.view(), ops::OutputMode::kOverwrite});
      return device_.download_matrix(out);
    };
    const HostMatrix all = product(0, kTokens);
    for (const std::int64_t tokens : {1, 8, 9, 16, 17, 32, 33, 64, 65, 129, 200, 700}) {
      for (const std::int64_t begin : {std::int64_t{0}, kTokens - tokens}) {
        EXPECT_TRUE(same_bits(product(begin, begin + tokens), all.slice(begin, begin + tokens)))
            << tokens << " tokens from " << begin;
      }
    }
  }
}

TEST_P(CudaTest, CopiesLargerThanTheirBuffersArrive) {
  constexpr std::uint64_t kSeed = 1503;
  Random random(kSeed);
  std::vector<std::uint64_t> host((11 << 20) / 8 + 3);
  for (std::uint64_t& value : host) value = random.bits();
  const auto array = device_.upload(host);
  EXPECT_TRUE(device_.download(array) == host);
  // Many small ones before one synchronize, in order.
  std::vector<std::uint64_t> pieces(host.size());
  constexpr std::size_t kPiece = 777;
  for (std::size_t begin = 0; begin < host.size(); begin += kPiece) {
    const std::size_t count = std::min(kPiece, host.size() - begin);
    backend().copy_to_host(stream(), pieces.data() + begin, array.data() + begin, static_cast<std::int64_t>(count) * 8);
  }
  stream().synchronize();
  EXPECT_TRUE(pieces == host);
}

TEST_P(CudaTest, NamesTheSizeOfAModelThatItsKernelsDoNotTake) {
  using backends::cuda::check_cuda_model;
  using backends::cuda::CudaModelSizes;
  const CudaModelSizes most{.vocab_size = 1 << 21,
                            .num_key_value_heads = 256,
                            .head_dim = 256,
                            .index_n_heads = 128,
                            .index_head_dim = 256,
                            .n_routed_experts = 4096};
  EXPECT_TRUE(check_cuda_model(most).ok());
  EXPECT_TRUE(check_cuda_model({}).ok());
  const auto expect_refused = [&](std::int64_t CudaModelSizes::* field, const std::string& name) {
    CudaModelSizes sizes = most;
    const std::int64_t limit = sizes.*field;
    ++(sizes.*field);
    const base::Status status = check_cuda_model(sizes);
    EXPECT_EQ(status.code(), base::StatusCode::kUnimplemented);
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
    // A row is bounded by the product of two.
    if (field != &CudaModelSizes::num_key_value_heads) {
      EXPECT_NE(status.message().find(std::to_string(limit)), std::string::npos) << status.message();
    }
  };
  expect_refused(&CudaModelSizes::vocab_size, "vocab_size");
  expect_refused(&CudaModelSizes::num_key_value_heads, "num_key_value_heads * head_dim of 65792");
  expect_refused(&CudaModelSizes::head_dim, "head_dim");
  expect_refused(&CudaModelSizes::index_n_heads, "index_n_heads");
  expect_refused(&CudaModelSizes::index_head_dim, "index_head_dim");
  expect_refused(&CudaModelSizes::n_routed_experts, "n_routed_experts");
}

using CudaDeathTest = CudaTest;
INSTANTIATE_TEST_SUITE_P(Backends, CudaDeathTest, testing::Range<std::size_t>(1, 2), backend_case_name);

// Whether everything that is read back after a device error is refused; 0 if so.
int verdict_after_an_illegal_access(Device& device) {
  ops::Backend& backend = device.backend();
  const auto good = device.upload(std::vector<std::uint32_t>(4, 7));
  if (device.download(good) != std::vector<std::uint32_t>(4, 7) || !backend.health().ok()) return 1;
  // A copy that was enqueued before the fault has not been waited for, so it is not believed either.
  std::vector<std::uint32_t> host(4, 1);
  backend.copy_to_host(device.stream(), host.data(), good.data(), 16);
  const ops::Weight table = device.weight(HostMatrix(4, 8), ops::WeightFormat::kF32, ops::WeightUsage::kEmbedding);
  const DeviceMatrix out = device.output_matrix(1, 8);
  const auto* nowhere = reinterpret_cast<const std::int32_t*>(std::uintptr_t{0x7000});
  backend.embedding(device.stream(), {&table, {nowhere, 1}, out.view()});
  device.stream().synchronize();
  if (backend.health().ok() || host != std::vector<std::uint32_t>(4, 0xffffffffu)) return 2;
  // From now on: no memory, no work, no results.
  if (backend.allocate(16, "too late").has_value()) return 3;
  backend.embedding(device.stream(), {&table, {nowhere, 1}, out.view()});
  backend.copy_to_host(device.stream(), host.data(), good.data(), 4);
  host[0] = 5;
  device.stream().synchronize();
  return host[0] == 0xffffffffu && backend.health().code() == base::StatusCode::kInternal ? 0 : 4;
}

TEST_P(CudaDeathTest, AnIllegalAccessFailsClosed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The process must end without the clean-up of a device that is lost.
  EXPECT_EXIT(std::_Exit(verdict_after_an_illegal_access(device_)), testing::ExitedWithCode(0),
              "the device has failed: CUDA: .*illegal");
}

TEST_P(CudaDeathTest, RefusesAnEntryOutsideOfThePageTable) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  PagedKv kv(device_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, 16, 2, 8), {40}, 1506);
  const kv_cache::CheckedPages checked = kv.check(std::vector<Window>{{0, 40, 0}});
  const auto recorded = device_.upload(std::vector<std::uint64_t>(static_cast<std::size_t>(kv.cache().num_pages)));
  const auto verdicts = device_.upload(std::vector<ops::RowVerdict>(1));
  const auto pages = static_cast<std::int32_t>(checked.pages.max_pages_per_row());
  for (const ops::PageTableEntry entry : {ops::PageTableEntry{-1, 0}, {1, 0}, {0, -1}, {0, pages}}) {
    const auto entries = device_.upload(std::vector<ops::PageTableEntry>{entry});
    EXPECT_DEATH(
        {
          backend().check_digests(stream(),
                                  {checked.pages, kv.cache(), 0, recorded.data(), 1, entries.data(), verdicts.data()});
          synchronize_or_die();
        },
        "outside of the page table");
  }
}

}  // namespace
}  // namespace tessera::conformance
