// A sequence as the router follows it, from submit to its terminal event. Plain state and the rules that keep the
// router's promises about order; no engine, queue or lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/request/messages.h"
#include "tessera/router/router.h"

namespace tessera::router {

// Adds an engine's share to what other engines reported. The prompt's numbers are those of the first prefill.
void add_report(request::SequenceReport& sum, const request::SequenceReport& share);

struct LiveSequence {
  request::SequenceSpec spec;
  std::shared_ptr<const Subscriber> subscriber;
  std::size_t first_engine = 0;              // Unified or prefill; an index into the router's engines.
  std::optional<std::size_t> decode_engine;  // Of a split pair.

  std::int32_t next_index = 0;                        // Of the token that is told next.
  std::map<std::int32_t, request::TokenEvent> early;  // Came before their turn.
  std::int32_t next_prompt_logprob = 1;               // The prompt token whose log-probability is told next.
  request::SequenceReport report;

  // Of the current round (a preemption begins another one).
  bool decode_seen = false;                          // The decode engine has it.
  bool released = false;                             // The prefill engine has nothing of it any more.
  std::optional<std::vector<std::int32_t>> restart;  // Preempted: to be started again once it is released.

  // How it ends; told once everything before it was.
  std::optional<SequenceEvent> terminal;
  base::Nanoseconds terminal_since{0};

  // Takes a token that an engine emitted, and appends what may be told now. Duplicates vanish.
  void take_token(request::TokenEvent event, std::vector<SequenceEvent>& told);
  // What of an engine's log-probabilities may be told now, if anything. Repeats vanish; so does what comes after a gap.
  std::optional<SequenceEvent> take_prompt_logprobs(request::PromptLogprobsEvent event);
  // Whether prompt tokens were never told that must be before the sequence can finish.
  bool lacks_prompt_logprobs() const {
    return spec.sampling.prompt_logprobs.has_value() && next_prompt_logprob < std::ssize(spec.prompt);
  }
  // All that has to be told before the terminal event was, and both engines have reported.
  bool complete() const { return early.empty() && (!decode_engine.has_value() || released); }
  void begin_round(std::size_t first, std::optional<std::size_t> decode);
};

}  // namespace tessera::router
