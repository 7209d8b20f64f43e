#include "tests/corruption/injector.h"

#include <utility>

namespace tessera::test_support {

void Injector::arm(request::SequenceId victim, std::int64_t start_min, Moment moment, Injection injection) {
  victim_ = victim;
  start_min_ = start_min;
  moment_ = moment;
  injection_ = std::move(injection);
}

void Injector::look(const engine::StepView& step, Moment moment) {
  if (reached_ || injection_ == nullptr || moment != moment_ || step.rows.size() < 2) return;
  for (std::size_t r = 0; r < step.rows.size(); ++r) {
    const engine::StepRowView& row = step.rows[r];
    if (row.id != victim_ || row.start < start_min_) continue;
    reached_ = true;
    victim_pages_ = std::ssize(row.leases);
    const engine::StepRowView& neighbour = step.rows[r == 0 ? 1 : 0];
    injection_(Target{step, r, row, &neighbour});
    return;
  }
}

}  // namespace tessera::test_support
