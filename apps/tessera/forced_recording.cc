#include "forced_recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/engine/step_runner.h"

namespace tessera::app {

namespace {

struct RecordingWorkspace final : models::Workspace {
  std::unique_ptr<models::Workspace> inner;
  ops::Buffer logits;  // [tokens_max, vocab_size], F32

  std::int64_t device_bytes() const override { return inner->device_bytes() + logits.bytes(); }
};

ops::Matrix row(const ops::Matrix& matrix, std::int64_t index) {
  return ops::f32_matrix(matrix.f32() + index * matrix.row_stride, 1, matrix.cols);
}

}  // namespace

base::Status log_probabilities(std::span<const float> logits, std::span<float> logprobs) {
  TESSERA_CHECK(!logits.empty() && logits.size() == logprobs.size());
  const auto strange = std::ranges::find_if_not(logits, [](float logit) { return std::isfinite(logit); });
  if (strange != logits.end()) {
    return base::invalid_argument(
        fmt::format("the logit of token {} is {}; expected a finite number", strange - logits.begin(), *strange));
  }
  const double largest = std::ranges::max(logits);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = largest + std::log(sum);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logprobs[i] = static_cast<float>(static_cast<double>(logits[i]) - log_sum);
  }
  return {};
}

ForcedRecording::ForcedRecording(const ForcedSpans& spans, std::int64_t vocab_size, Sink sink)
    : spans_(spans), vocab_size_(vocab_size), sink_(std::move(sink)), logprobs_(static_cast<std::size_t>(vocab_size)) {}

void ForcedRecording::before_step(std::span<const engine::StepRowView> rows) {
  wanted_.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const engine::StepRowView& row_view = rows[r];
    const auto span = spans_.find(row_view.id);
    if (span == spans_.end()) continue;
    for (std::int64_t i = 0; i < row_view.count; ++i) {
      const std::int64_t position = row_view.start + i - (span->second.prompt_tokens - 1);
      if (position < 0 || position >= span->second.positions) continue;
      wanted_.push_back({r, static_cast<std::int32_t>(row_view.first_token + i), row_view.id, position});
    }
  }
}

void ForcedRecording::after_step(std::span<const engine::StepRowView> rows,
                                 std::span<const engine::RowOutcome> outcomes) {
  TESSERA_CHECK(outcomes.size() == rows.size());
  std::size_t at = 0;  // Both lists ascend.
  for (const Wanted& wanted : wanted_) {
    while (tokens_[at] != wanted.token) ++at;
    // A row that is not clean ends its sequence with an error of its own.
    if (outcomes[wanted.row].result != engine::RowResult::kClean || !status_.ok()) continue;
    const std::size_t vocab = logprobs_.size();
    status_ = log_probabilities(std::span(logits_).subspan(at * vocab, vocab), logprobs_)
                  .with_context(fmt::format("position {} of sequence {}", wanted.position, wanted.id));
    if (status_.ok()) sink_(wanted.id, wanted.position, logprobs_);
  }
}

base::Result<std::unique_ptr<models::Workspace>> RecordingModel::make_workspace(
    const models::WorkspaceLimits& limits) const {
  auto workspace = std::make_unique<RecordingWorkspace>();
  TESSERA_ASSIGN_OR_RETURN(workspace->inner, ForwardingModel::make_workspace(limits));
  const std::int64_t bytes = limits.tokens_max * recording_.vocab_size_ * static_cast<std::int64_t>(sizeof(float));
  TESSERA_ASSIGN_OR_RETURN(workspace->logits, backend_.allocate(bytes, "logits of forced tokens"));
  return workspace;
}

void RecordingModel::forward(ops::Stream& stream, models::Workspace& workspace, const models::ForwardBatch& batch,
                             ops::Matrix logits) const {
  RecordingWorkspace& w = dynamic_cast<RecordingWorkspace&>(workspace);
  std::vector<std::int32_t> wanted;
  wanted.reserve(recording_.wanted_.size());
  for (const ForcedRecording::Wanted& one : recording_.wanted_) wanted.push_back(one.token);
  std::vector<std::int32_t>& tokens = recording_.tokens_;
  tokens.clear();
  std::ranges::set_union(batch.logit_tokens, wanted, std::back_inserter(tokens));

  models::ForwardBatch all = batch;
  all.logit_tokens = tokens;
  const ops::Matrix all_logits = ops::f32_matrix(w.logits.as<float>(), std::ssize(tokens), recording_.vocab_size_);
  ForwardingModel::forward(stream, *w.inner, all, all_logits);
  for (std::size_t i = 0; i < batch.logit_tokens.size(); ++i) {
    const auto at = std::ranges::lower_bound(tokens, batch.logit_tokens[i]) - tokens.begin();
    backend_.copy_matrix(stream, row(all_logits, at), row(logits, static_cast<std::int64_t>(i)));
  }
  // The engine waits for the stream before it looks at the step's outcome, and so before the record is read.
  recording_.logits_.resize(tokens.size() * static_cast<std::size_t>(recording_.vocab_size_));
  backend_.copy_to_host(stream, recording_.logits_.data(), w.logits.data(),
                        std::ssize(recording_.logits_) * static_cast<std::int64_t>(sizeof(float)));
}

}  // namespace tessera::app
