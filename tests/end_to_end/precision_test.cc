// What the precision of the KV cache alone costs on a real model: SmolLM2 with prompts in BF16 pages, converted by the
// ops and decoded in FP8 pages, against one pool of BF16 pages, over the same tokens. No engine, router or handoff
// takes part (handoff_precision_test has those). The printed line is quoted in the README.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/models/model.h"
#include "tests/support/sequence_runner.h"

namespace tessera {
namespace {

using test_support::RunnerRow;
using test_support::SequenceRunner;
using test_support::WantedLogits;

struct Passage {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> continuation;  // transformers' greedy tokens, in FP32.
};

std::vector<Passage> read_passages() {
  std::vector<Passage> passages;
  std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/tests/goldens/smollm2/greedy.jsonl");
  for (std::string line; std::getline(file, line);) {
    const boost::json::value value = boost::json::parse(line);
    Passage passage;
    for (const auto& id : value.at("token_ids").as_array()) passage.prompt.push_back(id.to_number<std::int32_t>());
    for (const auto& step : value.at("steps").as_array()) {
      passage.continuation.push_back(step.at(0).to_number<std::int32_t>());
    }
    passages.push_back(std::move(passage));
  }
  return passages;
}

std::vector<double> log_softmax(const float* logits, std::size_t size) {
  const double max = *std::max_element(logits, logits + size);
  double sum = 0.0;
  for (std::size_t i = 0; i < size; ++i) sum += std::exp(logits[i] - max);
  std::vector<double> result(size);
  for (std::size_t i = 0; i < size; ++i) result[i] = logits[i] - max - std::log(sum);
  return result;
}

TEST(Precision, Fp8DecodeAgainstBf16) {
  const std::string dir = std::string(TESSERA_SOURCE_DIR) + "/build/models/smollm2";
  auto backend = std::move(*backends::cpu::make_simd_backend({}));
  auto model = models::load_model(dir, *backend);
  ASSERT_TRUE(model.has_value()) << model.error().message() << "\nscripts/model.sh smollm2 makes the folder";
  const std::vector<Passage> passages = read_passages();
  ASSERT_EQ(passages.size(), 30u);
  std::size_t longest = 0;
  for (const Passage& passage : passages) longest = std::max(longest, passage.prompt.size());
  const std::int64_t context = static_cast<std::int64_t>(longest) + 80;

  const auto options = [&](ops::KvFormat format, std::int64_t rows) {
    return test_support::RunnerOptions{
        .kv_format = format, .page_size = 64, .rows = rows, .tokens_max = context, .context_max = context};
  };
  const std::int64_t rows = std::ssize(passages);
  SequenceRunner unified(**model, *backend, options(ops::KvFormat::kBF16, rows));
  SequenceRunner decode(**model, *backend, options(ops::KvFormat::kF8E4M3, rows));
  for (std::int64_t r = 0; r < rows; ++r) {
    unified.step(passages[r].prompt, WantedLogits::kLastOfEachRow, r);
    decode.take_over(unified, r, r);
  }

  const std::size_t vocab = static_cast<std::size_t>((*model)->config().vocab_size);
  std::int64_t positions = 0;
  std::int64_t same_best = 0;
  double kl_sum = 0.0;
  double kl_max = 0.0;
  for (std::size_t step = 0; step < passages[0].continuation.size(); ++step) {
    std::vector<RunnerRow> batch;
    for (std::int64_t r = 0; r < rows; ++r)
      batch.push_back({r, std::span(&passages[r].continuation[step], 1), models::RowPhase::kGenerated});

    const std::vector<float> bf16 = unified.step(batch, WantedLogits::kLastOfEachRow);
    const std::vector<float> fp8 = decode.step(batch, WantedLogits::kLastOfEachRow);
    for (std::int64_t r = 0; r < rows; ++r, ++positions) {
      const float* a = bf16.data() + static_cast<std::size_t>(r) * vocab;
      const float* b = fp8.data() + static_cast<std::size_t>(r) * vocab;
      same_best += std::max_element(a, a + vocab) - a == std::max_element(b, b + vocab) - b ? 1 : 0;
      const std::vector<double> p = log_softmax(a, vocab);
      const std::vector<double> q = log_softmax(b, vocab);
      double kl = 0.0;
      for (std::size_t i = 0; i < vocab; ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
      kl_sum += kl;
      kl_max = std::max(kl_max, kl);
    }
  }
  const double agreement = static_cast<double>(same_best) / static_cast<double>(positions);
  const double kl_mean = kl_sum / static_cast<double>(positions);
  std::printf(
      "pages converted bf16 -> fp8_e4m3 against bf16, without engines: %lld positions, top-1 agreement %.2f %%, "
      "KL divergence mean %.2e, worst %.2e nats\n",
      static_cast<long long>(positions), agreement * 100.0, kl_mean, kl_max);
  // Far above what was seen, far below what a scale that is not applied gives.
  EXPECT_GE(agreement, 0.95);
  EXPECT_LE(kl_mean, 5e-3);
  EXPECT_GT(kl_mean, 1e-7) << "FP8 pages that change nothing were not used";
}

}  // namespace
}  // namespace tessera
