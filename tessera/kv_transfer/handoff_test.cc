#include "tessera/kv_transfer/handoff.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/ops/page_transfer.h"

namespace tessera::kv_transfer {
namespace {

using base::StatusCode;
using Digests = std::vector<std::uint64_t>;

constexpr HandoffShape kShape{.kv_len = 130, .num_pages = 3, .num_layers = 2};
constexpr base::Nanoseconds kDeadline{1000};
const base::Status kReason(StatusCode::kCancelled, "gone");

TEST(SendHandoffTest, SendsLayerByLayerFromTheFirstWantedPage) {
  SendHandoff handoff(kShape, kDeadline);
  EXPECT_FALSE(handoff.next_chunk(2).has_value());
  ASSERT_TRUE(handoff.accept(1).ok());
  EXPECT_EQ(handoff.state(), SendState::kSending);
  EXPECT_FALSE(handoff.next_chunk(2).has_value());  // No layer is ready.
  handoff.layer_ready(0);
  EXPECT_EQ(handoff.next_chunk(8), (Chunk{0, 1, 2}));
  EXPECT_EQ(handoff.next_chunk(1), (Chunk{0, 1, 1}));
  handoff.chunk_sent({0, 1, 1}, Digests{5});
  EXPECT_EQ(handoff.next_chunk(2), (Chunk{0, 2, 1}));
  handoff.chunk_sent({0, 2, 1}, Digests{6});
  EXPECT_FALSE(handoff.next_chunk(2).has_value());
  EXPECT_FALSE(handoff.all_sent());
  handoff.layer_ready(1);
  handoff.layer_ready(0);  // Is known.
  EXPECT_EQ(handoff.next_chunk(2), (Chunk{1, 1, 2}));
  handoff.chunk_sent({1, 1, 2}, Digests{7, 8});
  EXPECT_TRUE(handoff.all_sent());
  EXPECT_EQ(handoff.combined_digest(), ops::digest_seed(5, 0, 1) + ops::digest_seed(6, 0, 2) +
                                           ops::digest_seed(7, 1, 1) + ops::digest_seed(8, 1, 2));
  EXPECT_EQ(handoff.done().code(), StatusCode::kInternal);  // Nobody asked it to commit.
  handoff.commit_sent();
  EXPECT_EQ(handoff.state(), SendState::kAwaitingCommit);
  ASSERT_TRUE(handoff.done().ok());
  EXPECT_TRUE(handoff.terminal());
}

TEST(SendHandoffTest, NothingWantedStillWaitsForAllLayers) {
  SendHandoff handoff(kShape, kDeadline);
  ASSERT_TRUE(handoff.accept(3).ok());
  handoff.layer_ready(0);
  EXPECT_FALSE(handoff.all_sent());
  handoff.layer_ready(1);
  EXPECT_TRUE(handoff.all_sent());
  EXPECT_FALSE(handoff.next_chunk(1).has_value());
  EXPECT_EQ(handoff.combined_digest(), 0u);
}

TEST(SendHandoffTest, RefusesWrongAnswers) {
  SendHandoff handoff(kShape, kDeadline);
  EXPECT_EQ(handoff.accept(-1).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(handoff.accept(4).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(handoff.state(), SendState::kOffered);
  ASSERT_TRUE(handoff.accept(0).ok());
  EXPECT_EQ(handoff.accept(0).code(), StatusCode::kInternal);
}

TEST(SendHandoffTest, TerminalStatesAreEnteredOnce) {
  SendHandoff aborted(kShape, kDeadline);
  EXPECT_FALSE(aborted.expired(base::Nanoseconds(999)));
  EXPECT_TRUE(aborted.expired(kDeadline));
  EXPECT_TRUE(aborted.abort(kReason));
  EXPECT_FALSE(aborted.abort(base::internal_error("again")));
  EXPECT_EQ(aborted.status(), kReason);
  EXPECT_FALSE(aborted.expired(kDeadline));
  EXPECT_EQ(aborted.accept(0).code(), StatusCode::kInternal);
  EXPECT_EQ(aborted.done().code(), StatusCode::kInternal);
  EXPECT_FALSE(aborted.next_chunk(1).has_value());
}

TEST(SendHandoffDeathTest, MisuseAborts) {
  SendHandoff handoff(kShape, kDeadline);
  EXPECT_DEATH(handoff.commit_sent(), "check failed");
  EXPECT_DEATH(handoff.layer_ready(2), "check failed");
  EXPECT_DEATH(handoff.abort({}), "needs a reason");
  ASSERT_TRUE(handoff.accept(0).ok());
  handoff.layer_ready(1);
  EXPECT_DEATH(handoff.chunk_sent({1, 0, 1}, Digests{1}), "check failed");
}

// A receiver that has accepted pages 1 and 2.
std::unique_ptr<ReceiveHandoff> accepted() {
  auto handoff = std::make_unique<ReceiveHandoff>(kShape, 42, kDeadline);
  handoff->accept(1);
  return handoff;
}

void store(ReceiveHandoff& handoff, const Chunk& chunk, const Digests& digests) {
  const auto kind = handoff.classify(chunk, digests);
  ASSERT_TRUE(kind.has_value()) << kind.error().to_string();
  ASSERT_EQ(*kind, ReceiveHandoff::ChunkKind::kNew);
  ASSERT_TRUE(handoff.stored(chunk, digests, digests).ok());
}

TEST(ReceiveHandoffTest, CommitsOnceEverythingCameInAnyOrder) {
  const std::uint64_t combined =
      ops::digest_seed(5, 0, 1) + ops::digest_seed(6, 0, 2) + ops::digest_seed(7, 1, 1) + ops::digest_seed(8, 1, 2);
  auto handoff = accepted();
  EXPECT_EQ(handoff->state(), ReceiveState::kAllocated);
  EXPECT_EQ(handoff->digest_key(), 42u);
  store(*handoff, {1, 1, 2}, {7, 8});
  EXPECT_EQ(handoff->state(), ReceiveState::kReceiving);
  ASSERT_TRUE(handoff->commit(combined).ok());
  ASSERT_TRUE(handoff->commit(combined).ok());
  EXPECT_FALSE(handoff->ready_to_verify());
  store(*handoff, {0, 2, 1}, {6});
  EXPECT_FALSE(handoff->ready_to_verify());
  store(*handoff, {0, 1, 1}, {5});
  EXPECT_TRUE(handoff->ready_to_verify());
  EXPECT_EQ(handoff->state(), ReceiveState::kVerifying);
  EXPECT_TRUE(handoff->ready_to_verify());
  EXPECT_EQ(handoff->classify({0, 1, 1}, Digests{5}), ReceiveHandoff::ChunkKind::kDuplicate);
  ASSERT_TRUE(handoff->verify().ok());
  handoff->committed();
  EXPECT_TRUE(handoff->terminal());
  EXPECT_FALSE(handoff->abort(kReason));
  EXPECT_EQ(handoff->state(), ReceiveState::kCommitted);
}

TEST(ReceiveHandoffTest, NothingToComeNeedsOnlyTheCommit) {
  ReceiveHandoff handoff(kShape, 42, kDeadline);
  handoff.accept(3);
  EXPECT_FALSE(handoff.ready_to_verify());
  ASSERT_TRUE(handoff.commit(0).ok());
  EXPECT_TRUE(handoff.ready_to_verify());
  EXPECT_TRUE(handoff.verify().ok());
}

TEST(ReceiveHandoffTest, RefusesChunksThatDoNotFit) {
  auto handoff = accepted();
  store(*handoff, {0, 1, 1}, {5});
  const auto code = [&](const Chunk& chunk, const Digests& digests) {
    const auto kind = handoff->classify(chunk, digests);
    return kind.has_value() ? StatusCode::kOk : kind.error().code();
  };
  // Nothing is looked up for a chunk outside: the message says that it was refused for that.
  const std::vector<std::pair<Chunk, Digests>> outside = {
      {{-1, 1, 1}, {5}},   {{2, 1, 1}, {5}}, {{0, 0, 1}, {5}},  // Not wanted.
      {{0, 2, 2}, {5, 6}}, {{0, 3, 1}, {5}}, {{0, 1, 0}, {}}};
  for (const auto& [chunk, digests] : outside) {
    const auto kind = handoff->classify(chunk, digests);
    ASSERT_FALSE(kind.has_value()) << chunk.layer << ", " << chunk.first_page << ", " << chunk.num_pages;
    EXPECT_EQ(kind.error().code(), StatusCode::kInternal);
    EXPECT_NE(kind.error().message().find("outside"), std::string_view::npos) << kind.error().message();
  }
  EXPECT_EQ(code({0, 1, 2}, {5, 6}), StatusCode::kInternal);  // In part there already.
  EXPECT_EQ(code({0, 1, 1}, {4}), StatusCode::kInternal);     // Another digest.
  EXPECT_EQ(code({0, 1, 1}, {5}), StatusCode::kOk);
  ReceiveHandoff offered(kShape, 42, kDeadline);
  EXPECT_FALSE(offered.classify({0, 1, 1}, Digests{5}).has_value());
  EXPECT_EQ(offered.commit(1).code(), StatusCode::kInternal);
}

TEST(ReceiveHandoffTest, WrongDigestsAreCorruption) {
  auto handoff = accepted();
  EXPECT_EQ(handoff->stored({0, 1, 2}, Digests{5, 6}, Digests{5, 7}).code(), StatusCode::kCorruption);
  auto other = accepted();
  store(*other, {0, 1, 2}, {5, 6});
  store(*other, {1, 1, 2}, {7, 8});
  ASSERT_TRUE(other->commit(1).ok());
  EXPECT_EQ(other->commit(2).code(), StatusCode::kInternal);
  ASSERT_TRUE(other->ready_to_verify());
  EXPECT_EQ(other->verify().code(), StatusCode::kCorruption);
  auto larger = accepted();
  store(*larger, {0, 1, 2}, {5, 6});
  store(*larger, {1, 1, 2}, {7, 8});
  ASSERT_TRUE(larger->commit(~std::uint64_t{0}).ok());
  ASSERT_TRUE(larger->ready_to_verify());
  EXPECT_EQ(larger->verify().code(), StatusCode::kCorruption);
}

TEST(ReceiveHandoffTest, AbortsFromEveryStateOnce) {
  const std::vector<std::function<void(ReceiveHandoff&)>> ways = {[](ReceiveHandoff&) {},
                                                                  [](ReceiveHandoff& h) { h.accept(1); },
                                                                  [](ReceiveHandoff& h) {
                                                                    h.accept(1);
                                                                    store(h, {0, 1, 1}, {5});
                                                                  },
                                                                  [](ReceiveHandoff& h) {
                                                                    h.accept(3);
                                                                    ASSERT_TRUE(h.commit(0).ok());
                                                                    ASSERT_TRUE(h.ready_to_verify());
                                                                  }};
  const std::vector<ReceiveState> states = {ReceiveState::kOffered, ReceiveState::kAllocated, ReceiveState::kReceiving,
                                            ReceiveState::kVerifying};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    ReceiveHandoff handoff(kShape, 42, kDeadline);
    ways[i](handoff);
    EXPECT_EQ(handoff.state(), states[i]);
    EXPECT_TRUE(handoff.expired(kDeadline));
    EXPECT_TRUE(handoff.abort(kReason));
    EXPECT_FALSE(handoff.abort(kReason));
    EXPECT_EQ(handoff.state(), ReceiveState::kAborted);
    EXPECT_EQ(handoff.status(), kReason);
    EXPECT_FALSE(handoff.expired(kDeadline));
    EXPECT_FALSE(handoff.ready_to_verify());
    EXPECT_EQ(handoff.commit(0).code(), StatusCode::kInternal);
  }
}

TEST(ReceiveHandoffDeathTest, MisuseAborts) {
  auto handoff = accepted();
  EXPECT_DEATH(handoff->accept(1), "allocated");
  EXPECT_DEATH(handoff->committed(), "check failed");
  EXPECT_DEATH(static_cast<void>(handoff->verify()), "check failed");
}

}  // namespace
}  // namespace tessera::kv_transfer
