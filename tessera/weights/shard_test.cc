#include "tessera/weights/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::weights {
namespace {

TEST(Shard, OneRankHoldsEverything) {
  for (const ShardDimension dimension : {ShardDimension::kNone, ShardDimension::kRows, ShardDimension::kColumns}) {
    EXPECT_EQ(*slice_for_rank("w", 6, 10, {dimension, 2}, {0, 1}), (TensorSlice{0, 6, 0, 10}));
  }
}

TEST(Shard, SlicesTileTheTensor) {
  EXPECT_EQ(*slice_for_rank("w", 12, 10, {ShardDimension::kRows, 3}, {0, 2}), (TensorSlice{0, 6, 0, 10}));
  EXPECT_EQ(*slice_for_rank("w", 12, 10, {ShardDimension::kRows, 3}, {1, 2}), (TensorSlice{6, 12, 0, 10}));
  EXPECT_EQ(*slice_for_rank("w", 12, 10, {ShardDimension::kColumns, 1}, {3, 5}), (TensorSlice{0, 12, 6, 8}));
  EXPECT_EQ(*slice_for_rank("w", 12, 10, {ShardDimension::kNone, 1}, {3, 5}), (TensorSlice{0, 12, 0, 10}));
}

TEST(Shard, RefusesWhatDoesNotDivide) {
  const auto rows = slice_for_rank("model.w", 9 * 64, 10, {ShardDimension::kRows, 64}, {0, 2});
  ASSERT_FALSE(rows.has_value());
  EXPECT_EQ(rows.error().message(),
            "tensor 'model.w' [576, 10]: 576 rows cannot be divided among 2 ranks in units of 64");
  // 192 columns a rank, in blocks of 128: the uneven split of GLM-4.5's experts.
  const auto columns = slice_for_rank("w", 1, 1536, {ShardDimension::kColumns, 128}, {0, 8});
  ASSERT_FALSE(columns.has_value());
  EXPECT_THAT(columns.error().message(), testing::HasSubstr("1536 columns cannot be divided among 8 ranks"));
  EXPECT_FALSE(slice_for_rank("w", 8, 1, {ShardDimension::kRows, 1ll << 62}, {0, 8}).has_value());
}

}  // namespace
}  // namespace tessera::weights
