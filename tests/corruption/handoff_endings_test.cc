// Handoffs that end by damage while other things go on: what is said of them late, or not at all, harms nobody else,
// and a sequence is computed again only where it does not run already.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <tuple>
#include <utility>

#include "tessera/kv_transfer/wire.h"
#include "tests/serving/serving_harness.h"
#include "tests/support/fault_access.h"

namespace tessera::test_support {
namespace {

using kv_transfer::PeerId;
using testing::ElementsAreArray;

using Message = std::vector<std::byte>;

using Type = kv_transfer::wire::MessageType;

// Of damaged messages, too.
Type type_of(const Message& message) {
  std::uint16_t type = 0;
  std::memcpy(&type, message.data() + 6, sizeof type);
  return static_cast<Type>(type);
}

std::uint64_t handoff_of(const Message& message) {
  std::uint64_t handoff = 0;
  std::memcpy(&handoff, message.data() + 16, sizeof handoff);
  return handoff;
}

constexpr PeerId kPrefill = 1;
constexpr PeerId kDecode = 2;

std::int64_t quarantined(engine::Engine& engine) { return engine.loop().stats().pages_quarantined; }

void expect_balance(ServingHarness& harness) {
  harness.expect_pages_balance(quarantined(harness.first()), quarantined(harness.decode()));
}

// While a handoff waits for its data, a page of its prefix goes to quarantine through another holder, is audited and
// becomes somebody else's: that one does not hear of it when the handoff ends.
TEST(HandoffEndings, APageThatHasAnotherHolderByThenIsLeftAlone) {
  ServingHarness harness({});
  const auto common = make_prompt(1, 16);
  harness.submit(common, 2);
  harness.run_until_ended();  // Now the pages are cached on both engines.
  const auto with = [&](std::uint64_t seed) { return make_prompt_after(common, seed, 5); };
  const auto finder = harness.submit(with(2), 40);
  ASSERT_TRUE(harness.run_until([&] { return harness.tokens_so_far(finder).size() > 3; }));

  std::vector<Message> held;
  std::uint64_t held_handoff = 0;
  harness.transport().set_filter([&](PeerId from, PeerId to, Message message) {
    if (type_of(message) == Type::kPageData && (held_handoff == 0 || handoff_of(message) == held_handoff)) {
      held_handoff = handoff_of(message);
      held.push_back(std::move(message));
    } else {
      harness.transport().deliver(from, to, std::move(message));
    }
  });
  const auto receiver = harness.submit(with(3), 20);
  ASSERT_TRUE(harness.run_until([&] { return !held.empty(); }));

  kv_cache::PagePool& pool = harness.decode().loop().pool();
  kv_cache::PageId page = 1;
  while (pool.state(page) != kv_cache::PageState::kShared || pool.position(page) != 1) ++page;
  fault_injection::Access::tags(pool)[page] ^= 4;
  ASSERT_TRUE(harness.run_until([&] { return harness.heard(finder).ended(); }));
  harness.router().audit_quarantined_pages();
  ASSERT_TRUE(harness.run_until([&] { return quarantined(harness.decode()) == 0; }));

  const auto other_prompt = make_prompt(9, 41);
  const auto other = harness.submit(other_prompt, 30);
  ASSERT_TRUE(harness.run_until([&] { return harness.tokens_so_far(other).size() > 3; }));
  ASSERT_EQ(pool.state(page), kv_cache::PageState::kLive);

  harness.transport().set_filter({});
  for (Message& message : held) harness.transport().deliver(kPrefill, kDecode, std::move(message));
  harness.run_until_ended();
  ASSERT_TRUE(harness.heard(receiver).failed.has_value());
  EXPECT_EQ(harness.heard(receiver).failed->code(), base::StatusCode::kCorruption);
  EXPECT_THAT(harness.heard(other).ids(), ElementsAreArray(harness.expected(other_prompt, 30)));
  expect_balance(harness);
}

// The sender's lease is its pin: neither a flush of the prefix cache nor prompts that want every page of the pool take
// a page from a handoff that has not begun to be answered, or whose data is on its way.
TEST(HandoffEndings, PagesThatASenderReadsAreEvictedByNobody) {
  for (const Type type : {Type::kAccept, Type::kPageData}) {
    for (const bool flush : {false, true}) {
      SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", flush " << flush);
      HarnessOptions options;
      options.prefill_pages = 12;
      ServingHarness harness(options);
      std::vector<std::tuple<PeerId, PeerId, Message>> held;
      harness.transport().set_filter([&](PeerId from, PeerId to, Message message) {
        if (type_of(message) == type && (held.empty() || handoff_of(message) == handoff_of(std::get<2>(held[0])))) {
          held.emplace_back(from, to, std::move(message));
        } else {
          harness.transport().deliver(from, to, std::move(message));
        }
      });
      const auto prompt = make_prompt(1, 22);
      const auto id = harness.submit(prompt, 8);
      ASSERT_TRUE(harness.run_until([&] { return !held.empty(); }));
      const kv_cache::PagePool& pool = harness.first().loop().pool();
      std::vector<kv_cache::Lease> leases;
      for (kv_cache::PageId page = 1; page <= 12; ++page) {
        if (pool.lease_count(page) > 0) leases.push_back(pool.current_lease(page));
      }
      ASSERT_EQ(leases.size(), 6u);
      if (flush) harness.router().flush_prefix_cache();
      // The first gets what is left, the second has what the first left in the cache evicted, and the third wants more.
      std::vector<std::vector<std::int32_t>> prompts;
      std::vector<request::SequenceId> others;
      for (std::uint64_t i = 0; i < 3; ++i) {
        prompts.push_back(make_prompt(2 + i, i == 2 ? 40 : 22));
        others.push_back(harness.submit(prompts.back(), 8));
        if (i < 2) {
          ASSERT_TRUE(harness.run_until([&] { return harness.heard(others.back()).ended(); }));
        }
      }
      for (int turns = 0; turns < 50; ++turns) harness.turn();
      EXPECT_EQ(harness.first().loop().stats().waiting, 1);
      EXPECT_TRUE(harness.tokens_so_far(others[2]).empty());
      EXPECT_EQ(harness.tokens_so_far(id).size(), 1u);
      for (const kv_cache::Lease& lease : leases) {
        EXPECT_EQ(pool.current_lease(lease.page), lease);
        EXPECT_EQ(pool.lease_count(lease.page), 1);
      }
      harness.transport().set_filter({});
      for (auto& [from, to, message] : held) harness.transport().deliver(from, to, std::move(message));
      harness.run_until_ended();
      EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 8)));
      for (std::size_t i = 0; i < others.size(); ++i) {
        EXPECT_THAT(harness.heard(others[i]).ids(), ElementsAreArray(harness.expected(prompts[i], 8))) << i;
      }
      EXPECT_EQ(harness.first().loop().stats().handoffs_failed, 0);
      harness.expect_pages_balance();
    }
  }
}

HarnessOptions recomputing() {
  HarnessOptions options;
  options.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
  // Longer than the protocol waits before it says something again.
  options.handoff_timeout = std::chrono::seconds(2);
  return options;
}

// As if nothing had happened, but for so many recomputes.
void expect_mended(ServingHarness& harness, request::SequenceId id, const std::vector<std::int32_t>& prompt,
                   std::int32_t recomputes) {
  const Heard heard = harness.heard(id);
  EXPECT_EQ(heard.terminals, 1);
  EXPECT_FALSE(heard.failed.has_value()) << heard.failed->to_string();
  EXPECT_THAT(heard.ids(), ElementsAreArray(harness.expected(prompt, 8)));
  EXPECT_EQ(heard.report.integrity_recomputes, recomputes);
  EXPECT_EQ(harness.router().snapshot().failed, 0);
}

enum class Fate : std::uint8_t { kLost, kLate };

// Does so to the first message of a kind.
class Waylayer {
 public:
  Waylayer(ServingHarness& harness, Type type, Fate fate) : harness_(harness), type_(type), fate_(fate) {}
  bool reached() const { return reached_; }

  void pass(PeerId from, PeerId to, Message message) {
    if (!reached_ && type_of(message) == type_) {
      reached_ = true;
      if (fate_ == Fate::kLate) late_ = {from, to, std::move(message)};
      turns_ = 0;
      return;
    }
    harness_.transport().deliver(from, to, std::move(message));
  }
  // To be called every turn.
  void turn() {
    constexpr int kLateTurns = 100;  // Sooner than it is said again.
    if (late_.message.empty() || ++turns_ < kLateTurns) return;
    harness_.transport().deliver(late_.from, late_.to, std::exchange(late_.message, {}));
  }

 private:
  struct Kept {
    PeerId from = 0;
    PeerId to = 0;
    Message message;
  };
  ServingHarness& harness_;
  const Type type_;
  const Fate fate_;
  bool reached_ = false;
  Kept late_;
  int turns_ = 0;
};

// The prefill engine ends the handoff, because of a damaged Accept, and computes the sequence again sooner than the
// decode engine hears of the end. It is not offered again before.
TEST(HandoffEndings, ASequenceIsOfferedAgainOnlyWhenItsLastHandoffIsKnownToBeOver) {
  const auto prompt = make_prompt(1, 22);
  for (const Fate fate : {Fate::kLost, Fate::kLate}) {
    ServingHarness harness(recomputing());
    Waylayer waylayer(harness, Type::kAbort, fate);
    bool damaged = false;
    harness.transport().set_filter([&](PeerId from, PeerId to, Message message) {
      if (type_of(message) == Type::kAccept && !std::exchange(damaged, true)) message.back() ^= std::byte{1};
      waylayer.pass(from, to, std::move(message));
    });
    const auto id = harness.submit(prompt, 8);
    ASSERT_TRUE(harness.run_until([&] {
      waylayer.turn();
      return harness.live() == 0;
    }));
    harness.run_until_ended();
    EXPECT_TRUE(waylayer.reached());
    expect_mended(harness, id, prompt, 1);
    harness.run_until([&] { return quarantined(harness.decode()) == 0; });  // The fence.
    expect_balance(harness);
  }
}

// Damage that reaches the prefill engine when the decode engine may have committed says nothing of whether it has: its
// own word does.
TEST(HandoffEndings, DamageAfterTheCommitWaitsForThePeersWord) {
  const auto prompt = make_prompt(1, 22);
  enum class Peer : std::uint8_t { kDone, kDoneLost, kAborts, kAbortLost };
  for (const Peer peer : {Peer::kDone, Peer::kDoneLost, Peer::kAborts, Peer::kAbortLost}) {
    SCOPED_TRACE(static_cast<int>(peer));
    ServingHarness harness(recomputing());
    const bool aborts = peer == Peer::kAborts || peer == Peer::kAbortLost;
    Waylayer waylayer(harness, aborts ? Type::kAbort : Type::kDone, Fate::kLost);
    const bool lost = peer == Peer::kDoneLost || peer == Peer::kAbortLost;
    Message accept;
    bool committed = false;
    harness.transport().set_filter([&](PeerId from, PeerId to, Message message) {
      if (type_of(message) == Type::kAccept && accept.empty()) accept = message;
      const bool commits = type_of(message) == Type::kCommit && !std::exchange(committed, true);
      if (commits && aborts) message.back() ^= std::byte{1};
      if (lost) {
        waylayer.pass(from, to, std::move(message));
      } else {
        harness.transport().deliver(from, to, std::move(message));
      }
      if (!commits) return;
      Message again = accept;
      again.back() ^= std::byte{1};
      harness.transport().deliver(to, from, std::move(again));
    });
    const auto id = harness.submit(prompt, 8);
    harness.run_until_ended();
    EXPECT_TRUE(committed);
    EXPECT_EQ(waylayer.reached(), lost);
    expect_mended(harness, id, prompt, aborts ? 1 : 0);
    EXPECT_EQ(harness.first().loop().stats().handoffs_done, 1);
    EXPECT_EQ(harness.decode().loop().stats().handoffs_done, 1);
    harness.run_until([&] { return quarantined(harness.decode()) == 0; });  // The fence.
    expect_balance(harness);
  }
}

// A bit of each message's body in turn, while the word about an end is lost or late.
TEST(HandoffEndings, DamageWhileTheWordOfAnEndIsLostOrLate) {
  const auto prompt = make_prompt(1, 22);
  int both = 0;
  for (const Type type : {Type::kAbort, Type::kAbortAck, Type::kDone}) {
    for (const Fate fate : {Fate::kLost, Fate::kLate}) {
      bool all_seen = false;
      for (int n = 0; !all_seen; ++n) {
        SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", fate " << static_cast<int>(fate)
                                        << ", message " << n);
        ServingHarness harness(recomputing());
        Waylayer waylayer(harness, type, fate);
        int seen = 0;
        bool has_body = false;
        harness.transport().set_filter([&](PeerId from, PeerId to, Message message) {
          if (std::ssize(message) > kv_transfer::wire::kHeaderBytes && seen++ == n) {
            has_body = true;
            message.back() ^= std::byte{0x10};
          }
          waylayer.pass(from, to, std::move(message));
        });
        const auto id = harness.submit(prompt, 8);
        ASSERT_TRUE(harness.run_until([&] {
          waylayer.turn();
          return harness.live() == 0;
        }));
        harness.run_until_ended();
        all_seen = !has_body;
        both += has_body && waylayer.reached() ? 1 : 0;
        const Heard heard = harness.heard(id);
        expect_mended(harness, id, prompt, heard.report.integrity_recomputes);
        EXPECT_LE(heard.report.integrity_recomputes, 1);
        harness.run_until([&] {
          waylayer.turn();
          return quarantined(harness.decode()) == 0;
        });
        expect_balance(harness);
      }
    }
  }
  EXPECT_GT(both, 20);
}

// A header that was damaged names nobody: that its chunk is missing is noticed after the Commit, as loss.
TEST(HandoffEndings, AChunkThatNeverComesIsComputedAgain) {
  const auto prompt = make_prompt(1, 22);
  for (const std::size_t offset : {6u, 47u}) {
    ServingHarness harness(recomputing());
    bool damaged = false;
    harness.transport().set_filter([&](PeerId from, PeerId to, Message message) {
      if (type_of(message) == Type::kPageData && !std::exchange(damaged, true)) message[offset] ^= std::byte{0x20};
      harness.transport().deliver(from, to, std::move(message));
    });
    const auto id = harness.submit(prompt, 8);
    harness.run_until_ended();
    EXPECT_TRUE(damaged);
    expect_mended(harness, id, prompt, 1);
    EXPECT_EQ(harness.decode().loop().stats().check_failures, 1);
    harness.run_until([&] { return quarantined(harness.decode()) == 0; });  // The fence.
    expect_balance(harness);
  }
}

// Pages that a peer may still write to come back: who needs them waits.
TEST(HandoffEndings, PagesThatWaitForTheirFenceAreNotLost) {
  HarnessOptions options;
  options.pages = 8;
  ServingHarness harness(options);
  std::vector<std::tuple<PeerId, PeerId, Message>> held;
  bool holding = true;
  harness.transport().set_filter([&](PeerId from, PeerId to, Message message) {
    const Type type = type_of(message);
    if (holding && (type == Type::kPageData || type == Type::kAbort || type == Type::kAbortAck) && from == kPrefill) {
      held.emplace_back(from, to, std::move(message));
    } else {
      harness.transport().deliver(from, to, std::move(message));
    }
  });
  const auto gone = harness.submit(make_prompt(1, 22), 8);
  ASSERT_TRUE(harness.run_until([&] { return !held.empty(); }));
  harness.abort(gone);
  ASSERT_TRUE(harness.run_until([&] { return quarantined(harness.decode()) > 4; }));
  const std::int64_t waiting = quarantined(harness.decode());
  // An audit leaves them where they are.
  harness.router().audit_quarantined_pages();
  const auto prompt = make_prompt(2, 22);
  const auto id = harness.submit(prompt, 8);
  for (int i = 0; i < 300; ++i) harness.turn();
  EXPECT_EQ(harness.decode().loop().stats().audited_pages_kept, waiting);
  EXPECT_EQ(quarantined(harness.decode()), waiting);
  EXPECT_FALSE(harness.heard(id).ended());
  holding = false;
  for (auto& [from, to, message] : held) harness.transport().deliver(from, to, std::move(message));
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(prompt, 8)));
  EXPECT_EQ(harness.decode().loop().stats().audit_failures, 0);
  harness.expect_pages_balance();
}

}  // namespace
}  // namespace tessera::test_support
