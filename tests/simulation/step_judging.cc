// What must follow, in a step and in a turn, from what was done to an engine's pages.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tests/simulation/loop_access.h"
#include "tests/simulation/step_faults.h"

namespace tessera::simulation {

using engine::SequenceState;
using engine::StepRowView;
using engine::StepView;
using fault_injection::LoopAccess;
using kv_cache::Lease;
using kv_cache::PageId;

namespace {

// Checks of which one must be what found a fault.
std::uint32_t finders(StepFault fault) {
  switch (kind_of(fault)) {
    case FaultKind::kSlots:
      return ops::kCheckSlot | ops::kCheckShared;
    case FaultKind::kPayload:
      return ops::kCheckDigest;
    default:
      return ops::kCheckRange | ops::kCheckTag | ops::kCheckOwner | ops::kCheckPosition;
  }
}

}  // namespace

// ---- In a step ----

void StepFaults::before_check(const StepView& step) {
  ++counts_.steps;
  counts_.rows += std::ssize(step.rows);
  second_planned_ = false;
  must_fail_.assign(step.rows.size(), false);
  stopped_.assign(step.rows.size(), false);
  pending_.clear();
  look_at(step, FirstLook::kYes);
  if (!options_.faults.empty() && dice_.chance(options_.rate)) {
    if (dice_.chance(0.3)) {
      second_planned_ = true;
    } else if (!options_.faults.has(FaultKind::kMapping) || !dice_.chance(0.1) || !plan_restore(step)) {
      inject(step, Moment::kFirst);
    }
  }
  if (std::ranges::find(stopped_, true) != stopped_.end()) watch(step);
}

void StepFaults::before_forward() {
  if (restore_.has_value()) *restore_->entry = restore_->wrong;
}

void StepFaults::before_second_check(const StepView& step) {
  check_watched();
  if (restore_.has_value()) {
    *restore_->entry = restore_->right;
    restore_.reset();
    ++counts_.restored;
  }
  if (second_planned_) inject(step, Moment::kSecond);
}

// Exactly those rows fail that must, each by a check that looks at what was changed.
void StepFaults::after_checks(const StepView& step, std::span<const engine::RowOutcome> outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    const bool failed = outcomes[r].result == engine::RowResult::kCheckFailed;
    if (failed) ++rows_failed_;
    if (failed != must_fail_[r]) {
      judge_.object(fmt::format("sequence {}: its row {} a check, which is not what was done to it", step.rows[r].id,
                                failed ? "failed" : "passed"));
    }
  }
  for (const Pending& pending : pending_) {
    const engine::RowOutcome& outcome = outcomes[pending.row];
    if (outcome.result != engine::RowResult::kCheckFailed) continue;
    const bool only_one =
        std::ranges::count_if(pending_, [&](const Pending& other) { return other.row == pending.row; }) == 1;
    if (only_one && !lost_page_[pending.row] && (outcome.verdict.failed_checks & finders(pending.fault)) == 0) {
      judge_.object(fmt::format("sequence {}: checks {:#x} failed after a fault of kind '{}'",
                                step.rows[pending.row].id, outcome.verdict.failed_checks,
                                kStepFaultNames[static_cast<std::size_t>(pending.fault)]));
    }
    if (pending.page != 0 && std::exchange(damages_.at(pending.page).detected, true)) continue;
    ++counts_.detected[static_cast<std::size_t>(pending.fault)];
    trace_.add(kStepFaultNames[static_cast<std::size_t>(pending.fault)], step.rows[pending.row].id);
  }
}

// Who reads which page: a damaged one must stop the row, and so must a lease that has ended; and a page that two
// sequences hold must be due to both.
void StepFaults::look_at(const StepView& step, FirstLook first_look) {
  seen_.resize(static_cast<std::size_t>(step.pool.cache().num_pages));
  if (first_look == FirstLook::kYes) lost_page_.assign(step.rows.size(), false);
  for (std::size_t r = 0; r < step.rows.size(); ++r) {
    if (first_look == FirstLook::kYes) judge_.computes(step.rows[r].id, step.rows[r].start);
    look_at_row(step, r);
  }
}

void StepFaults::look_at_row(const StepView& step, std::size_t r) {
  const StepRowView& row = step.rows[r];
  const std::int64_t size = step.pool.layout().page_size;
  bool reads_wrong = false;
  bool reads_computed_on = false;
  for (std::int64_t j = 0; j < base::ceil_div(row.start + row.count, size); ++j) {
    const Lease& lease = row.leases[static_cast<std::size_t>(j)];
    Seen& seen = seen_[static_cast<std::size_t>(lease.page)];
    if (seen.tag == lease.tag && seen.id != row.id) judge_.share(seen.id, row.id, (j + 1) * size);
    seen = {lease.tag, row.id};
    if (!step.pool.is_current(lease)) {
      lost_page_[r] = true;
      must_fail(step, r, Stopped::kBeforeItComputes);
      continue;
    }
    reads_computed_on |= computed_on_.contains(lease.tag);
    const auto found = damages_.find(lease.page);
    if (found == damages_.end() || found->second.tag != lease.tag) continue;
    const Damage& damage = found->second;
    if (is_found_late(damage.fault)) {
      reads_wrong = true;
      continue;
    }
    must_fail(step, r,
              kind_of(damage.fault) == FaultKind::kPayload ? Stopped::kBeforeItEmits : Stopped::kBeforeItComputes);
    if (!damage.detected) pending_.push_back({damage.fault, r, lease.page});
    if (damage.receiving == row.id) {
      judge_.object(fmt::format("sequence {}: its handoff was committed with a damaged page", row.id));
    }
  }
  // What it writes now comes of what it read.
  for (std::int64_t p = row.start; (reads_wrong || reads_computed_on) && p < row.start + row.count; ++p) {
    computed_on_.insert(row.leases[static_cast<std::size_t>(p / size)].tag);
  }
  const std::int64_t index = row.start + row.count - judge_.prompt_tokens(row.id);
  if (reads_wrong) judge_.may_be_wrong(row.id, std::max<std::int64_t>(index, 0));
}

void StepFaults::must_fail(const StepView& step, std::size_t r, Stopped stopped) {
  if (stopped == Stopped::kBeforeItComputes) stopped_[r] = true;
  if (must_fail_[r]) return;
  must_fail_[r] = true;
  const StepRowView& row = step.rows[r];
  // Of a row of generated tokens the step reads all that were emitted; of a prompt's row (also one that is computed
  // again) everything emitted was told already.
  const std::int64_t generated = row.start + row.count - judge_.prompt_tokens(row.id);
  judge_.must_fail(row.id, std::max(generated, judge_.tokens_heard(row.id)));
}

// All bytes of the pool but the slots that rows write which are not stopped.
void StepFaults::watch(const StepView& step) {
  const ops::KvCacheView& cache = step.pool.cache();
  const std::int64_t size = step.pool.layout().page_size;
  may_write_.assign(static_cast<std::size_t>(cache.num_pages * size), false);
  for (std::size_t r = 0; r < step.rows.size(); ++r) {
    const StepRowView& row = step.rows[r];
    for (std::int64_t p = row.start; p < row.start + row.count && !stopped_[r]; ++p) {
      may_write_[static_cast<std::size_t>(row.leases[static_cast<std::size_t>(p / size)].page * size + p % size)] =
          true;
    }
  }
  for (std::int64_t slot = 0; slot < size; ++slot) may_write_[static_cast<std::size_t>(slot)] = true;  // The null page.
  const auto remember = [&](const std::byte* at, std::int64_t slot_bytes) {
    watched_.push_back({at, slot_bytes, std::vector<std::byte>(at, at + cache.num_pages * size * slot_bytes)});
  };
  for (int layer = 0; layer < cache.layout.num_layers; ++layer) {
    for (int part = 0; part < cache.layout.layer_parts(layer); ++part) {
      remember(cache.page_data(layer, part, 0), cache.layout.row_bytes(part));
      if (cache.layout.part_has_scales(part)) {
        remember(cache.page_scales(layer, part, 0), cache.layout.row_scale_bytes(part));
      }
    }
  }
}

void StepFaults::check_watched() {
  for (const Watched& watched : watched_) {
    const auto bytes = static_cast<std::size_t>(watched.slot_bytes);
    for (std::size_t slot = 0; slot < may_write_.size(); ++slot) {
      const std::size_t at = slot * bytes;
      if (may_write_[slot] || std::memcmp(watched.at + at, watched.bytes.data() + at, bytes) == 0) continue;
      judge_.object(fmt::format("slot {} was overwritten by a row that a check should have stopped", slot));
      break;
    }
  }
  watched_.clear();
}

// ---- In a turn ----

bool StepFaults::is_damaged(kv_cache::PagePool& pool, const Lease& lease) const {
  const auto damage = damages_.find(lease.page);
  return !pool.is_current(lease) || (damage != damages_.end() && damage->second.tag == lease.tag);
}

void StepFaults::before_turn(engine::EngineLoop& loop) {
  kv_cache::PagePool& pool = loop.pool();
  failures_before_ = loop.stats().check_failures;
  digest_failures_before_ = loop.stats().digest_failures;
  rows_failed_ = 0;
  exposed_ = 0;
  cached_.clear();
  for (PageId page = 1; page <= pool.counts().total; ++page) {
    if (pool.state(page) == kv_cache::PageState::kCached) cached_.push_back(pool.current_lease(page));
  }
  if (options_.faults.empty()) return;
  for (const auto& [id, sequence] : LoopAccess::table(loop)) {
    bool damaged = false;
    for (const Lease& lease : sequence.leases) {
      if (computed_on_.contains(lease.tag)) judge_.may_be_ended(id);
      if (!is_damaged(pool, lease)) continue;
      damaged = true;
      const auto damage = damages_.find(lease.page);
      // Whether it has read the bytes or not: who finds them ends all that have the page.
      if (damage != damages_.end() && is_found_late(damage->second.fault)) judge_.may_be_ended(id);
    }
    if (!damaged || sequence.state == SequenceState::kComputing) continue;
    ++exposed_;
    judge_.handoff_may_fail(id);
  }
}

void StepFaults::after_turn(engine::EngineLoop& loop) {
  kv_cache::PagePool& pool = loop.pool();
  std::int64_t elsewhere = loop.stats().check_failures - failures_before_ - rows_failed_;
  if (options_.level == kv_cache::IntegrityLevel::kTags && !options_.faults.has(FaultKind::kTransport) &&
      (elsewhere < 0 || elsewhere > exposed_)) {
    judge_.object(fmt::format("engine {}: {} rows failed in a step, and {} failures were counted beside them, of {}",
                              loop.info().id, rows_failed_, elsewhere, exposed_));
  }
  counts_.rows_failed += rows_failed_;
  counts_.failed_elsewhere += std::max<std::int64_t>(elsewhere, 0);
  // A flush would have left none.
  if (damages_.empty() && pool.counts().cached > 0) {
    counts_.evicted += std::ranges::count_if(cached_, [&](const Lease& lease) { return !pool.is_current(lease); });
  }
  check_damages(loop);
  if (!options_.faults.empty()) check_leases(loop);
}

// Nobody loses a page with which nothing was wrong.
void StepFaults::check_leases(engine::EngineLoop& loop) {
  for (const auto& [id, sequence] : LoopAccess::table(loop)) {
    for (const Lease& lease : sequence.leases) {
      if (loop.pool().is_current(lease) || past_.contains(lease.tag) || computed_on_.contains(lease.tag)) continue;
      judge_.object(fmt::format("sequence {}: its lease on page {} was ended, and nothing was wrong with the page", id,
                                lease.page));
    }
  }
}

// What became of damaged pages in this turn.
void StepFaults::check_damages(engine::EngineLoop& loop) {
  for (auto it = damages_.begin(); it != damages_.end();) {
    Damage& damage = it->second;
    if (is_found_late(damage.fault)) {
      const base::Nanoseconds age = clock_.now() - damage.since;
      counts_.longest_undetected = std::max(counts_.longest_undetected, age);
      if (age > options_.sweep) {
        judge_.object(fmt::format("page {}: its bytes were changed {} us ago; a sweep takes {} us", it->first,
                                  age.count() / 1000, options_.sweep.count() / 1000));
      }
    }
    if (loop.pool().is_current({it->first, damage.tag, 0})) {
      ++it;
      continue;
    }
    settle(loop, it->first, damage);
    past_.insert(damage.tag);
    it = damages_.erase(it);
  }
}

// The page's life in which it was damaged has ended.
void StepFaults::settle(engine::EngineLoop& loop, PageId page, const Damage& damage) {
  // By its bytes, or with what else was wrong with a sequence that had the page.
  const bool bytes_found = loop.stats().digest_failures > digest_failures_before_;
  const bool found = loop.pool().state(page) == kv_cache::PageState::kQuarantined &&
                     (bytes_found || kind_of(damage.fault) != FaultKind::kPayload);
  if (!damage.detected) ++(found ? counts_.elsewhere : counts_.gone)[static_cast<std::size_t>(damage.fault)];
  if (!found || !is_found_late(damage.fault)) return;
  // Whoever has the page may have said something wrong already, and says nothing more. Who is being handed over may be
  // on the other engine by now, with bytes that were proved before; who waits for its bytes has read none.
  for (const auto& [id, sequence] : LoopAccess::table(loop)) {
    const bool holds =
        std::ranges::any_of(sequence.leases, [&](const Lease& lease) { return lease.tag == damage.tag; });
    if (!holds) continue;
    judge_.may_be_ended(id);
    if (sequence.state == SequenceState::kComputing || sequence.state == SequenceState::kHandoffPending) {
      judge_.must_end(id, std::ssize(sequence.generated));
    }
  }
}

void StepFaults::sends(engine::EngineLoop& loop, SequenceId id, std::int64_t first, std::int64_t count) {
  last_sent_[id] = clock_.now();
  const engine::Sequence* sequence = LoopAccess::table(loop).find(id);
  if (sequence == nullptr || !options_.sent_at_once) return;
  for (std::int64_t j = first; j < std::min(first + count, std::ssize(sequence->leases)); ++j) {
    const Lease& lease = sequence->leases[static_cast<std::size_t>(j)];
    const auto damage = damages_.find(lease.page);
    // Bytes are checked once all pages are out.
    const bool bytes = damage != damages_.end() && kind_of(damage->second.fault) == FaultKind::kPayload;
    if (!bytes && is_damaged(loop.pool(), lease)) {
      judge_.object(fmt::format("sequence {}: page {} was sent although its record is damaged", id, j));
    }
  }
}

void StepFaults::commits(engine::EngineLoop& loop, SequenceId id) {
  const auto sent = last_sent_.find(id);
  const engine::Sequence* sequence = LoopAccess::table(loop).find(id);
  if (sequence == nullptr || sent == last_sent_.end()) return;
  for (const Lease& lease : sequence->leases) {
    const auto damage = damages_.find(lease.page);
    if (damage == damages_.end() || damage->second.tag != lease.tag) continue;
    if (kind_of(damage->second.fault) == FaultKind::kPayload && damage->second.since < sent->second) {
      judge_.object(fmt::format("sequence {}: handed over with changed bytes in page {}", id, lease.page));
    }
  }
}

}  // namespace tessera::simulation
