#include "tessera/ops/kv_layout.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

namespace tessera::ops {
namespace {

LayerSet layers(std::initializer_list<std::int32_t> members) {
  LayerSet set;
  for (const std::int32_t layer : members) set.insert(layer);
  return set;
}

TEST(LayerSet, CountsAndTravelsAsWords) {
  const LayerSet set = layers({0, 1, 63, 64, 200, 1023});
  EXPECT_TRUE(set.contains(63));
  EXPECT_FALSE(set.contains(62));
  EXPECT_TRUE(set.contains(1023));
  EXPECT_EQ(set.count_below(0), 0);
  EXPECT_EQ(set.count_below(1), 1);
  EXPECT_EQ(set.count_below(63), 2);
  EXPECT_EQ(set.count_below(64), 3);
  EXPECT_EQ(set.count_below(201), 5);
  EXPECT_EQ(set.count_below(LayerSet::kLayersMax), 6);
  EXPECT_EQ(LayerSet::from_words(set.words()), set);
  EXPECT_EQ(LayerSet{}.count_below(LayerSet::kLayersMax), 0);
}

TEST(KvLayout, BytesOfATokenAsPublished) {
  // Kimi K2.6: 61 layers of [512 | 64].
  EXPECT_EQ(mla_kv_layout(KvFormat::kBF16, 61, 64, 512, 64).token_bytes(), 70272);
  EXPECT_EQ(mla_kv_layout(KvFormat::kF8E4M3, 61, 64, 512, 64).token_bytes(), 61 * 580);
  // GLM-5.2: 78 layers, 21 with index keys of 128.
  LayerSet index_layers = layers({0, 1, 2});
  for (std::int32_t layer = 6; layer <= 74; layer += 4) index_layers.insert(layer);
  EXPECT_EQ(index_layers.count_below(78), 21);
  const KvLayout glm = mla_kv_layout(KvFormat::kF8E4M3, 78, 64, 512, 64, 128, index_layers);
  EXPECT_EQ(glm.token_bytes(), 78 * 580 + 21 * 132);
  EXPECT_EQ(glm.token_layer_bytes(0), 712);
  EXPECT_EQ(glm.token_layer_bytes(3), 580);
  EXPECT_EQ(glm.page_layer_bytes(3), 580 * 64);
  EXPECT_EQ(glm.page_layer_bytes_max(), 712 * 64);
  EXPECT_EQ(glm.page_bytes(), glm.token_bytes() * 64);
  KvLayout bf16 = glm;
  bf16.format = KvFormat::kBF16;
  EXPECT_EQ(bf16.token_bytes(), 78 * 1152 + 21 * 132);  // Index keys are e4m3 here too.
  KvLayout f32 = glm;
  f32.format = KvFormat::kF32;
  EXPECT_EQ(f32.token_bytes(), 78 * 2304 + 21 * 512);
  EXPECT_EQ(gqa_kv_layout(KvFormat::kF8E4M3, 92, 64, 8, 128).token_layer_bytes(5), 2 * (1024 + 16));
}

TEST(KvLayout, PartsOfALayer) {
  const KvLayout layout = mla_kv_layout(KvFormat::kBF16, 4, 16, 24, 10, 20, layers({1, 2}));
  EXPECT_EQ(layout.layer_parts(0), 1);
  EXPECT_EQ(layout.layer_parts(1), 2);
  EXPECT_EQ(layout.layer_parts(3), 1);
  EXPECT_FALSE(layout.part_has_scales(kPartLatent));
  EXPECT_TRUE(layout.part_has_scales(kPartIndexKeys));
  EXPECT_EQ(layout.part_dtype(kPartIndexKeys), base::DType::kF8E4M3);
  EXPECT_EQ(layout.part_scale_dtype(kPartIndexKeys), base::DType::kF32);
  EXPECT_EQ(layout.row_scale_bytes(kPartIndexKeys), 4);
  EXPECT_EQ(layout.image_data_offset(kPartIndexKeys), 16 * 34 * 2);
  EXPECT_EQ(layout.image_scale_offset(kPartIndexKeys), 16 * (34 * 2 + 20));
}

TEST(KvLayout, ArraysOfAPoolFollowEachOtherWithoutOverlap) {
  constexpr std::int64_t kPages = 5;
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kF8E4M3}) {
    for (const KvLayout& layout : {gqa_kv_layout(format, 3, 16, 3, 20), mla_kv_layout(format, 4, 16, 24, 10),
                                   mla_kv_layout(format, 5, 16, 24, 10, 20, layers({1, 2, 4}))}) {
      std::vector<std::byte> memory(static_cast<std::size_t>(layout.pool_bytes(kPages)));
      const KvCacheView view{layout, memory.data(), kPages};
      std::int64_t at = 0;
      const auto begins_here = [&](const std::byte* array, std::int64_t bytes) {
        EXPECT_EQ(array - memory.data(), at);
        EXPECT_EQ(at % 256, 0);
        at = base::round_up(at + bytes, 256);
      };
      for (int layer = 0; layer < layout.num_layers; ++layer) {
        EXPECT_EQ(layout.layer_offset(layer, kPages), at);
        const std::int64_t begin = at;
        for (int part = 0; part < layout.layer_parts(layer); ++part) {
          const std::int64_t rows = kPages * layout.page_size;
          begins_here(view.page_data(layer, part, 0), rows * layout.row_bytes(part));
          begins_here(view.page_scales(layer, part, 0), rows * layout.row_scale_bytes(part));
          EXPECT_EQ(view.page_data(layer, part, 2) - view.page_data(layer, part, 1),
                    layout.row_bytes(part) * layout.page_size);
          EXPECT_EQ(view.page_scales(layer, part, 2) - view.page_scales(layer, part, 1),
                    layout.row_scale_bytes(part) * layout.page_size);
        }
        EXPECT_EQ(layout.layer_bytes(layer, kPages), at - begin);
      }
      EXPECT_EQ(layout.pool_bytes(kPages), at);
    }
  }
}

}  // namespace
}  // namespace tessera::ops
