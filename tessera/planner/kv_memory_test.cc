#include "tessera/planner/kv_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::planner {
namespace {

using ops::KvFormat;
using ::testing::HasSubstr;

ModelFacts grouped_query(std::int32_t kv_heads) {
  ModelFacts facts;
  facts.num_hidden_layers = 3;
  facts.kv_heads = kv_heads;
  facts.kv = ops::gqa_kv_layout(KvFormat::kBF16, 3, 64, kv_heads, 128);
  return facts;
}

ModelFacts latent_with_indexer() {
  ModelFacts facts;
  facts.num_hidden_layers = 5;
  ops::LayerSet index_layers;
  for (const std::int32_t layer : {0, 3}) index_layers.insert(layer);
  facts.kv = ops::mla_kv_layout(KvFormat::kBF16, 5, 64, 512, 64, 128, index_layers);
  facts.index_topk = 2048;
  facts.index_layers = 2;
  return facts;
}

TEST(RankKvLayout, DividesHeadsAndHoldsOneAtLeast) {
  const ModelFacts facts = grouped_query(8);
  const auto bytes = [&](KvFormat format, std::int32_t tp) {
    return rank_kv_layout(facts, format, 64, tp)->token_bytes();
  };
  EXPECT_EQ(bytes(KvFormat::kBF16, 1), 3 * 2 * 8 * 128 * 2);
  EXPECT_EQ(bytes(KvFormat::kBF16, 8), 3 * 2 * 128 * 2);
  EXPECT_EQ(bytes(KvFormat::kBF16, 16), 3 * 2 * 128 * 2);  // Two ranks hold the same head.
  EXPECT_EQ(bytes(KvFormat::kF8E4M3, 2), 3 * 2 * 4 * (128 + 2));
  const auto refused = rank_kv_layout(facts, KvFormat::kBF16, 64, 12);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message(), HasSubstr("8 KV heads cannot be divided among 12 ranks"));
}

TEST(RankKvLayout, EveryRankHoldsTheLatents) {
  const ModelFacts facts = latent_with_indexer();
  for (const std::int32_t tp : {1, 2, 8, 64}) {
    EXPECT_EQ(rank_kv_layout(facts, KvFormat::kBF16, 64, tp)->token_bytes(), 5 * 1152 + 2 * 132) << tp;
    EXPECT_EQ(rank_kv_layout(facts, KvFormat::kF8E4M3, 64, tp)->token_bytes(), 5 * 580 + 2 * 132) << tp;
    EXPECT_EQ(rank_kv_layout(facts, KvFormat::kF32, 64, tp)->token_bytes(), 5 * 2304 + 2 * 512) << tp;
  }
}

TEST(KvMemory, FillsWhatIsFreeWithPages) {
  const ModelFacts facts = latent_with_indexer();
  const std::int64_t page = 64 * (5 * 580 + 2 * 132);
  // Eleven pages: one is the null page, and what is over is less than a page.
  const KvMemory memory = kv_memory(facts, KvFormat::kF8E4M3, 64, 8, 11 * page + page - 1).value();
  EXPECT_EQ(memory.rank_page_bytes, page);
  EXPECT_EQ(memory.index_token_bytes, 2 * 132);
  EXPECT_EQ(memory.pages, 10);
  EXPECT_EQ(memory.tokens, 640);
  EXPECT_EQ(requests_that_fit(memory, 64, 1), 10);
  EXPECT_EQ(requests_that_fit(memory, 64, 64), 10);
  EXPECT_EQ(requests_that_fit(memory, 64, 65), 5);
  EXPECT_EQ(requests_that_fit(memory, 64, 641), 0);
  for (const std::int64_t free : {page - 1, std::int64_t{0}, std::int64_t{-5}}) {
    EXPECT_EQ(kv_memory(facts, KvFormat::kF8E4M3, 64, 8, free)->tokens, 0) << free;
  }
}

TEST(KvReadBytes, SparseAttentionReadsWhatIsSelectedAndAllIndexKeys) {
  const ModelFacts facts = latent_with_indexer();
  const ops::KvLayout layout = rank_kv_layout(facts, KvFormat::kF8E4M3, 64, 8).value();
  EXPECT_EQ(kv_read_bytes(facts, layout, 100), 100.0 * 5 * 580);
  EXPECT_EQ(kv_read_bytes(facts, layout, 2048), 2048.0 * 5 * 580);
  EXPECT_EQ(kv_read_bytes(facts, layout, 100'000), 2048.0 * 5 * 580 + 100'000.0 * 2 * 132);
  ModelFacts dense = facts;
  dense.index_topk = 0;
  dense.kv = ops::mla_kv_layout(KvFormat::kBF16, 5, 64, 512, 64);
  EXPECT_EQ(kv_read_bytes(dense, rank_kv_layout(dense, KvFormat::kBF16, 64, 1).value(), 100'000), 100'000.0 * 5 * 1152);
}

}  // namespace
}  // namespace tessera::planner
