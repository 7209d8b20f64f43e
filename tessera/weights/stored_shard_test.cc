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
  const auto blocks = slice_for_rank("down", 5120, 1536, stored_shard_spec(columns, kF8Block), {3, 8});
  ASSERT_FALSE(blocks.has_value());
  EXPECT_THAT(blocks.error().message(),
              HasSubstr("'down' [5120, 1536]: 1536 columns cannot be divided among 8 ranks in "
                        "units of 128"));
}

}  // namespace
}  // namespace tessera::weights
