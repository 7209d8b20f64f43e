// A failed check that is answered by computing again: whatever the sequence asked for, wherever it stood, its client
// hears what an undisturbed run gives; and where that cannot be, it hears the error once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>

#include "tessera/kv_transfer/wire.h"
#include "tests/serving/serving_harness.h"
#include "tests/support/fault_access.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

// Damages the tag of one page of whoever computes a row that it was told to wait for, so many times.
class Damager final : public engine::StepObserver {
 public:
  // Rows of that sequence that begin at `start` or later.
  void wait_for(request::SequenceId id, std::int64_t start, std::int64_t times = 1) {
    id_ = id;
    start_ = start;
    left_ = times;
  }
  std::int64_t damaged() const { return damaged_; }
  // Whether it has computed anything since it was last damaged.
  bool ran_since_damage() const { return ran_; }

  void before_check(const engine::StepView& step) override {
    for (const engine::StepRowView& row : step.rows) {
      if (row.id == id_) ran_ = true;
      if (left_ == 0 || row.id != id_ || row.start < start_) continue;
      ran_ = false;
      fault_injection::Access::tags(step.pool)[row.leases.back().page] ^= 16;
      ++damaged_;
      --left_;
    }
  }
  void before_second_check(const engine::StepView&) override {}

 private:
  request::SequenceId id_ = 0;
  std::int64_t start_ = 0;
  std::int64_t left_ = 0;
  std::int64_t damaged_ = 0;
  bool ran_ = false;
};

enum class Where : std::uint8_t { kUnified, kPrefill, kDecode };
constexpr Where kEverywhere[] = {Where::kUnified, Where::kPrefill, Where::kDecode};

HarnessOptions options_for(Where where, Damager& damager) {
  HarnessOptions options;
  options.pools = where == Where::kUnified ? Pools::kUnified : Pools::kSplit;
  options.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
  (where == Where::kDecode ? options.decode_observer : options.first_observer) = &damager;
  return options;
}

engine::Engine& engine_of(ServingHarness& harness, Where where) {
  return where == Where::kDecode ? harness.decode() : harness.first();
}

// Nothing leased; what is in quarantine is there because of the damage.
void expect_balance(ServingHarness& harness, Where where) {
  const std::int64_t quarantined = engine_of(harness, where).loop().stats().pages_quarantined;
  EXPECT_GT(quarantined, 0);
  harness.expect_pages_balance(where == Where::kDecode ? 0 : quarantined, where == Where::kDecode ? quarantined : 0);
}

// Sampling with temperature and seed, log-probabilities, several choices of one prompt, a stop token: everything as in
// a run in which nothing was damaged.
TEST(Recompute, WhateverTheSequenceAskedForIsAsUndisturbed) {
  const auto prompt = make_prompt(3, 21);
  for (const Where where : kEverywhere) {
    Damager damager;
    const HarnessOptions options = options_for(where, damager);
    const auto submit_all = [&](ServingHarness& harness) {
      std::vector<request::SequenceId> ids;
      for (int i = 0; i < 4; ++i) {
        request::SamplingParams sampling;
        sampling.max_tokens = 18;
        sampling.temperature = 0.9f;
        sampling.top_p = 0.95f;
        sampling.top_k = 40;
        sampling.seed = 77 + static_cast<std::uint64_t>(i);
        sampling.logprobs = true;
        sampling.top_logprobs = 4;
        if (i == 3) sampling.stop_token_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
        ids.push_back(harness.submit(prompt, sampling));
      }
      return ids;
    };
    ServingHarness undisturbed(options);
    const auto right = submit_all(undisturbed);
    undisturbed.run_until_ended();
    ASSERT_EQ(undisturbed.heard(right[3]).finished, request::FinishReason::kStop);
    ASSERT_GT(undisturbed.heard(right[3]).tokens.size(), 2u);
    for (std::size_t victim = 0; victim < right.size(); ++victim) {
      ServingHarness harness(options);
      const auto ids = submit_all(harness);
      const auto length = std::ssize(undisturbed.heard(right[victim]).tokens);
      damager.wait_for(ids[victim], where == Where::kPrefill ? 0 : std::ssize(prompt) + length / 2);
      const std::int64_t before = damager.damaged();
      harness.run_until_ended();
      ASSERT_EQ(damager.damaged(), before + 1);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const Heard heard = harness.heard(ids[i]);
        const Heard want = undisturbed.heard(right[i]);
        EXPECT_EQ(heard.terminals, 1);
        EXPECT_EQ(heard.finished, want.finished);
        EXPECT_EQ(heard.report.integrity_recomputes, i == victim ? 1 : 0);
        ASSERT_EQ(heard.tokens.size(), want.tokens.size());
        for (std::size_t t = 0; t < want.tokens.size(); ++t) {
          EXPECT_EQ(heard.tokens[t].index, static_cast<std::int32_t>(t));
          EXPECT_EQ(heard.tokens[t].token, want.tokens[t].token);
          EXPECT_EQ(heard.tokens[t].logprob, want.tokens[t].logprob);
          ASSERT_EQ(heard.tokens[t].top_logprobs.size(), 4u);
          for (std::size_t k = 0; k < 4; ++k) {
            EXPECT_EQ(heard.tokens[t].top_logprobs[k].token, want.tokens[t].top_logprobs[k].token);
            EXPECT_EQ(heard.tokens[t].top_logprobs[k].logprob, want.tokens[t].top_logprobs[k].logprob);
          }
        }
      }
      expect_balance(harness, where);
    }
  }
}

// Damage that comes back every time: after so many recomputes, counted over all engines that the sequence passed
// through, the client hears the error.
TEST(Recompute, EndsWithTheErrorAtItsLimit) {
  const auto prompt = make_prompt(1, 13);
  for (const Where where : kEverywhere) {
    for (const std::int32_t limit : {0, 1, 3}) {
      Damager damager;
      HarnessOptions options = options_for(where, damager);
      options.integrity.recomputes_max = limit;
      ServingHarness harness(options);
      const auto id = harness.submit(prompt, 12);
      damager.wait_for(id, where == Where::kPrefill ? 0 : std::ssize(prompt) + 3,
                       std::numeric_limits<std::int64_t>::max());
      harness.run_until_ended();
      EXPECT_EQ(damager.damaged(), limit + 1);
      const Heard heard = harness.heard(id);
      EXPECT_EQ(heard.terminals, 1);
      ASSERT_TRUE(heard.failed.has_value());
      EXPECT_EQ(heard.failed->code(), base::StatusCode::kCorruption);
      EXPECT_EQ(heard.report.integrity_recomputes, limit);
      const auto right = harness.expected(prompt, 12);
      EXPECT_THAT(heard.ids(), ElementsAreArray(right.begin(), right.begin() + std::ssize(heard.tokens)));
      // Every replay ends with one token more.
      EXPECT_EQ(std::ssize(heard.tokens), where == Where::kPrefill ? 0 : 4 + limit);
      EXPECT_EQ(engine_of(harness, where).loop().stats().check_failures, limit + 1);
      EXPECT_EQ(harness.router().snapshot().corrupted, 1);
      expect_balance(harness, where);
    }
  }
}

// Damage on the prefill engine, then on the decode engine: one sequence's recomputes, wherever they were.
TEST(Recompute, TheCountSurvivesTheHop) {
  for (const std::int32_t limit : {1, 2}) {
    Damager at_prefill;
    Damager at_decode;
    HarnessOptions options = options_for(Where::kPrefill, at_prefill);
    options.decode_observer = &at_decode;
    options.integrity.recomputes_max = limit;
    ServingHarness harness(options);
    const auto prompt = make_prompt(1, 13);
    const auto id = harness.submit(prompt, 12);
    at_prefill.wait_for(id, 0);
    at_decode.wait_for(id, std::ssize(prompt) + 3);
    harness.run_until_ended();
    EXPECT_EQ(at_prefill.damaged() + at_decode.damaged(), 2);
    const Heard heard = harness.heard(id);
    EXPECT_EQ(heard.failed.has_value(), limit == 1);
    EXPECT_EQ(heard.report.integrity_recomputes, limit);
    const auto right = harness.expected(prompt, 12);
    EXPECT_THAT(heard.ids(), ElementsAreArray(right.begin(), limit == 1 ? right.begin() + 4 : right.end()));
  }
}

// The client leaves at any moment around the damage and the recompute.
TEST(Recompute, TheClientMayLeaveAtAnyMoment) {
  const auto prompt = make_prompt(1, 22);
  const auto neighbour_prompt = make_prompt(2, 9);
  for (const Where where : kEverywhere) {
    bool ended_by_itself = false;
    int cancelled_after_damage = 0;
    for (int turns = 0; !ended_by_itself; ++turns) {
      ASSERT_LT(turns, 400);
      Damager damager;
      HarnessOptions options = options_for(where, damager);
      options.chunk = 8;
      ServingHarness harness(options);
      const auto neighbour = harness.submit(neighbour_prompt, 12);
      const auto id = harness.submit(prompt, 6);
      damager.wait_for(id, where == Where::kPrefill ? 8 : std::ssize(prompt) + 2);
      for (int i = 0; i < turns; ++i) harness.turn();
      ended_by_itself = harness.heard(id).ended();
      harness.abort(id);
      harness.run_until_ended();
      const Heard heard = harness.heard(id);
      EXPECT_EQ(heard.terminals, 1) << "after " << turns << " turns";
      EXPECT_EQ(heard.after_terminal, 0) << "after " << turns << " turns";
      if (heard.failed.has_value()) {
        EXPECT_EQ(heard.failed->code(), base::StatusCode::kCancelled);
        cancelled_after_damage += damager.damaged() > 0 ? 1 : 0;
      }
      EXPECT_THAT(harness.heard(neighbour).ids(), ElementsAreArray(harness.expected(neighbour_prompt, 12)));
      harness.expect_pages_balance(harness.first().loop().stats().pages_quarantined,
                                   harness.decode().loop().stats().pages_quarantined);
    }
    EXPECT_GT(cancelled_after_damage, 3);
  }
}

// No room to go on at once: the sequence waits its turn, which is by its age, as after a preemption.
TEST(Recompute, WaitsForRoomInAFullPool) {
  for (const Where where : kEverywhere) {
    Damager damager;
    HarnessOptions options = options_for(where, damager);
    options.pages = 26;
    options.prefill_pages = 16;
    ServingHarness harness(options);
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<request::SequenceId> ids;
    for (std::uint64_t i = 0; i < 8; ++i) {
      prompts.push_back(make_prompt(20 + i, 14 + static_cast<std::int64_t>(i)));
      ids.push_back(harness.submit(prompts.back(), 20));
    }
    damager.wait_for(ids[2], where == Where::kPrefill ? 0 : std::ssize(prompts[2]) + 4, 2);
    // With room it would be computing again in the next turn, and have waited for one.
    int turns_without_room = 0;
    for (int turns = 0; harness.live() > 0; ++turns) {
      ASSERT_LT(turns, 200'000);
      harness.turn();
      const bool waits = damager.damaged() > 0 && !damager.ran_since_damage();
      if (waits && engine_of(harness, where).loop().stats().waiting > 0) ++turns_without_room;
    }
    harness.run_until_ended();
    ASSERT_EQ(damager.damaged(), 2);
    EXPECT_GE(turns_without_room, 2);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_THAT(harness.heard(ids[i]).ids(), ElementsAreArray(harness.expected(prompts[i], 20))) << i;
    }
    expect_balance(harness, where);
  }
}

// So many pages went to quarantine that it fits no more: the error of the check, not a wait without end. After the
// audit it fits.
TEST(Recompute, WhoFitsNoMoreIsToldSoUntilTheAudit) {
  Damager damager;
  HarnessOptions options = options_for(Where::kUnified, damager);
  options.pages = 8;
  ServingHarness harness(options);
  const auto prompt = make_prompt(1, 21);
  const auto id = harness.submit(prompt, 11);
  damager.wait_for(id, 26);
  harness.run_until_ended();
  ASSERT_TRUE(harness.heard(id).failed.has_value());
  EXPECT_EQ(harness.heard(id).failed->code(), base::StatusCode::kCorruption);
  EXPECT_EQ(harness.heard(id).report.integrity_recomputes, 1);
  EXPECT_EQ(harness.router().snapshot().corrupted, 1);
  const std::int64_t quarantined = harness.first().loop().stats().pages_quarantined;
  EXPECT_GT(quarantined, 0);

  harness.router().audit_quarantined_pages();
  for (int i = 0; i < 10; ++i) harness.turn();
  const request::EngineStats stats = harness.first().loop().stats();
  EXPECT_EQ(stats.pages_quarantined, 0);
  EXPECT_EQ(stats.audited_pages_freed, quarantined);
  EXPECT_EQ(stats.audited_pages_kept, 0);
  const auto again = harness.submit(prompt, 11);
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(again).ids(), ElementsAreArray(harness.expected(prompt, 11)));
  harness.expect_pages_balance();
}

// ---- Between the pools ----

using Message = std::vector<std::byte>;

// A bit of every message's body in turn: what one retry can mend is mended, and nothing wrong is heard.
TEST(Recompute, AHandoffDamagedOnTheWireIsDoneAgain) {
  const auto prompt = make_prompt(1, 22);
  std::set<int>
      mended;  // Kinds of messages (docs/kv_page.md numbers them) whose damage had the sequence computed again.
  std::set<int> harmless;  // Likewise, that were said again, or were not missed.
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 100);
    HarnessOptions options;
    options.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
    options.handoff_timeout = std::chrono::seconds(1);
    ServingHarness harness(options);
    int seen = 0;
    int type = 0;
    bool has_body = false;
    bool reached = false;
    harness.transport().set_filter([&](auto from, auto to, Message message) {
      if (seen++ == n) {
        reached = true;
        type = static_cast<int>(message[6]);
        has_body = std::ssize(message) > kv_transfer::wire::kHeaderBytes;
        message.back() ^= std::byte{0x10};
      }
      harness.transport().deliver(from, to, std::move(message));
    });
    const auto id = harness.submit(prompt, 8);
    harness.run_until_ended();
    if (!reached) break;
    const Heard heard = harness.heard(id);
    EXPECT_EQ(heard.terminals, 1) << n;
    EXPECT_TRUE(heard.finished.has_value()) << n << ": " << heard.failed->to_string();
    EXPECT_THAT(heard.ids(), ElementsAreArray(harness.expected(prompt, 8))) << n;
    EXPECT_LE(heard.report.integrity_recomputes, has_body ? 1 : 0) << n;
    (heard.report.integrity_recomputes > 0 ? mended : harmless).insert(type);
    harness.run_until([&] { return harness.decode().loop().stats().pages_quarantined == 0; });  // The fence.
    harness.expect_pages_balance();
  }
  // Accept, PageData, Commit; and Hello and Offer, which nobody acts on before they are whole, and Done, which has no
  // body, so that its header is damaged and names nobody.
  EXPECT_THAT(mended, testing::ElementsAre(3, 5, 6));
  EXPECT_THAT(harmless, testing::ElementsAre(1, 2, 7));
}

TEST(Recompute, AWireThatDamagesEverythingEndsInTheError) {
  HarnessOptions options;
  options.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
  ServingHarness harness(options);
  harness.transport().set_filter([&](auto from, auto to, Message message) {
    constexpr std::size_t kTypeOffset = 6;
    constexpr std::byte kPageData{5};
    if (message[kTypeOffset] == kPageData) message.back() ^= std::byte{1};
    harness.transport().deliver(from, to, std::move(message));
  });
  const auto id = harness.submit(make_prompt(1, 22), 8);
  harness.run_until_ended();
  const Heard heard = harness.heard(id);
  EXPECT_EQ(heard.terminals, 1);
  ASSERT_TRUE(heard.failed.has_value());
  EXPECT_EQ(heard.failed->code(), base::StatusCode::kCorruption);
  EXPECT_EQ(heard.report.integrity_recomputes, 3);
  EXPECT_EQ(harness.router().snapshot().corrupted, 1);
  harness.run_until([&] { return harness.decode().loop().stats().pages_quarantined == 0; });  // The fence.
  harness.expect_pages_balance();
}

}  // namespace
}  // namespace tessera::test_support
