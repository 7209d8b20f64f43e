// Memory, copies and weights: what is not an op and every backend must still do alike.
#include <algorithm>
#include <numeric>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {
namespace {

class MemoryTest : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, MemoryTest, all_backends(), backend_case_name);

TEST_P(MemoryTest, BuffersAreAlignedAndAsLongAsAsked) {
  for (const std::int64_t bytes : {0, 1, 255, 256, 257, 100'000}) {
    const auto buffer = backend().allocate(bytes, "test");
    ASSERT_TRUE(buffer.has_value());
    EXPECT_EQ(buffer->bytes(), bytes);
    EXPECT_NE(buffer->data(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 256, 0u);
  }
}

TEST_P(MemoryTest, ExhaustionIsAnErrorThatNamesTheBuffer) {
  const auto buffer = backend().allocate(std::int64_t{1} << 55, "the KV cache of engine 3");
  ASSERT_FALSE(buffer.has_value());
  EXPECT_EQ(buffer.error().code(), base::StatusCode::kResourceExhausted);
  EXPECT_NE(buffer.error().message().find("the KV cache of engine 3"), std::string::npos);
  EXPECT_NE(buffer.error().message().find("36028797018963968"), std::string::npos);
}

TEST_P(MemoryTest, CopiesThereAndBackAndClears) {
  std::vector<std::int32_t> host(1000);
  std::iota(host.begin(), host.end(), 7);
  const auto array = device_.upload(host);
  EXPECT_EQ(device_.download(array), host);
  backend().fill_zero(stream(), array.data() + 10, 20 * 4);
  std::fill(host.begin() + 10, host.begin() + 30, 0);
  EXPECT_EQ(device_.download(array), host);
  backend().copy_to_device(stream(), array.data(), nullptr, 0);
  backend().copy_to_host(stream(), nullptr, array.data(), 0);
  backend().fill_zero(stream(), nullptr, 0);
}

TEST_P(MemoryTest, ServesTheFormatsThatPoolsUse) {
  EXPECT_TRUE(backend().supports(ops::KvFormat::kBF16));
  EXPECT_TRUE(backend().supports(ops::KvFormat::kF8E4M3));
}

TEST_P(MemoryTest, RefusesQuantizedWeightsThatAreNotLinearByName) {
  const std::vector<std::byte> data(1 << 16);
  for (const auto format :
       {ops::WeightFormat::kF8Block128, ops::WeightFormat::kF8Channel, ops::WeightFormat::kInt4Group}) {
    for (const auto usage : {ops::WeightUsage::kEmbedding, ops::WeightUsage::kVector, ops::WeightUsage::kRouter}) {
      const auto weight = backend().prepare_weight({format, usage, 1, 128, data.data(), data.data(), 32});
      ASSERT_FALSE(weight.has_value());
      EXPECT_EQ(weight.error().code(), base::StatusCode::kUnimplemented);
      EXPECT_NE(weight.error().message().find(ops::weight_format_name(format)), std::string::npos);
    }
  }
}

TEST_P(MemoryTest, RefusesShapesThatAreNoMatrix) {
  const std::vector<float> data(64);
  const std::int64_t huge = std::int64_t{1} << 40;
  struct Shape {
    ops::WeightUsage usage;
    std::int64_t rows;
    std::int64_t cols;
  };
  for (const Shape& shape : {Shape{ops::WeightUsage::kLinear, 0, 8}, Shape{ops::WeightUsage::kLinear, 8, 0},
                             Shape{ops::WeightUsage::kLinear, -1, 8}, Shape{ops::WeightUsage::kEmbedding, huge, huge},
                             Shape{ops::WeightUsage::kVector, 2, 8}}) {
    const auto weight =
        backend().prepare_weight({ops::WeightFormat::kF32, shape.usage, shape.rows, shape.cols, data.data()});
    ASSERT_FALSE(weight.has_value());
    EXPECT_EQ(weight.error().code(), base::StatusCode::kInvalidArgument);
    EXPECT_NE(weight.error().message().find(std::to_string(shape.rows)), std::string::npos);
  }
}

TEST_P(MemoryTest, AWeightKeepsNoPointerIntoASourceThatDies) {
  HostMatrix values(3, 5);
  std::iota(values.values.begin(), values.values.end(), 1.0f);
  HostMatrix dying = values;
  auto weight =
      backend().prepare_weight({ops::WeightFormat::kF32, ops::WeightUsage::kEmbedding, 3, 5, dying.values.data()});
  ASSERT_TRUE(weight.has_value());
  EXPECT_GE(weight->storage.bytes(), 3 * 5 * 4);
  std::fill(dying.values.begin(), dying.values.end(), -1.0f);
  const auto ids = device_.upload(std::vector<std::int32_t>{0, 1, 2});
  const DeviceMatrix out = device_.output_matrix(3, 5);
  backend().embedding(stream(), {&*weight, ids.span(), out.view()});
  EXPECT_TRUE(same_bits(device_.download_matrix(out), values));
}

}  // namespace
}  // namespace tessera::conformance
