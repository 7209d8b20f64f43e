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

TEST(Metrics, WhatIsProvedOfPagesAndWhatItFound) {
  router::RouterSnapshot snapshot;
  router::RouterSnapshot::EngineState engine;
  engine.info.integrity = kv_cache::IntegrityLevel::kDigestStep;
  engine.stats.check_ns = 7'000'000'000;
  engine.stats.digest_ns = 5'000'000'000;
  engine.stats.sweep_ns = 3'000'000'000;
  engine.stats.pages_swept = 1234;
  engine.stats.digest_failures = 2;
  engine.stats.double_frees = 4;
  snapshot.engines.push_back(engine);
  const std::string text = Metrics("model").serialize(snapshot);
  const auto value = [&](const std::string& name) {
    const std::size_t at = text.find("\ntessera_engine_" + name + "{");
    const std::size_t space = text.find("} ", at);
    return at == std::string::npos ? "" : text.substr(space + 2, text.find('\n', space) - space - 2);
  };
  EXPECT_EQ(value("page_check_seconds_total"), "7");
  EXPECT_EQ(value("page_digest_seconds_total"), "5");
  EXPECT_EQ(value("page_sweep_seconds_total"), "3");
  EXPECT_EQ(value("pages_swept_total"), "1234");
  EXPECT_EQ(value("page_digest_failures_total"), "2");
  EXPECT_EQ(value("page_double_frees_total"), "4");
  EXPECT_EQ(value("kv_integrity"), "1");
  EXPECT_THAT(text, HasSubstr("level=\"digest-step\""));
}

}  // namespace
}  // namespace tessera::server
