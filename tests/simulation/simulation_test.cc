// Short runs of what README.md describes; the seeds are fixed, and each failure names its own.
#include "tests/simulation/simulation.h"

#include <gtest/gtest.h>

#include <initializer_list>

#include "tessera/base/logging.h"

namespace tessera::simulation {
namespace {

FaultSet faults(std::initializer_list<FaultKind> kinds) {
  FaultSet set;
  for (const FaultKind kind : kinds) set.add(kind);
  return set;
}

const FaultSet kStepFaults = faults({FaultKind::kMapping, FaultKind::kRecords, FaultKind::kSlots});
const FaultSet kAllFaults = faults({FaultKind::kMapping, FaultKind::kRecords, FaultKind::kSlots, FaultKind::kTransport,
                                    FaultKind::kAllocations, FaultKind::kRestarts});

class SimulationTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(base::set_log_level("off").ok()); }
  void TearDown() override { ASSERT_TRUE(base::set_log_level("info").ok()); }

  // A whole run; nothing to object to.
  std::uint64_t run(std::uint64_t seed, FaultSet faults, std::int64_t steps) {
    Simulation simulation({.seed = seed, .faults = faults});
    simulation.run_steps(steps);
    simulation.drain();
    EXPECT_FALSE(simulation.complaint().has_value())
        << "seed " << seed << ": " << simulation.complaint().value_or("") << "\n"
        << simulation.describe_engines();
    sum_.add(simulation.counts());
    return simulation.hash();
  }
  SimulationCounts sum_;
};

TEST_F(SimulationTest, ASeedRepeatsItselfAndAnotherOneDoesNot) {
  std::uint64_t last = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const std::uint64_t hash = run(seed, kAllFaults, 150);
    EXPECT_EQ(hash, run(seed, kAllFaults, 150)) << "seed " << seed;
    EXPECT_NE(hash, last);
    last = hash;
  }
}

TEST_F(SimulationTest, NothingIsWrongWhereNothingIsBroken) {
  for (std::uint64_t seed = 1000; seed < 1030; ++seed) run(seed, {}, 250);
  EXPECT_GT(sum_.preemptions, 0);
  EXPECT_GT(sum_.prefix_hit_tokens, 0);
  EXPECT_GT(sum_.judged.cancelled, 0);
  EXPECT_EQ(sum_.judged.corrupted, 0);
}

TEST_F(SimulationTest, EveryKindOfStepFaultIsReachedAndStopsExactlyWhoCouldReadIt) {
  for (std::uint64_t seed = 2000; seed < 2030; ++seed) run(seed, kStepFaults, 250);
  for (std::size_t i = 0; i <= static_cast<std::size_t>(StepFault::kSharedPageWritten); ++i)
    EXPECT_GT(sum_.reached[i], 0) << kStepFaultNames[i];
  EXPECT_GT(sum_.judged.finished, 0);
}

TEST_F(SimulationTest, AFlippedBitIsFoundBeforeATokenIsEmitted) {
  for (std::uint64_t seed = 4000; seed < 4015; ++seed) run(seed, faults({FaultKind::kPayload}), 250);
  EXPECT_GT(sum_.reached[static_cast<std::size_t>(StepFault::kPayload)], 0);
  EXPECT_GT(sum_.reached[static_cast<std::size_t>(StepFault::kScale)], 0);
}

TEST_F(SimulationTest, WhateverHappensBetweenAndAroundTheEnginesEndsCleanly) {
  for (std::uint64_t seed = 3000; seed < 3030; ++seed) run(seed, kAllFaults, 250);
  EXPECT_GT(sum_.messages_disturbed, 0);
  EXPECT_GT(sum_.allocations_failed, 0);
  EXPECT_GT(sum_.restarts, 0);
}

}  // namespace
}  // namespace tessera::simulation
