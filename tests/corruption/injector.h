// Stands between an engine and its page checks, and does one thing, once, to one sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/engine/step_observer.h"
#include "tests/support/fault_access.h"

namespace tessera::test_support {

enum class Moment : std::uint8_t { kBeforeCheck, kBeforeSecondCheck };

// What an injection works on: the victim's row and, when there is one, another sequence's.
struct Target {
  const engine::StepView& step;
  std::size_t row = 0;
  const engine::StepRowView& victim;
  const engine::StepRowView* neighbour = nullptr;

  // The device's page table entry of the victim's logical page.
  std::int32_t& table_entry(std::size_t logical_page) const {
    return fault_injection::Access::entries(
        step.page_table)[static_cast<std::int64_t>(row) * step.page_table.pages_per_row_max() +
                         static_cast<std::int64_t>(logical_page)];
  }
  std::uint64_t& tag(kv_cache::PageId page) const { return fault_injection::Access::tags(step.pool)[page]; }
  std::uint64_t& owner(kv_cache::PageId page) const { return fault_injection::Access::owners(step.pool)[page]; }
  std::int32_t& position(kv_cache::PageId page) const { return fault_injection::Access::positions(step.pool)[page]; }
  std::int32_t& lease_count(kv_cache::PageId page) const {
    return fault_injection::Access::lease_counts(step.pool)[page];
  }
  // Confuses two pages of the victim as a host would that had them wrong from the start: in the sequence's leases, the
  // table, and the slots that the row writes to.
  void swap_pages(std::size_t a, std::size_t b) const;
  // Where the row's last token is to be written.
  std::int64_t& last_slot() const {
    return step.slot_mapping[static_cast<std::size_t>(victim.first_token + victim.count - 1)];
  }
};

class Injector final : public engine::StepObserver {
 public:
  using Injection = std::function<void(const Target&)>;

  // Waits for a step in which the victim has at least `start_min` tokens already and a neighbour is in the batch too.
  void arm(request::SequenceId victim, std::int64_t start_min, Moment moment, Injection injection);
  bool reached() const { return reached_; }
  std::int64_t victim_pages() const { return victim_pages_; }

  void before_check(const engine::StepView& step) override { look(step, Moment::kBeforeCheck); }
  void before_second_check(const engine::StepView& step) override { look(step, Moment::kBeforeSecondCheck); }

 private:
  void look(const engine::StepView& step, Moment moment);
  request::SequenceId victim_ = 0;
  std::int64_t start_min_ = 0;
  Moment moment_ = Moment::kBeforeCheck;
  Injection injection_;
  bool reached_ = false;
  std::int64_t victim_pages_ = 0;
};

}  // namespace tessera::test_support
