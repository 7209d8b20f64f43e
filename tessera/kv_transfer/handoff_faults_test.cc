// Handoffs whose messages are lost, doubled, reordered or damaged on the way. Whatever happens: never a commit of
// anything but the right bytes, one terminal event on each side, and all pages accounted for in both pools.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/handoff_pair.h"

namespace tessera::kv_transfer {
namespace {

using base::StatusCode;
using tests::HandoffPair;
using tests::HandoffPairOptions;
using tests::kDecodePeer;
using tests::kHandoffLayers;
using tests::kPrefillPeer;
using tests::Lease;
using wire::MessageType;

using Bytes = std::vector<std::byte>;

MessageType type_of(const Bytes& message) { return wire::parse(message)->header.type; }

// What a filter does with one message: delivers it as it likes.
using Fault = std::function<void(PeerId from, PeerId to, Bytes message)>;

enum class Stored : std::uint8_t { kKeysAndValues, kLatents };  // Latents with index keys in some layers.

class HandoffFaults : public ::testing::TestWithParam<Stored> {
 protected:
  // In small steps, and with a receiver that gives up before the sender does.
  static HandoffPairOptions options() {
    HandoffPairOptions options;
    if (GetParam() == Stored::kLatents) {
      options.prefill_layout = tests::handoff_latent_layout(ops::KvFormat::kBF16);
      options.decode_layout = tests::handoff_latent_layout(ops::KvFormat::kF8E4M3);
    }
    options.sender.chunks_per_tick = 1;
    options.receiver.messages_per_tick = 1;
    options.receiver.timeout = options.sender.timeout / 2;
    return options;
  }

  static constexpr std::int32_t kTokens = 200;  // 4 pages: 2 chunks a layer, 6 in all.

  void begin() {
    leases_ = pair_.prefill(kTokens);
    id_ = pair_.offer(leases_, kTokens);
    key_ = {kPrefillPeer, id_};
  }
  // Applies the fault to message number `nth` (from 0) of a type.
  void on_message(MessageType type, int nth, Fault fault) {
    pair_.transport->set_filter([this, type, nth, fault](PeerId from, PeerId to, Bytes message) {
      if (type_of(message) == type && seen_++ == nth) {
        reached_ = true;
        fault(from, to, std::move(message));
      } else {
        pair_.transport->deliver(from, to, std::move(message));
      }
    });
  }
  void expect_success() {
    ASSERT_TRUE(reached_);
    EXPECT_TRUE(pair_.committed.contains(key_));
    ASSERT_TRUE(pair_.send_events.contains(id_));
    EXPECT_EQ(pair_.send_events.at(id_).outcome, SendOutcome::kDone);
    pair_.expect_balance();
  }
  void expect_abort(StatusCode code, std::int64_t quarantined = 0) {
    ASSERT_TRUE(reached_);
    EXPECT_FALSE(pair_.committed.contains(key_));
    ASSERT_TRUE(pair_.send_events.contains(id_));
    EXPECT_EQ(pair_.send_events.at(id_).outcome, SendOutcome::kAborted);
    ASSERT_TRUE(pair_.aborted.contains(key_));
    EXPECT_EQ(pair_.aborted.at(key_).status.code(), code) << pair_.aborted.at(key_).status.to_string();
    pair_.expect_balance(quarantined);
  }

  HandoffPair pair_{options()};
  std::vector<Lease> leases_;
  HandoffId id_ = 0;
  HandoffKey key_;
  bool reached_ = false;
  int seen_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Layouts, HandoffFaults, ::testing::Values(Stored::kKeysAndValues, Stored::kLatents),
                         [](const auto& param_info) {
                           return param_info.param == Stored::kLatents ? "Latents" : "KeysAndValues";
                         });

TEST_P(HandoffFaults, LostControlMessagesAreSentAgain) {
  for (const MessageType type :
       {MessageType::kHello, MessageType::kOffer, MessageType::kAccept, MessageType::kCommit, MessageType::kDone}) {
    reached_ = false;
    seen_ = 0;
    on_message(type, 0, [](PeerId, PeerId, const Bytes&) {});
    if (type == MessageType::kHello) {
      pair_.start_prefill();  // Only a new sender says hello.
    }
    begin();
    pair_.run_out();
    SCOPED_TRACE(static_cast<int>(type));
    expect_success();
    pair_.transport->set_filter({});
  }
}

TEST_P(HandoffFaults, NoCommitWithoutEveryChunk) {
  for (int nth = 0; nth < 6; ++nth) {
    reached_ = false;
    seen_ = 0;
    on_message(MessageType::kPageData, nth, [](PeerId, PeerId, const Bytes&) {});
    begin();
    pair_.run_out();
    SCOPED_TRACE(nth);
    expect_abort(StatusCode::kDataLoss);
    // Its pages waited in quarantine until the sender had confirmed.
    EXPECT_EQ(pair_.aborted.at(key_).quarantine.size(), 4u);
    EXPECT_EQ(pair_.fenced.at(key_).pages.size(), 4u);
  }
}

TEST_P(HandoffFaults, DuplicatesDoNothing) {
  pair_.transport->set_filter([this](PeerId from, PeerId to, const Bytes& message) {
    reached_ = reached_ || type_of(message) == MessageType::kPageData;
    pair_.transport->deliver(from, to, message);
    pair_.transport->deliver(from, to, message);
  });
  begin();
  pair_.run_out();
  expect_success();
}

TEST_P(HandoffFaults, DataAndCommitMayComeInAnyOrder) {
  std::vector<Bytes> held;
  pair_.transport->set_filter([&](PeerId from, PeerId to, Bytes message) {
    if (type_of(message) == MessageType::kPageData) {
      held.push_back(std::move(message));
      return;
    }
    const bool last = type_of(message) == MessageType::kCommit && !held.empty();
    pair_.transport->deliver(from, to, std::move(message));
    if (!last) return;
    // Completion is signalled before the data.
    reached_ = true;
    for (auto it = held.rbegin(); it != held.rend(); ++it) pair_.transport->deliver(from, to, *it);
    held.clear();
  });
  begin();
  pair_.run_out();
  expect_success();
}

TEST_P(HandoffFaults, SameChunkWithAnotherDigestAborts) {
  on_message(MessageType::kPageData, 2, [this](PeerId from, PeerId to, Bytes message) {
    pair_.transport->deliver(from, to, message);
    wire::set_page_data_digest(message, 0, 1);
    wire::seal(message);
    pair_.transport->deliver(from, to, std::move(message));
  });
  begin();
  pair_.run_out();
  expect_abort(StatusCode::kInternal);
}

TEST_P(HandoffFaults, TruncatedDataAborts) {
  for (const std::int64_t keep : {wire::kHeaderBytes, std::int64_t{100}, std::int64_t{1000}}) {
    reached_ = false;
    seen_ = 0;
    on_message(MessageType::kPageData, 3, [this, keep](PeerId from, PeerId to, Bytes message) {
      message.resize(static_cast<std::size_t>(keep));
      pair_.transport->deliver(from, to, std::move(message));
    });
    begin();
    pair_.run_out();
    expect_abort(StatusCode::kDataLoss);
    EXPECT_GE(pair_.receiver->malformed_messages(), 1);
  }
}

TEST_P(HandoffFaults, FlippedByteInPayloadDigestOrHeaderNeverCommits) {
  struct Flip {
    std::size_t offset;
    StatusCode expected;
  };
  // Of a PageData: layer, first page, page bytes, digest and payload lie in the body, which has a checksum; a header
  // that was damaged names no handoff, so that only the missing chunk is noticed, when time is up after the Commit.
  for (const Flip& flip : std::vector<Flip>{{48, StatusCode::kDataLoss},
                                            {52, StatusCode::kDataLoss},
                                            {64, StatusCode::kDataLoss},
                                            {72, StatusCode::kDataLoss},
                                            {1000, StatusCode::kDataLoss},
                                            {0, StatusCode::kDataLoss},
                                            {4, StatusCode::kDataLoss},
                                            {6, StatusCode::kDataLoss},
                                            {8, StatusCode::kDataLoss},
                                            {16, StatusCode::kDataLoss},
                                            {40, StatusCode::kDataLoss}}) {
    reached_ = false;
    seen_ = 0;
    on_message(MessageType::kPageData, 1, [this, &flip](PeerId from, PeerId to, Bytes message) {
      message[flip.offset] ^= std::byte{0x20};
      pair_.transport->deliver(from, to, std::move(message));
    });
    begin();
    pair_.run_out();
    SCOPED_TRACE(flip.offset);
    expect_abort(flip.expected);
  }
}

// Damage that the way's checksum cannot see, because it happened before or after: the digest of what was stored does.
TEST_P(HandoffFaults, DigestFindsWhatTheChecksumCannot) {
  std::int64_t quarantined = 0;
  for (const bool payload : {true, false}) {
    reached_ = false;
    seen_ = 0;
    on_message(MessageType::kPageData, 1, [this, payload](PeerId from, PeerId to, Bytes message) {
      if (payload) {
        wire::page_data_images(message)[5] ^= std::byte{1};
      } else {
        wire::set_page_data_digest(message, 0, 12345);
      }
      wire::seal(message);
      pair_.transport->deliver(from, to, std::move(message));
    });
    begin();
    pair_.run_out();
    // The page stays in quarantine; the others come back.
    expect_abort(StatusCode::kCorruption, ++quarantined);
    const auto& listed = pair_.aborted.at(key_).quarantine;
    EXPECT_EQ(std::ranges::count(listed, kv_cache::QuarantineCause::kFailedCheck, &PageToQuarantine::cause), 1);
    EXPECT_EQ(listed.size(), 4u);
  }
}

// A flipped bit in the data or in the scales of any part, in a layer that has them all.
TEST_P(HandoffFaults, DigestFindsAFlippedBitInEveryPart) {
  const ops::KvLayout& layout = pair_.decode_pool->layout();
  std::vector<std::int64_t> offsets;
  for (int part = 0; part < layout.layer_parts(1); ++part) {
    // Token 3's row, its last byte.
    offsets.push_back(layout.image_data_offset(part) + 4 * layout.row_bytes(part) - 1);
    offsets.push_back(layout.image_scale_offset(part) + 4 * layout.row_scale_bytes(part) - 1);
  }
  ASSERT_EQ(offsets.size(), 4u);
  std::int64_t quarantined = 0;
  for (const std::int64_t offset : offsets) {
    SCOPED_TRACE(offset);
    reached_ = false;
    seen_ = 0;
    on_message(MessageType::kPageData, 2, [this, offset](PeerId from, PeerId to, Bytes message) {
      ASSERT_EQ(std::get<wire::PageData>(wire::parse(message)->body).layer, 1);
      wire::page_data_images(message)[static_cast<std::size_t>(offset)] ^= std::byte{1};
      wire::seal(message);
      pair_.transport->deliver(from, to, std::move(message));
    });
    begin();
    pair_.run_out();
    expect_abort(StatusCode::kCorruption, ++quarantined);
  }
}

// Two chunks change places: each digest fits its bytes, and only the digest over all places knows.
TEST_P(HandoffFaults, ChunksInEachOthersPlaceDoNotCommit) {
  Bytes first;
  pair_.transport->set_filter([&](PeerId from, PeerId to, Bytes message) {
    if (type_of(message) != MessageType::kPageData || seen_ == 2) {
      pair_.transport->deliver(from, to, std::move(message));
      return;
    }
    if (seen_++ == 0) {
      first = std::move(message);
      return;
    }
    reached_ = true;
    const auto data = std::get<wire::PageData>(wire::parse(first)->body);
    const auto other = std::get<wire::PageData>(wire::parse(message)->body);
    ASSERT_EQ(data.layer, other.layer);
    ASSERT_NE(data.first_page, other.first_page);
    ASSERT_EQ(data.num_pages, other.num_pages);
    const std::int32_t a = data.first_page;
    const std::int32_t b = other.first_page;
    std::memcpy(first.data() + wire::kHeaderBytes + 4, &b, 4);
    std::memcpy(message.data() + wire::kHeaderBytes + 4, &a, 4);
    wire::seal(first);
    wire::seal(message);
    pair_.transport->deliver(from, to, std::move(first));
    pair_.transport->deliver(from, to, std::move(message));
  });
  // 256 tokens: all pages are full, so that nothing but the place differs.
  leases_ = pair_.prefill(256);
  id_ = pair_.offer(leases_, 256);
  key_ = {kPrefillPeer, id_};
  pair_.run_out();
  expect_abort(StatusCode::kCorruption);
}

TEST_P(HandoffFaults, MessagesThatMakeNoSenseAbortOrDoNothing) {
  const std::vector<wire::Body> bodies = {
      wire::Accept{0}, wire::Accept{99}, wire::Reject{base::internal_error("no")}, wire::Commit{1},
      wire::Done{},    wire::AbortAck{}, wire::Abort{base::internal_error("no")}};
  for (const bool to_receiver : {true, false}) {
    for (const wire::Body& body : bodies) {
      reached_ = false;
      seen_ = 0;
      on_message(MessageType::kPageData, 2, [this, &body, to_receiver](PeerId from, PeerId to, Bytes message) {
        const SessionId session = wire::parse(message)->header.session;
        pair_.transport->deliver(from, to, std::move(message));
        pair_.transport->deliver(to_receiver ? from : to, to_receiver ? to : from, wire::encode(session, id_, body));
        // Of another session, or another handoff: nobody's.
        pair_.transport->deliver(from, to, wire::encode(session, 999, body));
        pair_.transport->deliver(to, from, wire::encode(session + 1, id_, body));
      });
      begin();
      pair_.run_out();
      ASSERT_TRUE(reached_);
      SCOPED_TRACE(body.index());
      ASSERT_TRUE(pair_.send_events.contains(id_));
      EXPECT_NE(pair_.committed.contains(key_), pair_.aborted.contains(key_));
      pair_.transport->set_filter({});
      pair_.expect_balance();
    }
  }
}

// A write that comes after the abort, and after its page has gone to somebody else.
TEST_P(HandoffFaults, LateDataTouchesNothing) {
  Bytes late;
  on_message(MessageType::kPageData, 5, [&](PeerId, PeerId, Bytes message) { late = std::move(message); });
  begin();
  pair_.run_out();
  expect_abort(StatusCode::kDataLoss);
  ASSERT_FALSE(late.empty());
  std::vector<Lease> others;
  for (std::int32_t j = 0; j < 16; ++j) {
    others.push_back(*pair_.decode_pool->allocate(*pair_.stream, kv_cache::owner_of_sequence(5), j));
    pair_.poison(others.back().page);
  }
  const ops::KvCacheView& cache = pair_.decode_pool->cache();
  const auto bytes = static_cast<std::size_t>(cache.layout.pool_bytes(cache.num_pages));
  const Bytes before(cache.base, cache.base + bytes);
  pair_.transport->deliver(kPrefillPeer, kDecodePeer, late);
  pair_.run_out();
  EXPECT_EQ(std::memcmp(before.data(), cache.base, bytes), 0);
  for (const Lease& lease : others) EXPECT_TRUE(pair_.decode_pool->release(*pair_.stream, lease).ok());
  pair_.expect_balance();
}

TEST_P(HandoffFaults, PagesStayInQuarantineUntilThePeerConfirms) {
  bool confirm = false;
  pair_.transport->set_filter([&](PeerId from, PeerId to, Bytes message) {
    if (type_of(message) == MessageType::kAbortAck && !confirm) {
      reached_ = true;
      return;
    }
    pair_.transport->deliver(from, to, std::move(message));
  });
  begin();
  for (int i = 0; i < 100 && pair_.receiver->state({kPrefillPeer, id_}) != ReceiveState::kReceiving; ++i) {
    pair_.step_sender();
    pair_.step_receiver();
    if (pair_.committed.contains(key_)) break;
  }
  ASSERT_TRUE(pair_.receiver->state(key_).has_value()) << "already over";
  pair_.receiver->abort(key_, base::Status(StatusCode::kCancelled, "the client left"));
  pair_.run_out();
  ASSERT_TRUE(reached_);
  EXPECT_EQ(pair_.decode_pool->counts().quarantined, 4);
  EXPECT_TRUE(pair_.fenced.empty());
  confirm = true;
  pair_.run_out();
  expect_abort(StatusCode::kCancelled);
  EXPECT_EQ(pair_.fenced.size(), 1u);
}

}  // namespace
}  // namespace tessera::kv_transfer
