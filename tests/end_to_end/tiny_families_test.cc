// Every family and weight format against transformers (tests/goldens/README.md, "tiny"): random checkpoints with the
// structure of the real models. On the reference backend with F32 pages: logits of a prompt in one piece, in chunks and
// token by token as generated tokens, 64 greedy tokens, the experts that tokens take and the positions that sparse
// attention selects. Rounded arithmetic and pages: tiny_rounded_test.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/models/decoder_workspace.h"
#include "tessera/models/model.h"
#include "tests/end_to_end/tiny_golden.h"
#include "tests/support/compare.h"
#include "tests/support/recipe_checkpoint.h"
#include "tests/support/sequence_runner.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using models::RowPhase;
using test_support::Golden;
using test_support::read_golden;
using test_support::relative_error;
using test_support::RunnerOptions;
using test_support::SequenceRunner;
using test_support::WantedLogits;

// The target: norm of the difference over norm of the reference, at each position.
constexpr double kReferenceErrorMax = 1e-5;
// A prompt longer than this is not computed token by token on the reference backend: its beginning is one chunk.
constexpr std::int64_t kTokenByTokenMax = 100;

class TinyFamily : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = read_golden(test_support::tiny_goldens_dir() / GetParam());
    const base::Status status = test_support::write_recipe_checkpoint(GetParam(), folder_.path());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void load(std::unique_ptr<ops::Backend> backend) {
    backend_ = std::move(backend);
    auto model = models::load_model(folder_.path(), *backend_);
    ASSERT_TRUE(model.has_value()) << model.error().to_string();
    model_ = std::move(*model);
  }
  void load_reference() { load(backends::cpu::make_reference_backend()); }
  // Pages that divide neither the prompt nor its chunks.
  SequenceRunner runner(ops::KvFormat format, std::int64_t step_tokens_max) const {
    const std::int64_t context = std::ssize(golden_.prompt) + std::ssize(golden_.steps);
    return SequenceRunner(
        *model_, *backend_,
        RunnerOptions{.kv_format = format, .page_size = 16, .tokens_max = step_tokens_max, .context_max = context});
  }
  std::int64_t vocab() const { return model_->config().vocab_size; }

  // Compares the logits of prompt tokens first, first + 1, ... where the golden has them; returns each error.
  std::vector<double> errors(std::span<const float> logits, std::int32_t first) const {
    std::vector<double> found;
    const std::int64_t rows = std::ssize(logits) / vocab();
    for (std::size_t i = 0; i < golden_.positions.size(); ++i) {
      const std::int32_t at = golden_.positions[i] - first;
      if (at < 0 || at >= rows) continue;
      const auto row = logits.subspan(static_cast<std::size_t>(at * vocab()), static_cast<std::size_t>(vocab()));
      found.push_back(relative_error(row, golden_.row(i)));
    }
    return found;
  }
  double worst_error(std::span<const float> logits, std::int32_t first) const {
    double worst = 0.0;
    for (const double error : errors(logits, first)) worst = std::max(worst, error);
    return worst;
  }
  std::vector<double> prompt_errors(ops::KvFormat format) const {
    SequenceRunner run = runner(format, std::ssize(golden_.prompt));
    return errors(run.step(golden_.prompt, WantedLogits::kAll), 0);
  }
  void report(const std::string& what, double error) const {
    fmt::print("{}: {} relative error {:.2e}\n", GetParam(), what, error);
  }

  Golden golden_;
  test_support::TemporaryFolder folder_{"tiny_family"};
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<models::Model> model_;
};

class TinyExperts : public TinyFamily {};      // Of those with experts.
class TinyShortPrompt : public TinyFamily {};  // Of those whose prompt the reference backend computes often.

TEST_P(TinyFamily, PromptInOnePiece) {
  load_reference();
  const double error = std::ranges::max(prompt_errors(ops::KvFormat::kF32));
  report("in one piece: worst", error);
  EXPECT_LT(error, kReferenceErrorMax);
}

TEST_P(TinyFamily, PromptInChunks) {
  load_reference();
  const std::int64_t count = std::ssize(golden_.prompt);
  SequenceRunner run = runner(ops::KvFormat::kF32, count);
  double error = 0.0;
  std::int64_t done = 0;
  // The long prompt's last chunks cross the number of tokens that are selected.
  for (const std::int64_t chunk :
       {std::int64_t{1}, std::int64_t{16}, count > 100 ? count - 80 : 7, std::int64_t{9}, count}) {
    const std::int64_t taken = std::min(chunk, count - done);
    if (taken == 0) break;
    const std::vector<float> logits =
        run.step(std::span(golden_.prompt).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(taken)),
                 WantedLogits::kAll);
    error = std::max(error, worst_error(logits, static_cast<std::int32_t>(done)));
    done += taken;
  }
  EXPECT_EQ(done, count);
  report("in chunks: worst", error);
  EXPECT_LT(error, kReferenceErrorMax);
}

// One token a step, as the tokens of a decode step are computed.
TEST_P(TinyFamily, TokenByToken) {
  load_reference();
  const std::int64_t count = std::ssize(golden_.prompt);
  const std::int64_t together = count > kTokenByTokenMax ? count - kTokenByTokenMax : 0;
  SequenceRunner run = runner(ops::KvFormat::kF32, std::max<std::int64_t>(together, 1));
  double error = 0.0;
  if (together > 0) run.step(std::span(golden_.prompt).first(static_cast<std::size_t>(together)), WantedLogits::kAll);
  for (std::int64_t t = together; t < count; ++t) {
    const std::vector<float> logits = run.step(std::span(golden_.prompt).subspan(static_cast<std::size_t>(t), 1),
                                               WantedLogits::kAll, 0, RowPhase::kGenerated);
    error = std::max(error, worst_error(logits, static_cast<std::int32_t>(t)));
  }
  report("token by token: worst", error);
  EXPECT_LT(error, kReferenceErrorMax);
}

TEST_P(TinyFamily, GreedyTokens) {
  load_reference();
  SequenceRunner run = runner(ops::KvFormat::kF32, std::ssize(golden_.prompt));
  std::vector<float> logits = run.step(golden_.prompt, WantedLogits::kLastOfEachRow);
  ASSERT_EQ(golden_.steps.size(), 64u);
  for (std::size_t step = 0; step < golden_.steps.size(); ++step) {
    const auto best = std::ranges::max_element(logits);
    const auto token = static_cast<std::int32_t>(best - logits.begin());
    ASSERT_EQ(token, golden_.steps[step].best) << "step " << step;
    EXPECT_NEAR(*best, golden_.steps[step].best_logit, 1e-3) << "step " << step;
    if (step + 1 < golden_.steps.size()) {
      logits = run.step(std::span(&token, 1), WantedLogits::kLastOfEachRow, 0, RowPhase::kGenerated);
    }
  }
}

// The discrete choices, apart from what they lead to: a wrong one may change the logits by less than the tolerance.
TEST_P(TinyExperts, ExpertsAndSelectedPositions) {
  load_reference();
  const std::int64_t count = std::ssize(golden_.prompt);
  SequenceRunner run = runner(ops::KvFormat::kF32, count);
  const auto& workspace = dynamic_cast<const models::DecoderWorkspace&>(run.workspace());
  std::int64_t experts_compared = 0;
  std::int64_t selections_compared = 0;
  run.on_layer([&](int layer) {
    if (const auto experts = golden_.experts.find(layer); experts != golden_.experts.end()) {
      const std::int64_t k = model_->config().moe->num_experts_per_tok;
      for (std::size_t i = 0; i < golden_.expert_rows.size(); ++i) {
        const std::int32_t* ids = workspace.moe.expert_ids + golden_.expert_rows[i] * k;
        EXPECT_EQ(std::vector(ids, ids + k), experts->second[i]) << "layer " << layer << " row " << i;
        ++experts_compared;
      }
    }
    if (const auto queries = golden_.selected.find(layer); queries != golden_.selected.end()) {
      for (const auto& [query, positions] : queries->second) {
        const ops::TokenSelection& selection = workspace.selection;
        const std::int32_t* taken = selection.positions + std::int64_t{query} * selection.width;
        EXPECT_EQ(std::vector(taken, taken + selection.counts[query]), positions)
            << "layer " << layer << " query " << query;
        ++selections_compared;
      }
    }
  });
  run.step(golden_.prompt, WantedLogits::kLastOfEachRow);
  EXPECT_GT(experts_compared, 0);
  EXPECT_EQ(selections_compared > 0, model_->config().dsa.has_value());
}

// A token costs the same bits however it is batched: a prompt in two chunks, and tokens replayed in one row.
TEST_P(TinyShortPrompt, ChunksAndReplayAreTheSameBits) {
  load_reference();
  const std::span<const std::int32_t> prompt = golden_.prompt;
  SequenceRunner whole = runner(ops::KvFormat::kF32, 64);
  const std::vector<float> last = whole.step(prompt, WantedLogits::kLastOfEachRow);
  SequenceRunner parts = runner(ops::KvFormat::kF32, 64);
  parts.step(prompt.first(13), WantedLogits::kLastOfEachRow);
  EXPECT_EQ(parts.step(prompt.subspan(13), WantedLogits::kLastOfEachRow), last);

  std::vector<std::int32_t> generated;
  for (std::size_t i = 0; i < 5; ++i) generated.push_back(golden_.steps[i].best);
  std::vector<float> stepped;
  for (const std::int32_t token : generated) {
    const std::vector<float> logits = whole.step(std::span(&token, 1), WantedLogits::kAll, 0, RowPhase::kGenerated);
    stepped.insert(stepped.end(), logits.begin(), logits.end());
  }
  EXPECT_EQ(parts.step(generated, WantedLogits::kAll, 0, RowPhase::kGenerated), stepped);
}

std::vector<std::string> names_where(bool (*holds)(const Golden&)) {
  std::vector<std::string> names = test_support::tiny_checkpoint_names();
  std::erase_if(names,
                [&](const std::string& name) { return !holds(read_golden(test_support::tiny_goldens_dir() / name)); });
  return names;
}

std::string name_of(const testing::TestParamInfo<std::string>& tested) { return tested.param; }

INSTANTIATE_TEST_SUITE_P(All, TinyFamily, testing::ValuesIn(test_support::tiny_checkpoint_names()), name_of);
INSTANTIATE_TEST_SUITE_P(All, TinyExperts,
                         testing::ValuesIn(names_where([](const Golden& g) { return !g.experts.empty(); })), name_of);
INSTANTIATE_TEST_SUITE_P(All, TinyShortPrompt, testing::ValuesIn(names_where([](const Golden& g) {
                           return std::ssize(g.prompt) <= kTokenByTokenMax;
                         })),
                         name_of);

}  // namespace
}  // namespace tessera
