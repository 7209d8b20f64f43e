// SmolLM2-135M as imported, against transformers in FP32 (tests/goldens/README.md): logits on both backends, and greedy
// continuations on the one that serves.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>

#include "tests/end_to_end/logits_golden.h"

namespace tessera {
namespace {

// Targets: norm of the difference over norm of the reference, at each position.
constexpr double kReferenceErrorMax = 1e-4;
constexpr double kBf16ErrorMax = 2e-2;
// One in a hundred of 30 x 64 choices.
constexpr std::int64_t kExcusedMax = 19;

const std::filesystem::path kSource = TESSERA_SOURCE_DIR;

class SmolLm2 : public test_support::LogitsTest {
 protected:
  SmolLm2() : LogitsTest(kSource / "build/models/smollm2", {"model.safetensors"}, kSource / "tests/goldens/smollm2") {}
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(model_dir_ / "model.safetensors"))
        << model_dir_ << " is not there: make it with `scripts/model.sh smollm2`";
  }
};

TEST_F(SmolLm2, IsTheModelOfTheGoldens) { compare_digest(); }

TEST_F(SmolLm2, LogitsOnTheReferenceBackendWithF32Pages) {
  load_reference();
  compare_logits(ops::KvFormat::kF32, kReferenceErrorMax);
}

TEST_F(SmolLm2, LogitsOnTheSimdBackendWithBf16Pages) {
  load_simd();
  compare_logits(ops::KvFormat::kBF16, kBf16ErrorMax);
}

TEST_F(SmolLm2, GreedyContinuationsOnTheSimdBackend) {
  load_simd();
  const test_support::GreedyCounts counts = compare_greedy(ops::KvFormat::kBF16, kBf16ErrorMax);
  EXPECT_EQ(counts.cases, 30);
  EXPECT_EQ(counts.equal + counts.excused, 30 * 64);
  // Ties are rare: more excuses than this would be a fault that hides behind them.
  EXPECT_LE(counts.excused, kExcusedMax);
}

}  // namespace
}  // namespace tessera
