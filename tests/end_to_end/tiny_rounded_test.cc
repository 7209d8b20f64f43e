// What rounding costs on every tiny checkpoint: the SIMD backend with BF16 pages, and a decode on FP8 pages that were
// converted from them, as both pools serve, against the reference backend with F32 pages (which tiny_families_test
// holds to transformers). A prompt in one piece, then 64 generated tokens one at a time.
//
// Which experts a token takes and which tokens sparse attention selects are discrete choices: scores within the error
// of rounded formats may fall either way, and with random weights another choice is another model. So rounded
// arithmetic is judged under the exact choices, and the choices that it would have made are compared with them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/models/model.h"
#include "tests/end_to_end/tiny_golden.h"
#include "tests/support/compare.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/recipe_checkpoint.h"
#include "tests/support/sequence_runner.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using models::RowPhase;
using test_support::RunnerOptions;
using test_support::SequenceRunner;
using test_support::WantedLogits;

// The target for BF16, at each position.
constexpr double kBf16ErrorMax = 2e-2;
// Not a target: three bits of mantissa are off by up to 2^-4 in every element of KV.
constexpr double kFp8ErrorMax = 1e-1;
constexpr double kEqualChoicesMin = 0.9;

// One call of moe_route or dsa_select, in the order of calls.
struct Choice {
  std::vector<std::vector<std::int32_t>> taken;  // [tokens], ascending each.
  std::vector<float> weights;                    // Of experts: [tokens, num_experts_per_tok].
};
using Choices = std::vector<Choice>;

std::vector<std::vector<std::int32_t>> selected(const ops::DsaSelectParams& params) {
  std::vector<std::vector<std::int32_t>> taken;
  for (std::int64_t t = 0; t < params.q.rows; ++t) {
    const std::int32_t* positions = params.selection.positions + t * params.selection.width;
    taken.emplace_back(positions, positions + params.selection.counts[t]);
  }
  return taken;
}

std::vector<std::vector<std::int32_t>> routed(const ops::MoeRouteParams& params) {
  std::vector<std::vector<std::int32_t>> taken;
  for (std::int64_t t = 0; t < params.logits.rows; ++t) {
    const std::int32_t* ids = params.expert_ids + t * params.num_experts_per_tok;
    taken.emplace_back(ids, ids + params.num_experts_per_tok);
  }
  return taken;
}

class RecordingBackend final : public tests::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void dsa_select(ops::Stream& stream, const ops::DsaSelectParams& params) override {
    ForwardingBackend::dsa_select(stream, params);
    stream.synchronize();
    choices_.push_back({selected(params), {}});
  }
  void moe_route(ops::Stream& stream, const ops::MoeRouteParams& params) override {
    ForwardingBackend::moe_route(stream, params);
    stream.synchronize();
    choices_.push_back(
        {routed(params),
         {params.expert_weights, params.expert_weights + params.logits.rows * params.num_experts_per_tok}});
  }
  const Choices& choices() const { return choices_; }

 private:
  Choices choices_;
};

// How far two sets of equal size differ, of how far they could.
struct Agreement {
  std::int64_t differ = 0;
  std::int64_t possible = 0;
  void add(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b, std::int64_t of) {
    std::vector<std::int32_t> common;
    std::ranges::set_intersection(a, b, std::back_inserter(common));
    differ += std::ssize(a) - std::ssize(common);
    possible += std::min(std::ssize(a), of - std::ssize(a));
  }
  double equal() const { return 1.0 - static_cast<double>(differ) / static_cast<double>(possible); }
};

// Puts the recorded choices in place of its own.
class ChoosingBackend final : public tests::ForwardingBackend {
 public:
  ChoosingBackend(ops::Backend& inner, const Choices& wanted) : ForwardingBackend(inner), wanted_(wanted) {}

  void dsa_select(ops::Stream& stream, const ops::DsaSelectParams& params) override {
    ForwardingBackend::dsa_select(stream, params);
    stream.synchronize();
    const Choice& wanted = next(params.q.rows);
    const auto own = selected(params);
    const std::int64_t last = params.pages.kv_lens()[0];
    for (std::size_t t = 0; t < own.size(); ++t) {
      const std::int64_t seen = last - std::ssize(own) + static_cast<std::int64_t>(t) + 1;
      if (seen > params.selection.width) selections_.add(own[t], wanted.taken[t], seen);
      ASSERT_EQ(own[t].size(), wanted.taken[t].size());
      std::ranges::copy(wanted.taken[t],
                        params.selection.positions + t * static_cast<std::size_t>(params.selection.width));
    }
  }
  void moe_route(ops::Stream& stream, const ops::MoeRouteParams& params) override {
    ForwardingBackend::moe_route(stream, params);
    stream.synchronize();
    const Choice& wanted = next(params.logits.rows);
    const auto own = routed(params);
    const auto k = static_cast<std::size_t>(params.num_experts_per_tok);
    for (std::size_t t = 0; t < own.size(); ++t) {
      experts_.add(own[t], wanted.taken[t], params.logits.cols);
      if (own[t] == wanted.taken[t]) continue;  // With its own weights, which are rounded too.
      std::ranges::copy(wanted.taken[t], params.expert_ids + t * k);
      std::copy_n(wanted.weights.begin() + static_cast<std::ptrdiff_t>(t * k), k, params.expert_weights + t * k);
    }
  }

  // The place in the order of calls, to compute a stretch again.
  std::size_t position() const { return position_; }
  void seek(std::size_t position) { position_ = position; }
  const Agreement& selections() const { return selections_; }
  const Agreement& experts() const { return experts_; }

 private:
  const Choice& next(std::int64_t tokens) {
    const Choice& choice = wanted_.at(position_++);
    EXPECT_EQ(std::ssize(choice.taken), tokens);
    return choice;
  }
  const Choices& wanted_;
  std::size_t position_ = 0;
  Agreement selections_;
  Agreement experts_;
};

class TinyRounded : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = test_support::read_golden(test_support::tiny_goldens_dir() / GetParam());
    const base::Status status = test_support::write_recipe_checkpoint(GetParam(), folder_.path());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  std::unique_ptr<models::Model> load(ops::Backend& backend) const {
    auto model = models::load_model(folder_.path(), backend);
    EXPECT_TRUE(model.has_value()) << model.error().to_string();
    return model.has_value() ? std::move(*model) : nullptr;
  }
  SequenceRunner runner(const models::Model& model, ops::Backend& backend, ops::KvFormat format) const {
    const std::int64_t prompt = std::ssize(golden_.prompt);
    return SequenceRunner(model, backend,
                          RunnerOptions{.kv_format = format,
                                        .page_size = 16,
                                        .tokens_max = prompt,
                                        .context_max = prompt + std::ssize(golden_.steps)});
  }
  // The golden tokens, one a step; the logits of every step.
  std::vector<float> generate(SequenceRunner& run) const {
    std::vector<float> all;
    for (const test_support::GoldenStep& step : golden_.steps) {
      const std::vector<float> logits = run.step(std::span(&step.best, 1), WantedLogits::kAll, 0, RowPhase::kGenerated);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }
  double worst(std::span<const float> logits, std::span<const float> exact, std::int64_t vocab) const {
    EXPECT_EQ(logits.size(), exact.size());
    double found = 0.0;
    const auto width = static_cast<std::size_t>(vocab);
    for (std::size_t at = 0; at + width <= logits.size(); at += width) {
      found = std::max(found, test_support::relative_error(logits.subspan(at, width), exact.subspan(at, width)));
    }
    return found;
  }

  test_support::Golden golden_;
  test_support::TemporaryFolder folder_{"tiny_rounded"};
};

TEST_P(TinyRounded, EveryPositionIsWithinTheTargets) {
  const std::unique_ptr<ops::Backend> reference = backends::cpu::make_reference_backend();
  RecordingBackend recording(*reference);
  std::vector<float> exact_prompt;
  std::vector<float> exact_generated;
  {
    const std::unique_ptr<models::Model> model = load(recording);
    ASSERT_NE(model, nullptr);
    SequenceRunner run = runner(*model, recording, ops::KvFormat::kF32);
    exact_prompt = run.step(golden_.prompt, WantedLogits::kAll);
    exact_generated = generate(run);
  }

  auto simd = backends::cpu::make_simd_backend({});
  ASSERT_TRUE(simd.has_value()) << simd.error().to_string();
  ChoosingBackend choosing(**simd, recording.choices());
  const std::unique_ptr<models::Model> model = load(choosing);
  ASSERT_NE(model, nullptr);
  const std::int64_t vocab = model->config().vocab_size;
  SequenceRunner bf16 = runner(*model, choosing, ops::KvFormat::kBF16);
  SequenceRunner fp8 = runner(*model, choosing, ops::KvFormat::kF8E4M3);
  const double prompt = worst(bf16.step(golden_.prompt, WantedLogits::kAll), exact_prompt, vocab);
  fp8.take_over(bf16, 0, 0);
  const std::size_t begin = choosing.position();
  const double unified = worst(generate(bf16), exact_generated, vocab);
  choosing.seek(begin);
  const double split = worst(generate(fp8), exact_generated, vocab);
  EXPECT_EQ(choosing.position(), recording.choices().size());

  fmt::print("{}: worst relative error: prompt {:.2e}, generated {:.2e}, generated on FP8 pages {:.2e}\n", GetParam(),
             prompt, unified, split);
  EXPECT_LT(prompt, kBf16ErrorMax);
  EXPECT_LT(unified, kBf16ErrorMax);
  EXPECT_LT(split, kFp8ErrorMax);
  EXPECT_EQ(choosing.experts().possible > 0, model->config().moe.has_value());
  EXPECT_EQ(choosing.selections().possible > 0, model->config().dsa.has_value());
  for (const auto& [what, agreement] :
       {std::pair{"experts", choosing.experts()}, {"selections", choosing.selections()}}) {
    if (agreement.possible == 0) continue;
    fmt::print("{}: {}: {} of {} differ\n", GetParam(), what, agreement.differ, agreement.possible);
    EXPECT_GT(agreement.equal(), kEqualChoicesMin) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TinyRounded, testing::ValuesIn(test_support::tiny_checkpoint_names()),
                         [](const testing::TestParamInfo<std::string>& tested) { return tested.param; });

}  // namespace
}  // namespace tessera
