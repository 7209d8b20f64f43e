#include "tessera/planner/published.h"

#include <array>

namespace tessera::planner {

namespace {

using ops::KvFormat;

constexpr std::array kPublished = {
    PublishedTokens{"Kimi K2.6", 61, 7168, 384, "h200", 8, WeightRecipe::kAsStored, KvFormat::kBF16, "", 686'000},
    PublishedTokens{"Kimi K2.6", 61, 7168, 384, "h200", 8, WeightRecipe::kAsStored, KvFormat::kF8E4M3, "", 1'370'000},
    PublishedTokens{"GLM-5.2", 78, 6144, 256, "h200", 8, WeightRecipe::kInt4, KvFormat::kBF16,
                    "KV format not published", 1'180'000},
    PublishedTokens{"GLM-5.2", 78, 6144, 256, "h200", 8, WeightRecipe::kInt4, KvFormat::kF8E4M3,
                    "KV format not published", 1'180'000},
};

}  // namespace

std::span<const PublishedTokens> published_tokens() { return kPublished; }

}  // namespace tessera::planner
