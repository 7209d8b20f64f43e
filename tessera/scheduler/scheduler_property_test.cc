// Whole workloads, planned step by step against a pool that is only a number: the promises of scheduler.h hold for all
// of them.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tessera/base/arithmetic.h"
#include "tessera/scheduler/scheduler.h"

namespace tessera::scheduler {
namespace {

struct Work {
  std::int64_t prompt = 0;
  std::int64_t generate = 0;
  std::int64_t arrives_at_step = 0;
  bool scored = false;
  std::int64_t transfer_steps = 0;  // Between admission and computing.
};

class Simulation {
 public:
  Simulation(const std::vector<Work>& work, PoolView pool, Limits limits) : pool_(pool), limits_(limits) {
    for (std::size_t i = 0; i < work.size(); ++i) work_[i + 1] = work[i];
  }

  // Returns after everybody is done; fails when that takes longer than it may.
  void run() {
    std::int64_t steps_max = 100;
    for (const auto& [id, work] : work_) {
      // Every token alone, and again after each preemption by an earlier sequence.
      steps_max += (work.prompt + work.generate + work.transfer_steps + work.arrives_at_step + 2) *
                   static_cast<std::int64_t>(work_.size() + 1);
    }
    for (std::int64_t step = 0; !(work_.empty() && live_.empty()); ++step) {
      RC_ASSERT(step < steps_max);
      arrive(step);
      const bool moved = admit() | compute() | transfer();
      RC_ASSERT(moved || live_.empty());
    }
    RC_ASSERT(pool_.available == pool_.usable);
  }

 private:
  struct Live {
    SequenceView view;
    Work work;
    std::int64_t transfer_left = 0;
    // Where its chunks ended, by start: the same at every recompute.
    std::map<std::int64_t, std::int64_t> prompt_chunks;
  };

  std::vector<SequenceView> views() const {
    std::vector<SequenceView> out;
    for (const auto& [id, live] : live_) out.push_back(live.view);
    return out;
  }

  void arrive(std::int64_t step) {
    for (auto it = work_.begin(); it != work_.end();) {
      if (it->second.arrives_at_step > step) {
        ++it;
        continue;
      }
      Live live;
      live.work = it->second;
      live.view = {.id = it->first,
                   .activity = Activity::kWaiting,
                   .prompt = live.work.prompt,
                   .tokens = live.work.prompt,
                   .scored = live.work.scored};
      live_[it->first] = live;
      it = work_.erase(it);
    }
  }

  void give_back(Live& live) {
    pool_.available += live.view.pages;
    live.view.pages = live.view.pages_returned = 0;
    live.view.computed = 0;
    RC_ASSERT(pool_.available <= pool_.usable);
  }

  void take(Live& live, std::int64_t pages) {
    pool_.available -= pages;
    RC_ASSERT(pool_.available >= 0);
    live.view.pages = live.view.pages_returned = live.view.pages + pages;
  }

  bool admit() {
    const AdmissionPlan plan = plan_admission(views(), pool_, limits_, [](SequenceId) { return PrefixHit{}; });
    for (const SequenceId id : plan.refused) {
      RC_ASSERT(base::ceil_div(live_.at(id).view.tokens, pool_.page_size) > pool_.usable);
      live_.erase(id);
    }
    for (const SequenceId id : plan.admitted) {
      // First come, first served.
      for (const auto& [other, live] : live_) {
        RC_ASSERT(other >= id || live.view.activity != Activity::kWaiting);
      }
      Live& live = live_.at(id);
      take(live, base::ceil_div(live.view.tokens, pool_.page_size));
      live.transfer_left = live.work.transfer_steps;
      live.view.activity = live.transfer_left > 0 ? Activity::kInTransfer : Activity::kComputing;
    }
    const auto holders =
        std::ranges::count_if(live_, [](auto& entry) { return entry.second.view.activity != Activity::kWaiting; });
    RC_ASSERT(holders <= limits_.running_max);
    return !plan.admitted.empty() || !plan.refused.empty();
  }

  bool transfer() {
    bool moved = false;
    for (auto& [id, live] : live_) {
      if (live.view.activity != Activity::kInTransfer) continue;
      moved = true;
      if (--live.transfer_left == 0) live.view.activity = Activity::kComputing;
    }
    return moved;
  }

  bool compute() {
    const BatchPlan plan = plan_batch(views(), pool_, limits_);
    for (const SequenceId id : plan.preempted) {
      Live& live = live_.at(id);
      RC_ASSERT(live.view.activity == Activity::kComputing);
      // Whoever goes on came earlier.
      for (const Chunk& chunk : plan.chunks) RC_ASSERT(chunk.id < id);
      give_back(live);
      live.view.activity = Activity::kWaiting;
    }
    std::int64_t prompt_tokens = 0;
    std::int64_t scored_tokens = 0;
    for (const Chunk& chunk : plan.chunks) {
      Live& live = live_.at(chunk.id);
      RC_ASSERT(chunk.count > 0 && chunk.start == live.view.computed);
      take(live, chunk.new_pages);
      live.view.computed += chunk.count;
      RC_ASSERT(live.view.computed <= live.view.pages * pool_.page_size);
      RC_ASSERT(chunk.reaches_end == (live.view.computed == live.view.tokens));
      if (chunk.start < live.work.prompt) {
        RC_ASSERT(live.view.computed <= live.work.prompt);
        const auto [at, is_new] = live.prompt_chunks.emplace(chunk.start, live.view.computed);
        RC_ASSERT(is_new || at->second == live.view.computed);
        if (live.work.scored) scored_tokens += chunk.count;
      }
      if (chunk.count > 1) prompt_tokens += chunk.count;
      if (!chunk.reaches_end) continue;
      const std::int64_t generated = live.view.tokens - live.work.prompt + 1;
      const bool full = live.view.tokens + 1 > pool_.usable * pool_.page_size;
      if (generated >= live.work.generate || full) {
        give_back(live);
        live_.erase(chunk.id);
      } else {
        ++live.view.tokens;
      }
    }
    RC_ASSERT(prompt_tokens <= limits_.chunk_tokens);
    RC_ASSERT(scored_tokens <= limits_.scored_tokens);
    return !plan.chunks.empty() || !plan.preempted.empty();
  }

  PoolView pool_;
  const Limits limits_;
  std::map<SequenceId, Work> work_;  // Not arrived.
  std::map<SequenceId, Live> live_;
};

rc::Gen<Work> work_generator(std::int64_t transfer_max) {
  return rc::gen::build<Work>(rc::gen::set(&Work::prompt, rc::gen::inRange<std::int64_t>(1, 60)),
                              rc::gen::set(&Work::generate, rc::gen::inRange<std::int64_t>(1, 60)),
                              rc::gen::set(&Work::arrives_at_step, rc::gen::inRange<std::int64_t>(0, 50)),
                              rc::gen::set(&Work::scored),
                              rc::gen::set(&Work::transfer_steps, rc::gen::inRange<std::int64_t>(0, transfer_max)));
}

RC_GTEST_PROP(SchedulerProperty, EveryWorkloadEndsWithoutOvercommitting, ()) {
  const auto work = *rc::gen::container<std::vector<Work>>(work_generator(1));
  PoolView pool;
  pool.page_size = *rc::gen::inRange<std::int64_t>(1, 9);
  pool.usable = pool.available = *rc::gen::inRange<std::int64_t>(1, 40);
  const Limits limits{.running_max = *rc::gen::inRange<std::int64_t>(1, 9),
                      .chunk_tokens = *rc::gen::inRange<std::int64_t>(1, 30),
                      .scored_tokens = *rc::gen::inRange<std::int64_t>(1, 30)};
  Simulation(work, pool, limits).run();
}

RC_GTEST_PROP(SchedulerProperty, TransfersInBetweenBlockNobodyForEver, ()) {
  const auto work = *rc::gen::container<std::vector<Work>>(work_generator(20));
  PoolView pool;
  pool.page_size = *rc::gen::inRange<std::int64_t>(1, 9);
  pool.usable = pool.available = *rc::gen::inRange<std::int64_t>(1, 40);
  const Limits limits{.running_max = *rc::gen::inRange<std::int64_t>(1, 9),
                      .chunk_tokens = *rc::gen::inRange<std::int64_t>(1, 30),
                      .scored_tokens = *rc::gen::inRange<std::int64_t>(1, 30)};
  Simulation(work, pool, limits).run();
}

}  // namespace
}  // namespace tessera::scheduler
