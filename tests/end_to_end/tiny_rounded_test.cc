// What rounding costs on every tiny checkpoint: the SIMD and the CUDA backend with BF16 pages, and a decode on FP8
// pages that were converted from them, as both pools serve, against the reference backend with F32 pages (which
// tiny_families_test holds to transformers). A prompt in one piece, then 64 generated tokens one at a time.
//
// Which experts a token takes and which tokens sparse attention selects are discrete choices: scores within the error
// of rounded formats may fall either way, and with random weights another choice is another model. So rounded
// arithmetic is judged under the exact choices, and the choices that it would have made are compared with them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/backends/cuda/cuda_backend.h"
#include "tessera/models/model.h"
#include "tessera/ops/forwarding_backend.h"
#include "tests/end_to_end/tiny_golden.h"
#include "tests/support/compare.h"
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

template <typename T>
std::vector<T> read(ops::Backend& backend, ops::Stream& stream, const T* device, std::int64_t size) {
  std::vector<T> host(static_cast<std::size_t>(size));
  backend.copy_to_host(stream, host.data(), device, size * static_cast<std::int64_t>(sizeof(T)));
  stream.synchronize();
  return host;
}

template <typename T>
void write(ops::Backend& backend, ops::Stream& stream, T* device, const std::vector<T>& host) {
  backend.copy_to_device(stream, device, host.data(), std::ssize(host) * static_cast<std::int64_t>(sizeof(T)));
}

std::vector<std::vector<std::int32_t>> selected(ops::Backend& backend, ops::Stream& stream,
                                                const ops::DsaSelectParams& params) {
  const std::int64_t width = params.selection.width;
  const std::vector<std::int32_t> positions =
      read<std::int32_t>(backend, stream, params.selection.positions, params.q.rows * width);
  const std::vector<std::int32_t> counts = read<std::int32_t>(backend, stream, params.selection.counts, params.q.rows);
  std::vector<std::vector<std::int32_t>> taken;
  for (std::int64_t t = 0; t < params.q.rows; ++t) {
    const auto row = positions.begin() + t * width;
    taken.emplace_back(row, row + counts[static_cast<std::size_t>(t)]);
  }
  return taken;
}

std::vector<std::vector<std::int32_t>> routed(const std::vector<std::int32_t>& ids, std::int64_t tokens) {
  const std::int64_t k = std::ssize(ids) / tokens;
  std::vector<std::vector<std::int32_t>> taken;
  for (std::int64_t t = 0; t < tokens; ++t) taken.emplace_back(ids.begin() + t * k, ids.begin() + (t + 1) * k);
  return taken;
}

std::int64_t places_of(const ops::MoeRouteParams& params) { return params.logits.rows * params.num_experts_per_tok; }

class RecordingBackend final : public ops::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void dsa_select(ops::Stream& stream, const ops::DsaSelectParams& params) override {
    ForwardingBackend::dsa_select(stream, params);
    choices_.push_back({selected(*this, stream, params), {}});
  }
  void moe_route(ops::Stream& stream, const ops::MoeRouteParams& params) override {
    ForwardingBackend::moe_route(stream, params);
    const auto ids = read<std::int32_t>(*this, stream, params.expert_ids, places_of(params));
    choices_.push_back(
        {routed(ids, params.logits.rows), read<float>(*this, stream, params.expert_weights, places_of(params))});
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
class ChoosingBackend final : public ops::ForwardingBackend {
 public:
  ChoosingBackend(ops::Backend& inner, const Choices& wanted) : ForwardingBackend(inner), wanted_(wanted) {}

  void dsa_select(ops::Stream& stream, const ops::DsaSelectParams& params) override {
    ForwardingBackend::dsa_select(stream, params);
    const Choice& wanted = next(params.q.rows);
    const auto own = selected(*this, stream, params);
    const std::int64_t last = read<std::int32_t>(*this, stream, params.pages.kv_lens(), 1)[0];
    const std::int64_t width = params.selection.width;
    std::vector<std::int32_t> positions =
        read<std::int32_t>(*this, stream, params.selection.positions, std::ssize(own) * width);
    for (std::size_t t = 0; t < own.size(); ++t) {
      const std::int64_t seen = last - std::ssize(own) + static_cast<std::int64_t>(t) + 1;
      if (seen > width) selections_.add(own[t], wanted.taken[t], seen);
      ASSERT_EQ(own[t].size(), wanted.taken[t].size());
      std::ranges::copy(wanted.taken[t], positions.begin() + static_cast<std::ptrdiff_t>(t) * width);
    }
    write(*this, stream, params.selection.positions, positions);
  }
  void moe_route(ops::Stream& stream, const ops::MoeRouteParams& params) override {
    ForwardingBackend::moe_route(stream, params);
    const Choice& wanted = next(params.logits.rows);
    std::vector<std::int32_t> ids = read<std::int32_t>(*this, stream, params.expert_ids, places_of(params));
    std::vector<float> weights = read<float>(*this, stream, params.expert_weights, places_of(params));
    const auto own = routed(ids, params.logits.rows);
    const std::ptrdiff_t k = params.num_experts_per_tok;
    for (std::size_t t = 0; t < own.size(); ++t) {
      experts_.add(own[t], wanted.taken[t], params.logits.cols);
      if (own[t] == wanted.taken[t]) continue;  // With its own weights, which are rounded too.
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(t) * k;
      std::ranges::copy(wanted.taken[t], ids.begin() + at);
      std::copy_n(wanted.weights.begin() + at, k, weights.begin() + at);
    }
    write(*this, stream, params.expert_ids, ids);
    write(*this, stream, params.expert_weights, weights);
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

// A checkpoint, and "simd" or "cuda".
class TinyRounded : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  const std::string& checkpoint() const { return std::get<0>(GetParam()); }
  bool on_cuda() const { return std::get<1>(GetParam()) == "cuda"; }
  base::Result<std::unique_ptr<ops::Backend>> make_judged() const {
    return on_cuda() ? backends::cuda::make_cuda_backend({}) : backends::cpu::make_simd_backend({});
  }
  void SetUp() override {
    if (on_cuda()) {
      const base::Status available = backends::cuda::cuda_availability();
      ASSERT_NE(available.code(), base::StatusCode::kInternal) << available.to_string();
      if (!available.ok()) GTEST_SKIP() << "needs a CUDA device: " << available.message();
    }
    golden_ = test_support::read_golden(test_support::tiny_goldens_dir() / checkpoint());
    const base::Status status = test_support::write_recipe_checkpoint(checkpoint(), folder_.path());
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

  const auto judged = make_judged();
  ASSERT_TRUE(judged.has_value()) << judged.error().to_string();
  ChoosingBackend choosing(**judged, recording.choices());
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

  const std::string name = checkpoint() + (on_cuda() ? " on cuda" : " on simd");
  fmt::print("{}: worst relative error: prompt {:.2e}, generated {:.2e}, generated on FP8 pages {:.2e}\n", name, prompt,
             unified, split);
  EXPECT_LT(prompt, kBf16ErrorMax);
  EXPECT_LT(unified, kBf16ErrorMax);
  EXPECT_LT(split, kFp8ErrorMax);
  EXPECT_EQ(choosing.experts().possible > 0, model->config().moe.has_value());
  EXPECT_EQ(choosing.selections().possible > 0, model->config().dsa.has_value());
  for (const auto& [what, agreement] :
       {std::pair{"experts", choosing.experts()}, {"selections", choosing.selections()}}) {
    if (agreement.possible == 0) continue;
    fmt::print("{}: {}: {} of {} differ\n", name, what, agreement.differ, agreement.possible);
    EXPECT_GT(agreement.equal(), kEqualChoicesMin) << what;
  }
}

std::vector<std::string> judged_backends() {
  std::vector<std::string> names = {"simd"};
  if (backends::cuda::cuda_is_built()) names.emplace_back("cuda");
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, TinyRounded,
                         testing::Combine(testing::ValuesIn(test_support::tiny_checkpoint_names()),
                                          testing::ValuesIn(judged_backends())),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_" + std::get<1>(tested.param);
                         });

}  // namespace
}  // namespace tessera
