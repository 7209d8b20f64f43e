#include "tessera/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tessera::scheduler {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Limits kGrowing{.running_max = 4, .chunk_tokens = 8, .growth = Limits::Growth::kGrows};
constexpr Limits kFixed{.running_max = 4, .chunk_tokens = 8, .growth = Limits::Growth::kFixed};

PrefixHit no_hit(SequenceId) { return {}; }

SequenceView waiting(SequenceId id, std::int64_t tokens) {
  return {.id = id, .activity = Activity::kWaiting, .prompt = tokens, .tokens = tokens};
}

SequenceView computing(SequenceId id, std::int64_t prompt, std::int64_t tokens, std::int64_t computed,
                       std::int64_t pages) {
  return {.id = id,
          .activity = Activity::kComputing,
          .prompt = prompt,
          .tokens = tokens,
          .computed = computed,
          .pages = pages,
          .pages_returned = pages};
}

SequenceView in_transfer(SequenceId id, std::int64_t tokens, std::int64_t pages) {
  return {.id = id,
          .activity = Activity::kInTransfer,
          .prompt = tokens,
          .tokens = tokens,
          .pages = pages,
          .pages_returned = pages};
}

std::vector<SequenceId> ids(const std::vector<Chunk>& chunks) {
  std::vector<SequenceId> out;
  for (const Chunk& chunk : chunks) out.push_back(chunk.id);
  return out;
}

TEST(Admission, TakesWhatFitsInOrderOfArrival) {
  const std::vector<SequenceView> sequences{waiting(1, 8), waiting(2, 8), waiting(3, 4)};
  // Pages of 4: 2 + 2 + 1, and a page of headroom for each that is there already.
  const auto plan = plan_admission(sequences, {.page_size = 4, .usable = 10, .available = 10}, kGrowing, no_hit);
  EXPECT_THAT(plan.admitted, ElementsAre(1, 2, 3));
  EXPECT_THAT(plan.refused, IsEmpty());
}

TEST(Admission, NobodyOvertakesTheHead) {
  const std::vector<SequenceView> sequences{computing(1, 8, 9, 8, 3), waiting(2, 24), waiting(3, 4)};
  const auto plan = plan_admission(sequences, {.page_size = 4, .usable = 10, .available = 5}, kGrowing, no_hit);
  EXPECT_THAT(plan.admitted, IsEmpty());
}

TEST(Admission, WhatCouldNeverFitIsRefusedAndBlocksNobody) {
  const std::vector<SequenceView> sequences{waiting(1, 41), waiting(2, 4)};
  const auto plan = plan_admission(sequences, {.page_size = 4, .usable = 10, .available = 10}, kGrowing, no_hit);
  EXPECT_THAT(plan.refused, ElementsAre(1));
  EXPECT_THAT(plan.admitted, ElementsAre(2));
}

TEST(Admission, ExactlyTheWholePoolFits) {
  const std::vector<SequenceView> sequences{waiting(1, 40)};
  const auto plan = plan_admission(sequences, {.page_size = 4, .usable = 10, .available = 10}, kGrowing, no_hit);
  EXPECT_THAT(plan.admitted, ElementsAre(1));
}

TEST(Admission, LeavesAPageForEveryHolderToGrow) {
  const std::vector<SequenceView> sequences{computing(1, 8, 9, 8, 3), waiting(2, 8)};
  const auto plan_with = [&](std::int64_t available, const Limits& limits) {
    return plan_admission(sequences, {.page_size = 4, .usable = 10, .available = available}, limits, no_hit).admitted;
  };
  EXPECT_THAT(plan_with(2, kGrowing), IsEmpty());
  EXPECT_THAT(plan_with(3, kGrowing), ElementsAre(2));
  EXPECT_THAT(plan_with(2, kFixed), ElementsAre(2));
}

TEST(Admission, LeasedPrefixPagesCostNothingAndIdleOnesTheirOwnPage) {
  const std::vector<SequenceView> sequences{waiting(1, 24)};
  const PoolView pool{.page_size = 4, .usable = 10, .available = 3};
  const auto plan_with = [&](PrefixHit hit) {
    return plan_admission(sequences, pool, kGrowing, [&](SequenceId) { return hit; }).admitted;
  };
  EXPECT_THAT(plan_with({.pages = 0, .idle = 0}), IsEmpty());
  EXPECT_THAT(plan_with({.pages = 3, .idle = 3}), IsEmpty());
  EXPECT_THAT(plan_with({.pages = 3, .idle = 0}), ElementsAre(1));
}

TEST(Admission, StopsAtRunningMax) {
  std::vector<SequenceView> sequences;
  for (SequenceId id = 1; id <= 6; ++id) sequences.push_back(waiting(id, 1));
  const auto plan = plan_admission(sequences, {.page_size = 4, .usable = 100, .available = 100}, kGrowing, no_hit);
  EXPECT_THAT(plan.admitted, ElementsAre(1, 2, 3, 4));
}

TEST(Batch, ChunksEndAtMultiplesAndAtTheEndOfThePrompt) {
  // Boundaries do not depend on where a cached prefix ended (5).
  std::vector<std::int64_t> ends;
  SequenceView s = computing(1, 21, 21, 5, 10);
  while (s.computed < s.tokens) {
    const auto plan = plan_batch(std::vector{s}, {.page_size = 4, .usable = 10, .available = 0}, kGrowing);
    ASSERT_EQ(plan.chunks.size(), 1u);
    s.computed += plan.chunks[0].count;
    ends.push_back(s.computed);
    EXPECT_EQ(plan.chunks[0].reaches_end, s.computed == 21);
  }
  EXPECT_THAT(ends, ElementsAre(8, 16, 21));
}

TEST(Batch, ReplayIsChunkedFromTheEndOfThePrompt) {
  std::vector<std::int64_t> ends;
  SequenceView s = computing(1, 10, 30, 0, 10);
  while (s.computed < s.tokens) {
    s.computed +=
        plan_batch(std::vector{s}, {.page_size = 4, .usable = 10, .available = 0}, kGrowing).chunks.at(0).count;
    ends.push_back(s.computed);
  }
  EXPECT_THAT(ends, ElementsAre(8, 10, 18, 26, 30));
}

TEST(Batch, AChunkThatDoesNotFitWholeWaits) {
  const std::vector<SequenceView> sequences{computing(1, 4, 4, 0, 1), computing(2, 8, 8, 0, 2),
                                            computing(3, 2, 2, 0, 1), computing(4, 4, 5, 4, 2)};
  const auto plan = plan_batch(sequences, {.page_size = 4, .usable = 10, .available = 4}, kGrowing);
  // The decoding one first, then the first prompt; the second does not fit the budget and nobody passes it.
  EXPECT_THAT(ids(plan.chunks), ElementsAre(4, 1));
}

TEST(Batch, ScoredPromptsShareTheirPartOfAStep) {
  constexpr Limits kScoring{.running_max = 4, .chunk_tokens = 8, .scored_tokens = 3};
  const auto scored = [](SequenceId id, std::int64_t computed) {
    SequenceView view = computing(id, 20, 22, computed, 6);
    view.scored = true;
    return view;
  };
  const PoolView pool{.page_size = 4, .usable = 40, .available = 20};
  // Boundaries are multiples of 3 from the beginning: of a chunk of 2 one is left, which the next, of 3, does not fit.
  // Whoever is not scored goes on behind it.
  const auto plan =
      plan_batch(std::vector<SequenceView>{scored(1, 4), scored(2, 6), computing(3, 20, 20, 3, 5)}, pool, kScoring);
  EXPECT_THAT(ids(plan.chunks), ElementsAre(1, 3));
  EXPECT_EQ(plan.chunks[0].count, 2);
  EXPECT_EQ(plan.chunks[1].count, 5);
  // The end of the prompt is a boundary too; what was generated and is replayed is not scored.
  const auto end = plan_batch(std::vector<SequenceView>{scored(1, 18), scored(2, 20), scored(3, 14)}, pool, kScoring);
  EXPECT_THAT(ids(end.chunks), ElementsAre(1, 2, 3));
  EXPECT_EQ(end.chunks[0].count, 2);
  EXPECT_EQ(end.chunks[1].count, 2);
  EXPECT_EQ(end.chunks[2].count, 1);
}

TEST(Batch, TheLatestGivesItsPagesBack) {
  const std::vector<SequenceView> sequences{computing(1, 4, 9, 8, 2), computing(2, 4, 7, 6, 2),
                                            computing(3, 4, 6, 5, 2)};
  const auto plan = plan_batch(sequences, {.page_size = 4, .usable = 6, .available = 0}, kGrowing);
  EXPECT_THAT(plan.preempted, ElementsAre(3));
  EXPECT_THAT(ids(plan.chunks), ElementsAre(1, 2));
  EXPECT_EQ(plan.chunks[0].new_pages, 1);
}

TEST(Batch, TheLatestGivesItselfUpForAnEarlierOne) {
  const std::vector<SequenceView> sequences{computing(1, 4, 6, 5, 2), computing(2, 4, 9, 8, 2)};
  const auto plan = plan_batch(sequences, {.page_size = 4, .usable = 4, .available = 0}, kGrowing);
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  EXPECT_THAT(ids(plan.chunks), ElementsAre(1));
}

TEST(Batch, PagesInTransferAreNotTakenAndAnEarlierSequenceWaitsForThem) {
  const std::vector<SequenceView> waits{computing(1, 4, 9, 8, 2), in_transfer(2, 8, 2)};
  const auto plan = plan_batch(waits, {.page_size = 4, .usable = 4, .available = 0}, kGrowing);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_THAT(plan.chunks, IsEmpty());
  // One that is not in transfer is taken instead, although it came earlier than the transfer.
  const std::vector<SequenceView> takes{computing(1, 4, 9, 8, 2), computing(2, 4, 6, 5, 2), in_transfer(3, 8, 2)};
  EXPECT_THAT(plan_batch(takes, {.page_size = 4, .usable = 6, .available = 0}, kGrowing).preempted, ElementsAre(2));
}

TEST(Batch, SharedPagesAreNotCountedAsReturned) {
  std::vector<SequenceView> sequences{computing(1, 4, 9, 8, 2), computing(2, 4, 6, 5, 2), computing(3, 4, 6, 5, 2)};
  sequences[2].pages_returned = 0;
  const auto plan = plan_batch(sequences, {.page_size = 4, .usable = 4, .available = 0}, kGrowing);
  EXPECT_THAT(plan.preempted, ElementsAre(3, 2));
}

}  // namespace
}  // namespace tessera::scheduler
