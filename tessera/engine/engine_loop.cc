#include "tessera/engine/engine_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/base/logging.h"
#include "tessera/sampling/stopping.h"

namespace tessera::engine {

using request::EngineRole;

Turn EngineLoop::turn() {
  retry_soon_ = false;
  bool moved = false;
  const bool driver_keeps_up = outbox_.flush();
  if (driver_keeps_up) moved |= receive_commands();
  if (device_works()) moved |= move_handoffs();
  if (driver_keeps_up && device_works()) {
    moved |= admit();
    moved |= run_step();
  }
  if (device_works()) sweep();
  if (device_works()) moved |= audit_quarantined();
  const Turn turn = moved ? Turn::kMoved : Turn::kIdle;
  stats_changed_ |= moved;
  outbox_.flush();
  publish_stats(turn);
  if (turn == Turn::kIdle && device_works()) audit_when_idle();
  return turn;
}

base::Nanoseconds EngineLoop::idle_time() const {
  using std::chrono::milliseconds;
  base::Nanoseconds time = milliseconds(500);
  if (!outbox_.empty() || retry_soon_) time = milliseconds(1);
  if (!pending_handoffs_.empty()) time = std::min<base::Nanoseconds>(time, milliseconds(5));
  const auto until = [&](std::optional<base::Nanoseconds> deadline) {
    if (deadline.has_value()) time = std::min(time, *deadline - parts_.clock.now());
  };
  if (sender_ != nullptr) until(sender_->next_deadline());
  if (receiver_ != nullptr) until(receiver_->next_deadline());
  if (sweep_.has_value() && failure_.ok()) until(sweep_->next());
  return std::max<base::Nanoseconds>(time, milliseconds(1));
}

// ---- Commands ----

bool EngineLoop::receive_commands() {
  std::vector<request::EngineCommand> commands = inbox_->take();
  for (request::EngineCommand& command : commands) {
    if (auto* start_command = std::get_if<request::StartSequence>(&command)) {
      start(std::move(*start_command));
    } else if (const auto* abort_command = std::get_if<request::AbortSequence>(&command)) {
      abort(abort_command->id);
    } else if (!device_works()) {
      continue;
    } else if (std::holds_alternative<request::FlushPrefixCache>(command)) {
      cache_->clear();
    } else {
      quarantine_audit_.emplace();  // One that is under way begins again.
    }
  }
  return !commands.empty();
}

base::Status EngineLoop::check_start(const request::SequenceSpec& spec,
                                     const std::vector<std::int32_t>& generated) const {
  const std::int64_t vocab = parts_.model.config().vocab_size;
  const auto in_vocabulary = [&](std::int32_t token) { return token >= 0 && token < vocab; };
  if (spec.id == 0 || spec.prompt.empty() || spec.sampling.max_tokens < 0) {
    return base::invalid_argument("a sequence needs an id, a prompt and a number of tokens to generate");
  }
  const std::int32_t alternatives = spec.sampling.prompt_logprobs.value_or(0);
  if (alternatives < 0 || alternatives > base::limits::kTopLogprobsMax) {
    return base::invalid_argument(
        fmt::format("prompt_logprobs is {}; expected 0 to {}", alternatives, base::limits::kTopLogprobsMax));
  }
  if (!std::ranges::all_of(spec.prompt, in_vocabulary) || !std::ranges::all_of(generated, in_vocabulary)) {
    return base::invalid_argument("a token id is outside the vocabulary");
  }
  const std::int64_t needed = std::ssize(spec.prompt) + std::min(spec.sampling.max_tokens, 1);
  if (needed > info_.context_tokens_max) {
    return base::out_of_range(
        fmt::format("the prompt, with what must follow it, has {} tokens, which do not fit the "
                    "context of {}",
                    needed, info_.context_tokens_max));
  }
  if (table_.size() >= config_.sequences_max) return base::resource_exhausted("the engine's queue is full");
  return {};
}

void EngineLoop::start(request::StartSequence command) {
  const SequenceId id = command.spec.id;
  if (table_.is_buried(id)) return;
  if (table_.find(id) != nullptr) {
    base::log().error("engine {}: sequence {} was started twice; the second start is ignored", info_.id, id);
    return;
  }
  base::Status status = !device_works() ? base::unavailable("the engine's device has failed")
                        : config_.role == EngineRole::kDecode
                            ? base::invalid_argument("a decode engine takes sequences by handoff only")
                            : check_start(command.spec, command.generated);
  if (!status.ok()) {
    outbox_.add(request::SequenceFailed{id, no_room(command.integrity_recomputes, std::move(status)), {}});
    return;
  }
  Sequence sequence;
  sequence.spec = std::move(command.spec);
  sequence.generated = std::move(command.generated);
  sequence.decode_engine = command.decode_engine;
  sequence.integrity_recomputes = command.integrity_recomputes;
  table_.insert(std::move(sequence));
}

void EngineLoop::abort(SequenceId id) {
  table_.bury(id);
  Sequence* sequence = table_.find(id);
  if (sequence == nullptr) return;
  const base::Status cancelled(base::StatusCode::kCancelled, "the client left");
  switch (sequence->state) {
    case SequenceState::kWaiting:
      if (sequence->receive_key.has_value()) receiver_->reject(*sequence->receive_key, cancelled);
      drop(*sequence);
      return;
    case SequenceState::kComputing:
    case SequenceState::kHandoffPending:
      drop(*sequence);
      return;
    case SequenceState::kSending:
      sequence->aborted = true;
      sender_->abort(sequence->send_id, cancelled);
      return;
    case SequenceState::kReceiving:
      sequence->aborted = true;
      receiver_->abort(*sequence->receive_key, cancelled);
      return;
  }
}

// ---- Admission ----

std::int64_t EngineLoop::wanted_tokens(const Sequence& sequence) const {
  return config_.role == EngineRole::kPrefill ? sequence.prompt_tokens() : sequence.all_tokens();
}

scheduler::Limits EngineLoop::scheduler_limits() const {
  scheduler::Limits limits;
  limits.running_max = config_.running_max;
  // What moves to a decode engine's pages has left the queue for them.
  if (sender_ != nullptr) {
    limits.running_max = std::min(limits.running_max, sender_->accepted() + config_.handoff.prefill_ahead_max);
  }
  limits.chunk_tokens = config_.chunked_prefill_size;
  limits.scored_tokens = config_.scored_prompt_size;
  limits.growth =
      config_.role == EngineRole::kPrefill ? scheduler::Limits::Growth::kFixed : scheduler::Limits::Growth::kGrows;
  return limits;
}

std::vector<scheduler::SequenceView> EngineLoop::views() {
  std::vector<scheduler::SequenceView> views;
  views.reserve(static_cast<std::size_t>(table_.size()));
  for (auto& [id, sequence] : table_) {
    scheduler::SequenceView view;
    view.id = id;
    view.activity = sequence.state == SequenceState::kWaiting     ? scheduler::Activity::kWaiting
                    : sequence.state == SequenceState::kComputing ? scheduler::Activity::kComputing
                                                                  : scheduler::Activity::kInTransfer;
    view.prompt = sequence.prompt_tokens();
    view.tokens = wanted_tokens(sequence);
    view.computed = sequence.computed;
    // Also when it is computed again, for the same chunks.
    view.scored = sequence.spec.sampling.prompt_logprobs.has_value();
    view.pages = std::ssize(sequence.leases);
    view.pages_returned = pages_->returned_by(sequence);
    views.push_back(view);
  }
  return views;
}

bool EngineLoop::admit() {
  const auto waiting = [](auto& entry) { return entry.second.state == SequenceState::kWaiting; };
  const auto head = std::find_if(table_.begin(), table_.end(), waiting);
  if (head == table_.end()) return false;
  scheduler::PoolView pool = pages_->view();
  const std::int64_t holding =
      std::count_if(table_.begin(), table_.end(), [&](auto& entry) { return !waiting(entry); });
  const scheduler::Limits limits = scheduler_limits();
  const Blocked now{head->first, pool.available, holding, limits.running_max};
  if (blocked_ == now) return false;
  // Nobody holds a page: what is not available now, and waits for no peer's word, never will be. Who waited for pages
  // that were lost would wait for ever.
  const bool pages_lost = holding == 0 && pool.available + pool_->awaiting_fence() < pool.usable;
  if (pages_lost) pool.usable = pool.available + pool_->awaiting_fence();

  // The prefix of a sequence that is about to be admitted is leased while the plan is made, so that nothing that the
  // plan counts on can be evicted by what the plan does.
  std::map<SequenceId, std::vector<kv_cache::Lease>> prefixes;
  const auto prefix_hit = [&](SequenceId id) {
    const Sequence& sequence = *table_.find(id);
    // Who samples after the prompt must compute its last token; a decode engine gets it with the handoff.
    const std::int64_t computed_here = config_.role == EngineRole::kDecode ? 0 : 1;
    // Who scores the prompt must compute all of it.
    const std::int64_t reusable = sequence.is_scored() ? 0 : sequence.prompt_tokens() - computed_here;
    std::vector<kv_cache::Lease> prefix = pages_->lease_prefix(sequence, reusable / config_.page_size);
    const scheduler::PrefixHit hit{std::ssize(prefix), pages_->idle_before(prefix)};
    prefixes.emplace(id, std::move(prefix));
    return hit;
  };
  const scheduler::AdmissionPlan plan = scheduler::plan_admission(views(), pool, limits, prefix_hit);
  bool moved = false;
  for (const SequenceId id : plan.refused) {
    Sequence& sequence = *table_.find(id);
    if (sequence.receive_key.has_value()) {
      receiver_->reject(*sequence.receive_key, base::resource_exhausted("the sequence does not fit the pool"));
    }
    fail(sequence, no_room(sequence.integrity_recomputes,
                           base::resource_exhausted("the sequence needs more KV pages than the pool has")));
    moved = true;
  }
  std::vector<std::vector<kv_cache::Lease>> admitted_prefixes;
  admitted_prefixes.reserve(plan.admitted.size());
  for (const SequenceId id : plan.admitted) admitted_prefixes.push_back(std::move(prefixes.extract(id).mapped()));
  // Who was asked for and stays outside gives its prefix back first: the plan counts on evicting what it held.
  for (const auto& [id, prefix] : prefixes) pages_->give_back(prefix);
  proved_.clear();
  for (std::size_t i = 0; i < plan.admitted.size(); ++i) {
    if (begin(*table_.find(plan.admitted[i]), std::move(admitted_prefixes[i]))) {
      moved = true;
    } else {
      retry_soon_ = true;
    }
  }
  // Now every lease is a sequence's again.
  if (pages_lost && !plan.refused.empty()) report_audit();
  blocked_ = moved || retry_soon_ ? std::nullopt : std::optional(now);
  return moved;
}

bool EngineLoop::begin(Sequence& sequence, std::vector<kv_cache::Lease> prefix) {
  check_prefix(prefix);
  const std::int64_t hits = std::ssize(prefix);
  if (base::Status status = pages_->admit(sequence, std::move(prefix), wanted_tokens(sequence)); !status.ok()) {
    base::log().warn("engine {}: no pages for sequence {}, which waits: {}", info_.id, sequence.spec.id,
                     status.to_string());
    return false;
  }
  sequence.computed = hits * config_.page_size;
  sequence.started = parts_.clock.now();
  // Once a prompt: not when it is computed again after a preemption, here or (with tokens to replay) on another engine.
  const bool first_time = sequence.report.prompt_tokens == 0 && sequence.generated.empty();
  const bool asked_cache = !sequence.is_scored() && first_time;
  if (asked_cache || config_.role == EngineRole::kDecode) {
    counters_.prefix_query_tokens += sequence.prompt_tokens();
    counters_.prefix_hit_tokens += sequence.computed;
  }
  if (config_.role == EngineRole::kDecode) {
    sequence.state = SequenceState::kReceiving;
    if (base::Status status = accept(sequence, hits); !status.ok()) {
      pages_->fence_received(sequence);  // The peer was never told of the pages.
      fail(sequence, base::unavailable("the prefill engine gave the request up"));
    }
    return true;
  }
  sequence.state = SequenceState::kComputing;
  // A recompute asks the cache again; what counts for the client is the first time.
  if (sequence.report.prompt_tokens == 0) {
    sequence.report.prompt_tokens = static_cast<std::int32_t>(sequence.prompt_tokens());
    sequence.report.cached_tokens = static_cast<std::int32_t>(sequence.computed);
  }
  return true;
}

// ---- The step ----

bool EngineLoop::run_step() {
  const scheduler::BatchPlan plan = scheduler::plan_batch(views(), pages_->view(), scheduler_limits());
  for (const SequenceId id : plan.preempted) preempt(*table_.find(id));
  std::vector<StepRow> rows;
  for (const scheduler::Chunk& chunk : plan.chunks) {
    Sequence& sequence = *table_.find(chunk.id);
    if (base::Status status = pages_->grow(sequence, chunk.new_pages); !status.ok()) {
      // It sits this step out and is planned again in the next turn.
      base::log().warn("engine {}: no page for sequence {} to grow: {}", info_.id, chunk.id, status.to_string());
      retry_soon_ = true;
      continue;
    }
    StepRow row;
    row.sequence = &sequence;
    row.start = chunk.start;
    row.count = chunk.count;
    // A prefill engine that computes a prompt again knows its first token already.
    const bool replayed = config_.role == EngineRole::kPrefill && !sequence.generated.empty();
    const bool draws = chunk.reaches_end && !replayed && sequence.spec.sampling.max_tokens > 0;
    row.draw = draws ? Draw::kToken : Draw::kNothing;
    if (sequence.is_scored()) row.scored = std::min(row.start + row.count, sequence.prompt_tokens() - 1) - row.start;
    rows.push_back(row);
  }
  if (rows.empty()) return !plan.preempted.empty();
  for (const StepRow& row : rows) pages_->begin_write(*row.sequence, row.start, row.count);
  const std::span<const RowOutcome> outcomes = runner_->run(*pool_, rows);
  for (const StepRow& row : rows) pages_->end_write(*row.sequence, row.start, row.count);
  // What a failed device left in place of verdicts is no finding about pages.
  if (!device_works()) return true;
  ++counters_.steps;
  counters_.rows_checked += std::ssize(rows);
  for (std::size_t r = 0; r < rows.size(); ++r) take_outcome(rows[r], outcomes[r]);
  return true;
}

void EngineLoop::take_outcome(const StepRow& row, const RowOutcome& outcome) {
  Sequence& sequence = *row.sequence;
  if (outcome.result == RowResult::kCheckFailed) {
    // Not again when the next reader of the page is ended.
    if (names_damaged_page(sequence, outcome.verdict)) ++counters_.digest_failures;
    fail_corrupt(sequence, outcome.verdict, "step");
    return;
  }
  if (sequence.read_damage.has_value()) {
    // By a row before this one, damage was found in a page that this one read.
    end_reader(sequence);
    return;
  }
  if (outcome.result == RowResult::kNonFinite) {
    base::log().error("engine {}: request {} sequence {}: the model gave NaN or infinity", info_.id,
                      sequence.spec.request_id, sequence.spec.id);
    fail(sequence, base::internal_error("the model gave numbers that are not finite"));
    return;
  }
  const bool was_in_prompt = row.start < sequence.prompt_tokens();
  sequence.computed = row.start + row.count;
  ++sequence.report.verified_steps;
  if (was_in_prompt) counters_.prompt_tokens += std::min(sequence.computed, sequence.prompt_tokens()) - row.start;
  if (was_in_prompt && sequence.computed >= sequence.prompt_tokens()) {
    const base::Nanoseconds now = parts_.clock.now();
    sequence.report.prefill_ns += (now - sequence.started).count();
    sequence.started = now;
    if (may_cache_prompt(sequence)) pages_->cache_prompt(sequence);
    if (sequence.read_damage.has_value()) {
      end_reader(sequence);
      return;
    }
    if (config_.role == EngineRole::kPrefill && !sequence.generated.empty()) {
      sequence.state = SequenceState::kHandoffPending;
      pending_handoffs_.insert(sequence.spec.id);
    }
  }
  take_prompt_logprobs(sequence, row, outcome);
  if (row.draw == Draw::kToken) {
    take_token(sequence, outcome);
  } else if (sequence.spec.sampling.max_tokens == 0 && sequence.computed == sequence.prompt_tokens()) {
    finish(sequence, request::FinishReason::kLength);
  }
}

// After a preemption, those that were told already are not told again.
void EngineLoop::take_prompt_logprobs(Sequence& sequence, const StepRow& row, const RowOutcome& outcome) {
  request::PromptLogprobsEvent event;
  event.id = sequence.spec.id;
  event.first = static_cast<std::int32_t>(std::max(row.start, sequence.prompt_logprobs_told) + 1);
  for (std::int64_t i = event.first - 1 - row.start; i < row.scored; ++i) {
    const ScoredToken& scored = outcome.scored[static_cast<std::size_t>(i)];
    request::PromptLogprob& logprob = event.logprobs.emplace_back();
    logprob.logprob = scored.token.logprob;
    logprob.top.reserve(scored.top.size());
    for (const sampling::TopToken& top : scored.top) logprob.top.push_back({top.token, top.logprob});
  }
  if (event.logprobs.empty()) return;
  sequence.prompt_logprobs_told += std::ssize(event.logprobs);
  outbox_.add(std::move(event));
}

void EngineLoop::take_token(Sequence& sequence, const RowOutcome& outcome) {
  request::TokenEvent event;
  event.id = sequence.spec.id;
  event.index = static_cast<std::int32_t>(sequence.generated.size());
  event.token = outcome.token.token;
  if (sequence.spec.sampling.logprobs) {
    event.logprob = outcome.token.logprob;
    for (const sampling::TopToken& top : outcome.top) event.top_logprobs.push_back({top.token, top.logprob});
  }
  sequence.generated.push_back(event.token);
  ++sequence.report.generated_tokens;
  ++counters_.generated_tokens;
  outbox_.add(std::move(event));

  sampling::Progress progress;
  progress.prompt_tokens = sequence.prompt_tokens();
  progress.generated_tokens = std::ssize(sequence.generated);
  // What a prefill engine holds does not grow; the decode engine says when the context is full.
  progress.context_tokens_max =
      config_.role == EngineRole::kPrefill ? std::numeric_limits<std::int64_t>::max() : info_.context_tokens_max;
  progress.last_token = sequence.generated.back();
  if (const auto reason = sampling::finish_reason(sequence.spec.sampling, progress)) {
    finish(sequence, *reason);
  } else if (config_.role == EngineRole::kPrefill) {
    sequence.state = SequenceState::kHandoffPending;
    pending_handoffs_.insert(sequence.spec.id);
  }
}

}  // namespace tessera::engine
