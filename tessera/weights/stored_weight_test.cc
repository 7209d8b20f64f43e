#include "tessera/weights/stored_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tessera/weights/safetensors_writer.h"
#include "tests/support/temporary_folder.h"

namespace tessera::weights {
namespace {

using base::DType;
using base::StatusCode;
using test_support::TemporaryFolder;
using testing::HasSubstr;
using Shape = std::vector<std::int64_t>;

constexpr StoredFormat kF8Block{StoredKind::kF8Block128, 0};
constexpr StoredFormat kF8Channel{StoredKind::kF8Channel, 0};
constexpr StoredFormat kInt4{StoredKind::kInt4Group, 32};

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> bf16(const std::vector<float>& values) {
  std::vector<base::BF16> rounded;
  for (const float value : values) rounded.push_back(base::to_bf16(value));
  return bytes_of(rounded);
}

struct Entry {
  TensorDeclaration declaration;
  std::vector<std::byte> data = {};  // Zeros where it is empty.
};

class StoredWeightTest : public testing::Test {
 protected:
  // One U8 first, so that nothing behind it is aligned.
  Checkpoint open(std::vector<Entry> entries) {
    entries.insert(entries.begin(), Entry{{"pad", DType::kU8, {1}}});
    std::vector<TensorDeclaration> declarations;
    for (const Entry& entry : entries) declarations.push_back(entry.declaration);
    auto writer = SafetensorsWriter::create(folder_.path() / "model.safetensors", declarations);
    EXPECT_TRUE(writer.has_value()) << writer.error().to_string();
    for (Entry& entry : entries) {
      std::size_t size = static_cast<std::size_t>(base::dtype_size(entry.declaration.dtype));
      for (const std::int64_t extent : entry.declaration.shape) size *= static_cast<std::size_t>(extent);
      entry.data.resize(size);
      EXPECT_TRUE(writer->write(entry.declaration.name, entry.data).ok());
    }
    EXPECT_TRUE(writer->finish().ok());
    auto checkpoint = Checkpoint::open(folder_.path());
    EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
    EXPECT_TRUE(checkpoint->take("pad").has_value());
    return std::move(*checkpoint);
  }
  void expect_refused(const std::vector<Entry>& entries, const Shape& shape, const StoredFormat& format,
                      StatusCode code, const std::string& message) {
    Checkpoint checkpoint = open(entries);
    const auto weight = take_weight(checkpoint, "x.weight", shape, format);
    ASSERT_FALSE(weight.has_value()) << message;
    EXPECT_EQ(weight.error().code(), code) << weight.error().to_string();
    EXPECT_THAT(weight.error().message(), HasSubstr(message));
    EXPECT_THAT(weight.error().message(), HasSubstr("model.safetensors"));
  }
  static std::vector<Entry> int4_entries() {
    return {{{"x.weight_packed", DType::kI32, {2, 8}}, bytes_of(std::vector<std::uint32_t>(16, 0x7a3245e2u))},
            {{"x.weight_scale", DType::kBF16, {2, 2}}, bf16({0.5f, 1.0f, 2.0f, 4.0f})},
            {{"x.weight_shape", DType::kI64, {2}}, bytes_of(std::vector<std::int64_t>{2, 64})}};
  }
  static std::vector<Entry> block_entries() {
    return {{{"x.weight", DType::kF8E4M3, {130, 3}}},
            {{"x.weight_scale_inv", DType::kF32, {2, 1}}, bytes_of(std::vector<float>{0.5f, 0.25f})}};
  }
  static std::vector<Entry> channel_entries() {
    return {{{"x.weight", DType::kF8E4M3, {3, 5}}},
            {{"x.weight_scale", DType::kBF16, {3, 1}}, bf16({0.5f, 1.5f, 3.0f})}};
  }
  TemporaryFolder folder_{"stored_weight"};
};

TEST_F(StoredWeightTest, PlainWeightsAreReadWhereTheyLie) {
  Checkpoint checkpoint = open({{{"x.weight", DType::kBF16, {2, 3}}}, {{"norm", DType::kF32, {4}}}});
  const auto matrix = take_weight(checkpoint, "x.weight", Shape{2, 3});
  ASSERT_TRUE(matrix.has_value()) << matrix.error().to_string();
  const ops::WeightSource source = matrix->source(ops::WeightUsage::kLinear);
  EXPECT_EQ(source.format, ops::WeightFormat::kBF16);
  EXPECT_EQ(source.rows, 2);
  EXPECT_EQ(source.cols, 3);
  EXPECT_EQ(source.data, checkpoint.find("x.weight")->data.data());
  EXPECT_EQ(source.scales, nullptr);
  EXPECT_TRUE(source.outlives_backend);
  EXPECT_EQ(matrix->stored_bytes(), 12);
  EXPECT_EQ(matrix->owned_bytes(), 0);
  const auto vector = take_weight(checkpoint, "norm", Shape{4});
  ASSERT_TRUE(vector.has_value());
  EXPECT_EQ(vector->rows, 1);
  EXPECT_EQ(vector->cols, 4);
  EXPECT_TRUE(checkpoint.unconsumed().empty());
}

TEST_F(StoredWeightTest, F8BlocksNeedNotBeWhole) {
  Checkpoint checkpoint = open(block_entries());
  const auto weight = take_weight(checkpoint, "x.weight", Shape{130, 3}, kF8Block);
  ASSERT_TRUE(weight.has_value()) << weight.error().to_string();
  const ops::WeightSource source = weight->source(ops::WeightUsage::kLinear);
  EXPECT_EQ(source.format, ops::WeightFormat::kF8Block128);
  EXPECT_EQ(source.rows, 130);
  EXPECT_EQ(source.cols, 3);
  EXPECT_EQ(source.data, checkpoint.find("x.weight")->data.data());
  EXPECT_EQ(source.scales, checkpoint.find("x.weight_scale_inv")->data.data());
  EXPECT_EQ(weight->owned_bytes(), 0);
  EXPECT_EQ(weight->stored_bytes(), 130 * 3 + 8);
  EXPECT_TRUE(checkpoint.unconsumed().empty());
}

TEST_F(StoredWeightTest, Bf16ScalesOfF8AreWidened) {
  for (const Shape& scale_shape : {Shape{3, 1}, Shape{3}}) {
    std::vector<Entry> entries = channel_entries();
    entries[1].declaration.shape = scale_shape;
    Checkpoint checkpoint = open(entries);
    auto weight = take_weight(checkpoint, "x.weight", Shape{3, 5}, kF8Channel);
    ASSERT_TRUE(weight.has_value()) << weight.error().to_string();
    EXPECT_EQ(weight->owned_bytes(), 12);
    // The source points into the object, wherever that goes.
    const StoredWeight moved = std::move(*weight);
    const ops::WeightSource source = moved.source(ops::WeightUsage::kLinear);
    EXPECT_EQ(source.format, ops::WeightFormat::kF8Channel);
    std::vector<float> scales(3);
    std::memcpy(scales.data(), source.scales, 12);
    EXPECT_THAT(scales, testing::ElementsAre(0.5f, 1.5f, 3.0f));
    EXPECT_TRUE(checkpoint.unconsumed().empty());
  }
}

TEST_F(StoredWeightTest, Int4Groups) {
  for (const DType shape_dtype : {DType::kI64, DType::kI32}) {
    std::vector<Entry> entries = int4_entries();
    if (shape_dtype == DType::kI32) {
      entries[2] = {{"x.weight_shape", DType::kI32, {2}}, bytes_of(std::vector<std::int32_t>{2, 64})};
    }
    Checkpoint checkpoint = open(entries);
    const auto weight = take_weight(checkpoint, "x.weight", Shape{2, 64}, kInt4);
    ASSERT_TRUE(weight.has_value()) << weight.error().to_string();
    const ops::WeightSource source = weight->source(ops::WeightUsage::kLinear);
    EXPECT_EQ(source.format, ops::WeightFormat::kInt4Group);
    EXPECT_EQ(source.group_size, 32);
    EXPECT_EQ(source.rows, 2);
    EXPECT_EQ(source.cols, 64);
    EXPECT_EQ(source.data, checkpoint.find("x.weight_packed")->data.data());
    EXPECT_EQ(source.scales, checkpoint.find("x.weight_scale")->data.data());
    EXPECT_EQ(weight->tensors.size(), 3u);
    EXPECT_TRUE(checkpoint.unconsumed().empty());
  }
}

TEST_F(StoredWeightTest, F32ScalesOfInt4AreTakenWhereBf16HoldsThem) {
  std::vector<Entry> entries = int4_entries();
  entries[1] = {{"x.weight_scale", DType::kF32, {2, 2}}, bytes_of(std::vector<float>{0.5f, 1.0f, 2.0f, 4.0f})};
  Checkpoint checkpoint = open(entries);
  const auto weight = take_weight(checkpoint, "x.weight", Shape{2, 64}, kInt4);
  ASSERT_TRUE(weight.has_value()) << weight.error().to_string();
  EXPECT_EQ(weight->owned_bytes(), 8);
  EXPECT_EQ(weight->converted_scales, bf16({0.5f, 1.0f, 2.0f, 4.0f}));

  entries[1].data = bytes_of(std::vector<float>{0.5f, 1.0f, 2.001f, 4.0f});
  expect_refused(entries, {2, 64}, kInt4, StatusCode::kInvalidArgument,
                 "tensor 'x.weight_scale' holds 2.001 at element 2, expected scales that BF16 can hold");
}

TEST_F(StoredWeightTest, ScalesThatAreNotFiniteAreNamed) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::vector<Entry> entries;
    std::vector<std::byte> scales;
    Shape shape;
    StoredFormat format;
    std::string message;
  };
  const std::vector<Case> cases = {
      {block_entries(),
       bytes_of(std::vector<float>{0.5f, infinity}),
       {130, 3},
       kF8Block,
       "tensor 'x.weight_scale_inv' holds inf at element 1, expected finite scales"},
      {channel_entries(),
       bf16({-infinity, 1.5f, 3.0f}),
       {3, 5},
       kF8Channel,
       "tensor 'x.weight_scale' holds -inf at element 0, expected finite scales"},
      {int4_entries(),
       bf16({0.5f, 1.0f, nan, 4.0f}),
       {2, 64},
       kInt4,
       "tensor 'x.weight_scale' holds nan at element 2, expected finite scales"},
  };
  for (const Case& c : cases) {
    std::vector<Entry> entries = c.entries;
    {
      Checkpoint checkpoint = open(entries);
      EXPECT_TRUE(take_weight(checkpoint, "x.weight", c.shape, c.format)->check_scales().ok());
    }
    entries[1].data = c.scales;
    Checkpoint checkpoint = open(entries);
    const auto weight = take_weight(checkpoint, "x.weight", c.shape, c.format);
    ASSERT_TRUE(weight.has_value()) << weight.error().to_string();
    const base::Status status = weight->check_scales();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("model.safetensors: " + c.message));
  }
}

TEST_F(StoredWeightTest, Int4Refusals) {
  using enum StatusCode;
  const auto with = [&](std::size_t i, Entry entry) {
    std::vector<Entry> entries = int4_entries();
    entries[i] = std::move(entry);
    return entries;
  };
  const auto without = [&](std::size_t i) {
    std::vector<Entry> entries = int4_entries();
    entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(i));
    return entries;
  };
  expect_refused(without(0), {2, 64}, kInt4, kNotFound, "tensor 'x.weight_packed' is missing");
  expect_refused(without(1), {2, 64}, kInt4, kNotFound,
                 "tensor 'x.weight_scale' is missing, expected beside 'x.weight_packed' (int4_group32)");
  expect_refused(without(2), {2, 64}, kInt4, kNotFound, "tensor 'x.weight_shape' is missing");
  expect_refused({{{"x.weight", DType::kBF16, {2, 64}}}}, {2, 64}, kInt4, kInvalidArgument,
                 "tensor 'x.weight' is stored as BF16, expected 'x.weight_packed' beside its scales");
  expect_refused(with(0, {{"x.weight_packed", DType::kU8, {2, 8}}}), {2, 64}, kInt4, kUnimplemented,
                 "tensor 'x.weight_packed' is stored as U8, expected I32");
  expect_refused(with(0, {{"x.weight_packed", DType::kI32, {2, 16}}}), {2, 64}, kInt4, kInvalidArgument,
                 "tensor 'x.weight_packed' has shape [2, 16], expected [2, 8]");
  expect_refused(with(1, {{"x.weight_scale", DType::kF16, {2, 2}}}), {2, 64}, kInt4, kUnimplemented,
                 "tensor 'x.weight_scale' is stored as F16, expected BF16 or F32");
  expect_refused(with(1, {{"x.weight_scale", DType::kBF16, {2, 4}}}), {2, 64}, kInt4, kInvalidArgument,
                 "tensor 'x.weight_scale' has shape [2, 4], expected [2, 2]");
  expect_refused(with(2, {{"x.weight_shape", DType::kF32, {2}}}), {2, 64}, kInt4, kUnimplemented,
                 "expected I64 or I32");
  expect_refused(with(2, {{"x.weight_shape", DType::kI64, {3}}}), {2, 64}, kInt4, kInvalidArgument,
                 "has shape [3], expected [2]");
  expect_refused(with(2, {{"x.weight_shape", DType::kI64, {2}}, bytes_of(std::vector<std::int64_t>{64, 2})}), {2, 64},
                 kInt4, kInvalidArgument, "tensor 'x.weight_shape' says [64, 2], expected [2, 64]");
  // Columns that are no whole words, no whole groups.
  expect_refused(int4_entries(), {2, 60}, kInt4, kInvalidArgument,
                 "is for a weight [2, 60], expected columns that 8 and groups of 32 divide");
  expect_refused(int4_entries(), {2, 48}, kInt4, kInvalidArgument, "expected columns that 8 and groups of 32 divide");
  expect_refused(int4_entries(), {2, 64}, {StoredKind::kInt4Group, 64}, kInvalidArgument,
                 "tensor 'x.weight_scale' has shape [2, 2], expected [2, 1]");
}

TEST_F(StoredWeightTest, F8Refusals) {
  using enum StatusCode;
  const auto block = [](std::size_t i, Entry entry) {
    std::vector<Entry> entries = block_entries();
    entries[i] = std::move(entry);
    return entries;
  };
  expect_refused({block_entries()[0]}, {130, 3}, kF8Block, kNotFound,
                 "tensor 'x.weight_scale_inv' is missing, expected beside 'x.weight' (f8_block128)");
  expect_refused({block_entries()[1]}, {130, 3}, kF8Block, kNotFound, "tensor 'x.weight' is missing");
  expect_refused(block(0, {{"x.weight", DType::kBF16, {130, 3}}}), {130, 3}, kF8Block, kUnimplemented,
                 "tensor 'x.weight' is stored as BF16, expected F8_E4M3");
  expect_refused(block_entries(), {130, 4}, kF8Block, kInvalidArgument, "has shape [130, 3], expected [130, 4]");
  expect_refused(block(1, {{"x.weight_scale_inv", DType::kF32, {1, 1}}}), {130, 3}, kF8Block, kInvalidArgument,
                 "tensor 'x.weight_scale_inv' has shape [1, 1], expected [2, 1]");
  expect_refused(block(1, {{"x.weight_scale_inv", DType::kF16, {2, 1}}}), {130, 3}, kF8Block, kUnimplemented,
                 "expected F32 or BF16");
  // Scales of the other FP8 format are no scales of this one.
  expect_refused(channel_entries(), {3, 5}, kF8Block, kNotFound, "'x.weight_scale_inv' is missing");
  std::vector<Entry> entries = channel_entries();
  entries[1] = {{"x.weight_scale", DType::kF32, {3, 5}}};
  expect_refused(entries, {3, 5}, kF8Channel, kInvalidArgument, "has shape [3, 5], expected [3, 1]");
}

TEST_F(StoredWeightTest, WhatIsQuantizedIsNotTakenAsPlain) {
  expect_refused(int4_entries(), {2, 64}, {}, StatusCode::kInvalidArgument,
                 "tensor 'x.weight_packed' is quantized, expected 'x.weight' as F32 or BF16");
  expect_refused(block_entries(), {130, 3}, {}, StatusCode::kUnimplemented,
                 "tensor 'x.weight' is stored as F8_E4M3, expected F32 or BF16");
}

TEST_F(StoredWeightTest, KvScalesAreTakenAndReturned) {
  Checkpoint checkpoint = open({{{"model.layers.0.self_attn.k_scale", DType::kF32, {1}}},
                                {{"model.layers.0.self_attn.v_scale", DType::kF32, {1}}},
                                {{"model.layers.0.self_attn.k_proj.k_scale", DType::kBF16, {}}},
                                {{"model.layers.0.self_attn.k_proj.weight_scale", DType::kBF16, {4, 1}}},
                                {{"model.layers.0.mlp.k_scale", DType::kF32, {1}}}});
  EXPECT_EQ(take_kv_scales(checkpoint).size(), 3u);
  std::vector<std::string> left;
  for (const Tensor& tensor : checkpoint.unconsumed()) left.emplace_back(tensor.name);
  EXPECT_THAT(left, testing::ElementsAre("model.layers.0.mlp.k_scale", "model.layers.0.self_attn.k_proj.weight_scale"));
}

}  // namespace
}  // namespace tessera::weights
