// Knows, for every sequence, what an undisturbed run of it says, and which faults it was exposed to; and objects to
// everything that follows from neither. It sees what clients see, and is told by those who inject faults who must fail
// for them, and who may.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/ops/backend.h"
#include "tessera/router/router.h"
#include "tests/simulation/trace.h"
#include "tests/support/context_oracle_model.h"

namespace tessera::simulation {

using request::SequenceId;

struct JudgeCounts {
  std::int64_t submitted = 0;
  std::int64_t finished = 0;
  std::int64_t cancelled = 0;
  std::int64_t corrupted = 0;  // Failed by an integrity check.
  std::int64_t too_large = 0;  // For what an engine's pages can hold while some are in quarantine.
  std::int64_t failed = 0;     // For another reason.
  std::int64_t recomputes = 0;
  std::int64_t tokens = 0;
  std::int64_t tokens_wrong = 0;      // Of sequences that had read what no check of that level had looked at yet.
  std::int64_t logprobs = 0;          // Tokens whose log-probabilities were compared.
  std::int64_t prompt_logprobs = 0;   // Likewise, of prompts.
  std::int64_t turned_away = 0;       // Refused by the router: it was full.
  base::Nanoseconds longest_wait{0};  // Of one sequence, for anything.

  void add(const JudgeCounts& other);
};

class Judge {
 public:
  // As the engines are configured.
  struct Rules {
    test_support::Flavors flavors;
    std::int64_t page_size = 0;
    kv_cache::OnIntegrityError on_error = kv_cache::OnIntegrityError::kAbort;
    std::int32_t recomputes_max = 0;
  };
  Judge(ops::Backend& backend, const Rules& rules, const base::Clock& clock, Trace& trace);

  // Before it is submitted; max_tokens is as many as fit the context.
  void expect(const request::SequenceSpec& spec, std::int64_t context_tokens_max);
  // It was refused after all: no event may come.
  void refused(SequenceId id, const base::Status& status);
  void hear(SequenceId id, const router::SequenceEvent& event);
  void client_left(SequenceId id);

  // A check of a step that is about to be made must find something in the sequence: it may emit `generated` tokens in
  // all. Where failed checks are answered by computing again, its next step must be one of its prompt.
  void must_fail(SequenceId id, std::int64_t generated);
  // A step is about to compute tokens of the sequence from `start` on.
  void computes(SequenceId id, std::int64_t start);
  // A page that it holds is damaged while it moves between engines: checks of the handoff may fail until it computes
  // again.
  void handoff_may_fail(SequenceId id);
  // Bytes that it has read were changed, and its level looks at them later: tokens from this index on may be wrong, and
  // the sequence may be ended for it.
  void may_be_wrong(SequenceId id, std::int64_t index);
  // It holds a page that was computed by somebody who had read changed bytes: it may be ended for it.
  void may_be_ended(SequenceId id);
  // Such bytes were found in a page that it holds: it emits `generated` tokens in all at most, and ends for it,
  // whatever the policy.
  void must_end(SequenceId id, std::int64_t generated);
  // Its way between the engines was disturbed, or an engine that it was on has ended.
  void may_be_lost(SequenceId id);
  // Its engine has so many pages that are not in quarantine: if it needs more, it may be told that it does not fit.
  void pages_left(SequenceId id, std::int64_t pages);
  // An engine says that these were generated.
  void engine_has(SequenceId id, std::span<const std::int32_t> generated);

  // Two sequences hold one page: only tenants' own, and only for the same tokens.
  void share(SequenceId one, SequenceId other, std::int64_t tokens);

  void object(std::string complaint);
  const std::optional<std::string>& complaint() const { return complaint_; }
  // Objects when nothing has happened to anybody for too long although somebody lives, or to one sequence.
  void check_stall(base::Nanoseconds stall_after, base::Nanoseconds starves_after);
  // Objects when a sequence that must have failed has not. When nothing is live any more.
  void check_all_ended();

  bool is_live(SequenceId id) const;
  std::int64_t tokens_heard(SequenceId id) const;
  std::int64_t prompt_tokens(SequenceId id) const;
  const std::vector<SequenceId>& live() const { return live_; }
  const JudgeCounts& counts() const { return counts_; }

 private:
  struct Sequence {
    Sequence(const request::SequenceSpec& spec_in, test_support::Flavors flavors)
        : spec(spec_in), oracle(spec_in.prompt, flavors) {}
    request::SequenceSpec spec;
    test_support::ContextOracle oracle;
    std::vector<std::int32_t> told;
    std::int64_t prompt_told = 0;              // Prompt tokens whose log-probabilities were told.
    std::optional<request::FinishReason> due;  // After the token that was told last.
    std::optional<std::int64_t> told_max;      // Of one that must fail.
    std::optional<std::int64_t> wrong_from;    // Index of the first token that may be wrong.
    base::Nanoseconds last_event{0};
    bool ended = false;
    bool must_start_again = false;
    std::int64_t checks_failed = 0;  // At least.
    bool left = false;
    bool handoff_may_fail = false;
    bool may_be_ended = false;
    bool may_be_lost = false;
    bool pools_shrank = false;
  };
  Sequence* find(SequenceId id);
  std::int32_t next_token(const Sequence& sequence);
  // Whether these are those of the token and of the best others, given the logits.
  bool is_right(std::int32_t token, float logprob, std::span<const request::TokenLogprob> top,
                std::int32_t alternatives) const;
  void check_logprobs(const Sequence& sequence, const request::TokenEvent& token);
  void hear_prompt_logprobs(Sequence& sequence, const request::PromptLogprobsEvent& event);
  void hear_token(Sequence& sequence, const request::TokenEvent& token);
  void hear_finish(Sequence& sequence, const request::SequenceFinished& finished);
  void hear_failure(Sequence& sequence, const request::SequenceFailed& failed);
  bool corruption_is_explained(const Sequence& sequence, const request::SequenceReport& report) const;
  void end(Sequence& sequence, const request::SequenceReport& report);
  void check_prefix_hit(const Sequence& sequence, std::int64_t cached_tokens);
  // A number for the tenant and the first `tokens` tokens.
  static std::uint64_t prefix_hash(const request::SequenceSpec& spec, std::int64_t tokens);

  ops::Backend& backend_;
  const Rules rules_;
  const base::Clock& clock_;
  Trace& trace_;
  std::unique_ptr<ops::Stream> stream_;
  std::vector<float> logits_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<SequenceId> live_;
  // How many sequences were submitted whose prompts begin so.
  std::unordered_map<std::uint64_t, std::int64_t> prefixes_;
  base::Nanoseconds last_event_{0};
  JudgeCounts counts_;
  std::optional<std::string> complaint_;
};

}  // namespace tessera::simulation
