// Log-probabilities of prompts on their way through the router.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/router/router_fixture.h"

namespace tessera::router {
namespace {

using testing::ElementsAre;

TEST_F(RouterTest, LogprobsOfThePromptComeInOrderAndOnceWhateverEnginesSay) {
  make({&unified_});
  const SequenceId id = start_scored(8);
  score(unified_, id, 1, 3);
  score(unified_, id, 1, 3);  // It was preempted, and computes them again.
  score(unified_, id, 3, 3);
  score(unified_, id, 7, 1);  // After a gap.
  score(unified_, id, 6, 5);  // More than there are.
  score(unified_, id, 0, 8);
  pump();
  EXPECT_THAT(heard_[id].prompt_indices, ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(heard_[id].prompt_logprobs, ElementsAre(-1, -2, -3, -4, -5, -6, -7));
  const SequenceId other = start(8);
  score(unified_, other, 1, 3);  // Nobody asked.
  for (const SequenceId each : {id, other}) {
    token(unified_, each, 0);
    say(unified_, request::SequenceFinished{each, request::FinishReason::kStop, {}});
  }
  score(unified_, id, 1, 7);
  pump();
  EXPECT_TRUE(std::holds_alternative<request::SequenceFinished>(heard_[id].terminals.at(0)));
  EXPECT_TRUE(heard_[other].prompt_indices.empty());
}

TEST_F(RouterTest, ASequenceThatLacksLogprobsOfItsPromptHasFailed) {
  make({&unified_});
  const SequenceId id = start_scored(8);
  score(unified_, id, 1, 3);
  score(unified_, id, 5, 3);
  token(unified_, id, 0);
  say(unified_, request::SequenceFinished{id, request::FinishReason::kStop, {}});
  const SequenceId single = start_scored(1);
  say(unified_, request::SequenceFinished{single, request::FinishReason::kLength, {}});
  pump();
  EXPECT_THAT(heard_[id].prompt_indices, ElementsAre(1, 2, 3));
  EXPECT_EQ(heard_[id].failed().status.code(), base::StatusCode::kInternal);
  EXPECT_EQ(heard_[single].finished().reason, request::FinishReason::kLength);
}

}  // namespace
}  // namespace tessera::router
