#include "tests/simulation/step_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tests/support/fault_access.h"

namespace tessera::simulation {

using engine::StepRowView;
using engine::StepView;
using fault_injection::Access;
using kv_cache::Lease;
using kv_cache::PageId;

namespace {

std::int64_t page_size(const StepView& step) { return step.pool.layout().page_size; }

// Pages of the row that the step reads.
std::size_t used_pages(const StepView& step, const StepRowView& row) {
  return static_cast<std::size_t>(base::ceil_div(row.start + row.count, page_size(step)));
}

}  // namespace

StepFaults::StepFaults(const Options& options, Judge& judge, Trace& trace, Dice dice)
    : options_(options), judge_(judge), trace_(trace), dice_(dice) {}

void StepFaults::forget() {
  for (const auto& [page, damage] : damages_) judge_.healed(damage.readers);
  damages_.clear();
  seen_.clear();
}

void StepFaults::before_check(const StepView& step) {
  ++steps_;
  rows_ += std::ssize(step.rows);
  second_planned_ = false;
  look_at(step, FirstLook::kYes);
  if (options_.faults.empty() || !dice_.chance(options_.rate)) return;
  if (dice_.chance(0.3)) {
    second_planned_ = true;
  } else {
    inject(step, Moment::kFirst);
  }
}

void StepFaults::before_second_check(const StepView& step) {
  check_watched();
  if (second_planned_) inject(step, Moment::kSecond);
}

// Who reads which page: a damaged one must stop the row, and a page that two sequences hold must be due to both.
void StepFaults::look_at(const StepView& step, FirstLook first_look) {
  seen_.resize(static_cast<std::size_t>(step.pool.cache().num_pages));
  for (const StepRowView& row : step.rows) {
    const std::size_t used = used_pages(step, row);
    if (first_look == FirstLook::kYes) judge_.computes(row.id, row.start);
    for (std::size_t j = 0; j < used; ++j) {
      const Lease& lease = row.leases[j];
      Seen& seen = seen_[static_cast<std::size_t>(lease.page)];
      if (seen.tag == lease.tag && seen.id != row.id) {
        judge_.share(seen.id, row.id, static_cast<std::int64_t>(j + 1) * page_size(step));
      }
      seen = {lease.tag, row.id, static_cast<std::int64_t>(j)};
      const auto damage = damages_.find(lease.page);
      if (damage == damages_.end() || damage->second.tag != lease.tag) continue;
      fails(row);
      if (!std::exchange(damage->second.reached, true)) count(damage->second.fault, row.id);
    }
  }
}

void StepFaults::fails(const StepRowView& row) {
  // Of a row of generated tokens the step reads all that were emitted; of a prompt's row (also one that is computed
  // again) everything emitted was told already.
  const std::int64_t generated = row.start + row.count - judge_.prompt_tokens(row.id);
  judge_.must_fail(row.id, std::max(generated, judge_.tokens_heard(row.id)));
}

void StepFaults::count(StepFault fault, request::SequenceId id) {
  ++reached_[static_cast<std::size_t>(fault)];
  trace_.add(kStepFaultNames[static_cast<std::size_t>(fault)], id);
}

void StepFaults::inject(const StepView& step, Moment moment) {
  const auto row = static_cast<std::size_t>(dice_.range(0, std::ssize(step.rows) - 1));
  std::vector<FaultKind> kinds;
  for (const FaultKind kind : {FaultKind::kMapping, FaultKind::kRecords, FaultKind::kSlots, FaultKind::kPayload}) {
    if (options_.faults.has(kind)) kinds.push_back(kind);
  }
  if (kinds.empty()) return;
  bool injected = false;
  switch (dice_.one_of<FaultKind>(kinds)) {
    case FaultKind::kMapping:
      injected = change_mapping(step, row, moment);
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
  if (!injected) return;
  judge_.may_be_corrupt(step.rows[row].id);
  fails(step.rows[row]);
}

bool StepFaults::change_mapping(const StepView& step, std::size_t row, Moment moment) {
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
  count(fault, victim.id);
  if (moment == Moment::kFirst && wrong >= 0 && wrong < num_pages) watch(step, wrong, row);
  return true;
}

bool StepFaults::change_record(const StepView& step, std::size_t row) {
  const StepRowView& victim = step.rows[row];
  const auto j = static_cast<std::size_t>(dice_.range(0, static_cast<std::int64_t>(used_pages(step, victim)) - 1));
  const Lease& lease = victim.leases[j];
  // Where another holder's failure ended the lease, the page is somebody else's by now, who reads it or not.
  if (!step.pool.is_current(lease) || !damage_record(step.pool, lease.page, {lease.tag, victim.id, static_cast<std::int64_t>(j)})) return false;
  look_at(step, FirstLook::kNo);  // Whoever else reads the page in this step fails, too.
  return true;
}

bool StepFaults::damage_record(kv_cache::PagePool& pool, PageId page, const Seen& seen) {
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
  const std::int64_t tokens = (seen.logical + 1) * pool.layout().page_size;
  damages_[page] = {seen.tag, fault, judge_.readers_may_be_corrupt(seen.id, tokens), false};
  return true;
}

bool StepFaults::change_slot(const StepView& step, std::size_t row, Moment moment) {
  // The mapping is on the device already when the second check comes.
  if (moment == Moment::kSecond || dice_.chance(0.15)) return change_lease_count(step, row, moment);
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
  count(fault, victim.id);
  if (wrong >= 0 && wrong < slots) watch(step, wrong / size, row);
  return true;
}

bool StepFaults::change_lease_count(const StepView& step, std::size_t row, Moment moment) {
  const StepRowView& victim = step.rows[row];
  const std::int64_t position = victim.start + dice_.range(0, victim.count - 1);
  const Lease& lease = victim.leases[static_cast<std::size_t>(position / page_size(step))];
  const PageId page = lease.page;
  if (damages_.contains(page) || !step.pool.is_current(lease)) return false;
  Access::lease_counts(step.pool)[page] =
      static_cast<std::int32_t>(dice_.one_of<int>(std::array{2, 3, 0, -1, 1 << 30}));
  count(StepFault::kSharedPageWritten, victim.id);
  if (moment == Moment::kFirst) watch(step, page, row);
  return true;
}

// A bit of a slot that the row reads, and that it does not itself write after the change.
bool StepFaults::change_payload(const StepView& step, std::size_t row, Moment moment) {
  const StepRowView& victim = step.rows[row];
  const std::int64_t slots = moment == Moment::kFirst ? victim.start : victim.start + victim.count;
  if (slots == 0) return false;
  const std::int64_t position = dice_.range(0, slots - 1);
  const std::int64_t logical = position / page_size(step);
  const Lease& lease = victim.leases[static_cast<std::size_t>(logical)];
  if (damages_.contains(lease.page) || !step.pool.is_current(lease)) return false;
  const ops::KvCacheView& cache = step.pool.cache();
  const auto layer = static_cast<int>(dice_.range(0, cache.layout.num_layers - 1));
  const auto part = static_cast<int>(dice_.range(0, cache.layout.layer_parts(layer) - 1));
  const bool scale = cache.layout.part_has_scales(part) && dice_.chance(0.5);
  const std::int64_t bytes = scale ? cache.layout.row_scale_bytes(part) : cache.layout.row_bytes(part);
  std::byte* const at =
      (scale ? cache.page_scales(layer, part, lease.page) : cache.page_data(layer, part, lease.page)) +
      position % page_size(step) * bytes;
  at[dice_.range(0, bytes - 1)] ^= static_cast<std::byte>(1 << dice_.range(0, 7));
  const std::int64_t tokens = (logical + 1) * page_size(step);
  damages_[lease.page] = {lease.tag, scale ? StepFault::kScale : StepFault::kPayload,
                          judge_.readers_may_be_corrupt(victim.id, tokens), false};
  look_at(step, FirstLook::kNo);  // Whoever else reads the page in this step fails, too.
  return true;
}

void StepFaults::between_turns(kv_cache::PagePool& pool) {
  std::erase_if(damages_, [&](const auto& entry) {
    const auto& [page, damage] = entry;
    const bool gone = !pool.is_current({page, damage.tag, 0});
    if (gone) judge_.healed(damage.readers);
    return gone;
  });
  if (!options_.faults.has(FaultKind::kRecords) || !dice_.chance(options_.rate * 0.05)) return;
  // A page of somebody who waits or moves between engines, or that only the prefix cache holds.
  const auto page = static_cast<PageId>(dice_.range(1, pool.counts().total));
  if (static_cast<std::size_t>(page) >= seen_.size()) return;
  const Seen& seen = seen_[static_cast<std::size_t>(page)];
  if (!pool.is_current({page, seen.tag, 0})) return;
  if (damage_record(pool, page, seen)) trace_.add("idle page", static_cast<std::uint64_t>(page), seen.id);
}

void StepFaults::watch(const StepView& step, std::int64_t page, std::size_t row) {
  const ops::KvCacheView& cache = step.pool.cache();
  const std::int64_t size = page_size(step);
  std::vector<bool> written(static_cast<std::size_t>(size), false);
  for (std::size_t r = 0; r < step.rows.size(); ++r) {
    if (r == row) continue;
    const StepRowView& other = step.rows[r];
    for (std::int64_t p = other.start; p < other.start + other.count; ++p) {
      if (other.leases[static_cast<std::size_t>(p / size)].page == page)
        written[static_cast<std::size_t>(p % size)] = true;
    }
  }
  const auto remember = [&](const std::byte* at, std::int64_t bytes) {
    watched_.push_back({at, std::vector<std::byte>(at, at + bytes)});
  };
  for (int layer = 0; layer < cache.layout.num_layers; ++layer) {
    for (int part = 0; part < cache.layout.layer_parts(layer); ++part) {
      for (std::int64_t slot = 0; slot < size; ++slot) {
        if (written[static_cast<std::size_t>(slot)]) continue;
        const std::int64_t row_bytes = cache.layout.row_bytes(part);
        remember(cache.page_data(layer, part, page) + slot * row_bytes, row_bytes);
        if (!cache.layout.part_has_scales(part)) continue;
        const std::int64_t scale_bytes = cache.layout.row_scale_bytes(part);
        remember(cache.page_scales(layer, part, page) + slot * scale_bytes, scale_bytes);
      }
    }
  }
}

void StepFaults::check_watched() {
  for (const Watched& watched : watched_) {
    if (std::memcmp(watched.at, watched.bytes.data(), watched.bytes.size()) != 0) {
      judge_.object("a byte was overwritten by a row that a check should have stopped");
    }
  }
  watched_.clear();
}

}  // namespace tessera::simulation
