// Everything that passes between an engine and whoever drives it: plain values, so that an engine can live in another
// thread now and in another process later. Commands go in through a bounded queue, events come out through one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/base/bounded_queue.h"
#include "tessera/base/status.h"
#include "tessera/kv_cache/integrity.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/request/sequence_spec.h"

namespace tessera::request {

enum class EngineRole : std::uint8_t { kUnified, kPrefill, kDecode };
// As flags, logs, metrics and /get_server_info spell it: "unified", "prefill", "decode".
constexpr std::string_view engine_role_name(EngineRole role) {
  return role == EngineRole::kUnified ? "unified" : role == EngineRole::kPrefill ? "prefill" : "decode";
}

// Identifies an engine inside one server.
using EngineId = std::int32_t;

// ---- Commands ----

// Unified engine: run the sequence. Prefill engine: prefill it, sample its first token, hand it to decode_engine.
// `generated` is empty at first; after a preemption it holds the tokens that were already emitted: they are replayed,
// forced and not emitted again, and then the sequence goes on exactly as if undisturbed. `integrity_recomputes` is how
// often it was computed again after a failed check so far, on any engine.
struct StartSequence {
  SequenceSpec spec;
  std::vector<std::int32_t> generated;
  EngineId decode_engine = -1;
  std::int32_t integrity_recomputes = 0;
};

// Forget the sequence, wherever it is; frees its pages. No event answers it. Unknown ids are remembered for a while, so
// that a handoff of the sequence which arrives later is refused.
struct AbortSequence {
  SequenceId id = 0;
};

// Drop every cached page that nobody uses.
struct FlushPrefixCache {};

// Rewrite the pages that a check failed on, and take those that read back right into service again
// (kv_cache::PagePool::audit_quarantined). EngineStats count them.
struct AuditQuarantinedPages {};

using EngineCommand = std::variant<StartSequence, AbortSequence, FlushPrefixCache, AuditQuarantinedPages>;

// ---- Events ----

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0.0f;
};

// One emitted token: both checks of its step were clean. `index` counts the sequence's generated tokens from 0; every
// index is emitted exactly once, in order, whatever preemptions happened. The stop token that ends a sequence is
// emitted too, as its last token, before SequenceFinished.
struct TokenEvent {
  SequenceId id = 0;
  std::int32_t index = 0;
  std::int32_t token = 0;
  float logprob = 0.0f;  // Set when the sequence asked for logprobs.
  std::vector<TokenLogprob> top_logprobs;
};

// The log-probability of a prompt token, given the tokens before it, and the best alternatives at its place.
struct PromptLogprob {
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;  // As many as were asked for, best first; the token's own only if it is among them.
};

// Of consecutive prompt tokens, the first of which is number `first` (>= 1: nothing is before token 0) of the prompt;
// of sequences that asked for prompt_logprobs. The checks of the step that computed them were clean. All of them come
// before the sequence's first TokenEvent, in order; after a preemption they may come again, and are the same.
struct PromptLogprobsEvent {
  SequenceId id = 0;
  std::int32_t first = 0;
  std::vector<PromptLogprob> logprobs;
};

// What happened to a sequence; goes to logs, metrics and `usage`. An engine reports its own share; the driver adds the
// shares up.
struct SequenceReport {
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_tokens = 0;  // Of the prompt, found in the prefix cache.
  std::int32_t generated_tokens = 0;
  ops::KvFormat prefill_kv = ops::KvFormat::kBF16;
  ops::KvFormat decode_kv = ops::KvFormat::kBF16;
  std::int32_t handoff_pages = 0;
  std::int64_t handoff_source_bytes = 0;  // Before conversion.
  std::int64_t handoff_wire_bytes = 0;    // After.
  std::int32_t preemptions = 0;
  std::int32_t integrity_recomputes = 0;  // Times that it was computed again because a check of its pages failed.
  std::int64_t verified_steps = 0;        // Steps whose pages were checked before and after.
  std::int64_t prefill_ns = 0;
  std::int64_t handoff_ns = 0;
  std::int64_t decode_ns = 0;
};

struct SequenceFinished {
  SequenceId id = 0;
  FinishReason reason = FinishReason::kStop;
  SequenceReport report;
};

// The sequence ends with an error and emits nothing more. kCorruption: a page check failed.
struct SequenceFailed {
  SequenceId id = 0;
  base::Status status;
  SequenceReport report;
};

// A decode engine ran out of pages, or a check failed and is answered by computing again, and it let go of this
// sequence; it must be started again with its generated tokens (the driver does that). `generated` are all tokens
// emitted so far.
struct SequencePreempted {
  SequenceId id = 0;
  std::vector<std::int32_t> generated;
  SequenceReport report;  // So far; the driver adds it to the next engine's.
};

// The decode engine has committed the handoff; the prefill engine holds nothing of the sequence any more. `report` is
// prefill's share.
struct SequenceHandedOver {
  SequenceId id = 0;
  SequenceReport report;
};

// A snapshot, sent when something changed and at least once a second.
struct EngineStats {
  bool device_failed = false;  // The engine has ended; its log says why.
  std::int64_t waiting = 0;    // Sequences not started.
  std::int64_t running = 0;
  std::int64_t handing_over = 0;
  std::int64_t uncached_prompt_tokens_in_flight = 0;
  std::int64_t resident_tokens = 0;
  std::int64_t pages_total = 0;
  std::int64_t pages_free = 0;
  std::int64_t pages_leased = 0;
  std::int64_t pages_cached = 0;
  std::int64_t pages_quarantined = 0;
  std::int64_t steps = 0;
  std::int64_t rows_checked = 0;
  // Failed checks of whose pages they are, by rows of steps, handoffs and looks at pages alone (who holds a page that
  // was put in quarantine fails by it), and of what came over the wire. Damaged bytes in a pool are not among them.
  std::int64_t check_failures = 0;
  std::int64_t integrity_recomputes = 0;  // Sequences that went back to be computed again after a failed check.
  std::int64_t audited_pages_freed = 0;   // By AuditQuarantinedPages.
  std::int64_t audited_pages_kept = 0;    // Likewise; a page that two audits kept counts twice.
  std::int64_t audit_failures = 0;        // Times that the accounts of the pages did not balance.
  std::int64_t double_frees = 0;          // Pages given back by who did not hold them; without effect.
  std::int64_t preemptions = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;
  std::int64_t prefix_query_tokens = 0;
  std::int64_t prefix_hit_tokens = 0;
  std::int64_t handoffs_done = 0;
  std::int64_t handoffs_failed = 0;
  std::int64_t handoff_wire_bytes = 0;
  std::int64_t check_ns = 0;  // Time in page checks, and in steps altogether.
  std::int64_t step_ns = 0;
  std::int64_t digest_ns = 0;        // Of check_ns: digests of what steps wrote and read.
  std::int64_t sweep_ns = 0;         // Beside steps: digests of pages that were swept or hit.
  std::int64_t pages_swept = 0;      // By the background sweep; a page counts every time.
  std::int64_t digest_failures = 0;  // Pages whose bytes were not those that were written; each once.
};

using EngineEventBody = std::variant<TokenEvent, PromptLogprobsEvent, SequenceFinished, SequenceFailed,
                                     SequencePreempted, SequenceHandedOver, EngineStats>;

struct EngineEvent {
  EngineId engine = -1;
  EngineEventBody body;
};

using EngineEventQueue = base::BoundedQueue<EngineEvent>;

// What the driver may know of an engine before it sends anything; constant.
struct EngineInfo {
  EngineId id = -1;
  EngineRole role = EngineRole::kUnified;
  std::string weight_format;  // "bf16", ...
  ops::KvFormat kv_format = ops::KvFormat::kBF16;
  std::string backend;
  std::string model_digest;
  std::int32_t page_size = 0;
  std::int64_t pages = 0;
  std::int64_t context_tokens_max = 0;  // Of one sequence: the model's context or the pool, whichever is smaller.
  std::int64_t running_max = 0;
  kv_cache::OnIntegrityError on_integrity_error = kv_cache::OnIntegrityError::kAbort;
  kv_cache::IntegrityLevel integrity = kv_cache::IntegrityLevel::kTags;
  std::int64_t sweep_pages_per_second = 0;  // Whose bytes are checked in the background.
};

// The driver's end of one engine.
class EngineEndpoint {
 public:
  virtual ~EngineEndpoint() = default;
  virtual const EngineInfo& info() const = 0;
  // False when the engine's queue is full or it has stopped: nothing was taken. Thread-safe.
  [[nodiscard]] virtual bool try_send(EngineCommand command) = 0;
};

}  // namespace tessera::request
