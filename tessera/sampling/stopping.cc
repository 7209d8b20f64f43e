#include "tessera/sampling/stopping.h"

#include <algorithm>

namespace tessera::sampling {

ops::SampleRow sample_row(const request::SamplingParams& params, std::int64_t position) {
  ops::SampleRow row;
  row.temperature = params.temperature;
  row.top_p = params.top_p;
  row.top_k = params.top_k;
  row.seed = params.seed;
  row.position = static_cast<std::uint64_t>(position);
  row.top_logprobs = params.logprobs ? params.top_logprobs : 0;
  return row;
}

ops::SampleRow prompt_row(const request::SamplingParams& params, std::int32_t token) {
  ops::SampleRow row;
  row.forced_token = token;
  row.top_logprobs = params.prompt_logprobs.value();
  return row;
}

std::optional<request::FinishReason> finish_reason(const request::SamplingParams& params, const Progress& progress) {
  if (!params.ignore_eos &&
      std::ranges::find(params.stop_token_ids, progress.last_token) != params.stop_token_ids.end()) {
    return request::FinishReason::kStop;
  }
  if (progress.generated_tokens >= params.max_tokens ||
      progress.prompt_tokens + progress.generated_tokens >= progress.context_tokens_max) {
    return request::FinishReason::kLength;
  }
  return std::nullopt;
}

}  // namespace tessera::sampling
