// Where full distributions over the vocabulary come from: engines in this process, under teacher forcing. The prompt is
// computed as the plan's prefill computes it, the continuation as its decode does, through the same handoff.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/quality/respondent.h"

namespace tessera::quality {

struct Passage {
  std::string question;               // The id of the question that it belongs to.
  std::string cell;                   // Its cell (task.h).
  std::vector<TokenId> prompt;        // At least one.
  std::vector<TokenId> continuation;  // At least one.
};

// logprobs: [vocab_size], natural logarithms that sum to probability 1: the distribution of continuation[position],
// given everything before it.
using DistributionSink =
    std::function<void(std::size_t passage, std::size_t position, std::span<const float> logprobs)>;

class DistributionSource {
 public:
  virtual ~DistributionSource() = default;
  // context_tokens: what a passage may have of tokens, prompt and continuation together; 0: any number.
  virtual const RespondentInfo& info() const = 0;
  virtual std::int64_t vocab_size() const = 0;
  // Comes once, before distributions(), with all passages of the evaluation in their order, those too that need not be
  // computed again: what is measured of them (constants of a format) is the same however often the evaluation was cut
  // off. Passages that are too long are passed over.
  virtual base::Status prepare(std::span<const Passage> /*passages*/) { return base::ok_status(); }
  // Calls `sink` for every position of every passage, each once, from this thread, in any order. out_of_range, naming
  // the passage: one is too long. cancelled: whoever made the source wants it to end. Not thread-safe.
  virtual base::Status distributions(std::span<const Passage> passages, const DistributionSink& sink) = 0;
};

}  // namespace tessera::quality
