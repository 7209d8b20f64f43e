#include "tests/corruption/injector.h"

#include <utility>

namespace tessera::test_support {

void Target::swap_pages(std::size_t a, std::size_t b) const {
  // They are the sequence's, which is not const; the step's view of them is.
  auto* leases = const_cast<kv_cache::Lease*>(victim.leases.data());
  std::swap(leases[a], leases[b]);
  std::swap(table_entry(a), table_entry(b));
  const std::int64_t page_size = step.pool.layout().page_size;
  for (std::int64_t i = 0; i < victim.count; ++i) {
    const std::int64_t position = victim.start + i;
    step.slot_mapping[static_cast<std::size_t>(victim.first_token + i)] =
        std::int64_t{leases[position / page_size].page} * page_size + position % page_size;
  }
}

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
