// What an engine computes while it is led through a known text, written down: the distributions at every position of
// the continuation. An engine asks its model for logits only where it draws a token; the RecordingModel, put between
// the two, has the same forward pass give those of the continuation's other positions too. The pass itself, its pages
// and its checks are the engine's own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "forwarding_model.h"
#include "tessera/base/status.h"
#include "tessera/engine/step_listener.h"
#include "tessera/models/model.h"
#include "tessera/ops/backend.h"

namespace tessera::app {

// Which positions of a sequence are wanted: the distributions of the `positions` tokens behind its prompt. Position i
// comes from the token at prompt_tokens - 1 + i.
struct ForcedSpan {
  std::int64_t prompt_tokens = 0;
  std::int64_t positions = 0;
};
using ForcedSpans = std::unordered_map<request::SequenceId, ForcedSpan>;

// Natural logarithms of the softmax of `logits`, summed in double; both [vocab_size]. invalid_argument: a logit is not
// finite.
base::Status log_probabilities(std::span<const float> logits, std::span<float> logprobs);

// The record of one engine. Used from the engine's thread.
class ForcedRecording final : public engine::StepListener {
 public:
  // logprobs: [vocab_size], valid during the call.
  using Sink = std::function<void(request::SequenceId id, std::int64_t position, std::span<const float> logprobs)>;

  // `spans` outlives it and may change between steps. The sink is called for what was computed in steps whose checks
  // were clean.
  ForcedRecording(const ForcedSpans& spans, std::int64_t vocab_size, Sink sink);

  void before_step(std::span<const engine::StepRowView> rows) override;
  void after_step(std::span<const engine::StepRowView> rows, std::span<const engine::RowOutcome> outcomes) override;

  // Of the first distribution that could not be made; ok while there was none.
  const base::Status& status() const { return status_; }

 private:
  friend class RecordingModel;
  struct Wanted {
    std::size_t row = 0;     // Of the step.
    std::int32_t token = 0;  // Index into the batch.
    request::SequenceId id = 0;
    std::int64_t position = 0;
  };

  const ForcedSpans& spans_;
  const std::int64_t vocab_size_;
  const Sink sink_;
  base::Status status_;
  std::vector<Wanted> wanted_;        // Of the step, tokens ascending.
  std::vector<std::int32_t> tokens_;  // Whose logits the step computes: wanted ones and the engine's.
  std::vector<float> logits_;         // [tokens_, vocab_size]
  std::vector<float> logprobs_;
};

// The model with which an engine is made whose listener is `recording`. Everything but the record is `inner`'s, which
// outlives it, as the recording and the inner model's backend do.
class RecordingModel final : public ForwardingModel {
 public:
  RecordingModel(const models::Model& inner, ops::Backend& backend, ForcedRecording& recording)
      : ForwardingModel(inner), backend_(backend), recording_(recording) {}

  // The inner one's, and logits of every token of a batch.
  base::Result<std::unique_ptr<models::Workspace>> make_workspace(const models::WorkspaceLimits& limits) const override;
  void forward(ops::Stream& stream, models::Workspace& workspace, const models::ForwardBatch& batch,
               ops::Matrix logits) const override;

 private:
  ops::Backend& backend_;
  ForcedRecording& recording_;
};

}  // namespace tessera::app
