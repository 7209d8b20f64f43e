#include "tests/simulation/step_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tests/simulation/loop_access.h"
#include "tests/support/fault_access.h"

namespace tessera::simulation {

using engine::SequenceState;
using engine::StepRowView;
using engine::StepView;
using fault_injection::Access;
using fault_injection::LoopAccess;
using kv_cache::Lease;
using kv_cache::PageId;

namespace {

std::int64_t page_size(const StepView& step) { return step.pool.layout().page_size; }

// Pages of the row that the step reads.
std::size_t used_pages(const StepView& step, const StepRowView& row) {
  return static_cast<std::size_t>(base::ceil_div(row.start + row.count, page_size(step)));
}

}  // namespace

StepFaults::StepFaults(const Options& options, const base::Clock& clock, Judge& judge, Trace& trace, Dice dice)
    : options_(options), clock_(clock), judge_(judge), trace_(trace), dice_(dice) {}

void StepFaults::forget() {
  for (const auto& [page, damage] : damages_) {
    if (!damage.detected) ++counts_.gone[static_cast<std::size_t>(damage.fault)];
  }
  damages_.clear();
  past_.clear();
  computed_on_.clear();
  last_sent_.clear();
  seen_.clear();
}

// ---- In a step ----

// The kind is drawn anew where one cannot be had, such as another's page in a batch of one row.
void StepFaults::inject(const StepView& step, Moment moment) {
  std::vector<FaultKind> kinds;
  for (const FaultKind kind : {FaultKind::kMapping, FaultKind::kRecords, FaultKind::kSlots, FaultKind::kPayload}) {
    if (options_.faults.has(kind)) kinds.push_back(kind);
  }
  if (kinds.empty()) return;
  bool injected = false;
  for (int tries = 0; !injected && tries < 16; ++tries) {
    const auto row = static_cast<std::size_t>(dice_.range(0, std::ssize(step.rows) - 1));
    if (must_fail_[row]) continue;  // For another reason: nothing would be learned of this one.
    switch (dice_.one_of<FaultKind>(kinds)) {
      case FaultKind::kMapping:
        injected = change_mapping(step, row);
        break;
      case FaultKind::kRecords:
        injected = change_record(step, row);
        break;
      case FaultKind::kPayload:
        injected = change_payload(step, row, moment);
        break;
      default:
        injected = change_slot(step, row, moment);
    }
  }
}

// An entry that is wrong only while the model computes: both checks pass, and the model must not have read it.
bool StepFaults::plan_restore(const StepView& step) {
  const auto row = static_cast<std::size_t>(dice_.range(0, std::ssize(step.rows) - 1));
  const auto j = dice_.range(0, static_cast<std::int64_t>(used_pages(step, step.rows[row])) - 1);
  std::int32_t* entry =
      Access::entries(step.page_table) + static_cast<std::int64_t>(row) * step.page_table.pages_per_row_max() + j;
  const auto wrong = static_cast<std::int32_t>(dice_.range(0, step.pool.cache().num_pages - 1));
  if (wrong == *entry) return false;
  restore_ = {entry, wrong, *entry};
  return true;
}

bool StepFaults::change_mapping(const StepView& step, std::size_t row) {
  const StepRowView& victim = step.rows[row];
  const std::size_t used = used_pages(step, victim);
  std::int32_t* entries =
      Access::entries(step.page_table) + static_cast<std::int64_t>(row) * step.page_table.pages_per_row_max();
  const auto j = static_cast<std::size_t>(dice_.range(0, static_cast<std::int64_t>(used) - 1));
  const auto k = static_cast<std::size_t>(dice_.range(0, static_cast<std::int64_t>(used) - 1));
  const StepRowView& other = step.rows[static_cast<std::size_t>(dice_.range(0, std::ssize(step.rows) - 1))];
  const auto num_pages = static_cast<std::int32_t>(step.pool.cache().num_pages);
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  const auto fault = static_cast<StepFault>(
      dice_.range(static_cast<int>(StepFault::kSwappedEntries), static_cast<int>(StepFault::kPageOutOfRange)));
  std::int32_t wrong = 0;
  switch (fault) {
    case StepFault::kSwappedEntries:
    case StepFault::kOwnOtherPage:
      wrong = entries[k];
      break;
    case StepFault::kAnothersPage:
      if (other.id == victim.id) return false;
      wrong = other.leases[static_cast<std::size_t>(dice_.range(0, std::ssize(other.leases) - 1))].page;
      break;
    case StepFault::kAnyPage:
      wrong = static_cast<std::int32_t>(dice_.range(1, num_pages - 1));
      break;
    case StepFault::kPageOutOfRange:
      wrong = dice_.one_of<std::int32_t>(std::array{num_pages, num_pages + 1, -1, -num_pages, kMost, kLeast,
                                                    static_cast<std::int32_t>(dice_.range(num_pages, kMost)),
                                                    static_cast<std::int32_t>(dice_.range(kLeast, -1))});
      break;
    default:
      break;
  }
  if (wrong == entries[j]) return false;
  if (fault == StepFault::kSwappedEntries) entries[k] = entries[j];
  entries[j] = wrong;
  expect(fault, row);
  must_fail(step, row, Stopped::kBeforeItComputes);
  return true;
}

bool StepFaults::change_record(const StepView& step, std::size_t row) {
  const StepRowView& victim = step.rows[row];
  const auto j = static_cast<std::size_t>(dice_.range(0, static_cast<std::int64_t>(used_pages(step, victim)) - 1));
  const Lease& lease = victim.leases[j];
  // Where another holder's failure ended the lease, the page is somebody else's by now, who reads it or not.
  if (!step.pool.is_current(lease) || !damage_record(step.pool, lease.page, lease.tag, 0)) return false;
  look_at(step, FirstLook::kNo);  // Whoever else reads the page in this step fails, too.
  return true;
}

bool StepFaults::damage_record(kv_cache::PagePool& pool, PageId page, kv_cache::PageTag lease_tag,
                               request::SequenceId receiving) {
  if (damages_.contains(page)) return false;
  const auto fault =
      static_cast<StepFault>(dice_.range(static_cast<int>(StepFault::kTag), static_cast<int>(StepFault::kPosition)));
  std::uint64_t& tag = Access::tags(pool)[page];
  std::uint64_t& owner = Access::owners(pool)[page];
  std::int32_t& position = Access::positions(pool)[page];
  switch (fault) {
    case StepFault::kOldTag:
      tag -= static_cast<std::uint64_t>(dice_.range(1, 1000));  // What the page may have had in an earlier life.
      break;
    case StepFault::kNoTag:
      tag = 0;
      break;
    case StepFault::kOwner:
      // Another page's owner, or a flipped bit.
      if (const std::uint64_t other = Access::owners(pool)[dice_.range(1, pool.counts().total)];
          other != owner && dice_.chance(0.5)) {
        owner = other;
      } else {
        owner ^= 1ull << dice_.range(0, 63);
      }
      break;
    case StepFault::kPosition:
      position += static_cast<std::int32_t>(dice_.one_of<int>(std::array{-1, 1, 2, 1 << 20, -(1 << 20)}));
      break;
    default:
      tag ^= 1ull << dice_.range(0, 63);
  }
  note_damage(page, {lease_tag, fault, false, receiving, clock_.now()});
  return true;
}

bool StepFaults::change_slot(const StepView& step, std::size_t row, Moment moment) {
  // The mapping is on the device already when the second check comes.
  if (moment == Moment::kSecond || dice_.chance(0.15)) return change_lease_count(step, row);
  const StepRowView& victim = step.rows[row];
  const auto token = static_cast<std::size_t>(victim.first_token + dice_.range(0, victim.count - 1));
  const std::int64_t right = step.slot_mapping[token];
  const std::int64_t size = page_size(step);
  const std::int64_t slots = step.pool.cache().num_pages * size;
  const auto inside = [&](const StepRowView& of) {
    const auto j = static_cast<std::size_t>(dice_.range(0, static_cast<std::int64_t>(used_pages(step, of)) - 1));
    return of.leases[j].page * size + dice_.range(0, size - 1);
  };
  const StepRowView& other = step.rows[static_cast<std::size_t>(dice_.range(0, std::ssize(step.rows) - 1))];
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const auto fault = static_cast<StepFault>(
      dice_.range(static_cast<int>(StepFault::kSlotOfAnother), static_cast<int>(StepFault::kSlotOutOfRange)));
  std::int64_t wrong = right;
  switch (fault) {
    case StepFault::kSlotOfAnother:
      if (other.id == victim.id) return false;
      wrong = inside(other);
      break;
    case StepFault::kSlotOfOwnPage:
      wrong = inside(victim);
      break;
    case StepFault::kSlotNearby:
      wrong = right + dice_.one_of<std::int64_t>(std::array<std::int64_t, 6>{-1, 1, size, -size, size - 1, 1 - size});
      break;
    case StepFault::kSlotAnywhere:
      wrong = dice_.range(0, slots - 1);
      break;
    default:
      wrong = dice_.one_of<std::int64_t>(std::array<std::int64_t, 7>{
          -1, -7, -kMost - 1, kMost, slots, slots + dice_.range(0, 1000), right - (1ll << 32)});
  }
  if (wrong == right) return false;
  step.slot_mapping[token] = wrong;
  expect(fault, row);
  must_fail(step, row, Stopped::kBeforeItComputes);
  return true;
}

bool StepFaults::change_lease_count(const StepView& step, std::size_t row) {
  const StepRowView& victim = step.rows[row];
  const std::int64_t position = victim.start + dice_.range(0, victim.count - 1);
  const Lease& lease = victim.leases[static_cast<std::size_t>(position / page_size(step))];
  const PageId page = lease.page;
  if (damages_.contains(page) || !step.pool.is_current(lease)) return false;
  Access::lease_counts(step.pool)[page] =
      static_cast<std::int32_t>(dice_.one_of<int>(std::array{2, 3, 0, -1, 1 << 30}));
  expect(StepFault::kSharedPageWritten, row);
  must_fail(step, row, Stopped::kBeforeItComputes);
  return true;
}

// A bit of a slot that the row reads, and that it does not itself write after the change.
bool StepFaults::change_payload(const StepView& step, std::size_t row, Moment moment) {
  const StepRowView& victim = step.rows[row];
  const std::int64_t slots = moment == Moment::kFirst ? victim.start : victim.start + victim.count;
  if (slots == 0) return false;
  const std::int64_t position = dice_.range(0, slots - 1);
  const Lease& lease = victim.leases[static_cast<std::size_t>(position / page_size(step))];
  if (damages_.contains(lease.page) || !step.pool.is_current(lease)) return false;
  flip_bit(step.pool, lease, position % page_size(step));
  if (moment == Moment::kFirst || options_.level == kv_cache::IntegrityLevel::kDigestStep) {
    look_at(step, FirstLook::kNo);  // Whoever else reads the page in this step fails, too, or is found late.
    return true;
  }
  // This step has read the page while it was whole.
  for (const StepRowView& other : step.rows) {
    if (std::ranges::find(other.leases, lease.tag, &Lease::tag) != other.leases.end()) judge_.may_be_ended(other.id);
  }
  return true;
}

void StepFaults::flip_bit(kv_cache::PagePool& pool, const Lease& lease, std::int64_t slot) {
  const ops::KvCacheView& cache = pool.cache();
  const auto layer = static_cast<int>(dice_.range(0, cache.layout.num_layers - 1));
  const auto part = static_cast<int>(dice_.range(0, cache.layout.layer_parts(layer) - 1));
  const bool scale = cache.layout.part_has_scales(part) && dice_.chance(0.5);
  const std::int64_t bytes = scale ? cache.layout.row_scale_bytes(part) : cache.layout.row_bytes(part);
  std::byte* const at =
      (scale ? cache.page_scales(layer, part, lease.page) : cache.page_data(layer, part, lease.page)) + slot * bytes;
  at[dice_.range(0, bytes - 1)] ^= static_cast<std::byte>(1 << dice_.range(0, 7));
  note_damage(lease.page, {lease.tag, scale ? StepFault::kScale : StepFault::kPayload, false, 0, clock_.now()});
}

// ---- What is noted of it ----

void StepFaults::note_damage(PageId page, Damage damage) {
  ++counts_.injected[static_cast<std::size_t>(damage.fault)];
  trace_.add("damage", static_cast<std::uint64_t>(page), static_cast<std::uint64_t>(damage.fault));
  damages_[page] = std::move(damage);
}

// A fault of this step alone, which the row's check has to find.
void StepFaults::expect(StepFault fault, std::size_t row) {
  ++counts_.injected[static_cast<std::size_t>(fault)];
  pending_.push_back({fault, row, 0});
}

// ---- Between turns ----

void StepFaults::between_turns(engine::EngineLoop& loop) {
  if (options_.faults.has(FaultKind::kRecords) && dice_.chance(options_.rate * 0.05)) damage_record_between_turns(loop);
  if (options_.faults.has(FaultKind::kPayload) && dice_.chance(options_.rate * 0.2)) {
    damage_bytes_between_turns(loop.pool());
  }
}

void StepFaults::damage_record_between_turns(engine::EngineLoop& loop) {
  kv_cache::PagePool& pool = loop.pool();
  Lease target;
  request::SequenceId receiving = 0;
  if (dice_.chance(0.5)) {
    // A page of somebody who moves between engines.
    for (const auto& [id, sequence] : LoopAccess::table(loop)) {
      if (sequence.state != SequenceState::kSending && sequence.state != SequenceState::kReceiving) continue;
      if (sequence.leases.empty() || !dice_.chance(0.5)) continue;
      // What a handoff carries: not the pages for tokens to come.
      const std::int64_t pages = base::ceil_div(sequence.prompt_tokens(), pool.layout().page_size);
      target = sequence.leases[static_cast<std::size_t>(dice_.range(0, pages - 1))];
      receiving = sequence.state == SequenceState::kReceiving ? id : 0;
      break;
    }
  } else {
    // Or of somebody who waits for a step, or that only the prefix cache holds.
    target.page = static_cast<PageId>(dice_.range(1, pool.counts().total));
    if (static_cast<std::size_t>(target.page) >= seen_.size()) return;
    target.tag = seen_[static_cast<std::size_t>(target.page)].tag;
  }
  if (target.page != 0 && pool.is_current(target)) damage_record(pool, target.page, target.tag, receiving);
}

// Of any page that somebody may come to read.
void StepFaults::damage_bytes_between_turns(kv_cache::PagePool& pool) {
  const auto page = static_cast<PageId>(dice_.range(1, pool.counts().total));
  const kv_cache::PageState state = pool.state(page);
  const bool may_be_read = state == kv_cache::PageState::kLive || state == kv_cache::PageState::kShared ||
                           state == kv_cache::PageState::kCached;
  if (!may_be_read || pool.filled(page) == 0 || damages_.contains(page)) return;
  flip_bit(pool, pool.current_lease(page), dice_.range(0, pool.filled(page) - 1));
}

}  // namespace tessera::simulation
