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

// Nothing of them is a step's, so that batches may be small and runs quick.
const FaultSet kDisturbances = faults({FaultKind::kTransport, FaultKind::kAllocations, FaultKind::kRestarts});

class SimulationTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(base::set_log_level("off").ok()); }
  void TearDown() override { ASSERT_TRUE(base::set_log_level("info").ok()); }

  // A whole run; nothing to object to.
  std::uint64_t run(std::uint64_t seed, const ScenarioChoices& choices, std::int64_t steps,
                    kv_cache::OnIntegrityError on_error = kv_cache::OnIntegrityError::kAbort) {
    Simulation simulation({.seed = seed, .choices = choices, .on_error = on_error});
    simulation.run_steps(steps);
    simulation.drain();
    EXPECT_FALSE(simulation.complaint().has_value())
        << "seed " << seed << ": " << simulation.complaint().value_or("") << "\n"
        << simulation.describe_engines();
    sum_.add(simulation.counts());
    return simulation.hash();
  }
  double rows_per_step() const {
    return static_cast<double>(sum_.stepped.rows) / static_cast<double>(sum_.stepped.steps);
  }
  SimulationCounts sum_;
};

TEST_F(SimulationTest, ASeedRepeatsItselfAndAnotherOneDoesNot) {
  std::uint64_t last = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const std::uint64_t hash = run(seed, {.faults = kAllFaults}, 100);
    EXPECT_EQ(hash, run(seed, {.faults = kAllFaults}, 100)) << "seed " << seed;
    EXPECT_NE(hash, last);
    last = hash;
  }
}

TEST_F(SimulationTest, NothingIsWrongWhereNothingIsBroken) {
  for (std::uint64_t seed = 1000; seed < 1024; ++seed) run(seed, {}, 250);
  for (std::uint64_t seed = 5024; seed < 5048; ++seed) run(seed, {}, 250);
  EXPECT_GT(sum_.preemptions_first, 0);
  EXPECT_GT(sum_.preemptions_decode, 0);
  EXPECT_GT(sum_.prefix_hit_tokens, 0);
  EXPECT_GT(sum_.stepped.evicted, 0);
  EXPECT_GT(sum_.pages_swept, 0);
  EXPECT_GT(sum_.messages_refused, 0);
  EXPECT_GT(sum_.judged.logprobs, 0);
  EXPECT_GT(sum_.judged.prompt_logprobs, 0);
  EXPECT_GT(sum_.judged.cancelled, 0);
  EXPECT_EQ(sum_.judged.corrupted + sum_.judged.failed + sum_.judged.too_large, 0);
  // Clients left wherever a sequence can be.
  for (const engine::SequenceState state : {engine::SequenceState::kWaiting, engine::SequenceState::kComputing,
                                            engine::SequenceState::kHandoffPending, engine::SequenceState::kSending}) {
    EXPECT_GT(sum_.left_first[static_cast<std::size_t>(state)], 0) << kPlaceNames[static_cast<std::size_t>(state)];
  }
  for (const engine::SequenceState state :
       {engine::SequenceState::kWaiting, engine::SequenceState::kComputing, engine::SequenceState::kReceiving}) {
    EXPECT_GT(sum_.left_decode[static_cast<std::size_t>(state)], 0) << kPlaceNames[static_cast<std::size_t>(state)];
  }
}

TEST_F(SimulationTest, EveryKindOfStepFaultIsReachedAndStopsExactlyWhoCouldReadIt) {
  for (std::uint64_t seed = 2000; seed < 2009; ++seed) run(seed, {.faults = kStepFaults}, 200);
  for (std::size_t i = 0; i <= static_cast<std::size_t>(StepFault::kSharedPageWritten); ++i) {
    EXPECT_GT(sum_.stepped.detected[i], 2) << kStepFaultNames[i];
    // Those of one step are found in it, every one; damaged records too, or nobody came to read them.
    const bool of_one_step = kind_of(static_cast<StepFault>(i)) != FaultKind::kRecords;
    EXPECT_EQ(sum_.stepped.injected[i],
              sum_.stepped.detected[i] + (of_one_step ? 0 : sum_.stepped.elsewhere[i] + sum_.stepped.gone[i]))
        << kStepFaultNames[i];
  }
  EXPECT_GT(sum_.stepped.restored, 10);
  EXPECT_GT(sum_.stepped.failed_elsewhere, 0);
  EXPECT_GT(sum_.rewritten, 0);
  EXPECT_GT(sum_.judged.finished, 0);
  EXPECT_GT(rows_per_step(), 4.0);
}

TEST_F(SimulationTest, WhoFailsACheckIsComputedAgainExactly) {
  for (std::uint64_t seed = 2100; seed < 2106; ++seed) {
    run(seed, {.faults = kStepFaults}, 150, kv_cache::OnIntegrityError::kRecompute);
  }
  EXPECT_GT(sum_.judged.recomputes, 50);
  EXPECT_GT(sum_.stepped.rows_failed, 100);
  EXPECT_GT(rows_per_step(), 4.0);
}

TEST_F(SimulationTest, AFlippedBitIsFoundBeforeATokenIsEmitted) {
  for (std::uint64_t seed = 4000; seed < 4005; ++seed) {
    run(seed, {.faults = faults({FaultKind::kPayload}), .level = kv_cache::IntegrityLevel::kDigestStep}, 200);
  }
  for (const StepFault fault : {StepFault::kPayload, StepFault::kScale}) {
    EXPECT_GT(sum_.stepped.detected[static_cast<std::size_t>(fault)], 10);
  }
  EXPECT_EQ(sum_.judged.tokens_wrong, 0);
}

TEST_F(SimulationTest, AFlippedBitIsFoundWithinOneSweepWhereStepsDoNotLook) {
  for (std::uint64_t seed = 4100; seed < 4107; ++seed) {
    run(seed, {.faults = faults({FaultKind::kPayload}), .level = kv_cache::IntegrityLevel::kDigest}, 200);
  }
  for (const StepFault fault : {StepFault::kPayload, StepFault::kScale}) {
    EXPECT_GT(sum_.stepped.elsewhere[static_cast<std::size_t>(fault)], 10);
  }
  EXPECT_GT(sum_.judged.tokens_wrong, 0);
}

TEST_F(SimulationTest, WhateverHappensBetweenAndAroundTheEnginesEndsCleanly) {
  for (std::uint64_t seed = 3000; seed < 3008; ++seed) run(seed, {.faults = kAllFaults}, 150);
  for (std::uint64_t seed = 3100; seed < 3120; ++seed) run(seed, {.faults = kDisturbances}, 250);
  for (std::size_t i = 0; i < kWireFaultNames.size(); ++i)
    EXPECT_GT(sum_.messages_disturbed[i], 0) << kWireFaultNames[i];
  EXPECT_GT(sum_.allocations_failed, 0);
  EXPECT_GT(sum_.restarts, 0);
  EXPECT_GT(sum_.lost_in_restarts, 0);
  EXPECT_GT(sum_.spared_in_restarts, 0);
}

}  // namespace
}  // namespace tessera::simulation
