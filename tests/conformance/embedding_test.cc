#include "tests/conformance/backend_test.h"

namespace tessera::conformance {
namespace {

class EmbeddingTest : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, EmbeddingTest, all_backends(), backend_case_name);

TEST_P(EmbeddingTest, CopiesRowsExactly) {
  constexpr std::uint64_t kSeed = 101;
  for (const auto format : {ops::WeightFormat::kF32, ops::WeightFormat::kBF16}) {
    for (const std::int64_t hidden : {1, 3, 7, 8, 15, 16, 33, 64, 100, 576, 577}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", hidden " << hidden << ", "
                                      << ops::weight_format_name(format));
      Random random(kSeed + static_cast<std::uint64_t>(hidden));
      const std::int64_t vocab = 37;
      const HostMatrix table = random_bf16_matrix(random, vocab, hidden);
      const ops::Weight weight = device_.weight(table, format, ops::WeightUsage::kEmbedding);
      const std::vector<std::int32_t> ids = {0, 36, 5, 5, 17, 36, 0, 1};
      const auto device_ids = device_.upload(ids);
      const DeviceMatrix out = device_.output_matrix(std::ssize(ids), hidden, 5);
      backend().embedding(stream(), {&weight, device_ids.span(), out.view()});
      HostMatrix expected(std::ssize(ids), hidden);
      for (std::int64_t t = 0; t < expected.rows; ++t) {
        for (std::int64_t i = 0; i < hidden; ++i) expected.at(t, i) = table.at(ids[static_cast<std::size_t>(t)], i);
      }
      EXPECT_TRUE(same_bits(device_.download_matrix(out), expected));
    }
  }
}

TEST_P(EmbeddingTest, KeepsEveryF32Bit) {
  Random random(102);
  const HostMatrix table = random_matrix(random, 3, 21);
  const ops::Weight weight = device_.weight(table, ops::WeightFormat::kF32, ops::WeightUsage::kEmbedding);
  const auto ids = device_.upload(std::vector<std::int32_t>{0, 1, 2});
  const DeviceMatrix out = device_.output_matrix(3, 21);
  backend().embedding(stream(), {&weight, ids.span(), out.view()});
  EXPECT_TRUE(same_bits(device_.download_matrix(out), table));
}

TEST_P(EmbeddingTest, TakesNoTokens) {
  Random random(103);
  const ops::Weight weight =
      device_.weight(random_matrix(random, 4, 8), ops::WeightFormat::kF32, ops::WeightUsage::kEmbedding);
  const DeviceMatrix out = device_.output_matrix(0, 8);
  backend().embedding(stream(), {&weight, {}, out.view()});
  EXPECT_EQ(device_.download_matrix(out).values.size(), 0u);
}

using EmbeddingDeathTest = EmbeddingTest;
INSTANTIATE_TEST_SUITE_P(Backends, EmbeddingDeathTest, all_backends(), backend_case_name);

TEST_P(EmbeddingDeathTest, RefusesAnIdOutsideTheTable) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Random random(104);
  const ops::Weight weight =
      device_.weight(random_matrix(random, 4, 8), ops::WeightFormat::kF32, ops::WeightUsage::kEmbedding);
  const DeviceMatrix out = device_.output_matrix(1, 8);
  for (const std::int32_t id : {-1, 4, 1 << 30}) {
    const auto ids = device_.upload(std::vector<std::int32_t>{id});
    // A device may find out only while it runs.
    EXPECT_DEATH(
        {
          backend().embedding(stream(), {&weight, ids.span(), out.view()});
          synchronize_or_die();
        },
        "token id");
  }
}

}  // namespace
}  // namespace tessera::conformance
