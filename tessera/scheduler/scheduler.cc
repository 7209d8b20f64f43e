#include "tessera/scheduler/scheduler.h"

#include <algorithm>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::scheduler {

namespace {

void check_views(std::span<const SequenceView> sequences, const PoolView& pool, const Limits& limits) {
  TESSERA_CHECK(pool.page_size > 0 && limits.running_max > 0 && limits.chunk_tokens > 0);
  for (std::size_t i = 1; i < sequences.size(); ++i) TESSERA_CHECK(sequences[i - 1].id < sequences[i].id);
  for (const SequenceView& s : sequences) TESSERA_CHECK(!s.scored || limits.scored_tokens > 0);
}

bool is_scored_at(const SequenceView& sequence, std::int64_t start) {
  return sequence.scored && start < sequence.prompt;
}

// Where the chunk that starts at `start` ends: the next multiple of a chunk's length inside the prompt, or inside what
// was generated.
std::int64_t chunk_end(const SequenceView& sequence, std::int64_t start, const Limits& limits) {
  const std::int64_t chunk_tokens =
      is_scored_at(sequence, start) ? std::min(limits.chunk_tokens, limits.scored_tokens) : limits.chunk_tokens;
  const std::int64_t origin = start < sequence.prompt ? 0 : sequence.prompt;
  const std::int64_t part_end = start < sequence.prompt ? std::min(sequence.prompt, sequence.tokens) : sequence.tokens;
  return std::min(part_end, origin + ((start - origin) / chunk_tokens + 1) * chunk_tokens);
}

}  // namespace

AdmissionPlan plan_admission(std::span<const SequenceView> sequences, const PoolView& pool, const Limits& limits,
                             const std::function<PrefixHit(SequenceId)>& prefix_hit) {
  check_views(sequences, pool, limits);
  AdmissionPlan plan;
  std::int64_t holding = 0;
  for (const SequenceView& s : sequences) holding += s.activity == Activity::kWaiting ? 0 : 1;
  std::int64_t available = pool.available;
  bool head_blocked = false;
  for (const SequenceView& s : sequences) {
    if (s.activity != Activity::kWaiting) continue;
    const std::int64_t total = base::ceil_div(s.tokens, pool.page_size);
    if (total > pool.usable) {
      plan.refused.push_back(s.id);
      continue;
    }
    if (head_blocked) continue;
    if (holding >= limits.running_max) {
      head_blocked = true;
      continue;
    }
    const PrefixHit hit = prefix_hit(s.id);
    // A hit page that somebody leases costs nothing; one that nobody leases stops being available.
    const std::int64_t cost = total - hit.pages + hit.idle;
    const std::int64_t headroom = limits.growth == Limits::Growth::kGrows ? holding : 0;
    if (cost + headroom > available) {
      head_blocked = true;
      continue;
    }
    available -= cost;
    ++holding;
    plan.admitted.push_back(s.id);
  }
  return plan;
}

BatchPlan plan_batch(std::span<const SequenceView> sequences, const PoolView& pool, const Limits& limits) {
  check_views(sequences, pool, limits);
  BatchPlan plan;
  std::int64_t available = pool.available;
  std::int64_t budget = limits.chunk_tokens;
  std::int64_t scored_budget = limits.scored_tokens;
  bool budget_spent = false;

  // Sequences that hold pages, earliest first; null once preempted.
  std::vector<const SequenceView*> holders;
  for (const SequenceView& s : sequences) {
    if (s.activity != Activity::kWaiting) holders.push_back(&s);
  }
  const auto preempt = [&](std::size_t i) {
    plan.preempted.push_back(holders[i]->id);
    available += holders[i]->pages_returned;
    holders[i] = nullptr;
  };
  // The latest holder after i that can be preempted, or i itself when there is none.
  const auto latest_after = [&](std::size_t i) {
    std::size_t j = holders.size() - 1;
    while (j > i && (holders[j] == nullptr || holders[j]->activity == Activity::kInTransfer)) --j;
    return j;
  };
  const auto transfer_after = [&](std::size_t i) {
    return std::any_of(holders.begin() + static_cast<std::ptrdiff_t>(i) + 1, holders.end(),
                       [](const SequenceView* s) { return s != nullptr && s->activity == Activity::kInTransfer; });
  };

  std::vector<Chunk> decode;
  std::vector<Chunk> prefill;
  for (std::size_t i = 0; i < holders.size(); ++i) {
    if (holders[i] == nullptr || holders[i]->activity == Activity::kInTransfer) continue;
    const SequenceView& s = *holders[i];
    TESSERA_CHECK(s.computed < s.tokens, "a computing sequence has nothing to compute");
    Chunk chunk;
    chunk.id = s.id;
    chunk.start = s.computed;
    chunk.count = chunk_end(s, s.computed, limits) - s.computed;
    chunk.reaches_end = chunk.start + chunk.count == s.tokens;
    chunk.new_pages = std::max<std::int64_t>(0, base::ceil_div(chunk.start + chunk.count, pool.page_size) - s.pages);
    const bool is_decode = s.computed >= s.prompt && s.tokens - s.computed == 1;
    // A chunk that does not fit whole waits, and nothing of the later ones overtakes it: boundaries stay where they
    // are.
    if (!is_decode && (budget_spent || chunk.count > budget)) {
      budget_spent = true;
      continue;
    }
    const bool is_scored = is_scored_at(s, s.computed);
    if (is_scored && chunk.count > scored_budget) {
      scored_budget = 0;
      continue;
    }
    while (holders[i] != nullptr && chunk.new_pages > available) {
      const std::size_t victim = latest_after(i);
      // A later sequence in transfer will compute soon, and can give its pages back then: better wait for it than give
      // up an earlier one.
      if (victim == i && transfer_after(i)) break;
      preempt(victim);
    }
    if (holders[i] == nullptr || chunk.new_pages > available) continue;
    available -= chunk.new_pages;
    if (!is_decode) budget -= chunk.count;
    if (is_scored) scored_budget -= chunk.count;
    (is_decode ? decode : prefill).push_back(chunk);
  }
  plan.chunks = std::move(decode);
  plan.chunks.insert(plan.chunks.end(), prefill.begin(), prefill.end());
  return plan;
}

}  // namespace tessera::scheduler
