// Many streams of a real model through pools that are too small for them: SmolLM2, prefill and decode engines, router.
// Every answer must be the one that the same prompt gets alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/models/model.h"
#include "tests/end_to_end/stream_server.h"

namespace tessera {
namespace {

using test_support::StreamOutcome;
using test_support::StreamServer;

constexpr int kStreams = 64;

class ConcurrentStreams : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    backend_ = std::move(*backends::cpu::make_simd_backend({}));
    auto model = models::load_model(std::string(TESSERA_SOURCE_DIR) + "/build/models/smollm2", *backend_);
    ASSERT_TRUE(model.has_value()) << model.error().message() << "\nscripts/model.sh smollm2 makes the folder";
    model_ = std::move(*model);
  }
  static void TearDownTestSuite() {
    model_.reset();
    backend_.reset();
  }

  // Prompts of 1 to 24 tokens, cut from the goldens' prompts, and 12 to 30 tokens to generate: sequences grow to
  // several times the pages that they begin with, so a pool that admits them cannot keep them all.
  static std::vector<std::int32_t> prompt(int stream) {
    static const std::vector<std::int32_t> all = [] {
      std::vector<std::int32_t> ids;
      std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/tests/goldens/smollm2/greedy.jsonl");
      for (std::string line; std::getline(file, line);) {
        const boost::json::value value = boost::json::parse(line);
        for (const auto& id : value.at("token_ids").as_array()) ids.push_back(id.to_number<std::int32_t>());
      }
      return ids;
    }();
    const std::size_t length = 1 + static_cast<std::size_t>(stream * 37 % 24);
    const std::size_t begin = static_cast<std::size_t>(stream * 53) % (all.size() - length);
    return {all.begin() + static_cast<std::ptrdiff_t>(begin),
            all.begin() + static_cast<std::ptrdiff_t>(begin + length)};
  }
  static std::int32_t max_tokens(int stream) { return 12 + stream * 29 % 19; }

  // Each stream alone, one after another, in pools with room.
  static const std::map<int, StreamOutcome>& solo() {
    static const std::map<int, StreamOutcome> outcomes = [] {
      std::map<int, StreamOutcome> all;
      StreamServer server(*model_, *backend_, 128, 128);
      for (int s = 0; s < kStreams; ++s) {
        server.start(s, prompt(s), max_tokens(s));
        all.merge(server.wait_all());
      }
      server.expect_balanced_pages();
      return all;
    }();
    return outcomes;
  }

  static inline std::unique_ptr<ops::Backend> backend_;
  static inline std::unique_ptr<models::Model> model_;
};

// 12 pages of 8 tokens hold about 3 of the 64 sequences.
TEST_F(ConcurrentStreams, EveryAnswerIsItsSoloAnswer) {
  StreamServer server(*model_, *backend_, 48, 12);
  for (int s = 0; s < kStreams; ++s) server.start(s, prompt(s), max_tokens(s));
  const std::map<int, StreamOutcome> outcomes = server.wait_all();
  std::int64_t preemptions = 0;
  for (const auto& [stream, outcome] : outcomes) {
    EXPECT_TRUE(outcome.failure.ok()) << stream << ": " << outcome.failure.message();
    EXPECT_EQ(outcome.tokens, solo().at(stream).tokens) << "stream " << stream;
    EXPECT_EQ(std::ssize(outcome.tokens), max_tokens(stream));
    preemptions += outcome.report.preemptions;
  }
  std::printf("%d streams, %lld preemptions\n", kStreams, static_cast<long long>(preemptions));
  EXPECT_GT(preemptions, 0);
  server.expect_balanced_pages();
}

TEST_F(ConcurrentStreams, SurvivorsOfVanishingClientsAreUndisturbed) {
  StreamServer server(*model_, *backend_, 48, 12);
  for (int s = 0; s < kStreams; ++s) {
    server.start(s, prompt(s), max_tokens(s), s % 3 == 0 ? 1 + s % 4 : -1);
  }
  int cancelled = 0;
  for (const auto& [stream, outcome] : server.wait_all()) {
    const std::vector<std::int32_t>& alone = solo().at(stream).tokens;
    if (stream % 3 == 0 && !outcome.failure.ok()) {
      ++cancelled;
      EXPECT_EQ(outcome.failure.code(), base::StatusCode::kCancelled);
      ASSERT_LE(outcome.tokens.size(), alone.size());
      EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), alone.begin()));
    } else {
      EXPECT_TRUE(outcome.failure.ok()) << stream << ": " << outcome.failure.message();
      EXPECT_EQ(outcome.tokens, alone) << "stream " << stream;
    }
  }
  server.expect_balanced_pages();
  // Both happened: most of the 22 clients left in mid-stream (who is told late may find its answer complete), and pages
  // were taken from others.
  EXPECT_GE(cancelled, 11);
  EXPECT_GT(server.preemptions(), 0);
}

}  // namespace
}  // namespace tessera
