// 64 streams at once through both pools of every kind of model: latent attention, sparse attention, experts, quantized
// weights. Pools are too small for them, so sequences are preempted and replayed; every answer must be the one that the
// same prompt gets alone. (That the answers are the right ones is tiny_families_test's business.)
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/models/model.h"
#include "tests/end_to_end/stream_server.h"
#include "tests/support/recipe_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using test_support::StreamOutcome;
using test_support::StreamServer;

constexpr int kStreams = 64;

std::vector<std::int32_t> prompt(int stream) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 1 + stream * 37 % 40; ++i) ids.push_back((stream * 71 + i * i * 13 + i * 29) % 316);
  return ids;
}

std::int32_t max_tokens(int stream) { return 20 + stream * 29 % 37; }

class TinyStreams : public testing::TestWithParam<const char*> {};

TEST_P(TinyStreams, EveryAnswerIsItsSoloAnswer) {
  const test_support::TemporaryFolder folder("tiny_streams");
  const base::Status written = test_support::write_recipe_checkpoint(GetParam(), folder.path());
  ASSERT_TRUE(written.ok()) << written.to_string();
  const std::unique_ptr<ops::Backend> backend = std::move(*backends::cpu::make_simd_backend({}));
  const auto model = models::load_model(folder.path(), *backend);
  ASSERT_TRUE(model.has_value()) << model.error().to_string();

  std::map<int, StreamOutcome> solo;
  {
    StreamServer server(**model, *backend, 64, 64);
    for (int s = 0; s < kStreams; ++s) {
      server.start(s, prompt(s), max_tokens(s));
      solo.merge(server.wait_all());
    }
    server.expect_balanced_pages();
  }
  // 16 pages of 16 tokens hold about 4 of the sequences.
  StreamServer server(**model, *backend, 24, 16);
  for (int s = 0; s < kStreams; ++s) server.start(s, prompt(s), max_tokens(s));
  std::int64_t preemptions = 0;
  for (const auto& [stream, outcome] : server.wait_all()) {
    EXPECT_TRUE(outcome.failure.ok()) << stream << ": " << outcome.failure.message();
    EXPECT_EQ(outcome.tokens, solo.at(stream).tokens) << "stream " << stream;
    EXPECT_FALSE(outcome.tokens.empty());
    preemptions += outcome.report.preemptions;
  }
  EXPECT_GT(preemptions, 0);
  server.expect_balanced_pages();
}

INSTANTIATE_TEST_SUITE_P(Families, TinyStreams,
                         testing::Values("qwen3", "kimi_k2_f8_block", "kimi_k26_int4", "glm4_moe_f8_channel",
                                         "glm_moe_dsa_f8_block"),
                         [](const testing::TestParamInfo<const char*>& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace tessera
