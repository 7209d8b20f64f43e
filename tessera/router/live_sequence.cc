#include "tessera/router/live_sequence.h"

#include <algorithm>
#include <utility>

namespace tessera::router {

void add_report(request::SequenceReport& sum, const request::SequenceReport& share) {
  if (sum.prompt_tokens == 0) {
    sum.prompt_tokens = share.prompt_tokens;
    sum.cached_tokens = share.cached_tokens;
  }
  sum.generated_tokens += share.generated_tokens;
  sum.handoff_pages += share.handoff_pages;
  sum.handoff_source_bytes += share.handoff_source_bytes;
  sum.handoff_wire_bytes += share.handoff_wire_bytes;
  sum.preemptions += share.preemptions;
  sum.integrity_recomputes += share.integrity_recomputes;
  sum.verified_steps += share.verified_steps;
  sum.prefill_ns += share.prefill_ns;
  sum.handoff_ns += share.handoff_ns;
  sum.decode_ns += share.decode_ns;
}

void LiveSequence::take_token(request::TokenEvent event, std::vector<SequenceEvent>& told) {
  if (event.index < next_index) return;
  early.emplace(event.index, std::move(event));
  while (!early.empty() && early.begin()->first == next_index) {
    told.emplace_back(std::move(early.begin()->second));
    early.erase(early.begin());
    ++next_index;
  }
}

std::optional<SequenceEvent> LiveSequence::take_prompt_logprobs(request::PromptLogprobsEvent event) {
  const std::int64_t known = next_prompt_logprob - event.first;
  const std::int64_t asked = spec.sampling.prompt_logprobs.has_value() ? std::ssize(spec.prompt) : 0;
  if (known < 0 || known >= std::ssize(event.logprobs)) return std::nullopt;
  if (event.first + std::ssize(event.logprobs) > asked) return std::nullopt;
  event.logprobs.erase(event.logprobs.begin(), event.logprobs.begin() + known);
  event.first = next_prompt_logprob;
  next_prompt_logprob += static_cast<std::int32_t>(event.logprobs.size());
  return event;
}

void LiveSequence::begin_round(std::size_t first, std::optional<std::size_t> decode) {
  first_engine = first;
  decode_engine = decode;
  decode_seen = false;
  released = false;
  restart.reset();
}

}  // namespace tessera::router
