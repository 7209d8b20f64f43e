// Stands between one engine and its page checks. Watches every step (which pages it reads, and that nothing is written
// that should not be) and, where faults are asked for, changes what the check must not trust: then it tells the judge
// who must fail. A fault counts only when a step was about to use what was changed.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "tessera/engine/step_observer.h"
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

class StepFaults final : public engine::StepObserver {
 public:
  struct Options {
    FaultSet faults;
    double rate = 0.2;  // Of steps.
  };
  StepFaults(const Options& options, Judge& judge, Trace& trace, Dice dice);

  void before_check(const engine::StepView& step) override;
  void before_second_check(const engine::StepView& step) override;
  // Between turns: perhaps damages the record of a page that nobody reads at this moment; notes which damage is gone.
  void between_turns(kv_cache::PagePool& pool);
  // The engine was started again: its pool is another one.
  void forget();
  // No more faults.
  void end() { options_.rate = 0.0; }

  // Whether records of pages differ from the host's now.
  bool damaged() const { return !damages_.empty(); }
  std::int64_t steps() const { return steps_; }
  std::int64_t rows() const { return rows_; }
  const StepFaultCounts& reached() const { return reached_; }

 private:
  struct Damage {
    kv_cache::PageTag tag = 0;
    StepFault fault = StepFault::kTag;
    std::uint64_t readers = 0;
    bool reached = false;
  };
  struct Seen {
    kv_cache::PageTag tag = 0;
    request::SequenceId id = 0;
    std::int64_t logical = 0;
  };
  struct Watched {
    const std::byte* at = nullptr;
    std::vector<std::byte> bytes;
  };
  enum class Moment : std::uint8_t { kFirst, kSecond };

  enum class FirstLook : std::uint8_t { kNo, kYes };
  void look_at(const engine::StepView& step, FirstLook first_look);
  void inject(const engine::StepView& step, Moment moment);
  bool change_mapping(const engine::StepView& step, std::size_t row, Moment moment);
  bool change_record(const engine::StepView& step, std::size_t row);
  bool change_slot(const engine::StepView& step, std::size_t row, Moment moment);
  bool change_lease_count(const engine::StepView& step, std::size_t row, Moment moment);
  bool change_payload(const engine::StepView& step, std::size_t row, Moment moment);
  bool damage_record(kv_cache::PagePool& pool, kv_cache::PageId page, const Seen& seen);
  void fails(const engine::StepRowView& row);
  void count(StepFault fault, request::SequenceId id);
  // Remembers a page's bytes; without the slots that other rows than `row` write.
  void watch(const engine::StepView& step, std::int64_t page, std::size_t row);
  void check_watched();

  Options options_;
  Judge& judge_;
  Trace& trace_;
  Dice dice_;
  std::map<kv_cache::PageId, Damage> damages_;
  std::vector<Seen> seen_;
  std::vector<Watched> watched_;
  bool second_planned_ = false;
  std::int64_t steps_ = 0;
  std::int64_t rows_ = 0;
  StepFaultCounts reached_{};
};

}  // namespace tessera::simulation
