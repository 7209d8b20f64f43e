// The router against engines that say what the test tells them to, also what no engine should say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>

#include "tessera/router/prefix_estimate.h"
#include "tessera/router/router_fixture.h"

namespace tessera::router {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(RouterTest, RefusesAPairWhoseKvCannotBeConverted) {
  Puppet prefill(1, EngineRole::kPrefill);
  Puppet decode(2, EngineRole::kDecode);
  prefill.facts.kv_format = ops::KvFormat::kF8E4M3;
  decode.facts.kv_format = ops::KvFormat::kBF16;
  const auto made = Router::create({}, {&prefill, &decode}, events_, clock_);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), base::StatusCode::kInvalidArgument);
  EXPECT_THAT(made.error().message(),
              HasSubstr("engine 1 and decode engine 2: KV pages: no conversion from fp8_e4m3 to bf16"));
}

TEST_F(RouterTest, RefusesEnginesThatDoNotGoTogether) {
  const auto refusal = [&](std::vector<request::EngineEndpoint*> engines) {
    auto made = Router::create({}, std::move(engines), events_, clock_);
    return made.has_value() ? std::string() : made.error().message();
  };
  EXPECT_THAT(refusal({}), HasSubstr("0 unified, 0 prefill and 0 decode"));
  EXPECT_THAT(refusal({&prefill_}), HasSubstr("1 prefill and 0 decode"));
  EXPECT_THAT(refusal({&unified_, &decode_}), HasSubstr("1 unified"));
  Puppet twin(1, EngineRole::kDecode);
  EXPECT_THAT(refusal({&prefill_, &twin}), HasSubstr("number 1"));
  decode_.facts.page_size = 8;
  EXPECT_THAT(refusal({&prefill_, &decode_}), HasSubstr("pages of 8 tokens"));
}

TEST_F(RouterTest, RefusesAtOnceWhatCannotBeServed) {
  make({&prefill_, &decode_}, {.live_sequences_max = 2});
  EXPECT_EQ(router_->context_tokens_max(), 80);
  EXPECT_EQ(submit(spec(80)).code(), base::StatusCode::kOutOfRange);
  EXPECT_THAT(submit(spec(81)).message(), HasSubstr("81 tokens"));
  EXPECT_EQ(submit(spec(0)).code(), base::StatusCode::kInvalidArgument);
  EXPECT_EQ(submit(spec(5, -1)).code(), base::StatusCode::kInvalidArgument);
  start();
  start();
  EXPECT_EQ(submit(spec(5)).code(), base::StatusCode::kResourceExhausted);
  router_->begin_drain();
  EXPECT_EQ(submit(spec(5)).code(), base::StatusCode::kUnavailable);
  EXPECT_EQ(router_->snapshot().refused, 6);
  EXPECT_EQ(router_->live(), 2);
  router_->stop();
  // Whoever was refused never hears anything; the two others hear their end.
  EXPECT_EQ(heard_.size(), 2u);
  for (const auto& [id, heard] : heard_) {
    ASSERT_EQ(heard.terminals.size(), 1u);
    EXPECT_EQ(heard.failed().status.code(), base::StatusCode::kUnavailable);
  }
}

TEST_F(RouterTest, EndsAllWithAStatusAndGoesOn) {
  make({&prefill_, &decode_});
  ASSERT_TRUE(submit(spec(10, 5)).ok());
  ASSERT_TRUE(submit(spec(20, 5)).ok());
  router_->end_all(base::unavailable("the server is shutting down"));
  pump();
  ASSERT_EQ(heard_.size(), 2u);
  for (const auto& [id, heard] : heard_) {
    ASSERT_EQ(heard.terminals.size(), 1u);
    EXPECT_EQ(heard.failed().status, base::unavailable("the server is shutting down"));
    EXPECT_THAT(prefill_.aborted, testing::Contains(id));
  }
  EXPECT_TRUE(submit(spec(10, 5)).ok());
}

TEST_F(RouterTest, BothEnginesEndAtTheSameToken) {
  make({&prefill_, &decode_});
  ASSERT_TRUE(submit(spec(79, 500)).ok());
  ASSERT_TRUE(submit(spec(10, 500)).ok());
  EXPECT_EQ(prefill_.started[0].spec.sampling.max_tokens, 1);
  EXPECT_EQ(prefill_.started[1].spec.sampling.max_tokens, 70);
  EXPECT_EQ(prefill_.started[1].decode_engine, 3);
}

TEST_F(RouterTest, AFullEngineIsPassedByAndThenTheClientIsTold) {
  make({&prefill_, &prefill_two_, &decode_});
  prefill_.full = true;
  start();
  EXPECT_EQ(prefill_two_.started.size(), 1u);
  prefill_two_.full = true;
  EXPECT_EQ(submit(spec(5)).code(), base::StatusCode::kResourceExhausted);
  EXPECT_EQ(router_->live(), 1);
}

TEST_F(RouterTest, TokensComeInOrderAndOnceWhateverEnginesSay) {
  make({&prefill_, &decode_});
  const SequenceId id = start();
  token(decode_, id, 2);
  token(decode_, id, 1);
  token(prefill_, id, 0);
  token(prefill_, id, 0);
  token(decode_, id, 2);
  token(decode_, id, 3);
  pump();
  EXPECT_THAT(heard_[id].indices, ElementsAre(0, 1, 2, 3));
}

TEST_F(RouterTest, TheEndWaitsForPrefillsReportAndSumsBoth) {
  make({&prefill_, &decode_});
  const SequenceId id = start();
  token(prefill_, id, 0);
  token(decode_, id, 1);
  request::SequenceReport decode_share;
  decode_share.verified_steps = 3;
  say(decode_, request::SequenceFinished{id, request::FinishReason::kStop, decode_share});
  pump();
  EXPECT_TRUE(heard_[id].terminals.empty());
  request::SequenceReport prefill_share;
  prefill_share.prompt_tokens = 5;
  prefill_share.cached_tokens = 4;
  prefill_share.verified_steps = 2;
  prefill_share.handoff_pages = 6;
  say(prefill_, request::SequenceHandedOver{id, prefill_share});
  pump();
  ASSERT_EQ(heard_[id].terminals.size(), 1u);
  const request::SequenceReport& report = heard_[id].finished().report;
  EXPECT_EQ(report.prompt_tokens, 5);
  EXPECT_EQ(report.cached_tokens, 4);
  EXPECT_EQ(report.generated_tokens, 2);
  EXPECT_EQ(report.verified_steps, 5);
  EXPECT_EQ(report.handoff_pages, 6);
  EXPECT_EQ(report.prefill_kv, ops::KvFormat::kBF16);
  EXPECT_EQ(report.decode_kv, ops::KvFormat::kF8E4M3);
  EXPECT_EQ(router_->live(), 0);
  EXPECT_TRUE(prefill_.aborted.empty());
}

TEST_F(RouterTest, TheEndDoesNotWaitForASilentPrefillForEver) {
  make({&prefill_, &decode_});
  const SequenceId id = start();
  token(prefill_, id, 0);
  say(decode_, request::SequenceFinished{id, request::FinishReason::kLength, {}});
  pump();
  EXPECT_TRUE(heard_[id].terminals.empty());
  EXPECT_TRUE(prefill_.aborted.empty());
  clock_.advance(std::chrono::seconds(2));
  router_->pump(base::Nanoseconds(0));
  EXPECT_EQ(heard_[id].terminals.size(), 1u);
  // Nor does the prefill engine hold, or compute, for ever what is over.
  EXPECT_THAT(prefill_.aborted, ElementsAre(id));
}

TEST_F(RouterTest, TokensThatAreLostAreAnErrorAndNotAGap) {
  make({&unified_});
  const SequenceId id = start();
  token(unified_, id, 0);
  token(unified_, id, 2);
  say(unified_, request::SequenceFinished{id, request::FinishReason::kLength, {}});
  pump();
  clock_.advance(std::chrono::seconds(2));
  router_->pump(base::Nanoseconds(0));
  EXPECT_THAT(heard_[id].indices, ElementsAre(0));
  EXPECT_EQ(heard_[id].failed().status.code(), base::StatusCode::kInternal);
}

TEST_F(RouterTest, OneTerminalEventAlthoughBothEnginesFail) {
  make({&prefill_, &decode_});
  const SequenceId id = start();
  say(decode_, request::SequenceFailed{id, base::corruption("check"), {}});
  say(prefill_, request::SequenceFailed{id, base::unavailable("gone"), {}});
  token(decode_, id, 0);
  pump();
  ASSERT_EQ(heard_[id].terminals.size(), 1u);
  EXPECT_EQ(heard_[id].failed().status.code(), base::StatusCode::kCorruption);
  EXPECT_THAT(heard_[id].indices, ElementsAre());
  EXPECT_EQ(router_->snapshot().corrupted, 1);
  // Neither engine keeps anything of it.
  EXPECT_THAT(prefill_.aborted, ElementsAre(id));
  EXPECT_THAT(decode_.aborted, ElementsAre(id));
}

TEST_F(RouterTest, APrefillThatGivesUpAHandoffThatArrivedHarmsNobody) {
  make({&prefill_, &decode_});
  const SequenceId id = start();
  token(prefill_, id, 0);
  token(decode_, id, 1);
  say(prefill_, request::SequenceFailed{id, base::unavailable("no answer"), {}});
  token(decode_, id, 2);
  say(decode_, request::SequenceFinished{id, request::FinishReason::kLength, {}});
  pump();
  EXPECT_THAT(heard_[id].indices, ElementsAre(0, 1, 2));
  EXPECT_EQ(heard_[id].finished().reason, request::FinishReason::kLength);
}

// What it computed and emitted may be wrong, and so is what came of it.
TEST_F(RouterTest, APrefillThatFindsDamageEndsWhatTheDecodeEngineRuns) {
  for (const bool finished : {false, true}) {
    SCOPED_TRACE(finished);
    heard_.clear();
    make({&prefill_, &decode_});
    const SequenceId id = start();
    token(prefill_, id, 0);
    token(decode_, id, 1);
    if (finished) say(decode_, request::SequenceFinished{id, request::FinishReason::kLength, {}});
    pump();
    EXPECT_TRUE(heard_[id].terminals.empty());
    say(prefill_, request::SequenceFailed{id, base::corruption("check"), {}});
    pump();
    ASSERT_EQ(heard_[id].terminals.size(), 1u);
    EXPECT_EQ(heard_[id].failed().status.code(), base::StatusCode::kCorruption);
    EXPECT_EQ(decode_.aborted.back(), id);
  }
}

TEST_F(RouterTest, APreemptedSequenceIsStartedAgainOnceItsPrefillIsOver) {
  make({&prefill_, &decode_});
  const SequenceId id = start();
  token(prefill_, id, 0);
  token(decode_, id, 1);
  request::SequenceReport share;
  share.preemptions = 1;
  say(decode_, request::SequencePreempted{id, {100, 101}, share});
  pump();
  EXPECT_EQ(prefill_.started.size(), 1u);  // The first handoff has not ended there.
  say(prefill_, request::SequenceHandedOver{id, {}});
  pump();
  ASSERT_EQ(prefill_.started.size(), 2u);
  EXPECT_EQ(prefill_.started[1].spec.id, id);
  EXPECT_THAT(prefill_.started[1].generated, ElementsAre(100, 101));
  say(prefill_, request::SequenceHandedOver{id, {}});
  token(decode_, id, 2);
  say(decode_, request::SequenceFinished{id, request::FinishReason::kLength, {}});
  pump();
  EXPECT_THAT(heard_[id].indices, ElementsAre(0, 1, 2));
  EXPECT_EQ(heard_[id].finished().report.preemptions, 1);
  EXPECT_EQ(router_->snapshot().restarts, 1);
}

TEST_F(RouterTest, AnAbortedSequenceIsNotStartedAgain) {
  make({&prefill_, &decode_});
  const SequenceId id = start();
  say(decode_, request::SequencePreempted{id, {100}, {}});
  pump();
  router_->abort(id);
  say(prefill_, request::SequenceHandedOver{id, {}});
  pump();
  EXPECT_EQ(prefill_.started.size(), 1u);
  EXPECT_EQ(heard_[id].failed().status.code(), base::StatusCode::kCancelled);
  EXPECT_EQ(router_->snapshot().cancelled, 1);
  EXPECT_EQ(router_->snapshot().failed, 0);
}

TEST_F(RouterTest, AnAbortReachesEnginesWhoseQueueWasFull) {
  make({&prefill_, &decode_});
  const SequenceId id = start();
  prefill_.full = true;
  router_->abort(id);
  pump();
  EXPECT_EQ(heard_[id].terminals.size(), 1u);
  EXPECT_THAT(decode_.aborted, ElementsAre(id));
  EXPECT_THAT(prefill_.aborted, ElementsAre());
  prefill_.full = false;
  router_->pump(base::Nanoseconds(0));
  EXPECT_THAT(prefill_.aborted, ElementsAre(id));
}

TEST_F(RouterTest, PicksTheEngineThatHasThePrefixAndTheDecodeEngineWithTheFewestTokens) {
  make({&prefill_, &prefill_two_, &decode_, &decode_two_});
  const SequenceId first = start(40);
  ASSERT_EQ(prefill_.started.size(), 1u);
  start(8);
  ASSERT_EQ(prefill_two_.started.size(), 1u);  // The other one is busy.
  EXPECT_EQ(prefill_.started[0].decode_engine, 3);
  EXPECT_EQ(prefill_two_.started[0].decode_engine, 4);
  token(prefill_, first, 0);
  token(prefill_two_, first + 1, 0);
  pump();
  // The same 40 tokens again: only the first engine is believed to have all of them.
  start(40);
  EXPECT_EQ(prefill_.started.size(), 2u);
  EXPECT_EQ(prefill_.started[1].decode_engine, 4);
  router_->flush_prefix_cache();
  EXPECT_EQ(prefill_.flushes + prefill_two_.flushes + decode_.flushes, 3);
}

TEST_F(RouterTest, ReadinessTellsAnEngineThatHasEnded) {
  make({&unified_});
  EXPECT_TRUE(router_->readiness().ok());
  request::EngineStats ended;
  ended.device_failed = true;
  say(unified_, ended);
  pump();
  EXPECT_EQ(router_->readiness().code(), base::StatusCode::kUnavailable);
  EXPECT_THAT(router_->readiness().message(), HasSubstr("the device of engine 0 has failed"));
}

TEST_F(RouterTest, EnginesThatHaveEndedAreAskedLast) {
  make({&prefill_, &prefill_two_, &decode_, &decode_two_});
  request::EngineStats ended;
  ended.device_failed = true;
  say(prefill_, ended);
  say(decode_, ended);
  pump();
  for (int i = 0; i < 3; ++i) start(40);
  EXPECT_TRUE(prefill_.started.empty());
  ASSERT_EQ(prefill_two_.started.size(), 3u);
  for (const auto& command : prefill_two_.started) EXPECT_EQ(command.decode_engine, 4);
  // Their answer is better than none.
  say(prefill_two_, ended);
  say(decode_two_, ended);
  pump();
  start(40);
  EXPECT_EQ(prefill_.started.size(), 1u);
}

TEST_F(RouterTest, ReadinessTellsSilentEnginesAndWorkThatDoesNotAdvance) {
  make({&unified_}, {.stall_after = std::chrono::seconds(30), .silent_after = std::chrono::seconds(10)});
  EXPECT_TRUE(router_->readiness().ok());
  clock_.advance(std::chrono::seconds(11));
  EXPECT_THAT(router_->readiness().message(), HasSubstr("silent"));
  say(unified_, request::EngineStats{});
  pump();
  EXPECT_TRUE(router_->readiness().ok());
  const SequenceId id = start();
  for (int second = 0; second < 31; ++second) {
    clock_.advance(std::chrono::seconds(1));
    say(unified_, request::EngineStats{});
    pump();
  }
  EXPECT_THAT(router_->readiness().message(), HasSubstr("no token advanced"));
  token(unified_, id, 0);
  pump();
  EXPECT_TRUE(router_->readiness().ok());
  router_->begin_drain();
  EXPECT_THAT(router_->readiness().message(), HasSubstr("draining"));
}

TEST_F(RouterTest, SubscribersMaySubmitAndAbort) {
  make({&unified_});
  request::SequenceSpec one = spec(5);
  const SequenceId id = one.id;
  base::Status nested = base::internal_error("not called");
  ASSERT_TRUE(router_
                  ->submit(std::move(one),
                           [&](const SequenceEvent& event) {
                             if (std::holds_alternative<request::TokenEvent>(event)) {
                               nested = submit(spec(3));
                               router_->abort(id);
                             } else {
                               heard_[id].terminals.push_back(event);
                             }
                           })
                  .ok());
  token(unified_, id, 0);
  pump();
  EXPECT_TRUE(nested.ok());
  EXPECT_EQ(heard_[id].terminals.size(), 1u);
  EXPECT_THAT(unified_.aborted, ElementsAre(id));
}

TEST(PrefixEstimate, MatchesWholePagesOfTheSameTenantAndForgetsTheOldest) {
  PrefixEstimate estimate(4);
  const std::vector<std::int32_t> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9};
  estimate.remember(prefix_hashes("a", prompt, 4));
  EXPECT_EQ(estimate.match(prefix_hashes("a", prompt, 4)), 2);
  EXPECT_EQ(estimate.match(prefix_hashes("b", prompt, 4)), 0);
  const std::vector<std::int32_t> other{1, 2, 3, 4, 0, 6, 7, 8};
  EXPECT_EQ(estimate.match(prefix_hashes("a", other, 4)), 1);
  const std::vector<std::int32_t> filler(16, 9);
  estimate.remember(prefix_hashes("c", filler, 4));
  EXPECT_EQ(estimate.match(prefix_hashes("a", prompt, 4)), 0);
}

}  // namespace
}  // namespace tessera::router
