// What the next step does: which sequences are admitted, which tokens each computes, and who gives pages back when they
// run out. Pure functions of plain state; no clock, thread or device. An engine calls plan_admission, carries it out,
// then plan_batch, and carries that out, once a step.
//
// Policy. First come, first served, by sequence id (ids come in order of arrival, and a preempted sequence keeps its
// id). A sequence is admitted when all its tokens so far fit, and when every sequence that already holds pages could
// still grow by one page; nobody overtakes the head of the queue. When a running sequence needs a page and none is
// free or evictable, the latest sequence gives its pages back; an earlier one never does so for a later one. So the
// earliest sequence always advances, and nothing starves. What could never fit is refused and blocks nobody.
//
// Chunks. Prompt tokens are computed in chunks that end at multiples of chunk_tokens (counted from the sequence's first
// token) and at the end of the prompt, whatever else is in the batch and wherever a cached prefix ended: the boundaries
// of a recompute are those of the first time. Those of a scored prompt are multiples of scored_tokens, if that is less;
// a scored chunk that finds no rows of logits left waits, and only scored ones wait behind it. Generated tokens that
// are replayed are chunked likewise from the end of the prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/request/sequence_spec.h"

namespace tessera::scheduler {

using request::SequenceId;

// What a sequence is doing in this engine, as far as scheduling goes.
enum class Activity : std::uint8_t {
  kWaiting,     // Holds no pages.
  kComputing,   // Has tokens to compute: prefill, replay or decode.
  kInTransfer,  // Holds pages that a handoff is reading or writing: cannot be preempted, computes nothing.
};

struct SequenceView {
  SequenceId id = 0;
  Activity activity = Activity::kWaiting;
  std::int64_t prompt = 0;    // Tokens of the prompt.
  std::int64_t tokens = 0;    // Tokens whose KV is wanted: the prompt, and what was generated and is to be computed.
  std::int64_t computed = 0;  // Tokens whose KV exists; < tokens when computing.
  std::int64_t pages = 0;     // Pages held.
  bool scored = false;        // The logits of all its prompt tokens are wanted.
  std::int64_t pages_returned = 0;  // Of the pages, those that would become available if it gave them back now.
};

struct PoolView {
  std::int64_t page_size = 0;
  std::int64_t usable = 0;     // Pages of the pool without those that are in quarantine because a check failed.
  std::int64_t available = 0;  // Free, or cached and evictable.
};

struct Limits {
  std::int64_t running_max = 0;   // Sequences that hold pages at once.
  std::int64_t chunk_tokens = 0;  // Prompt and replay tokens of one step, over all sequences.
  // Of them, those of scored prompts: each takes a row of the logits. Needed where a sequence is scored.
  std::int64_t scored_tokens = 0;
  // Whether sequences grow while they run (unified, decode). Prefill engines hold exactly the prompt.
  enum class Growth : std::uint8_t { kFixed, kGrows } growth = Growth::kGrows;
};

// Pages that a prefix hit would give.
struct PrefixHit {
  std::int64_t pages = 0;
  std::int64_t idle = 0;  // Of them, those nobody leases now: they are counted in PoolView::available.
};

struct AdmissionPlan {
  std::vector<SequenceId> admitted;  // In order. Each gets pages for all its tokens, hits included.
  std::vector<SequenceId> refused;   // Could never fit.
};

// `sequences` in ascending order of id. `prefix_hit` is asked for waiting sequences that are about to be admitted.
AdmissionPlan plan_admission(std::span<const SequenceView> sequences, const PoolView& pool, const Limits& limits,
                             const std::function<PrefixHit(SequenceId)>& prefix_hit);

// Consecutive tokens of one sequence: one row of the batch.
struct Chunk {
  SequenceId id = 0;
  std::int64_t start = 0;  // == computed
  std::int64_t count = 0;
  std::int64_t new_pages = 0;  // To be allocated before the step.
  bool reaches_end = false;    // The last token's logits are wanted: start + count == tokens.
};

struct BatchPlan {
  std::vector<SequenceId> preempted;  // They give their pages back first.
  std::vector<Chunk> chunks;          // Decode rows (one token) first, then prompt and replay chunks, each by id.
};

BatchPlan plan_batch(std::span<const SequenceView> sequences, const PoolView& pool, const Limits& limits);

}  // namespace tessera::scheduler
