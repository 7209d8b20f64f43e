// The lives of handoffs and of the engines at their ends: aborts in every state, deadlines, peers that stop or start
// again, pools that run out, pages that fail their check.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/support/failing_backend.h"
#include "tests/support/fault_access.h"
#include "tests/support/handoff_pair.h"

namespace tessera::kv_transfer {
namespace {

using base::StatusCode;
using tests::HandoffPair;
using tests::HandoffPairOptions;
using tests::kDecodePeer;
using tests::kPrefillPeer;
using tests::Lease;
using tests::OnOffer;

// Everything in the smallest steps, so that every state can be met.
HandoffPairOptions small_steps() {
  HandoffPairOptions options;
  options.sender.chunks_per_tick = 1;
  options.receiver.messages_per_tick = 1;
  return options;
}

// Half steps: the sender's loop and the receiver's in turn.
void half_step(HandoffPair& pair, int i) {
  if (i % 2 == 0) {
    pair.step_sender();
  } else {
    pair.step_receiver();
  }
}

TEST(HandoffLives, AbortInEveryState) {
  const base::Status reason(StatusCode::kCancelled, "the client left");
  std::set<SendState> send_states;
  std::set<ReceiveState> receive_states;
  for (int variant = 0; variant < 4; ++variant) {
    const bool by_sender = variant % 2 == 0;
    for (int half_steps = 0; half_steps < 40; ++half_steps) {
      HandoffPair pair(small_steps());
      const std::vector<Lease> leases = pair.prefill(200);
      const HandoffId id = pair.offer(leases, 200);
      const HandoffKey key{kPrefillPeer, id};
      pair.on_offer = variant < 2 ? OnOffer::kWait : OnOffer::kAccept;
      for (int i = 0; i < half_steps; ++i) half_step(pair, i);
      if (by_sender) {
        if (const auto state = pair.sender->state(id)) send_states.insert(*state);
        pair.sender->abort(id, reason);
        pair.sender->abort(id, reason);
      } else {
        if (const auto state = pair.receiver->state(key)) receive_states.insert(*state);
        pair.receiver->abort(key, reason);
        pair.receiver->abort(key, reason);
      }
      pair.on_offer = OnOffer::kAccept;
      pair.run_out();
      SCOPED_TRACE(std::to_string(half_steps) + (by_sender ? " by sender" : " by receiver"));
      ASSERT_TRUE(pair.send_events.contains(id));
      if (pair.send_events.at(id).outcome == SendOutcome::kDone) {
        EXPECT_TRUE(pair.committed.contains(key));
      }
      if (pair.offers.contains(key)) {
        EXPECT_NE(pair.committed.contains(key), pair.aborted.contains(key));
      }
      pair.expect_balance();
    }
  }
  EXPECT_EQ(send_states,
            (std::set{SendState::kOffered, SendState::kQueued, SendState::kSending, SendState::kAwaitingCommit}));
  // kVerifying begins and ends within a tick.
  EXPECT_EQ(receive_states, (std::set{ReceiveState::kOffered, ReceiveState::kAllocated, ReceiveState::kReceiving}));
}

TEST(HandoffLives, RejectEndsIt) {
  HandoffPair pair;
  pair.on_offer = OnOffer::kReject;
  const HandoffId id = pair.offer(pair.prefill(65), 65);
  pair.run_out();
  EXPECT_EQ(pair.send_events.at(id).status, base::resource_exhausted("the decode pool is full"));
  EXPECT_TRUE(pair.aborted.empty());
  pair.expect_balance();
}

TEST(HandoffLives, ReceiverIsNoMorePatientThanTheSender) {
  HandoffPairOptions options;
  options.receiver.timeout = base::Nanoseconds(3'600'000'000'000);
  HandoffPair pair(options);
  pair.on_offer = OnOffer::kWait;
  const HandoffId id = pair.offer(pair.prefill(65), 65);
  pair.steps(5);
  pair.sender->abort(id, base::Status(StatusCode::kCancelled, "x"));
  pair.transport->set_filter([](PeerId, PeerId, const std::vector<std::byte>&) {});  // Nobody hears of it.
  EXPECT_EQ(pair.receiver->next_deadline(), base::Nanoseconds(1'000'000'000));
  pair.clock.advance(base::Nanoseconds(1'000'000'000));
  pair.transport->set_filter({});
  pair.run_out();
  pair.expect_balance();
}

TEST(HandoffLives, StoppedSenderIsGivenUp) {
  HandoffPair pair(small_steps());
  const HandoffId id = pair.offer(pair.prefill(200), 200);
  for (int i = 0; i < 14; ++i) half_step(pair, i);
  const HandoffKey key{kPrefillPeer, id};
  ASSERT_EQ(pair.receiver->state(key), ReceiveState::kReceiving);
  // The prefill engine stands still; the decode engine goes on alone.
  for (int i = 0; i < 300; ++i) {
    pair.step_receiver();
    pair.clock.advance(base::Nanoseconds(5'000'000));
  }
  EXPECT_EQ(pair.aborted.at(key).status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(pair.decode_pool->counts().quarantined, 4);
  // It comes back.
  pair.run_out();
  EXPECT_EQ(pair.send_events.at(id).outcome, SendOutcome::kAborted);
  pair.expect_balance();
}

TEST(HandoffLives, StoppedReceiverIsGivenUp) {
  HandoffPair pair(small_steps());
  const HandoffId id = pair.offer(pair.prefill(200), 200);
  for (int i = 0; i < 14; ++i) half_step(pair, i);
  for (int i = 0; i < 300; ++i) {
    pair.step_sender();
    pair.clock.advance(base::Nanoseconds(5'000'000));
  }
  EXPECT_EQ(pair.send_events.at(id).status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(pair.sender->live(), 0);
  pair.run_out();
  pair.expect_balance();
}

TEST(HandoffLives, PrefillEngineDiesAtAnyTime) {
  for (int half_steps = 0; half_steps < 40; ++half_steps) {
    HandoffPair pair(small_steps());
    const HandoffId id = pair.offer(pair.prefill(200), 200);
    for (int i = 0; i < half_steps; ++i) half_step(pair, i);
    const bool had_ended = pair.send_events.contains(id);
    pair.stop_prefill();
    pair.run_out();
    SCOPED_TRACE(half_steps);
    const HandoffKey key{kPrefillPeer, id};
    if (pair.offers.contains(key)) {
      EXPECT_NE(pair.committed.contains(key), pair.aborted.contains(key));
    }
    if (pair.aborted.contains(key)) {
      EXPECT_EQ(pair.aborted.at(key).status.code(), StatusCode::kUnavailable);
      EXPECT_TRUE(pair.aborted.at(key).quarantine.empty());  // Who is gone writes nothing.
    }
    // Its pool dies with it.
    if (!had_ended) {
      for (const Lease& lease : pair.sending.at(id)) EXPECT_TRUE(pair.prefill_pool->release(*pair.stream, lease).ok());
    }
    pair.expect_balance();
  }
}

TEST(HandoffLives, DecodeEngineDiesAtAnyTime) {
  for (int half_steps = 0; half_steps < 40; ++half_steps) {
    HandoffPair pair(small_steps());
    const HandoffId id = pair.offer(pair.prefill(200), 200);
    for (int i = 0; i < half_steps; ++i) half_step(pair, i);
    pair.stop_decode();
    pair.run_out();
    SCOPED_TRACE(half_steps);
    ASSERT_TRUE(pair.send_events.contains(id));
    HandoffRequest request;
    request.id = 1000;
    request.peer = kDecodePeer;
    const std::vector<Lease> leases = pair.prefill(10);
    request.leases = leases;
    request.kv_len = 10;
    EXPECT_EQ(pair.sender->offer(request).code(), StatusCode::kUnavailable);
    EXPECT_TRUE(pair.prefill_pool->release(*pair.stream, leases[0]).ok());
    EXPECT_EQ(pair.sender->live(), 0);
    EXPECT_EQ(pair.prefill_pool->counts().leased, 0);
  }
}

TEST(HandoffLives, RestartedPrefillEngineIsANewOne) {
  HandoffPair pair(small_steps());
  const HandoffId lost = pair.offer(pair.prefill(200), 200);
  for (int i = 0; i < 14; ++i) half_step(pair, i);
  ASSERT_EQ(pair.receiver->state({kPrefillPeer, lost}), ReceiveState::kReceiving);
  for (const Lease& lease : pair.sending.at(lost)) EXPECT_TRUE(pair.prefill_pool->release(*pair.stream, lease).ok());
  pair.sending.clear();
  pair.start_prefill();
  const HandoffId id = pair.offer(pair.prefill(65), 65);
  pair.run_out();
  EXPECT_EQ(pair.aborted.at({kPrefillPeer, lost}).status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(pair.committed.contains({kPrefillPeer, id}));
  pair.expect_balance();
}

TEST(HandoffLives, RestartedDecodeEngineWantsAHelloFirst) {
  HandoffPair pair(small_steps());
  const HandoffId first = pair.offer(pair.prefill(65), 65);
  pair.run_out();
  ASSERT_EQ(pair.send_events.at(first).outcome, SendOutcome::kDone);
  for (auto& [key, leases] : std::exchange(pair.receiving, {})) {
    for (const Lease& lease : leases) EXPECT_TRUE(pair.decode_pool->release(*pair.stream, lease).ok());
  }
  pair.start_decode();
  const HandoffId second = pair.offer(pair.prefill(65), 65);
  pair.run_out();
  EXPECT_EQ(pair.send_events.at(second).outcome, SendOutcome::kDone) << pair.send_events[second].status.to_string();
  pair.expect_balance();
}

TEST(HandoffLives, OtherLayoutOrModelIsRefusedAtTheHandshake) {
  std::vector<HandoffPairOptions> all(4);
  all[0].decode_layout = ops::gqa_kv_layout(ops::KvFormat::kF8E4M3, tests::kHandoffLayers, 32, 2, 16);
  all[1].decode_layout = ops::gqa_kv_layout(ops::KvFormat::kF8E4M3, tests::kHandoffLayers + 1, 64, 2, 16);
  all[2].decode_layout = tests::handoff_layout(ops::KvFormat::kF32);
  all[3].receiver.model_digest = "another model";
  for (const HandoffPairOptions& options : all) {
    HandoffPair pair(options);
    const HandoffId id = pair.offer(pair.prefill(65), 65);
    pair.run_out();
    EXPECT_EQ(pair.send_events.at(id).status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(pair.offers.empty());
    pair.expect_balance();
    HandoffRequest request;
    request.id = 1000;
    request.peer = kDecodePeer;
    const std::vector<Lease> leases = pair.prefill(10);
    request.leases = leases;
    request.kv_len = 10;
    EXPECT_EQ(pair.sender->offer(request).code(), StatusCode::kInvalidArgument);
  }
}

TEST(HandoffLives, LimitsAreKept) {
  HandoffPairOptions options;
  options.sender.handoffs_max = 2;
  options.receiver.kv_len_max = 128;
  HandoffPair pair(options);
  const HandoffId long_one = pair.offer(pair.prefill(129), 129);
  const HandoffId short_one = pair.offer(pair.prefill(128), 128);
  HandoffRequest request;
  request.id = 1000;
  request.peer = kDecodePeer;
  const std::vector<Lease> leases = pair.prefill(10);
  request.leases = leases;
  request.kv_len = 10;
  EXPECT_EQ(pair.sender->offer(request).code(), StatusCode::kResourceExhausted);
  request.blob.resize((1 << 20) - 75);
  pair.run_out();
  EXPECT_EQ(pair.send_events.at(long_one).status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(pair.send_events.at(short_one).outcome, SendOutcome::kDone);
  EXPECT_EQ(pair.sender->offer(request).code(), StatusCode::kOutOfRange);
  request.blob.resize((1 << 20) - 76);  // Just fits the largest message.
  EXPECT_TRUE(pair.sender->offer(request).ok());
  pair.sending[1000] = leases;
  pair.run_out();
  EXPECT_EQ(pair.send_events.at(1000).outcome, SendOutcome::kDone);
  pair.expect_balance();
}

TEST(HandoffLives, EveryFailedPageAllocationLeavesNothingBehind) {
  for (std::int64_t n = 1; n <= 4; ++n) {
    HandoffPair pair;
    fault_injection::Access::fail_nth_allocation(*pair.decode_pool, n);
    const HandoffId id = pair.offer(pair.prefill(200), 200);
    pair.run_out();
    EXPECT_EQ(pair.send_events.at(id).status.code(), StatusCode::kResourceExhausted) << n;
    EXPECT_TRUE(pair.committed.empty());
    pair.expect_balance();
    // And the next one goes through.
    const HandoffId next = pair.offer(pair.prefill(200), 200);
    pair.run_out();
    EXPECT_EQ(pair.send_events.at(next).outcome, SendOutcome::kDone);
    pair.expect_balance();
  }
}

TEST(HandoffLives, EveryFailedDeviceAllocationIsReported) {
  HandoffPair pair;
  const HandoffPairOptions options;
  auto endpoint = pair.transport->make_endpoint(77);
  tests::FailingBackend failing(*pair.backend);
  for (std::int64_t n = 1; n <= 4; ++n) {
    failing.fail_nth_allocation(n);
    const auto sender =
        Sender::create(failing, *pair.stream, *pair.prefill_pool, *endpoint, pair.clock, options.sender);
    EXPECT_EQ(sender.error().code(), StatusCode::kResourceExhausted);
    failing.fail_nth_allocation(n);
    const auto receiver =
        Receiver::create(failing, *pair.stream, *pair.decode_pool, *endpoint, pair.clock, options.receiver);
    EXPECT_EQ(receiver.error().code(), StatusCode::kResourceExhausted);
  }
  failing.fail_nth_allocation(5);  // There is no fifth.
  EXPECT_TRUE(
      Sender::create(failing, *pair.stream, *pair.prefill_pool, *endpoint, pair.clock, options.sender).has_value());
}

TEST(HandoffLives, DamagedTagOnPrefillEndsOnlyThatHandoff) {
  HandoffPair pair(small_steps());
  const std::vector<Lease> leases = pair.prefill(200);
  const HandoffId id = pair.offer(leases, 200);
  for (int i = 0; i < 12; ++i) half_step(pair, i);
  ASSERT_EQ(pair.sender->state(id), SendState::kSending);
  fault_injection::Access::tags(*pair.prefill_pool)[leases[2].page] ^= 8;
  const HandoffId neighbour = pair.offer(pair.prefill(65), 65);
  pair.run_out();
  const SendEvent& event = pair.send_events.at(id);
  EXPECT_EQ(event.status.code(), StatusCode::kCorruption);
  ASSERT_TRUE(event.verdict.has_value());
  EXPECT_EQ(event.verdict->page_id, leases[2].page);
  EXPECT_EQ(event.verdict->failed_checks, ops::kCheckTag);
  EXPECT_FALSE(pair.committed.contains({kPrefillPeer, id}));
  EXPECT_TRUE(pair.committed.contains({kPrefillPeer, neighbour}));
  pair.expect_balance();
}

TEST(HandoffLives, DamagedTagOnDecodeEndsOnlyThatHandoff) {
  HandoffPair pair(small_steps());
  const HandoffId id = pair.offer(pair.prefill(200), 200);
  for (int i = 0; i < 12; ++i) half_step(pair, i);
  const HandoffKey key{kPrefillPeer, id};
  ASSERT_EQ(pair.receiver->state(key), ReceiveState::kReceiving);
  const kv_cache::PageId page = pair.receiving.at(key)[3].page;
  fault_injection::Access::tags(*pair.decode_pool)[page] ^= 8;
  const HandoffId neighbour = pair.offer(pair.prefill(65), 65);
  pair.run_out();
  const HandoffAborted& event = pair.aborted.at(key);
  EXPECT_EQ(event.status.code(), StatusCode::kCorruption);
  ASSERT_TRUE(event.verdict.has_value());
  EXPECT_EQ(event.verdict->page_id, page);
  EXPECT_EQ(event.quarantine.front().lease.page, page);
  EXPECT_EQ(event.quarantine.front().cause, kv_cache::QuarantineCause::kFailedCheck);
  EXPECT_TRUE(pair.committed.contains({kPrefillPeer, neighbour}));
  pair.expect_balance(1);
}

TEST(HandoffLives, SharedPageIsNotWritten) {
  HandoffPair pair;
  pair.on_offer = OnOffer::kWait;
  const HandoffId id = pair.offer(pair.prefill(65), 65);
  pair.steps(5);
  const HandoffKey key{kPrefillPeer, id};
  std::vector<Lease> leases;
  for (std::int32_t j = 0; j < 2; ++j) {
    leases.push_back(*pair.decode_pool->allocate(*pair.stream, kv_cache::owner_of_sequence(9), j));
    pair.poison(leases.back().page);
    pair.decode_pool->begin_receive(leases.back());
  }
  // As if somebody else had it too.
  fault_injection::Access::lease_counts(*pair.decode_pool)[leases[0].page] = 2;
  pair.receiving[key] = leases;
  ASSERT_TRUE(pair.receiver->accept(key, leases, 0).ok());
  pair.run_out();
  ASSERT_TRUE(pair.aborted.contains(key));
  EXPECT_EQ(pair.aborted.at(key).verdict->failed_checks & ops::kCheckShared, ops::kCheckShared);
  EXPECT_EQ(*pair.decode_pool->cache().page_data(0, 0, leases[0].page), std::byte{0x7f});
  pair.expect_balance(1);
}

TEST(HandoffLives, NothingIsSentOfALayerThatIsNotReady) {
  HandoffPair pair;
  const HandoffId id = pair.offer(pair.prefill(200), 200, LayerReadiness::kAsComputed);
  const HandoffKey key{kPrefillPeer, id};
  int layers_seen = 0;
  pair.transport->set_filter([&](PeerId from, PeerId to, std::vector<std::byte> message) {
    const auto parsed = wire::parse(message);
    if (const auto* data = std::get_if<wire::PageData>(&parsed->body))
      layers_seen = std::max(layers_seen, data->layer + 1);
    pair.transport->deliver(from, to, std::move(message));
  });
  for (int layer = 0; layer < tests::kHandoffLayers; ++layer) {
    pair.steps(10);
    EXPECT_EQ(layers_seen, layer);
    EXPECT_TRUE(pair.committed.empty());
    pair.sender->layer_ready(id, layer);
  }
  pair.steps(10);
  EXPECT_TRUE(pair.committed.contains(key));
  pair.transport->set_filter({});
  pair.run_out();
  pair.expect_balance();
}

TEST(HandoffLives, ManyAtOnceThroughATransportWithRoomForOneMessage) {
  HandoffPairOptions options;
  options.bytes_in_flight_max = 9000;  // A page of a layer has 4608 bytes: one page a message, in spite of chunk_pages.
  options.prefill_pages = options.decode_pages = 64;
  HandoffPair pair(options);
  std::vector<HandoffId> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(pair.offer(pair.prefill(40 + 20 * i), 40 + 20 * i));
  pair.run_out(190);
  for (const HandoffId id : ids) EXPECT_EQ(pair.send_events.at(id).outcome, SendOutcome::kDone) << id;
  pair.expect_balance();
}

TEST(HandoffLives, SeveralEnginesOnEitherSide) {
  HandoffPairOptions options;
  options.transport = std::make_shared<LoopbackTransport>(LoopbackOptions{});
  HandoffPair a(options);
  options.prefill_peer = 11;
  options.decode_peer = 12;
  HandoffPair b(options);
  // Each prefill engine hands over to both decode engines, under the same ids.
  a.offer(a.prefill(65), 65, LayerReadiness::kAll, kDecodePeer);
  a.offer(a.prefill(130), 130, LayerReadiness::kAll, 12);
  b.offer(b.prefill(66), 66, LayerReadiness::kAll, kDecodePeer);
  b.offer(b.prefill(131), 131, LayerReadiness::kAll, 12);
  for (int i = 0; i < 50; ++i) {
    a.step();
    b.step();
  }
  EXPECT_TRUE(a.committed.contains({kPrefillPeer, 1}));
  EXPECT_TRUE(a.committed.contains({11, 1}));
  EXPECT_TRUE(b.committed.contains({kPrefillPeer, 2}));
  EXPECT_TRUE(b.committed.contains({11, 2}));
  EXPECT_EQ(b.offers.at({11, 2}).kv_len, 131);
  a.expect_balance();
  b.expect_balance();
}

TEST(HandoffLives, TellsWhenItMustBeTickedNext) {
  HandoffPair pair;
  EXPECT_FALSE(pair.sender->next_deadline().has_value());
  EXPECT_FALSE(pair.receiver->next_deadline().has_value());
  pair.on_offer = OnOffer::kWait;
  pair.offer(pair.prefill(65), 65);
  pair.steps(5);
  EXPECT_EQ(pair.sender->next_deadline(), base::Nanoseconds(250'000'000));  // The receiver is asked whether it lives.
  EXPECT_EQ(pair.receiver->next_deadline(), base::Nanoseconds(1'000'000'000));
}

}  // namespace
}  // namespace tessera::kv_transfer
