// When a sequence ends, and how one of its tokens is drawn or scored: from plain parameters to the sampling op's rows.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/ops/sample.h"
#include "tessera/request/sampling_params.h"
#include "tessera/request/sequence_spec.h"

namespace tessera::sampling {

// How the token at `position` (an index into prompt and generated tokens together) is drawn. The random number depends
// on seed and position only, so that a recompute draws the same one.
ops::SampleRow sample_row(const request::SamplingParams& params, std::int64_t position);

// How a prompt token, which is not drawn, gets its log-probability. The params' prompt_logprobs are set.
ops::SampleRow prompt_row(const request::SamplingParams& params, std::int32_t token);

struct Progress {
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;    // `last_token` included.
  std::int64_t context_tokens_max = 0;  // Prompt and generated tokens together, at most.
  std::int32_t last_token = 0;
};

// Why the sequence ends with last_token, if it does: kStop before kLength when both hold.
std::optional<request::FinishReason> finish_reason(const request::SamplingParams& params, const Progress& progress);

}  // namespace tessera::sampling
