#include "tessera/weights/stored_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::weights {
namespace {

using testing::HasSubstr;

constexpr StoredFormat kPlain{};
constexpr StoredFormat kF8Block{StoredKind::kF8Block128, 0};
constexpr StoredFormat kF8Channel{StoredKind::kF8Channel, 0};
constexpr StoredFormat kInt4{StoredKind::kInt4Group, 32};

TEST(StoredShard, UnitsCutNeitherHeadsNorBlocksNorGroups) {
  const ShardSpec heads{ShardDimension::kRows, 192};
  const ShardSpec columns{ShardDimension::kColumns, 1};
  EXPECT_EQ(stored_shard_spec(heads, kPlain).unit, 192);
  EXPECT_EQ(stored_shard_spec(heads, kF8Block).unit, 384);
  EXPECT_EQ(stored_shard_spec(heads, kF8Channel).unit, 192);
  EXPECT_EQ(stored_shard_spec(heads, kInt4).unit, 192);
  EXPECT_EQ(stored_shard_spec(columns, kF8Block).unit, 128);
  EXPECT_EQ(stored_shard_spec(columns, kInt4).unit, 32);
  EXPECT_EQ(stored_shard_spec({ShardDimension::kNone, 1}, kF8Block).unit, 1);
}

// GLM-4.5's experts have 1536 columns: 192 for each of 8 ranks, which are groups but no blocks.
TEST(StoredShard, UnevenSplitsAreRefusedByName) {
  const ShardSpec columns{ShardDimension::kColumns, 1};
  const auto groups = slice_for_rank("down", 5120, 1536, stored_shard_spec(columns, kInt4), {3, 8});
  ASSERT_TRUE(groups.has_value());
  EXPECT_EQ(*groups, (TensorSlice{0, 5120, 576, 768}));
  EXPECT_EQ(scale_slice(kInt4, *groups), (TensorSlice{0, 5120, 18, 24}));
  const auto blocks = slice_for_rank("down", 5120, 1536, stored_shard_spec(columns, kF8Block), {3, 8});
  ASSERT_FALSE(blocks.has_value());
  EXPECT_THAT(blocks.error().message(),
              HasSubstr("'down' [5120, 1536]: 1536 columns cannot be divided among 8 ranks in "
                        "units of 128"));
}

TEST(StoredShard, ScalesOfASlice) {
  EXPECT_EQ(scale_slice(kF8Block, {256, 512, 0, 300}), (TensorSlice{2, 4, 0, 3}));
  EXPECT_EQ(scale_slice(kF8Block, {0, 576, 0, 7168}), (TensorSlice{0, 5, 0, 56}));
  EXPECT_EQ(scale_slice(kF8Channel, {256, 512, 0, 300}), (TensorSlice{256, 512, 0, 1}));
  EXPECT_EQ(scale_slice(kPlain, {256, 512, 0, 300}), TensorSlice{});
  // The scales of all ranks are all scales, once.
  const ShardSpec rows{ShardDimension::kRows, 64};
  std::int64_t next = 0;
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    const auto slice = slice_for_rank("up", 1024, 200, stored_shard_spec(rows, kF8Block), {rank, 4});
    ASSERT_TRUE(slice.has_value());
    const TensorSlice scales = scale_slice(kF8Block, *slice);
    EXPECT_EQ(scales.row_begin, next);
    EXPECT_EQ(scales.cols(), 2);
    next = scales.row_end;
  }
  EXPECT_EQ(next, 8);
}

}  // namespace
}  // namespace tessera::weights
