#include "tessera/server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::server {
namespace {

using testing::HasSubstr;

// Of a pair: what the prefill engine looked up. The decode engine's own look-ups stand beside it under its name.
TEST(Metrics, APromptThatPassesThroughTwoEnginesIsLookedUpOnce) {
  router::RouterSnapshot snapshot;
  for (const auto role : {request::EngineRole::kPrefill, request::EngineRole::kDecode}) {
    router::RouterSnapshot::EngineState engine;
    engine.info.id = role == request::EngineRole::kPrefill ? 0 : 1;
    engine.info.role = role;
    engine.stats.prefix_query_tokens = 400;
    engine.stats.prefix_hit_tokens = role == request::EngineRole::kPrefill ? 192 : 256;
    snapshot.engines.push_back(engine);
  }
  const std::string text = Metrics("model").serialize(snapshot);
  for (const char* line :
       {"tessera_prefix_cache_queries{model_name=\"model\"} 400", "vllm:prefix_cache_queries{model_name=\"model\"} 400",
        "tessera_prefix_cache_hits{model_name=\"model\"} 192", "vllm:prefix_cache_hits{model_name=\"model\"} 192",
        "sglang:cache_hit_rate{model_name=\"model\"} 0.48"}) {
    EXPECT_THAT(text, HasSubstr(std::string(line) + "\n"));
  }
  for (const char* words : {"tessera_engine_prefix_cache_hits_total{", "engine=\"1\"", "role=\"decode\"", "} 256\n"}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
}

}  // namespace
}  // namespace tessera::server
