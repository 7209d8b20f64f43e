// How a sequence's tokens are chosen and when it stops. Plain state; the server has validated every number against
// base/limits.h before it gets here.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::request {

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy.
  float top_p = 1.0f;
  std::int32_t top_k = 0;  // 0: all.
  std::uint64_t seed = 0;  // Always set: the server draws one where the client gave none. Choice i uses seed + i.
  // Generated tokens at most. 0: the prompt is computed, and no token is drawn.
  std::int32_t max_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_token_ids;  // End-of-sequence ids of the model and the chat format; stop strings are
                                             // the server's business, which aborts the sequence when it sees one.
  bool logprobs = false;
  std::int32_t top_logprobs = 0;
  // Set: the log-probability of every prompt token but the first, given those before it, with so many of the best
  // alternatives, 0 to base::limits::kTopLogprobsMax (PromptLogprobsEvent). Such a prompt takes no pages from the
  // prefix cache: each of its positions has to be computed for its logits.
  std::optional<std::int32_t> prompt_logprobs;
};

}  // namespace tessera::request
