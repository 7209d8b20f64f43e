// How sequences leave an engine, and what is said about it.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tessera/base/logging.h"
#include "tessera/engine/engine_loop.h"

namespace tessera::engine {

namespace {

std::string failed_check_names(std::uint32_t bits) {
  std::string names;
  const auto add = [&](ops::PageCheck bit, const char* name) {
    if ((bits & bit) == 0) return;
    if (!names.empty()) names += '+';
    names += name;
  };
  add(ops::kCheckRange, "range");
  add(ops::kCheckTag, "tag");
  add(ops::kCheckOwner, "owner");
  add(ops::kCheckPosition, "position");
  add(ops::kCheckSlot, "slot");
  add(ops::kCheckShared, "shared");
  add(ops::kCheckDigest, "digest");
  return names;
}

base::Status failed_check() {
  return base::corruption("an integrity check of the request's KV cache failed; the request was ended");
}

}  // namespace

// Lays the time since the sequence's current phase began to that phase. A prefill engine has only one, which ended when
// the prompt was computed.
void EngineLoop::count_time(Sequence& sequence) {
  if (sequence.state != SequenceState::kComputing || config_.role == request::EngineRole::kPrefill) return;
  const base::Nanoseconds now = parts_.clock.now();
  request::SequenceReport& report = sequence.report;
  (sequence.computed < sequence.prompt_tokens() ? report.prefill_ns : report.decode_ns) +=
      (now - sequence.started).count();
  sequence.started = now;
}

void EngineLoop::finish(Sequence& sequence, request::FinishReason reason) {
  count_time(sequence);
  pages_->release(sequence);
  outbox_.add(request::SequenceFinished{sequence.spec.id, reason, sequence.report});
  table_.erase(sequence.spec.id);
}

void EngineLoop::fail(Sequence& sequence, base::Status status) {
  count_time(sequence);
  if (!sequence.aborted) outbox_.add(request::SequenceFailed{sequence.spec.id, std::move(status), sequence.report});
  drop(sequence);
}

// The client is told that a check failed, and nothing of what the check saw; the log has that, and no content.
void EngineLoop::fail_corrupt(Sequence& sequence, const ops::RowVerdict& verdict, const char* where) {
  // Whoever finds a page whose bytes are damaged counts the page.
  if (!kv_cache::is_byte_damage(verdict)) ++counters_.check_failures;
  base::log().error(
      "engine {}: page check failed ({}) in a {} of request {} sequence {}: logical page {}, page {}, expected {:#x}, "
      "found {:#x}; {} pages held",
      info_.id, failed_check_names(verdict.failed_checks), where, sequence.spec.request_id, sequence.spec.id,
      verdict.logical_page, verdict.page_id, verdict.expected, verdict.found, sequence.leases.size());
  count_time(sequence);
  if (recomputes()) check_what_was_read(sequence);
  pages_->quarantine(sequence, verdict);
  recompute_or_fail(sequence, failed_check());
}

// What follows when something proved damaged that only this sequence's work has seen. To compute it again is exact: the
// prompt's KV comes from the prefill plan once more, and what was generated is replayed, not drawn.
void EngineLoop::recompute_or_fail(Sequence& sequence, base::Status status) {
  const SequenceId id = sequence.spec.id;
  const IntegrityConfig& integrity = config_.integrity;
  const bool wrong_already = sequence.read_damage.has_value() && sequence.has_emitted();
  const bool may_recompute = recomputes() && !sequence.aborted && !wrong_already;
  if (sequence.read_damage.has_value()) {
    // Who condemned the page did not say who had read it, and what brought the sequence here may have been another
    // page.
    base::log().error(
        "engine {}: request {} sequence {} has read page {} (tag {}), whose bytes are damaged; {} tokens emitted",
        info_.id, sequence.spec.request_id, id, sequence.read_damage->page, sequence.read_damage->tag,
        sequence.generated.size());
  }
  if (may_recompute && config_.role == request::EngineRole::kDecode && sequence.state != SequenceState::kComputing) {
    // The prefill engine holds the sequence until the handoff is done: it hears how this one ended, and computes again
    // or says that the sequence failed. This engine has said nothing of the sequence yet.
    drop(sequence);
    return;
  }
  if (may_recompute && sequence.integrity_recomputes < integrity.recomputes_max) {
    ++sequence.integrity_recomputes;
    ++sequence.report.integrity_recomputes;
    ++counters_.integrity_recomputes;
    base::log().warn("engine {}: request {} sequence {} is computed again: time {} of at most {}", info_.id,
                     sequence.spec.request_id, id, sequence.integrity_recomputes, integrity.recomputes_max);
    start_again(sequence);
    return;
  }
  if (may_recompute) {
    base::log().error("engine {}: request {} sequence {} was computed again {} times after failed checks, and ends",
                      info_.id, sequence.spec.request_id, id, sequence.integrity_recomputes);
  }
  fail(sequence, std::move(status));
}

// Nobody uses the page any more: every holder's next check fails, by its tag. Who may have read wrong bytes and emitted
// what came of them is marked. At digest-step nobody has: the bytes were sound after the last step that read them.
void EngineLoop::condemn(kv_cache::PageId page, const ops::RowVerdict& verdict, const char* where) {
  const bool bytes = kv_cache::is_byte_damage(verdict);
  const kv_cache::Lease current = pool_->current_lease(page);
  if (bytes && config_.integrity.level == kv_cache::IntegrityLevel::kDigest) mark_readers(current);
  ++(bytes ? counters_.digest_failures : counters_.check_failures);
  stats_changed_ = true;
  base::log().error(
      "engine {}: page check failed ({}) in a {}: logical page {}, page {}, expected {:#x}, found {:#x}; {} leases",
      info_.id, failed_check_names(verdict.failed_checks), where, verdict.logical_page, page, verdict.expected,
      verdict.found, pool_->lease_count(page));
  pages_->quarantine_page(current, kv_cache::QuarantineCause::kFailedCheck);
}

// Who waits for the rest of its pages has read none. Who has said Commit has read none either, as all its pages were
// proved after it had read them for the last time: whatever became of them since, what the decode engine has is right.
void EngineLoop::mark_readers(const kv_cache::Lease& page) {
  for (auto& [id, sequence] : table_) {
    if (std::ranges::find(sequence.leases, page.tag, &kv_cache::Lease::tag) == sequence.leases.end()) continue;
    if (sequence.state == SequenceState::kReceiving) continue;
    if (sequence.state == SequenceState::kSending) {
      if (sender_->state(sequence.send_id) == kv_transfer::SendState::kAwaitingCommit) continue;
      sender_->abort(sequence.send_id, failed_check());
    }
    if (!sequence.read_damage.has_value()) sequence.read_damage = page;
  }
}

// What a sequence hears that finds no room. One that was computed already, and lost that by a failed check, is ended by
// the check: pages in quarantine may be what it lacks.
base::Status EngineLoop::no_room(std::int32_t integrity_recomputes, base::Status status) const {
  const bool interrupted = integrity_recomputes > 0 && status.code() == base::StatusCode::kResourceExhausted;
  if (!interrupted) return status;
  base::log().error("engine {}: a sequence that a failed check interrupted cannot be computed again: {}", info_.id,
                    status.message());
  return failed_check();
}

// Whoever has read damage and emitted tokens since ends, whatever OnIntegrityError says: they may be wrong.
void EngineLoop::end_reader(Sequence& sequence) { recompute_or_fail(sequence, failed_check()); }

void EngineLoop::preempt(Sequence& sequence) {
  check_what_was_read(sequence);
  if (sequence.read_damage.has_value()) {
    // Its pages go before the check that would have failed on them.
    end_reader(sequence);
    return;
  }
  ++counters_.preemptions;
  ++sequence.report.preemptions;
  start_again(sequence);
}

// Gives up what was computed, but not what was emitted: the sequence goes back to where its prompt is computed.
void EngineLoop::start_again(Sequence& sequence) {
  count_time(sequence);
  if (config_.role == request::EngineRole::kDecode) {
    outbox_.add(request::SequencePreempted{sequence.spec.id, std::move(sequence.generated), sequence.report});
    drop(sequence);
    return;
  }
  pages_->release(sequence);
  sequence.read_damage.reset();
  sequence.state = SequenceState::kWaiting;
}

void EngineLoop::drop(Sequence& sequence) {
  pages_->release(sequence);
  pending_handoffs_.erase(sequence.spec.id);
  if (sequence.receive_key.has_value()) receiving_.erase(*sequence.receive_key);
  table_.erase(sequence.spec.id);
}

// Whether the device can be believed. The first time that it cannot, everything ends, handoffs first: they hold leases.
bool EngineLoop::device_works() {
  if (!failure_.ok()) return false;
  failure_ = parts_.backend.health();
  if (failure_.ok()) return true;
  base::log().error("engine {}: the device has failed, so {} sequences end and no others are taken: {}", info_.id,
                    table_.size(), failure_.to_string());
  sender_.reset();
  receiver_.reset();
  parts_.endpoint.reset();  // So peers see that it is gone, and do not wait for its word.
  while (table_.size() > 0) {
    fail(table_.begin()->second, base::internal_error("the engine's device failed; the request was ended"));
  }
  sending_.clear();
  stats_changed_ = true;
  return false;
}

request::EngineStats EngineLoop::stats() const {
  request::EngineStats stats = counters_;
  stats.device_failed = !failure_.ok();
  for (const auto& [id, sequence] : table_) {
    switch (sequence.state) {
      case SequenceState::kWaiting:
        ++stats.waiting;
        break;
      case SequenceState::kComputing:
        ++stats.running;
        break;
      case SequenceState::kHandoffPending:
      case SequenceState::kSending:
      case SequenceState::kReceiving:
        ++stats.handing_over;
        break;
    }
    if (config_.role != request::EngineRole::kDecode && sequence.computed < sequence.prompt_tokens()) {
      stats.uncached_prompt_tokens_in_flight += sequence.prompt_tokens() - sequence.computed;
    }
    if (sequence.state != SequenceState::kWaiting) stats.resident_tokens += wanted_tokens(sequence);
  }
  const kv_cache::PageCounts pages = pool_->counts();
  stats.pages_total = pages.total;
  stats.pages_free = pages.free;
  stats.pages_leased = pages.leased;
  stats.pages_cached = pages.cached;
  stats.pages_quarantined = pages.quarantined;
  stats.double_frees = pool_->double_frees();
  stats.check_ns = runner_->check_ns();
  stats.step_ns = runner_->step_ns();
  stats.digest_ns = runner_->digest_ns();
  return stats;
}

// At most fifty times a second while busy, at once when the loop comes to rest, and every second in any case.
void EngineLoop::publish_stats(Turn turn) {
  const base::Nanoseconds age = parts_.clock.now() - stats_sent_;
  const bool due = stats_changed_ && (turn == Turn::kIdle || age >= std::chrono::milliseconds(20));
  if (!due && age < std::chrono::seconds(1)) return;
  if (!outbox_.empty()) return;
  outbox_.add(stats());
  outbox_.flush();
  stats_changed_ = false;
  stats_sent_ = parts_.clock.now();
}

base::Status EngineLoop::audit() {
  std::vector<kv_cache::Lease> held;
  for (const auto& [id, sequence] : table_) held.insert(held.end(), sequence.leases.begin(), sequence.leases.end());
  return pool_->audit(*stream_, held);
}

void EngineLoop::audit_when_idle() {
  if (table_.size() > 0 || parts_.clock.now() - audited_ < config_.audit_interval) return;
  report_audit();
}

void EngineLoop::report_audit() {
  audited_ = parts_.clock.now();
  const base::Status status = audit();
  if (!device_works()) return;
  if (!status.ok()) {
    ++counters_.audit_failures;
    stats_changed_ = true;
    base::log().error("engine {}: the page accounts do not balance: {}", info_.id, status.to_string());
  }
}

// A portion in each turn, so that steps go on in between.
bool EngineLoop::audit_quarantined() {
  if (!quarantine_audit_.has_value()) return false;
  const kv_cache::QuarantineAudit before = *quarantine_audit_;
  kv_cache::QuarantineAudit& audit = *quarantine_audit_;
  const kv_cache::AuditProgress progress =
      pool_->audit_quarantined(*stream_, audit, config_.integrity.audit_bytes_per_turn);
  if (!device_works()) return true;
  counters_.audited_pages_freed += audit.freed - before.freed;
  counters_.audited_pages_kept += audit.kept - before.kept;
  if (progress == kv_cache::AuditProgress::kGoesOn) return true;
  base::log().info("engine {}: audit of quarantined pages: {} read back right and are in service again, {} are kept",
                   info_.id, audit.freed, audit.kept);
  quarantine_audit_.reset();
  return true;
}

}  // namespace tessera::engine
