// models/tessera-pocket as shipped, against transformers in FP32 on its dequantized weights (tests/goldens/README.md):
// logits on both backends, and its answers to questions of every task, token by token.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>

#include "tests/end_to_end/logits_golden.h"

namespace tessera {
namespace {

// Targets: norm of the difference over norm of the reference, at each position.
constexpr double kReferenceErrorMax = 1e-4;
constexpr double kBf16ErrorMax = 2e-2;
// One of each of seven tasks.
constexpr std::int64_t kQuestions = 7;
// Its answers are clear: a choice within the error is one in hundreds.
constexpr std::int64_t kExcusedMax = 3;

const std::filesystem::path kSource = TESSERA_SOURCE_DIR;

class Pocket : public test_support::LogitsTest {
 protected:
  Pocket()
      : LogitsTest(kSource / "models/tessera-pocket",
                   {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
                   kSource / "tests/goldens/pocket") {}
};

TEST_F(Pocket, IsTheModelOfTheGoldens) { compare_digest(); }

TEST_F(Pocket, LogitsOnTheReferenceBackendWithF32Pages) {
  load_reference();
  compare_logits(ops::KvFormat::kF32, kReferenceErrorMax);
}

TEST_F(Pocket, LogitsOnTheSimdBackendWithBf16Pages) {
  load_simd();
  compare_logits(ops::KvFormat::kBF16, kBf16ErrorMax);
}

TEST_F(Pocket, AnswersOnTheSimdBackend) {
  load_simd();
  const test_support::GreedyCounts counts = compare_greedy(ops::KvFormat::kBF16, kBf16ErrorMax);
  EXPECT_EQ(counts.cases, kQuestions);
  EXPECT_LE(counts.excused, kExcusedMax);
}

}  // namespace
}  // namespace tessera
