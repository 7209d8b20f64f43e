// Offers that wait for pages: however long that takes, as long as both sides show life.
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/handoff_pair.h"

namespace tessera::kv_transfer {
namespace {

using base::StatusCode;
using tests::HandoffPair;
using tests::kPrefillPeer;
using tests::OnOffer;

// A pair whose receiver keeps an offer waiting, and the offer.
struct QueuedOffer {
  QueuedOffer() {
    pair.on_offer = OnOffer::kWait;
    id = pair.offer(pair.prefill(65), 65);
    pair.steps(5);
    EXPECT_EQ(pair.sender->state(id), SendState::kQueued);
    EXPECT_EQ(pair.receiver->state({kPrefillPeer, id}), ReceiveState::kOffered);
  }
  HandoffKey key() const { return {kPrefillPeer, id}; }

  HandoffPair pair;
  HandoffId id = 0;
};

// The timeout is a second; the decode engine has no room for half a minute, and shows life.
TEST(HandoffQueue, QueuedOfferWaitsForRoomLongerThanTheTimeout) {
  QueuedOffer offer;
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
  offer.pair.transport->set_filter([&](PeerId from, PeerId to, std::vector<std::byte> message) {
    ++messages;
    bytes += std::ssize(message);
    offer.pair.transport->deliver(from, to, std::move(message));
  });
  for (int i = 0; i < 3000; ++i) {
    offer.pair.clock.advance(base::Nanoseconds(10'000'000));
    offer.pair.step();
  }
  EXPECT_EQ(offer.pair.sender->state(offer.id), SendState::kQueued);
  // A question and its answer four times a second, and nothing else: the offer itself is not sent again.
  EXPECT_GE(messages, 200);
  EXPECT_LE(messages, 250);
  EXPECT_EQ(bytes, messages * wire::kHeaderBytes);
  offer.pair.accept(offer.key());
  offer.pair.run_out();
  EXPECT_EQ(offer.pair.send_events.at(offer.id).outcome, SendOutcome::kDone);
  EXPECT_TRUE(offer.pair.committed.contains(offer.key()));
  offer.pair.expect_balance();
}

TEST(HandoffQueue, QueuedOfferEndsWhenTheReceiverFallsSilent) {
  QueuedOffer offer;
  for (int i = 0; i < 150; ++i) {
    offer.pair.clock.advance(base::Nanoseconds(10'000'000));
    offer.pair.step_sender();
  }
  EXPECT_EQ(offer.pair.send_events.at(offer.id).status.code(), StatusCode::kDeadlineExceeded);
  offer.pair.run_out();
  EXPECT_TRUE(offer.pair.aborted.at(offer.key()).quarantine.empty());
  // The engine answers too late.
  offer.pair.accept(offer.key());
  offer.pair.expect_balance();
}

TEST(HandoffQueue, QueuedOfferEndsWhenTheSenderFallsSilent) {
  QueuedOffer offer;
  for (int i = 0; i < 150; ++i) {
    offer.pair.clock.advance(base::Nanoseconds(10'000'000));
    offer.pair.step_receiver();
  }
  ASSERT_TRUE(offer.pair.aborted.contains(offer.key()));
  EXPECT_EQ(offer.pair.aborted.at(offer.key()).status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(offer.pair.aborted.at(offer.key()).quarantine.empty());
  offer.pair.run_out();
  EXPECT_EQ(offer.pair.send_events.at(offer.id).outcome, SendOutcome::kAborted);
  offer.pair.expect_balance();
}

// What keeps the prefill engine busy is not the decode engine's silence.
TEST(HandoffQueue, ASenderThatStoodStillItselfDoesNotBlameTheReceiver) {
  QueuedOffer offer;
  offer.pair.clock.advance(base::Nanoseconds(5'000'000'000));
  offer.pair.steps(1);
  EXPECT_TRUE(offer.pair.send_events.empty());
}

TEST(HandoffQueue, TheAcceptanceOfAQueuedOfferMayGetLost) {
  QueuedOffer offer;
  offer.pair.transport->set_filter([](PeerId, PeerId, const std::vector<std::byte>&) {});
  offer.pair.accept(offer.key());
  offer.pair.transport->set_filter({});
  EXPECT_EQ(offer.pair.sender->state(offer.id), SendState::kQueued);
  offer.pair.run_out();
  EXPECT_EQ(offer.pair.send_events.at(offer.id).outcome, SendOutcome::kDone);
  offer.pair.expect_balance();
}

TEST(HandoffQueue, ARestartedReceiverIsOfferedAgainWhatItHadQueued) {
  QueuedOffer offer;
  offer.pair.on_offer = OnOffer::kAccept;
  offer.pair.offers.clear();
  offer.pair.start_decode();
  offer.pair.run_out();
  EXPECT_EQ(offer.pair.send_events.at(offer.id).outcome, SendOutcome::kDone)
      << offer.pair.send_events[offer.id].status.to_string();
  offer.pair.expect_balance();
}

}  // namespace
}  // namespace tessera::kv_transfer
