#include <algorithm>

#include "tests/simulation/simulation.h"

namespace tessera::simulation {

namespace {

template <std::size_t N>
void add_each(std::array<std::int64_t, N>& sum, const std::array<std::int64_t, N>& other) {
  for (std::size_t i = 0; i < N; ++i) sum[i] += other[i];
}

}  // namespace

void JudgeCounts::add(const JudgeCounts& other) {
  submitted += other.submitted;
  finished += other.finished;
  cancelled += other.cancelled;
  corrupted += other.corrupted;
  too_large += other.too_large;
  failed += other.failed;
  recomputes += other.recomputes;
  tokens += other.tokens;
  tokens_wrong += other.tokens_wrong;
  logprobs += other.logprobs;
  prompt_logprobs += other.prompt_logprobs;
  turned_away += other.turned_away;
  longest_wait = std::max(longest_wait, other.longest_wait);
}

void StepCounts::add(const StepCounts& other) {
  steps += other.steps;
  rows += other.rows;
  rows_failed += other.rows_failed;
  failed_elsewhere += other.failed_elsewhere;
  restored += other.restored;
  evicted += other.evicted;
  add_each(injected, other.injected);
  add_each(detected, other.detected);
  add_each(elsewhere, other.elsewhere);
  add_each(gone, other.gone);
  longest_undetected = std::max(longest_undetected, other.longest_undetected);
}

void SimulationCounts::add(const SimulationCounts& other) {
  turns += other.turns;
  stepped.add(other.stepped);
  preemptions_first += other.preemptions_first;
  preemptions_decode += other.preemptions_decode;
  prefix_hit_tokens += other.prefix_hit_tokens;
  pages_swept += other.pages_swept;
  messages += other.messages;
  add_each(messages_disturbed, other.messages_disturbed);
  messages_refused += other.messages_refused;
  allocations_failed += other.allocations_failed;
  restarts += other.restarts;
  lost_in_restarts += other.lost_in_restarts;
  spared_in_restarts += other.spared_in_restarts;
  audits += other.audits;
  rewritten += other.rewritten;
  flushes += other.flushes;
  add_each(left_first, other.left_first);
  add_each(left_decode, other.left_decode);
  judged.add(other.judged);
}

}  // namespace tessera::simulation
