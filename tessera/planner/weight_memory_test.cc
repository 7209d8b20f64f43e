#include "tessera/planner/weight_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tessera::planner {
namespace {

using models::WeightPart;
using ops::WeightUsage;
using ::testing::HasSubstr;
using weights::ShardDimension;
using weights::StoredFormat;
using weights::StoredKind;

constexpr StoredFormat kPlain{};
constexpr StoredFormat kBlock{StoredKind::kF8Block128, 0};
constexpr StoredFormat kChannel{StoredKind::kF8Channel, 0};
constexpr StoredFormat kInt4{StoredKind::kInt4Group, 32};

TensorGroup group(WeightPart part, std::int64_t rows, std::int64_t cols, weights::ShardSpec shard,
                  std::int64_t count = 1, TensorRole role = TensorRole::kPlain,
                  WeightUsage usage = WeightUsage::kLinear) {
  TensorGroup g;
  g.part = part;
  g.usage = usage;
  g.role = role;
  g.rows = rows;
  g.cols = cols;
  g.shard = shard;
  g.count = count;
  g.example = "some.weight";
  return g;
}

TEST(StoredBytes, CountsDataAndScales) {
  EXPECT_EQ(stored_bytes(kPlain, 2, 256, 512), 256 * 512 * 2);
  EXPECT_EQ(stored_bytes(kPlain, 4, 256, 512), 256 * 512 * 4);
  EXPECT_EQ(stored_bytes(kBlock, 2, 256, 512), 256 * 512 + 2 * 4 * 4);
  // Blocks at the edges are whole blocks: 576 rows are 5 of them.
  EXPECT_EQ(stored_bytes(kBlock, 2, 576, 7168), 576 * 7168 + 5 * 56 * 4);
  EXPECT_EQ(stored_bytes(kChannel, 2, 256, 512), 256 * 512 + 256 * 4);
  // Nine sixteenths of a byte a weight.
  EXPECT_EQ(stored_bytes(kInt4, 2, 256, 512), 256 * 512 / 16 * 9);
}

TEST(RecipeFormat, SaysWhatEachRecipeQuantizes) {
  const TensorGroup expert = group(WeightPart::kRoutedExperts, 2048, 7168, {});
  const TensorGroup attention = group(WeightPart::kAttention, 1536, 7168, {});
  const TensorGroup head = group(WeightPart::kHead, 1000, 7168, {});
  const TensorGroup router = group(WeightPart::kRouter, 384, 7168, {}, 1, TensorRole::kPlain, WeightUsage::kRouter);
  const TensorGroup norm = group(WeightPart::kNorms, 1, 7168, {}, 1, TensorRole::kPlain, WeightUsage::kVector);
  const TensorGroup narrow = group(WeightPart::kIndexer, 32, 6144, {});
  for (const TensorGroup* g : {&head, &router, &norm, &narrow}) {
    for (const WeightRecipe recipe : kWeightRecipes) EXPECT_EQ(recipe_format(recipe, *g), kPlain);
  }
  EXPECT_EQ(recipe_format(WeightRecipe::kBf16, expert), kPlain);
  EXPECT_EQ(recipe_format(WeightRecipe::kFp8, expert), kBlock);
  EXPECT_EQ(recipe_format(WeightRecipe::kFp8, attention), kBlock);
  EXPECT_EQ(recipe_format(WeightRecipe::kFp8Channel, attention), kChannel);
  EXPECT_EQ(recipe_format(WeightRecipe::kInt4, expert), kInt4);
  EXPECT_EQ(recipe_format(WeightRecipe::kInt4, attention), kPlain);
  EXPECT_EQ(recipe_format(WeightRecipe::kInt4Fp8, expert), kInt4);
  EXPECT_EQ(recipe_format(WeightRecipe::kInt4Fp8, attention), kBlock);
  TensorGroup stored = attention;
  stored.stored = kChannel;
  EXPECT_EQ(recipe_format(WeightRecipe::kAsStored, stored), kChannel);
}

TEST(RecipeNames, AreReadBack) {
  for (const WeightRecipe recipe : kWeightRecipes) EXPECT_EQ(find_weight_recipe(weight_recipe_name(recipe)), recipe);
  EXPECT_THAT(find_weight_recipe("int3").error().message(), HasSubstr("'int3' are unknown, expected one of as-stored"));
}

TEST(RankTensor, DividesAndReplicates) {
  const TensorGroup rows = group(WeightPart::kAttention, 1024, 512, {ShardDimension::kRows, 128});
  const auto divided = rank_tensor(rows, kPlain, 8).value();
  EXPECT_EQ(divided.rows, 128);
  EXPECT_EQ(divided.cols, 512);
  EXPECT_FALSE(divided.replicated);
  const TensorGroup whole = group(WeightPart::kAttention, 1024, 512, {});
  EXPECT_TRUE(rank_tensor(whole, kPlain, 8)->replicated);
  EXPECT_EQ(rank_tensor(whole, kPlain, 8)->rows, 1024);
  EXPECT_FALSE(rank_tensor(whole, kPlain, 1)->replicated);
}

TEST(RankTensor, KvHeadsAreSharedByRanksWhereTheyAreFewer) {
  const TensorGroup k =
      group(WeightPart::kAttention, 8 * 128, 512, {ShardDimension::kRows, 128}, 1, TensorRole::kKvHeads);
  EXPECT_EQ(rank_tensor(k, kPlain, 4)->rows, 256);
  EXPECT_EQ(rank_tensor(k, kPlain, 16)->rows, 128);
  EXPECT_TRUE(rank_tensor(k, kPlain, 16)->replicated);
  EXPECT_FALSE(rank_tensor(k, kPlain, 12).has_value());
  const TensorGroup bias = group(WeightPart::kAttention, 1, 8 * 128, {ShardDimension::kColumns, 128}, 1,
                                 TensorRole::kKvHeads, WeightUsage::kVector);
  EXPECT_EQ(rank_tensor(bias, kPlain, 16)->cols, 128);
  // A query head is never shared.
  const TensorGroup q = group(WeightPart::kAttention, 8 * 128, 512, {ShardDimension::kRows, 128});
  EXPECT_FALSE(rank_tensor(q, kPlain, 16).has_value());
}

TEST(RankTensor, RefusesToCutScales) {
  const TensorGroup rows = group(WeightPart::kSharedExperts, 1536, 5120, {ShardDimension::kRows, 1});
  EXPECT_TRUE(rank_tensor(rows, kPlain, 8).has_value());
  EXPECT_TRUE(rank_tensor(rows, kChannel, 8).has_value());
  const auto block = rank_tensor(rows, kBlock, 8);
  ASSERT_FALSE(block.has_value());  // 192 rows a rank are one and a half blocks.
  EXPECT_THAT(block.error().message(), HasSubstr("'some.weight' [1536, 5120]: 1536 rows cannot be divided among 8 ranks"
                                                 " in units of 128"));
  const TensorGroup columns = group(WeightPart::kRoutedExperts, 5120, 128, {ShardDimension::kColumns, 1});
  EXPECT_EQ(rank_tensor(columns, kInt4, 4)->cols, 32);
  EXPECT_FALSE(rank_tensor(columns, kInt4, 8).has_value());
}

// A model of one layer, counted by hand.
ModelFacts small_model() {
  ModelFacts facts;
  facts.num_hidden_layers = 1;
  facts.n_routed_experts = 4;
  facts.num_experts_per_tok = 2;
  facts.expert_layers = 1;
  facts.tensors = {
      group(WeightPart::kEmbedding, 1000, 256, {ShardDimension::kRows, 1}, 1, TensorRole::kPlain,
            WeightUsage::kEmbedding),
      group(WeightPart::kAttention, 128, 256, {}),
      group(WeightPart::kAttention, 512, 128, {ShardDimension::kRows, 128}, 1, TensorRole::kUpProjection),
      group(WeightPart::kRoutedExperts, 256, 256, {ShardDimension::kRows, 1}, 12),
      group(WeightPart::kHead, 1000, 256, {ShardDimension::kRows, 1}, 1, TensorRole::kTiedHead),
  };
  facts.skipped = {group(WeightPart::kRoutedExperts, 256, 256, {}, 2)};
  return facts;
}

TEST(WeightMemory, AddsUpPartsAndRanks) {
  const ModelFacts facts = small_model();
  const WeightMemory m = weight_memory(facts, WeightRecipe::kFp8, UpProjection::kAsRecipe, 2).value();
  EXPECT_EQ(m.find(WeightPart::kEmbedding)->bytes, 1000 * 256 * 2);
  EXPECT_EQ(m.find(WeightPart::kEmbedding)->rank_bytes, 500 * 256 * 2);
  EXPECT_EQ(m.find(WeightPart::kHead), nullptr);  // Tied: held as the embedding.
  const std::int64_t replicated = 128 * 256 + 2 * 4;
  const std::int64_t up = 256 * 128 + 2 * 4;
  EXPECT_EQ(m.find(WeightPart::kAttention)->rank_bytes, replicated + up);
  EXPECT_EQ(m.find(WeightPart::kAttention)->replicated_bytes, replicated);
  EXPECT_EQ(m.find(WeightPart::kRoutedExperts)->rank_bytes, 12 * (128 * 256 + 2 * 4));
  EXPECT_EQ(m.rank_bytes, 500 * 256 * 2 + replicated + up + 12 * (128 * 256 + 2 * 4));
  EXPECT_EQ(m.replicated_bytes, replicated);
  const WeightMemory widened = weight_memory(facts, WeightRecipe::kFp8, UpProjection::kBf16, 2).value();
  EXPECT_EQ(widened.rank_bytes - m.rank_bytes, 256 * 128 * 2 - up);
}

TEST(WeightMemory, EveryRankTogetherHoldsAllOnceAndReplicasAgain) {
  const ModelFacts facts = small_model();
  for (const WeightRecipe recipe : {WeightRecipe::kBf16, WeightRecipe::kFp8, WeightRecipe::kInt4}) {
    for (const std::int32_t tp : {1, 2}) {
      const WeightMemory m = weight_memory(facts, recipe, UpProjection::kAsRecipe, tp).value();
      EXPECT_EQ(m.rank_bytes * tp, m.bytes + m.replicated_bytes * (tp - 1)) << tp;
    }
  }
}

TEST(CheckpointSize, CountsWhatIsSkipped) {
  const CheckpointSize size = checkpoint_size(small_model(), WeightRecipe::kInt4);
  EXPECT_EQ(size.expert_bytes, 12 * 256 * 256 / 16 * 9);
  EXPECT_EQ(size.other_bytes, (1000 * 256 + 128 * 256 + 512 * 128) * 2);
  EXPECT_EQ(size.speculation_bytes, 2 * 256 * 256 / 16 * 9);
  EXPECT_EQ(size.bytes(), size.expert_bytes + size.other_bytes + size.speculation_bytes);
}

TEST(ModelFacts, CountsParametersOnceAndActiveOnes) {
  const ModelFacts facts = small_model();
  const std::int64_t body = 128 * 256 + 512 * 128;
  EXPECT_EQ(facts.parameters(), 1000 * 256 + body + 12 * 256 * 256);
  EXPECT_EQ(facts.active_parameters(), 1000 * 256 + body + 6 * 256 * 256);
}

}  // namespace
}  // namespace tessera::planner
