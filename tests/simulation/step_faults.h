// Stands between one engine and its page checks. Watches every step (which pages it reads, and that nothing is written
// that should not be) and, where faults are asked for, changes what the check must not trust. It keeps the set of rows
// that must fail in this step, and compares it with what the checks said: a fault counts once they have found it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/engine/engine_loop.h"
#include "tessera/engine/step_observer.h"
#include "tessera/engine/step_runner.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/judge.h"
#include "tests/simulation/trace.h"

namespace tessera::simulation {

enum class StepFault : std::uint8_t {
  kSwappedEntries,
  kAnothersPage,
  kOwnOtherPage,
  kAnyPage,
  kNullPage,
  kPageOutOfRange,
  kTag,
  kOldTag,
  kNoTag,
  kOwner,
  kPosition,
  kSlotOfAnother,
  kSlotOfOwnPage,
  kSlotNearby,
  kSlotAnywhere,
  kSlotOutOfRange,
  kSharedPageWritten,
  kPayload,
  kScale,
};
inline constexpr std::array<std::string_view, 19> kStepFaultNames = {"swapped entries",
                                                                     "another's page",
                                                                     "own other page",
                                                                     "any page",
                                                                     "null page",
                                                                     "page out of range",
                                                                     "tag",
                                                                     "old tag",
                                                                     "no tag",
                                                                     "owner",
                                                                     "position",
                                                                     "slot of another",
                                                                     "slot of own page",
                                                                     "slot nearby",
                                                                     "slot anywhere",
                                                                     "slot out of range",
                                                                     "shared page written",
                                                                     "payload",
                                                                     "scale"};
using StepFaultCounts = std::array<std::int64_t, kStepFaultNames.size()>;

// What a fault is reported under.
inline FaultKind kind_of(StepFault fault) {
  if (fault <= StepFault::kPageOutOfRange) return FaultKind::kMapping;
  if (fault <= StepFault::kPosition) return FaultKind::kRecords;
  if (fault <= StepFault::kSharedPageWritten) return FaultKind::kSlots;
  return FaultKind::kPayload;
}

struct StepCounts {
  std::int64_t steps = 0;  // Checked before and after.
  std::int64_t rows = 0;
  std::int64_t rows_failed = 0;       // All of which had to, and no others did.
  std::int64_t failed_elsewhere = 0;  // Checks of handoffs, prefix hits and sweeps.
  std::int64_t restored = 0;          // Entries of page tables that were wrong only between the two checks.
  std::int64_t evicted = 0;           // Cached pages that made room.
  // Every fault ends in one of three ways.
  StepFaultCounts injected{};
  StepFaultCounts detected{};   // By the check of a step, before its tokens were emitted.
  StepFaultCounts elsewhere{};  // By a sweep, at a prefix hit or in a handoff.
  // The page was given back before anybody read it; of bytes that are looked at late, before a sweep came by.
  StepFaultCounts gone{};
  base::Nanoseconds longest_undetected{0};  // Of bytes that a sweep is to find.

  void add(const StepCounts& other);
};

class StepFaults final : public engine::StepObserver {
 public:
  struct Options {
    FaultSet faults;
    double rate = 0.2;  // Of steps.
    kv_cache::IntegrityLevel level = kv_cache::IntegrityLevel::kTags;
    // In which a sweep must find what was changed in a page that lives on.
    base::Nanoseconds sweep{0};
    // Whether messages with page data leave as soon as they are gathered.
    bool sent_at_once = true;
  };
  StepFaults(const Options& options, const base::Clock& clock, Judge& judge, Trace& trace, Dice dice);

  void before_check(const engine::StepView& step) override;
  void before_second_check(const engine::StepView& step) override;
  void after_checks(const engine::StepView& step, std::span<const engine::RowOutcome> outcomes) override;
  // The engine's model is about to compute: between the first check and the second.
  void before_forward();
  // Around a turn of the engine.
  void before_turn(engine::EngineLoop& loop);
  void after_turn(engine::EngineLoop& loop);
  // The engine has just sent pages of a sequence to another one; it says that it has sent all.
  void sends(engine::EngineLoop& loop, request::SequenceId id, std::int64_t first, std::int64_t count);
  void commits(engine::EngineLoop& loop, request::SequenceId id);
  // Between turns: perhaps damages a page that no step has at this moment.
  void between_turns(engine::EngineLoop& loop);
  // The engine has ended, and its pool with it.
  void forget();
  // No more faults.
  void end() { options_.rate = 0.0; }

  // Whether pages or records are not what the engine has written.
  bool damaged() const { return !damages_.empty(); }
  const StepCounts& counts() const { return counts_; }

 private:
  struct Damage {
    kv_cache::PageTag tag = 0;
    StepFault fault = StepFault::kTag;
    bool detected = false;
    request::SequenceId receiving = 0;  // Whose page it was, if its bytes were still on their way then.
    base::Nanoseconds since{0};
  };
  // What the checks of this step have to find.
  struct Pending {
    StepFault fault = StepFault::kTag;
    std::size_t row = 0;
    kv_cache::PageId page = 0;  // Of a damage.
  };
  struct Seen {
    kv_cache::PageTag tag = 0;
    request::SequenceId id = 0;
  };
  // Bytes of all pages of one layer's part, before rows that must fail could write.
  struct Watched {
    const std::byte* at = nullptr;
    std::int64_t slot_bytes = 0;
    std::vector<std::byte> bytes;
  };
  struct Restore {
    std::int32_t* entry = nullptr;
    std::int32_t wrong = 0;
    std::int32_t right = 0;
  };
  enum class Moment : std::uint8_t { kFirst, kSecond };
  enum class FirstLook : std::uint8_t { kNo, kYes };
  enum class Stopped : std::uint8_t { kBeforeItComputes, kBeforeItEmits };

  // step_faults.cc: what is done.
  void inject(const engine::StepView& step, Moment moment);
  bool change_mapping(const engine::StepView& step, std::size_t row);
  bool change_record(const engine::StepView& step, std::size_t row);
  bool change_slot(const engine::StepView& step, std::size_t row, Moment moment);
  bool change_lease_count(const engine::StepView& step, std::size_t row);
  bool change_payload(const engine::StepView& step, std::size_t row, Moment moment);
  bool damage_record(kv_cache::PagePool& pool, kv_cache::PageId page, kv_cache::PageTag tag,
                     request::SequenceId receiving);
  void flip_bit(kv_cache::PagePool& pool, const kv_cache::Lease& lease, std::int64_t slot);
  void note_damage(kv_cache::PageId page, Damage damage);
  void expect(StepFault fault, std::size_t row);
  bool plan_restore(const engine::StepView& step);
  void damage_record_between_turns(engine::EngineLoop& loop);
  void damage_bytes_between_turns(kv_cache::PagePool& pool);

  // step_judging.cc: what must follow.
  void look_at(const engine::StepView& step, FirstLook first_look);
  void look_at_row(const engine::StepView& step, std::size_t r);
  void must_fail(const engine::StepView& step, std::size_t row, Stopped stopped);
  void watch(const engine::StepView& step);
  void check_watched();
  void check_leases(engine::EngineLoop& loop);
  void check_damages(engine::EngineLoop& loop);
  void settle(engine::EngineLoop& loop, kv_cache::PageId page, const Damage& damage);
  bool is_damaged(kv_cache::PagePool& pool, const kv_cache::Lease& lease) const;
  // Bytes that are looked at only later than in the step that reads them.
  bool is_found_late(StepFault fault) const {
    return kind_of(fault) == FaultKind::kPayload && options_.level == kv_cache::IntegrityLevel::kDigest;
  }

  Options options_;
  const base::Clock& clock_;
  Judge& judge_;
  Trace& trace_;
  Dice dice_;
  std::map<kv_cache::PageId, Damage> damages_;         // Of pages in the life in which they were damaged.
  std::unordered_set<kv_cache::PageTag> past_;         // Of damaged pages whose life has ended.
  std::unordered_set<kv_cache::PageTag> computed_on_;  // Of pages whose rows were computed from changed bytes.
  std::unordered_map<request::SequenceId, base::Nanoseconds> last_sent_;
  std::vector<kv_cache::Lease> cached_;  // Pages that only the prefix cache held before this turn.
  std::vector<Seen> seen_;
  std::vector<Watched> watched_;
  std::vector<bool> may_write_;  // Slots that rows of this step write which need not fail.
  // Rows of this step.
  std::vector<bool> must_fail_;
  std::vector<bool> stopped_;    // Before they write.
  std::vector<bool> lost_page_;  // A lease had ended before the step.
  std::vector<Pending> pending_;
  std::optional<Restore> restore_;
  bool second_planned_ = false;
  // Of a turn.
  std::int64_t failures_before_ = 0;
  std::int64_t digest_failures_before_ = 0;
  std::int64_t rows_failed_ = 0;
  std::int64_t exposed_ = 0;
  StepCounts counts_;
};

}  // namespace tessera::simulation
